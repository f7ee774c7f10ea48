"""Draw the loss curves of pre-trainings from their records.

python benchmarks/curves.py --out results/pictures/curves.png
"""

from __future__ import annotations

import sys
from pathlib import Path

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.command import Parser, run
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS


def main() -> None:
    """Run what the command line says.

    Raises:
        UserError: there is no record of a pre-training.
    """
    parser = Parser(description=__doc__)
    parser.add_argument("--results", type=Path, nargs="+", default=[RESULTS], metavar="DIR", help="hold runs/")
    parser.add_argument("--out", type=Path, default=RESULTS / "pictures" / "curves.png", help="the PNG to write")
    options = parser.parse_args()
    from tespec.comparison.records import read_records
    from tespec.pictures.curves import draw_curves

    found = [record for folder in options.results for record in read_records(folder / "runs")[0]]
    chosen = [record for record in found if record["kind"] == "pretraining" and "last_stage_std" in record["metrics"]]
    if not chosen:
        where = ", ".join(str(folder) for folder in options.results)
        raise UserError(where, "holds no record of a pre-training", "run benchmarks/pretrain.py first")
    draw_curves(sorted(chosen, key=lambda record: (record["arch"], record["name"])), options.out)
    print(options.out)


if __name__ == "__main__":
    sys.exit(run(main))

"""Pre-train a backbone without labels.

python benchmarks/pretrain.py --method tespec --data recording.raw --profile sample
python benchmarks/pretrain.py --method tespec --data /data/1mpx
python benchmarks/pretrain.py --method tespec              # on the sample world
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.cli import Parser, run
from tespec.errors import UserError


def parse() -> argparse.Namespace:
    """Read the command line."""
    from benchmarks.common import add_run_options

    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_argument_group("what")
    what.add_argument("--method", required=True, help="a method with a recipe in configs/pretraining")
    what.add_argument(
        "--data", type=Path, metavar="PATH", help="recording, or folder of recordings (.raw, .dat, store)"
    )
    add_run_options(parser)
    return parser.parse_args()


def main() -> None:
    """Run what the command line says."""
    options = parse()
    from benchmarks.common import setup_of
    from tespec.config import pretraining_settings
    from tespec.plugins import find_method, register_methods
    from tespec.training.data import find_recordings
    from tespec.training.pretrain import pretrain
    from tespec.training.runs import say

    register_methods(options.plugins)
    method = find_method(options.method)
    if method.recipe is None:
        raise UserError(f"--method {options.method}", "has no pre-training", "choose a method with a recipe")
    data = find_recordings(pretraining_settings(method.recipe, "paper").dataset, options.data)
    if data.notice:
        say(data.notice)
    settings = pretraining_settings(method.recipe, options.profile or data.profile, options.set)
    result = pretrain(options.method, method, settings, data, options.seed, setup_of(options, "pretrain.py"))
    print("held out: " + ", ".join(f"{name} {value:.4f}" for name, value in result.metrics.items()))
    print(f"weights: {result.weights}\npicture: {result.picture}")


if __name__ == "__main__":
    sys.exit(run(main))

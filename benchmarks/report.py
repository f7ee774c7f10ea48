"""Write one HTML file with all results: tables, curves, bars, pictures, run times, and every run's command and hash.

python benchmarks/report.py
python benchmarks/report.py --data sample --baseline scratch --out report.html
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

if not __package__:
    import installed  # noqa: F401  # before the harness

from benchmarks.tables import choose, left_out
from tespec.cli.command import Parser, run
from tespec.comparison.published import edited
from tespec.comparison.records import read_records
from tespec.core.errors import UserError
from tespec.core.files import write_whole
from tespec.core.paths import RESULTS
from tespec.report.build import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; 1 if something was left out of it.

    Raises:
        UserError: no record fits what was asked for.
    """
    parser = Parser(description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="folder of runs/ and pictures/")
    parser.add_argument("--data", metavar="NAME", help="runs on this data alone, e.g. sample or ddd17")
    parser.add_argument("--profile", metavar="NAME", help="runs under this profile alone, e.g. paper or sample")
    parser.add_argument("--baseline", metavar="METHOD", help="also what each method gains over this one")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file (default: report.html in --results)")
    options = parser.parse_args(arguments)
    if not options.results.is_dir():
        raise UserError(f"--results {options.results}", "no such folder", "name one that holds runs/")
    folder = options.results / "runs"
    records, problems = read_records(folder)
    notes = [left_out(problems)] if problems else []
    notes += [f"Edited: results/paper/{name} is not the file that was shipped." for name in edited()]
    for note in notes:
        sys.stderr.write(f"{note}\n")
    wanted = {"data": options.data, "profile": options.profile}
    choose(records, wanted, folder)
    chosen = [
        record for record in records if all(value in (None, dict(record)[name]) for name, value in wanted.items())
    ]
    if not chosen:
        sys.stderr.write(f"no run in {folder}: the paper's numbers alone\n")
    text = report(chosen, options.results / "pictures", notes, options.baseline)
    path = write_whole(options.out or options.results / "report.html", text)
    print(f"Written: {path} ({len(chosen)} runs, {len(text.encode()) / 1e6:.1f} MB)")
    return 1 if notes else 0


if __name__ == "__main__":
    sys.exit(run(main))

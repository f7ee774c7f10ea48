"""Write one HTML file with all results: tables, curves, bars, pictures, run times, and every run's command and hash.

python benchmarks/report.py
python benchmarks/report.py --data sample --baseline scratch --out report.html
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tespec.cli.command import Parser
from tespec.cli.options import add_own, bring_in
from tespec.cli.tables import found_in, narrowed
from tespec.comparison.archive import holds_records
from tespec.core.errors import UserError
from tespec.core.files import write_whole
from tespec.core.paths import RESULTS
from tespec.report.build import report


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; 1 if something was left out of it.

    Raises:
        UserError: no record fits what was asked for.
    """
    parser = Parser(verb="report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="folder of runs/ and pictures/")
    parser.add_argument("--data", metavar="NAME", help="runs on this data alone, e.g. sample or ddd17")
    parser.add_argument("--profile", metavar="NAME", help="runs under this profile alone, e.g. paper or sample")
    parser.add_argument("--baseline", metavar="METHOD", help="also what each method gains over this one")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file (default: report.html in --results)")
    add_own(parser)
    options = parser.parse_args(arguments)
    bring_in(options, only_given=True)
    if not holds_records(options.results):
        raise UserError(f"--results {options.results}", "no such folder", "name one that holds runs/")
    folder = options.results / "runs"
    records, notes = found_in(folder)
    chosen = narrowed(records, {"data": options.data, "profile": options.profile}, folder)
    if not chosen:
        sys.stderr.write(f"no run in {folder}: the paper's numbers alone\n")
    text = report(chosen, options.results / "pictures", notes, options.baseline)
    path = write_whole(options.out or options.results / "report.html", text)
    print(f"Written: {path} ({len(chosen)} runs, {len(text.encode()) / 1e6:.1f} MB)")
    return 1 if notes else 0

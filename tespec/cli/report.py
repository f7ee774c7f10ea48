"""Write all results as one HTML page: what was run, tables, figures of scores and losses, pictures.

python benchmarks/report.py
python benchmarks/report.py --results results/sample --out report.html
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tespec.cli.command import Parser
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS
from tespec.core.progress import say


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the report; 1 if files of the folder were left out of it.

    Raises:
        UserError: the folder holds no records, or `--out` is a folder.
    """
    parser = Parser(verb="report", description=__doc__)
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="folder of runs/ and pictures/")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file (default: report.html in --results)")
    options = parser.parse_args(arguments)
    out = options.out or options.results / "report.html"
    if out.is_dir():
        raise UserError(f"--out {out}", "is a folder", "name a file")

    from tespec.report.page import write_report  # imports pandas and matplotlib, which take a second

    count, problems = write_report(options.results, out)
    for problem in problems:
        say(f"left out: {problem}")
    print(f"Written: {out} ({count} records, {out.stat().st_size / 1e6:.2f} MB)")
    return 1 if problems else 0

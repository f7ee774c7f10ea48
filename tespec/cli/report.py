"""Write all results as one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tespec.cli.main import new_app
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS
from tespec.core.progress import say

app = new_app("report")


@app.default
def report(
    *,
    results: Annotated[Path, Parameter(help="folder of runs/ and pictures/", show_default=False)] = RESULTS,
    out: Annotated[Path | None, Parameter(help="the file (default: report.html in --results)")] = None,
) -> int:
    """Write all results as one HTML page: what was run, tables, figures of scores and losses, pictures.

    Returns:
        The exit code: 1 if files of the folder were left out.

    Raises:
        UserError: the folder holds no records, or `--out` is a folder.
    """
    out = out or results / "report.html"
    if out.is_dir():
        raise UserError(f"--out {out}", "is a folder", "name a file")

    from tespec.report.page import write_report  # imports pandas and matplotlib, which take a second

    count, problems = write_report(results, out)
    for problem in problems:
        say(f"left out: {problem}")
    print(f"Written: {out} ({count} records, {out.stat().st_size / 1e6:.2f} MB)")
    return 1 if problems else 0

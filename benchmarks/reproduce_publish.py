"""What a reproduction leaves: tables, claims, report, pictures, from its records alone."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.reproduction import Reproduction
from tespec.core.paths import REPOSITORY

DOCS = REPOSITORY / "docs"
BASELINE = "scratch"  # what gains are reckoned over
DOCUMENTED = "small"  # the size that docs/reproduction.md shows


def publish(reproduction: Reproduction, results: Path, *, documented: bool = False) -> int:
    """Print the tables of the comparison and the claims, and write them, the report and the picture.

    Args:
        reproduction: what was run.
        results: folder of its records.
        documented: also writes docs/reproduction.md, where it is the size and the folder that page shows.

    Returns:
        1 where something was left out, else 0.
    """
    from tespec.cli import report, tables
    from tespec.comparison.records import read_records
    from tespec.comparison.references import references_table
    from tespec.core.files import write_whole
    from tespec.report.charts import draw_reproduction
    from tespec.report.reproduction_text import put_in, results_text

    records, problems = read_records(results / "runs")
    chosen = [record for record in records if record["profile"] == reproduction.profile]
    if not chosen:
        sys.stderr.write(f"no record in {results / 'runs'} yet\n")
        return 0
    for problem in problems:
        sys.stderr.write(f"left out: {problem}\n")
    folder = results / "tables"
    narrowed = ["--data", "sample", "--profile", reproduction.profile, "--results", str(results)]
    code = 0
    evaluated = {record["method_name"] for record in chosen if record["kind"] == "evaluation"}
    if evaluated:
        gains = ["--baseline", BASELINE] if BASELINE in evaluated else []
        code |= tables.main([*narrowed, *gains])
        references = references_table(chosen)
        if references is not None:
            tables.publish([("references", tables.dated(references, chosen))], folder)
        code |= tables.main([*narrowed, "--claims"])
        code |= report.main([*narrowed, *gains])
        picture = results / "reproduction.png"
        draw_reproduction(chosen, picture)
        print(f"Written: {picture}")
        if documented and results.resolve() == reproduction.results.resolve() and reproduction.name == DOCUMENTED:
            shown, page = DOCS / "pictures" / "reproduction.png", DOCS / "reproduction.md"
            shown.write_bytes(picture.read_bytes())
            text = results_text(chosen, f"pictures/{shown.name}")
            write_whole(page, put_in(page.read_text(encoding="utf-8"), text))
            print(f"Written: {page}, {shown}")
    return code

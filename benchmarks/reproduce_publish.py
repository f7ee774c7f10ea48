"""What a reproduction leaves: tables, claims, report, pictures, from its records alone."""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.reproduction import Reproduction


def publish(reproduction: Reproduction, results: Path) -> int:
    """Print the tables of the comparison and the claims, and write them, the report and the picture.

    Returns:
        1 where something was left out, else 0.
    """
    from benchmarks import report, tables
    from benchmarks.tables import left_out
    from tespec.comparison.claims_table import claims_tables
    from tespec.comparison.records import read_records
    from tespec.comparison.references_table import references_table
    from tespec.report.reproduction import draw_reproduction

    records, problems = read_records(results / "runs")
    chosen = [record for record in records if record["profile"] == reproduction.profile]
    if not chosen:
        sys.stderr.write(f"no record in {results / 'runs'} yet\n")
        return 0
    for problem in problems:
        sys.stderr.write(f"left out: {left_out([problem])}\n")
    folder = results / "tables"
    narrowed = ["--data", "sample", "--profile", reproduction.profile, "--results", str(results)]
    code = 0
    if any(record["kind"] == "evaluation" for record in chosen):
        code |= tables.main(narrowed)
        short, long = claims_tables(chosen)
        tables.publish("claims_in_detail", long, folder)
        references = references_table(chosen)
        if references is not None:
            tables.publish("references", references, folder)
        tables.publish("claims", short, folder)
        code |= report.main(narrowed)
        picture = results / "reproduction.png"
        draw_reproduction(chosen, picture)
        print(f"Written: {picture}")
    return code

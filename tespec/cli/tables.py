"""Print and write the comparison tables; write all results as one HTML page."""

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from tespec.cli.main import FOLDER, examples, new_app, output, refuse
from tespec.core.errors import one_line, require
from tespec.core.paths import RESULTS
from tespec.core.progress import log

# prefixes of the notes that are printed
PRINTED_NOTES = ("Measured on different machines", "Not shown", "95 %", "Reproduced")
app = new_app(
    "tables",
    help_epilogue=examples(
        "tables --only segmentation --measured",
        "tables --rank full,frozen",
        "tables --check results",
    ),
)
report_app = new_app(
    "report", help_epilogue=examples("report", "report --results other --out other.html")
)


@app.default
def tables(
    *,
    only: Annotated[
        tuple[str, ...],
        Parameter(
            consume_multiple=True,
            help="tables, e.g. segmentation depth; cost: sizes and times (default: all)",
        ),
    ] = (),
    measured: Annotated[bool, Parameter(help="only measured rows and columns")] = False,
    gains: Annotated[str | None, Parameter(help="one table of gains over this method")] = None,
    rank: Annotated[
        str,
        Parameter(help="how far two evaluations rank the methods alike, e.g. full,frozen"),
    ] = "",
    frozen: Annotated[bool, Parameter(help="results with a frozen backbone")] = False,
    where: Annotated[
        tuple[str, ...], Parameter(help="filter by KEY=VALUE, e.g. data=sample; repeatable")
    ] = (),
    check: Annotated[
        Path | None,
        Parameter(help="check the records of this results folder instead: docs/submit.md"),
    ] = None,
    by: Annotated[str, Parameter(help="show one column per value, e.g. of label_fraction")] = "",
    results: Annotated[
        Path, Parameter(help="folder that contains runs/ (default: results)", show_default=False)
    ] = RESULTS,
    out: Annotated[
        Path | None,
        output(FOLDER),
        Parameter(help="folder for the files (default: tables/ in --results)"),
    ] = None,
) -> int:
    """Print and write the comparison tables: the paper's numbers next to the measured ones.

    Without filters, tables show the test split, all labels, default settings and the newest results
    version.

    Returns:
        Exit code: 1 if a damaged record was skipped, or --check found a problem.
    """
    if check:
        chosen = (only, measured, gains, rank, frozen, where, by, out)
        refuse(any(chosen) or results != RESULTS, "--check cannot be combined with other options")
        return print_check(check)
    refuse(
        bool((gains or rank) and (only or measured or by)) or bool(gains and rank),
        "--gains and --rank cannot be combined with each other, --only, --measured or --by",
    )
    refuse(gains == "", "--gains: name a method, such as scratch")
    first, comma, second = rank.partition(",")
    refuse(
        bool(rank) and (not comma or first == second),
        f"--rank {rank}: write two evaluations, such as full,frozen",
    )
    conditions = (*where, "frozen=True") if frozen else where
    refuse(not all("=" in text for text in conditions), "--where: write KEY=VALUE")
    filters = dict(text.split("=", 1) for text in conditions)
    refuse(len(filters) < len(conditions), "--where: a key is given twice")

    # Imported late: it takes half a second, and mistakes are reported first.
    from tespec.comparison.frame import results as read_results

    frame = read_results(results)
    problems = frame.attrs["left_out"]
    for problem in problems:
        log(f"skipped: {problem}")
    require(
        not (problems and frame.empty),
        results,
        "contains no readable record",
        "remove the damaged files or run again",
    )
    from tespec.comparison import cost
    from tespec.comparison.export import print_table, write_tables
    from tespec.comparison.gains import compare_evaluations, gains_table
    from tespec.comparison.tables import make_tables

    if rank:
        print(*map(one_line, compare_evaluations(frame, (first, second), filters)), sep="\n")
        return 1 if problems else 0
    scored = tuple(name for name in dict.fromkeys(only) if name != cost.NAME)
    made = []
    if gains:
        made = [gains_table(frame, gains, filters)]
    elif scored or not only:
        made = make_tables(frame, only=scored, measured=measured, where=filters, by=by)
    if cost.NAME in only:
        made.append(cost.cost_table(frame, filters, measured=measured))
    written = write_tables(made, out or results / "tables")
    unmeasured = []
    for table in made:
        complete = gains or only or (frame.empty and not table.name.startswith("ablation_"))
        shown = table if complete else table.measured()
        if shown.cells.empty:
            unmeasured.append(table.name)
        else:
            print_table(shown, all_columns=bool(only or gains))
    if unmeasured:
        print(f"No results for {', '.join(unmeasured)} (--only NAME shows the paper's numbers)")
    for note in dict.fromkeys(
        note for table in made for note in table.notes if note.startswith(PRINTED_NOTES)
    ):
        print(one_line(note))
    folder = written[0].parent
    print(f"Written: {len(written)} files in {folder}; their notes explain marks and brackets")
    ends = {path.suffix for path in written}
    earlier = [
        path.name for path in folder.iterdir() if path.suffix in ends and path not in written
    ]
    if earlier:
        print(f"Not of this command: {len(earlier)} files there, such as {min(earlier)}")
    return 1 if problems else 0


def print_check(results: Path) -> int:
    """Print the problems of a folder of records; returns the exit code: 1 if there are any."""
    from tespec.comparison.check import check_records

    count, problems = check_records(results)
    summary = f"{count} records, {f'{len(problems)} problems' if problems else 'no problem'}"
    print(*map(one_line, problems), summary, sep="\n")
    return 1 if problems else 0


@report_app.default
def report(
    *,
    results: Annotated[
        Path,
        Parameter(help="folder of runs/ and pictures/ (default: results)", show_default=False),
    ] = RESULTS,
    out: Annotated[
        Path | None,
        output(".html"),
        Parameter(help="HTML file (default: report.html in --results)"),
    ] = None,
) -> int:
    """Write all results as one HTML page: runs, tables, score figures and reconstructions.

    Returns:
        Exit code: 1 if a damaged record was skipped.
    """
    out = out or results / "report.html"
    from tespec.report import write_report  # imports pandas and matplotlib, which take a second

    count, problems = write_report(results, out)
    for problem in problems:
        log(f"skipped: {problem}")
    print(f"Written: {out} ({count} records, {out.stat().st_size / 1e6:.2f} MB)")
    return 1 if problems else 0

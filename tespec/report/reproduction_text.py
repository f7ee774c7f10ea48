"""What came out of a comparison, as Markdown for the documentation: nothing in it is written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from statistics import median

from tespec.comparison.claims_table import claims_tables
from tespec.comparison.published import TABLES, published_table
from tespec.comparison.records import Record
from tespec.comparison.references_table import references_table
from tespec.comparison.render_markdown import render_markdown
from tespec.comparison.table import Table

BEGIN, END = "<!-- results: written by reproduce.py --publish -->", "<!-- end of results -->"


def results_text(records: Sequence[Record], picture: str) -> str:
    """Figure, claims, references and the three tables.

    Args:
        records: of the comparison.
        picture: path of the figure, as the page links it.
    """
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    short, long = claims_tables(evaluations)
    parts = [ran(records), f"![Each method on each task]({picture})", render_markdown(short)]
    references = references_table(records)
    if references is not None:
        parts.append(render_markdown(references))
    parts += [render_markdown(table) for table in measured_tables(evaluations)]
    parts.append(f"<details><summary>Every comparison</summary>\n\n{render_markdown(long)}\n</details>")
    return "\n\n".join(part.strip() for part in parts) + "\n"


def short_text(records: Sequence[Record], picture: str, page: str) -> str:
    """Figure, verdicts and the three tables without what stands beside them on the whole page.

    Args:
        records: of the comparison.
        picture: path of the figure, as the text links it.
        page: path of the whole page, likewise.
    """
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    claims, _ = claims_tables(evaluations)
    tables = [_short(table) for table in measured_tables(evaluations)]
    seeds = ", ".join(map(str, sorted({record["seed"] for record in evaluations})))
    said = (
        f"Mean ± standard deviation over seeds {seeds}; bold: the best of a column. The floor looks at nothing, the "
        f"upper reference sees the true frame. Effects are in points. [Rules, intervals, every comparison]({page})"
    )
    shown = [render_markdown(replace(table, notes=())).strip() for table in (claims, *tables)]
    return "\n\n".join([f"![Each method on each task]({picture})", said, *shown]) + "\n"


def measured_tables(records: Sequence[Record]) -> list[Table]:
    """Those of the paper's tables of which something was measured, without the paper's numbers."""
    tables = [published_table(name, records, "measured") for name in TABLES]
    return [table for table in tables if table.groups]


def _short(table: Table) -> Table:
    """Labels and the paper's metrics over all frames, under the task's name alone."""
    kept = [
        index
        for index, column in enumerate(table.columns)
        if not column.number or (column.facts.get("source") == "measured" and not column.facts.get("frames"))
    ]
    columns = tuple(
        replace(column, headers=(column.headers[0], column.headers[-1]) if column.number else column.headers)
        for column in (table.columns[index] for index in kept)
    )
    groups = tuple(
        replace(group, rows=tuple(replace(row, cells=tuple(row.cells[index] for index in kept)) for row in group.rows))
        for group in table.groups
    )
    return replace(table, columns=columns, groups=groups)


def ran(records: Sequence[Record]) -> str:
    """What was run, on what, and how long it took."""
    kinds = Counter(record["kind"] for record in records)
    named = {"evaluation": "fine-tunings", "pretraining": "pre-trainings", "reference": "references", "probe": "probes"}
    counted = ", ".join(f"{count} {named[kind]}" for kind, count in sorted(kinds.items()))
    machines = sorted({_machine(record) for record in records})
    hours = sum(record["time"].get("total", 0.0) for record in records) / 3600
    typical = median(record["time"].get("total", 0.0) for record in records)
    dates = sorted(record["written"][:10] for record in records)
    return (
        f"{counted}, {hours:.1f} hours of runs (a typical one {typical:.0f} s), written from {dates[0]} to {dates[-1]} "
        f"on {'; '.join(machines)}."
    )


def _machine(record: Record) -> str:
    facts = record["environment"]
    return " ".join(str(facts[name]) for name in ("device", "cpu") if facts.get(name)) or "an unnamed machine"


def put_in(page: str, text: str) -> str:
    """The page with `text` between its marks.

    Raises:
        ValueError: the page has no such marks.
    """
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError("the page has no place for results")
    before, after = page.split(BEGIN)[0], page.split(END)[1]
    return f"{before}{BEGIN}\n\n{text}\n{END}{after}"

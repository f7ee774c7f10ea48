"""What came out of a comparison, as Markdown for the documentation: nothing in it is written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from tespec.comparison.claims_table import claims_tables
from tespec.comparison.published import TABLES, published_table
from tespec.comparison.records import Record
from tespec.comparison.references_table import references_table
from tespec.comparison.render_markdown import render_markdown

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
    parts += [render_markdown(published_table(name, evaluations, "measured")) for name in TABLES]
    parts.append(f"<details><summary>Every comparison</summary>\n\n{render_markdown(long)}\n</details>")
    return "\n\n".join(part.strip() for part in parts) + "\n"


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

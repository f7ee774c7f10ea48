"""What came out of a comparison, as Markdown for the documentation: nothing in it is written by hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from statistics import median

from tespec.comparison.records import Record
from tespec.comparison.render import render_markdown
from tespec.comparison.shown import claims_table
from tespec.comparison.side_by_side import of_older_code

BEGIN, END = "<!-- results: written by plan.py --publish -->", "<!-- end of results -->"


def results_text(records: Sequence[Record], picture: str) -> str:
    """What the records are, the figure, and what was shown.

    Args:
        records: of the comparison.
        picture: path of the figure, as the page links it.
    """
    parts = [
        of_older_code(records),
        ran(records),
        f"![Each method on each task]({picture})",
        render_markdown(claims_table(records)),
    ]
    return "\n\n".join(part.strip() for part in parts if part) + "\n"


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

"""A table as Markdown."""

from __future__ import annotations

from tespec.comparison.table import Group, Table
from tespec.core.errors import one_line


def render_markdown(table: Table) -> str:
    """A Markdown table; Markdown knows no spanning headers, so that each column names its spans."""
    header = [_escape(" / ".join(column.headers)) for column in table.columns]
    rules = ["---:" if column.number else ":---" for column in table.columns]
    lines = [f"### {_escape(table.title)}", "", _line(header), _line(rules)]
    for group in table.groups:
        lines += _group(group, len(table.columns))
    notes = [f"{mark} {text}" for mark, text in table.used_marks().items()] + list(table.notes)
    if notes:
        lines += ["", *(f"- {_escape(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def _group(group: Group, width: int) -> list[str]:
    lines = [_line([f"*{_escape(group.heading)}*"] + [""] * (width - 1))] if group.heading else []
    for row in group.rows:
        texts = [_escape(cell.text + cell.mark) for cell in row.cells]
        lines.append(_line([f"**{text}**" if cell.bold else text for text, cell in zip(texts, row.cells, strict=True)]))
    return lines


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    text = one_line(text)
    for character in "\\|*_`<[]":
        text = text.replace(character, f"\\{character}")
    return text

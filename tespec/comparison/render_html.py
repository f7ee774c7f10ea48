"""A table as one HTML page that opens without a network; all it shows is escaped."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

from tespec.comparison.table import Row, Table

LONG = 240  # letters of a note

# From the names of records to a text and to an anchor.
Tip = Callable[[tuple[str, ...]], tuple[str, str]]

STYLE = """
body { font: 15px/1.4 system-ui, sans-serif; margin: 2rem; color: #1a1a1a; background: #fff; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; border: solid; border-width: 2px 0; }
th, td { padding: .25rem .6rem; text-align: center; white-space: nowrap; }
td:first-child, th:first-child { text-align: left; }
thead th { font-weight: 600; } thead .span { border-bottom: 1px solid #888; }
tbody { border-top: 1px solid; } tr.grey { color: #888; }
tr.heading td { font-style: italic; text-align: left; }
.notes { max-width: 60rem; font-size: .85rem; color: #444; }
@media print { body { margin: 0; font-size: 9pt; } }
"""


def render_html(table: Table) -> str:
    """The page: spanning headers, groups of rows, best numbers bold, rows set apart grey, notes below."""
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(table.title)}</title><style>{STYLE}</style></head><body>",
        f"<h1>{escape(table.title)}</h1>",
        html_table(table),
    ]
    return "\n".join([*lines, "</body></html>"]) + "\n"


def html_table(table: Table, tip: Tip | None = None, *, apart: bool = False) -> str:
    """The table and its notes as a part of a page.

    Args:
        table: what is shown.
        tip: makes it sortable by a script, and gives for the names of a cell's records what is shown over the cell and
            where it leads to on the page; None for a table that stands still.
        apart: groups are sorted one by one, since their headings say what the numbers are.
    """
    sortable = tip is not None and any(len(group.rows) > 1 for group in table.groups)
    kind = f' class="sortable{" apart" if apart else ""}"' if sortable else ""
    lines = [f'<div class="wide"><table{kind}><thead>', *_headers(table, sortable=sortable), "</thead>"]
    for group in table.groups:
        lines.append("<tbody>")
        if group.heading:
            lines.append(f'<tr class="heading"><td colspan="{len(table.columns)}">{escape(group.heading)}</td></tr>')
        lines += [_row(row, tip) for row in group.rows]
        lines.append("</tbody>")
    lines.append("</table></div>")
    notes = [f"{mark} {text}" for mark, text in table.used_marks().items()] + list(table.notes)
    if notes:
        lines.append('<div class="notes">' + "".join(_note(note, folded=tip is not None) for note in notes) + "</div>")
    return "\n".join(lines)


def _note(text: str, *, folded: bool) -> str:
    """A paragraph; a long one shows its first lines and opens by a click."""
    if folded and len(text) > LONG:
        return f"<details><summary>{escape(text)}</summary></details>"
    return f"<p>{escape(text)}</p>"


def _headers(table: Table, *, sortable: bool) -> list[str]:
    """Header lines; a column with a single header spans them all."""
    alone = {index for index, column in enumerate(table.columns) if len(column.headers) == 1}
    lines = []
    for level in range(table.levels):
        cells = []
        for span in table.spans(level):
            own = level == table.levels - 1 or span.first in alone
            first = "ascending" if table.columns[span.first].better != "higher" else "descending"
            order = f' data-column="{span.first}" data-first="{first}" aria-sort="none" tabindex="0"'
            order = order if sortable and own else ""
            if span.first in alone:
                if level == 0:
                    title = escape(table.columns[span.first].headers[0])
                    cells.append(f'<th rowspan="{table.levels}"{order}>{title}</th>')
                continue
            count = span.last - span.first + 1
            rule = ' class="span"' if span.title and level < table.levels - 1 else ""
            title = escape(span.title)
            # What spans more than the screen keeps its title in sight.
            title = f"<span>{title}</span>" if rule and sortable else title
            cells.append(f'<th colspan="{count}"{rule}{order}>{title}</th>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return lines


def _row(row: Row, tip: Tip | None) -> str:
    cells = []
    for cell in row.cells:
        text = escape(cell.text + cell.mark)
        text = f"<b>{text}</b>" if cell.bold else text
        value = f' data-value="{cell.value!r}"' if tip and cell.value is not None else ""
        if tip and cell.sources:
            shown, place = tip(cell.sources)
            value += f' title="{escape(shown)}"'
            text = f'<a href="#{escape(place)}">{text}</a>'
        cells.append(f"<td{value}>{text}</td>")
    kind = ' class="grey"' if row.grey else ""
    return f"<tr{kind}>{''.join(cells)}</tr>"

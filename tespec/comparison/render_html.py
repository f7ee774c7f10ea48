"""A table as one HTML page that opens without a network; all it shows is escaped."""

from __future__ import annotations

from html import escape

from tespec.comparison.table import Row, Table

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
    notes = [f"{mark} {text}" for mark, text in table.used_marks().items()] + list(table.notes)
    lines = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(table.title)}</title><style>{STYLE}</style></head><body>",
        f'<h1>{escape(table.title)}</h1><div class="wide"><table><thead>',
        *_headers(table),
        "</thead>",
    ]
    for group in table.groups:
        lines.append("<tbody>")
        if group.heading:
            lines.append(f'<tr class="heading"><td colspan="{len(table.columns)}">{escape(group.heading)}</td></tr>')
        lines += [_row(row) for row in group.rows]
        lines.append("</tbody>")
    lines.append("</table></div>")
    if notes:
        lines.append('<div class="notes">' + "".join(f"<p>{escape(note)}</p>" for note in notes) + "</div>")
    return "\n".join([*lines, "</body></html>"]) + "\n"


def _headers(table: Table) -> list[str]:
    """Header lines; a column with a single header spans them all."""
    alone = {index for index, column in enumerate(table.columns) if len(column.headers) == 1}
    lines = []
    for level in range(table.levels):
        cells = []
        for span in table.spans(level):
            if span.first in alone:
                if level == 0:
                    title = escape(table.columns[span.first].headers[0])
                    cells.append(f'<th rowspan="{table.levels}">{title}</th>')
                continue
            count = span.last - span.first + 1
            rule = ' class="span"' if span.title and level < table.levels - 1 else ""
            cells.append(f'<th colspan="{count}"{rule}>{escape(span.title)}</th>')
        lines.append(f"<tr>{''.join(cells)}</tr>")
    return lines


def _row(row: Row) -> str:
    cells = []
    for index, cell in enumerate(row.cells):
        text = escape(cell.text + (row.mark if index == 0 else ""))
        cells.append(f"<td>{f'<b>{text}</b>' if cell.bold else text}</td>")
    kind = ' class="grey"' if row.grey else ""
    return f"<tr{kind}>{''.join(cells)}</tr>"

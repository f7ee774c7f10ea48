"""A table as one HTML page that opens without a network; all it shows is escaped."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Callable, Iterable
from html import escape

from tespec.comparison.table import Cell, Group, Row, Table
from tespec.core.errors import one_line

ROW_FACTS = ("method", "arch", "title", "backbone", "recurrent", "pretraining")
COLUMN_FACTS = ("task", "source", "metric", "frames", "data", "profile", "basis")
FORMULA = "=+-@|%"  # what spreadsheets let a formula, or a call to another program, begin with
TIDY = ("table", "group", *ROW_FACTS, "mark", *COLUMN_FACTS, "value", "std", "seeds", "low_95", "high_95", "bold")


def render_csv(table: Table) -> str:
    """Wide CSV: the table's columns; missing numbers are empty.

    `<name> std` stands behind each column that has deviations, `<name> mark` behind each that has footnotes.
    """
    columns = [[row.cells[index] for row in table.rows] for index in range(len(table.columns))]
    deviating = [any(cell.deviation is not None for cell in cells) for cells in columns]
    marked = [any(cell.mark for cell in cells) for cells in columns]
    header = ["Group"]
    for column, deviates, has_marks in zip(table.columns, deviating, marked, strict=True):
        header += [column.key, *[f"{column.key} std"] * deviates, *[f"{column.key} mark"] * has_marks]
    lines = [header]
    for group in table.groups:
        for row in group.rows:
            line = [group.heading]
            for index, (column, cell) in enumerate(zip(table.columns, row.cells, strict=True)):
                line.append(_number(cell.value) if column.number else cell.text)
                line += [_number(cell.deviation)] * deviating[index] + [cell.mark] * marked[index]
            lines.append(line)
    return _csv(lines)


def render_long_csv(table: Table) -> str:
    """Tidy CSV: each published, measured or compared number with all that it belongs to."""
    lines = [list(TIDY)]
    for group in table.groups:
        for row in group.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if column.facts and cell.value is not None:
                    facts = row.facts | cell.facts
                    of_row = [table.title, group.heading, *(facts.get(name, "") for name in ROW_FACTS)]
                    of_column = [column.facts.get(name) or facts.get(name, "") for name in COLUMN_FACTS]
                    lines.append([*of_row, cell.mark, *of_column, *_of_cell(cell)])
    return _csv(lines)


def _of_cell(cell: Cell) -> list[str]:
    runs = "" if cell.runs is None else str(cell.runs)
    low, high = cell.interval or (None, None)
    return [
        _number(cell.value),
        _number(cell.deviation),
        runs,
        _number(low),
        _number(high),
        "yes" if cell.bold else "no",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else str(round(value, 6))


def _csv(lines: Iterable[list[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_inert(cell) for cell in line] for line in lines)
    return text.getvalue()


def _inert(cell: str) -> str:
    """`cell` as one that spreadsheets take for a text or a number, not for a formula to be worked out."""
    shown = one_line(cell)
    if len(shown) < 2 or shown[0] not in FORMULA:
        return shown
    try:
        float(shown)
    except ValueError:
        return f"'{shown}"
    return shown


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


PREAMBLE = r"% \usepackage{adjustbox,booktabs,multirow,xcolor}"
CHARACTERS = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': "''",
    # Behind the end of a row LaTeX takes them for its options.
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",
    "±": r"$\pm$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    "Δ": r"$\Delta$",
    "δ": r"$\delta$",
    "α": r"$\alpha$",
    "×": r"$\times$",
    "₁": "$_1$",
    "₂": "$_2$",
    "₃": "$_3$",
    "†": r"$^\dagger$",
    "‡": r"$^\ddagger$",
}


def escape(text: str) -> str:
    """`text` as LaTeX that prints it; letters beyond ASCII stay, LaTeX reads UTF-8."""
    return "".join(CHARACTERS.get(character, character) for character in one_line(text))


def render_latex(table: Table) -> str:
    """A `table*` environment: booktabs rules, spanning headers, a rule between groups, grey rows, notes below.

    A table wider than the page is scaled down to it.
    """
    width = len(table.columns)
    layout = "".join("c" if column.number or index else "l" for index, column in enumerate(table.columns))
    lines = [PREAMBLE, r"\begin{table*}[t]", r"\centering", rf"\caption{{{escape(table.title)}.}}"]
    lines += [
        r"\begin{adjustbox}{max width=\textwidth}",
        rf"\begin{{tabular}}{{{layout}}}",
        r"\toprule",
        *_headers(table),
    ]
    for group in table.groups:
        lines.append(r"\midrule")
        if group.heading:
            lines.append(rf"\multicolumn{{{width}}}{{l}}{{\textit{{{escape(group.heading)}}}}} \\")
        lines += [_row(row) for row in group.rows]
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}"]
    notes = [f"{mark} {text}" for mark, text in table.used_marks().items()] + list(table.notes)
    if notes:
        lines += [r"\par\smallskip", r"\begin{minipage}{\linewidth}\footnotesize"]
        lines += [rf"{escape(note)}\par" for note in notes]
        lines.append(r"\end{minipage}")
    lines.append(r"\end{table*}")
    return "\n".join(lines) + "\n"


def _headers(table: Table) -> list[str]:
    """Header lines; a column with a single header spans them all."""
    alone = {index for index, column in enumerate(table.columns) if len(column.headers) == 1}
    lines = []
    for level in range(table.levels):
        cells, rules = [], []
        for span in table.spans(level):
            title = escape(span.title)
            if span.first in alone:
                tall = table.levels > 1 and level == 0
                title = escape(table.columns[span.first].headers[0]) if level == 0 else ""
                cells += [rf"\multirow{{{table.levels}}}{{*}}{{{title}}}" if tall else title]
                continue
            count = span.last - span.first + 1
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{title}}}" if count > 1 else title)
            if title and level < table.levels - 1:
                rules.append(rf"\cmidrule(lr){{{span.first + 1}-{span.last + 1}}}")
        lines.append(" & ".join(cells) + r" \\")
        lines += [" ".join(rules)] if rules else []
    return lines


def _row(row: Row) -> str:
    cells = []
    for cell in row.cells:
        text = escape(cell.text + cell.mark)
        text = rf"\textbf{{{text}}}" if cell.bold else text
        cells.append(rf"\textcolor{{gray}}{{{text}}}" if row.grey else text)
    return " & ".join(cells) + r" \\"


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
    lines = [f'<div class="wide"><table{kind}><thead>', *_headers_render_html(table, sortable=sortable), "</thead>"]
    for group in table.groups:
        lines.append("<tbody>")
        if group.heading:
            lines.append(f'<tr class="heading"><td colspan="{len(table.columns)}">{escape(group.heading)}</td></tr>')
        lines += [_row_render_html(row, tip) for row in group.rows]
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


def _headers_render_html(table: Table, *, sortable: bool) -> list[str]:
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


def _row_render_html(row: Row, tip: Tip | None) -> str:
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


GAP = "  "
BEST = "*"
NOTES_WIDTH = 120


def render_text(table: Table) -> str:
    """Aligned text: spanning headers above their columns, `*` behind the best numbers, notes below."""
    widths = _widths(table)
    total = sum(widths) + len(GAP) * (len(widths) - 1)
    lines = [one_line(table.title), "=" * total]
    for level in range(table.levels):
        lines.append(_header(table, level, widths))
        if level < table.levels - 1:
            lines.append(_underline(table, level, widths))
    for group in table.groups:
        lines.append("-" * total)
        if group.heading:
            lines.append(one_line(group.heading))
        lines.extend(_line_render_text(table, row, widths) for row in group.rows)
    lines.append("=" * total)
    notes = [f"{mark} {text}" for mark, text in table.used_marks().items()]
    if any(cell.bold for row in table.rows for cell in row.cells):
        notes.append(f"{BEST} best number of its column")
    for note in (*notes, *table.notes):
        lines.extend(textwrap.wrap(one_line(note), NOTES_WIDTH, subsequent_indent="  "))
    return "\n".join(line.rstrip() for line in lines) + "\n"


def _text(table: Table, row: Row, index: int) -> str:
    # Blanks keep digits under digits where only some numbers of a column are marked.
    room = max(len(_signs(each.cells[index])) for each in table.rows) if table.columns[index].number else 0
    return one_line(row.cells[index].text) + f"{_signs(row.cells[index]):{room}}"


def _signs(cell: Cell) -> str:
    return one_line(cell.mark) + (BEST if cell.bold else "")


def _widths(table: Table) -> list[int]:
    widths = [
        max([len(column.headers[-1]), *(len(_text(table, row, index)) for row in table.rows)])
        for index, column in enumerate(table.columns)
    ]
    for level in reversed(range(table.levels - 1)):
        for span in table.spans(level):
            lacking = len(span.title) - _width(widths, span.first, span.last)
            widths[span.last] += max(0, lacking)
    return widths


def _width(widths: list[int], first: int, last: int) -> int:
    return sum(widths[first : last + 1]) + len(GAP) * (last - first)


def _header(table: Table, level: int, widths: list[int]) -> str:
    if level == table.levels - 1:
        return GAP.join(
            f"{one_line(span.title):{'>' if column.number else '<'}{width}}"
            for span, column, width in zip(table.spans(level), table.columns, widths, strict=True)
        )
    return GAP.join(f"{one_line(span.title):^{_width(widths, span.first, span.last)}}" for span in table.spans(level))


def _underline(table: Table, level: int, widths: list[int]) -> str:
    return GAP.join(("-" if span.title else " ") * _width(widths, span.first, span.last) for span in table.spans(level))


def _line_render_text(table: Table, row: Row, widths: list[int]) -> str:
    return GAP.join(
        f"{_text(table, row, index):{'>' if column.number else '<'}{width}}"
        for index, (column, width) in enumerate(zip(table.columns, widths, strict=True))
    )

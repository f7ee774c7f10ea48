"""A table in each of its forms: CSV, LaTeX, Markdown, HTML, and text for a terminal."""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
from collections.abc import Callable, Iterator, Sequence
from functools import cache

from jinja2 import Environment, PackageLoader, StrictUndefined
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tespec.comparison.table import Row, Table, in_parts
from tespec.core.errors import one_line

# CSV

ROW_FACTS = ("method", "title", "arch", "backbone", "pretraining")
COLUMN_FACTS = ("task", "source", "metric", "unit", "frames", "data", "profile", "split", "basis")
FORMULA = "=+-@|%"  # what spreadsheets let a formula, or a call to another program, begin with


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
                line.append(_digits(cell.value) if column.number else cell.text)
                line += [_digits(cell.deviation)] * deviating[index] + [cell.mark] * marked[index]
            lines.append(line)
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([_inert(cell) for cell in line] for line in lines)
    return text.getvalue()


def render_long_csv(table: Table) -> str:
    """Tidy CSV: a line for each published, measured or compared number of a table, with all that it belongs to.

    `value`, `deviation`, `low_95`, `high_95` and `seeds` are numbers, `bold` is True or False, the rest are texts;
    `records` are names with blanks between them.
    """
    # It takes longer to import than a table takes to print.
    import pandas

    if table.lines:
        given = pandas.DataFrame(table.lines)
        return given.map(lambda value: _inert(value) if isinstance(value, str) else value).to_csv(
            index=False, lineterminator="\n", float_format="%.6g"
        )
    rows = []
    for group in table.groups:
        for row in group.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                if column.facts and cell.value is not None:
                    facts = row.facts | column.facts | cell.facts
                    low, high = cell.interval or (None, None)
                    rows.append(
                        {"table": table.title, "group": group.heading}
                        | {name: facts.get(name, "") for name in (*ROW_FACTS, *COLUMN_FACTS)}
                        | {"value": _rounded(cell.value), "deviation": _rounded(cell.deviation)}
                        | {"low_95": _rounded(low), "high_95": _rounded(high), "seeds": cell.runs}
                        | {"better": column.better, "bold": cell.bold}
                        | {"footnote": cell.mark, "records": " ".join(cell.sources)}
                    )
    texts = ["table", "group", *ROW_FACTS, *COLUMN_FACTS]
    columns = [*texts, "value", "deviation", "low_95", "high_95", "seeds", "better", "bold", "footnote", "records"]
    # As objects: what is counted stays a whole number.
    frame = pandas.DataFrame(rows, columns=columns, dtype=object)
    frame[[*texts, "records"]] = frame[[*texts, "records"]].map(_inert)
    return frame.to_csv(index=False, lineterminator="\n")


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 6)


def _digits(value: float | None) -> str:
    return "" if value is None else str(_rounded(value))


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


# LaTeX. Widths are guessed: on average a letter of 10 pt type takes some 4.6 pt.

PREAMBLE = r"% \usepackage{booktabs,graphicx,xcolor}"
LETTER, BETWEEN = 4.6, 8.0  # pt
WIDEST = 470.0 / 0.6  # pt: the text of a page of a journal, at which 10 pt type is scaled down to 6 pt
LONG_NOTES = 2000  # letters, from which on notes are set still smaller, so that a page holds them and the table
LATEX_FIT = r"\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi"
LATEX = {
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
    "§": r"$^\S$",
    "¶": r"$^\P$",
}


def latex(text: str) -> str:
    """`text` as LaTeX that prints it; letters beyond ASCII stay, LaTeX reads UTF-8."""
    return "".join(LATEX.get(character, character) for character in one_line(text))


def render_latex(table: Table) -> str:
    """`table*` environments: booktabs rules, spanning headers, a rule between groups, grey rows, notes below.

    What is wider than the page is scaled down to it, and cut into several where its type would be too small to read.
    """

    def fits(part: Table) -> bool:
        return sum(LETTER * width + BETWEEN for width in _widths(part, _texts(part))) <= WIDEST

    parts = in_parts(table, fits)
    name = table.name or re.sub(r"\W+", "-", table.title.lower()).strip("-")
    labels = [name if number == 1 else f"{name}-{number}" for number in range(1, len(parts) + 1)]
    return "\n".join([PREAMBLE, *map(_latex_table, parts, labels)]) + "\n"


def _latex_table(table: Table, name: str) -> str:
    label = re.sub(r"[^A-Za-z0-9_.:-]", "-", name)
    lines = [r"\begin{table*}[t]", r"\centering", rf"\caption{{{latex(table.title)}.}}", rf"\label{{tab:{label}}}"]
    layout = "".join("c" if column.number or index else "l" for index, column in enumerate(table.columns))
    lines += [r"\setlength{\tabcolsep}{4pt}", rf"\sbox0{{\begin{{tabular}}{{{layout}}}", r"\toprule"]
    lines += _latex_headers(table)
    for group in table.groups:
        lines.append(r"\midrule")
        # Boxes without a width: a long heading goes over several lines instead of stretching the last column.
        lines += [
            rf"\multicolumn{{{len(table.columns)}}}{{l}}{{\rlap{{\textit{{{latex(line)}}}}}}} \\"
            for line in textwrap.wrap(group.heading, _total(_widths(table, _texts(table))))
        ]
        lines += [_latex_row(row) for row in group.rows]
    lines += [r"\bottomrule", r"\end{tabular}}", LATEX_FIT]
    if notes := table.all_notes():
        size = r"\footnotesize" if sum(map(len, notes)) < LONG_NOTES else r"\scriptsize"
        lines += [r"\par\smallskip", rf"\begin{{minipage}}{{\linewidth}}{size}"]
        lines += [rf"{latex(note)}\par" for note in notes]
        lines.append(r"\end{minipage}")
    return "\n".join([*lines, r"\end{table*}"])


def _latex_headers(table: Table) -> list[str]:
    """Header lines; a column with a single header has it in the lowest."""
    lines = []
    for level in range(table.levels):
        cells, rules = [], []
        for span in table.spans(level):
            title, count = latex(span.title), span.last - span.first + 1
            cells.append(rf"\multicolumn{{{count}}}{{c}}{{{title}}}" if count > 1 else title)
            if title and level < table.levels - 1:
                rules.append(rf"\cmidrule(lr){{{span.first + 1}-{span.last + 1}}}")
        lines.append(" & ".join(cells) + r" \\")
        lines += [" ".join(rules)] if rules else []
    return lines


def _latex_row(row: Row) -> str:
    cells = []
    for cell in row.cells:
        text = latex(cell.text + cell.mark)
        text = rf"\textbf{{{text}}}" if cell.bold else text
        cells.append(rf"\textcolor{{gray}}{{{text}}}" if row.grey else text)
    return " & ".join(cells) + r" \\"


# Markdown


def render_markdown(table: Table) -> str:
    """A Markdown table; Markdown knows no spanning headers, so that each column names its spans."""
    lines = [f"### {_markdown(table.title)}", ""]
    lines.append(_markdown_line([_markdown(" / ".join(column.headers)) for column in table.columns]))
    lines.append(_markdown_line(["---:" if column.number else ":---" for column in table.columns]))
    for group in table.groups:
        if group.heading:
            lines.append(_markdown_line([f"*{_markdown(group.heading)}*"] + [""] * (len(table.columns) - 1)))
        for row in group.rows:
            texts = ((_markdown(cell.text + cell.mark), cell.bold) for cell in row.cells)
            lines.append(_markdown_line([f"**{text}**" if bold else text for text, bold in texts]))
    if notes := table.all_notes():
        lines += ["", *(f"- {_markdown(note)}" for note in notes)]
    return "\n".join(lines) + "\n"


def _markdown_line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    text = one_line(text)
    for character in "\\|*_`<[]":
        text = text.replace(character, f"\\{character}")
    return text


# HTML; templates escape all that is put into them

LONG = 240  # letters of a note that is folded

# From the names of records to a text and to an anchor.
Tip = Callable[[tuple[str, ...]], tuple[str, str]]


@cache
def html_templates(package: str = "tespec.comparison") -> Environment:
    """The templates beside the modules of a package."""
    loader = PackageLoader(package, "")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)


def render_html(table: Table) -> str:
    """A page: spanning headers, groups of rows, best numbers bold, rows set apart grey, notes below."""
    return html_templates().get_template("page.html").render(table=table, content=html_table(table))


def html_table(table: Table, tip: Tip | None = None, *, apart: bool = False) -> str:
    """The table and its notes as a part of a page.

    Args:
        table: what is shown.
        tip: makes it sortable by a script, and gives for the names of a cell's records what is shown over the cell and
            where it leads to on the page; None for a table that stands still.
        apart: groups are sorted one by one, since their headings say what the numbers are.
    """
    most = max((len(group.rows) for group in table.groups), default=0) if apart else len(table.rows)
    sortable = tip is not None and most > 1
    template = html_templates().get_template("table.html")
    return template.render(table=table, tip=tip, sortable=sortable, apart=apart, long=LONG).strip()


# Text for a terminal. Rich's own tables have neither headers nor headings that span columns.

GAP = "  "
BEST = "*"
NOTES_WIDTH = 120


def render_text(table: Table) -> str:
    """Aligned text: spanning headers above their columns, `*` behind numbers in bold, notes below."""
    text = io.StringIO()
    print_table(table, Console(file=text, color_system=None))
    return text.getvalue()


def print_table(table: Table, console: Console) -> None:
    """Print `render_text`, on a terminal in parts that are as wide as it is; bold and grey where it has styles."""
    room = console.width if console.is_terminal else math.inf
    for part in in_parts(table, lambda part: _total(_widths(part, _texts(part))) <= room):
        for line in _text_lines(part, min(NOTES_WIDTH, room)):
            line.rstrip()
            console.print(line, soft_wrap=True, markup=False, highlight=False, emoji=False)


def _text_lines(table: Table, room: float) -> Iterator[Text]:
    texts = _texts(table)
    widths = _widths(table, texts)
    total = _total(widths)
    yield from (Text(one_line(table.title), "bold"), Text("=" * total))
    for level in range(table.levels):
        spans = [(one_line(span.title), span.first, span.last) for span in table.spans(level)]
        lowest = level == table.levels - 1
        sides = [("right" if column.number else "left") if lowest else "center" for column in table.columns]
        yield _joined(_aligned(Text(title), _total(widths[a : b + 1]), sides[a]) for title, a, b in spans)
        if not lowest:
            yield _joined(Text(("-" if title else " ") * _total(widths[a : b + 1])) for title, a, b in spans)
    lines = iter(texts)
    for group in table.groups:
        yield Text("-" * total)
        if group.heading:
            yield Text(one_line(group.heading), "italic")
        for row in group.rows:
            styles = ("bold" if cell.bold else "dim" if row.grey else "" for cell in row.cells)
            shown = map(Text, next(lines), styles)
            sides = ["right" if column.number else "left" for column in table.columns]
            yield _joined(_aligned(*each) for each in zip(shown, widths, sides, strict=True))
    yield Text("=" * total)
    bold = [f"{BEST} set in bold"] if any(cell.bold for row in table.rows for cell in row.cells) else []
    for note in (*table.footnotes(), *bold, *table.notes):
        yield from map(Text, textwrap.wrap(one_line(note), int(room), subsequent_indent="  "))


def _joined(cells: object) -> Text:
    return Text(GAP).join(cells)  # type: ignore[arg-type]


def _aligned(text: Text, width: int, side: str) -> Text:
    text.align(side, width)  # type: ignore[arg-type]
    return text


def _texts(table: Table) -> list[list[str]]:
    """What the cells of each row show, with their signs."""
    signs = [[one_line(cell.mark) + BEST * cell.bold for cell in row.cells] for row in table.rows]
    # Blanks keep digits under digits where only some numbers of a column are marked.
    rooms = [
        max((len(line[index]) for line in signs), default=0) if column.number else 0
        for index, column in enumerate(table.columns)
    ]
    return [
        [f"{one_line(cell.text)}{sign:{room}}" for cell, sign, room in zip(row.cells, line, rooms, strict=True)]
        for row, line in zip(table.rows, signs, strict=True)
    ]


def _widths(table: Table, texts: Sequence[Sequence[str]]) -> list[int]:
    """Widths of the columns in letters, headers included."""
    widths = [
        max(cell_len(one_line(column.headers[-1])), *(cell_len(line[index]) for line in texts), 0)
        for index, column in enumerate(table.columns)
    ]
    for level in reversed(range(table.levels - 1)):
        for span in table.spans(level):
            lacking = cell_len(one_line(span.title)) - _total(widths[span.first : span.last + 1])
            widths[span.last] += max(0, lacking)
    return widths


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(GAP) * (len(widths) - 1)


# What is written of a table: the end of the file's name, and what it holds.
FORMS: dict[str, Callable[[Table], str]] = {
    ".csv": render_csv,
    "_long.csv": render_long_csv,
    ".tex": render_latex,
    ".md": render_markdown,
    ".html": render_html,
}

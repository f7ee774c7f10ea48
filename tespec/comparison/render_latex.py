"""A table as LaTeX for the packages adjustbox, booktabs, multirow and xcolor."""

from __future__ import annotations

from tespec.comparison.table import Row, Table
from tespec.core.errors import one_line

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

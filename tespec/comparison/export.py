"""Export tables to CSV, LaTeX, Markdown and HTML (with pandas) and to the terminal (with rich)."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from html import escape
from itertools import groupby, product
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pandas as pd

from tespec.comparison.tables import NONE, Table
from tespec.core.errors import one_line
from tespec.core.files import write_all

if TYPE_CHECKING:
    from pandas.io.formats.style import Styler

# Text that a spreadsheet would evaluate as a formula; numbers and lone signs are harmless.
FORMULA = re.compile(r"(?=[=+\-@|%].)(?![+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$)", re.IGNORECASE)
# characters and rows of a LaTeX table; larger ones are split to stay legible
WIDEST = 165
HIGHEST = 60
# LaTeX code by character
ESCAPED = {
    **{character: rf"\{character}" for character in "{}$&#%_"},
    **{character: f"{{{character}}}" for character in "[]*"},
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    '"': "''",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
}
SUPERSCRIPTS = "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁼⁽⁾ºªᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ™"
SUBSCRIPTS = "₀₁₂₃₄₅₆₇₈₉₊₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ"
# LaTeX code in math mode by character
MATHS = {
    **{
        greek: rf"\{unicodedata.name(greek).split()[-1].lower()}"
        for greek in "αβγδεζηθικμνξπρστυφχψω"
    },
    **{greek: rf"\{unicodedata.name(greek).split()[-1].capitalize()}" for greek in "ΓΔΘΞΠΣΥΦΨΩ"},
    "λ": r"\lambda",  # its name in Unicode is LAMDA
    "Λ": r"\Lambda",
    **{letter: f"^{{{unicodedata.normalize('NFKC', letter)}}}" for letter in SUPERSCRIPTS},
    **{letter: f"_{{{unicodedata.normalize('NFKC', letter)}}}" for letter in SUBSCRIPTS},
    "⁻": "^{-}",
    "₋": "_{-}",
    "±": r"\pm",
    "×": r"\times",
    "≤": r"\leq",
    "≥": r"\geq",
    "≈": r"\approx",
    "→": r"\rightarrow",
    "−": "-",
    "↑": r"\uparrow",
    "↓": r"\downarrow",
    "†": r"^\dagger",
    "‡": r"^\ddagger",
    "§": r"^\S",
    "¶": r"^\P",
    "‖": r"^\|",
    "◇": r"^\diamond",
    "△": r"^\triangle",
}
LATEX = str.maketrans(
    ESCAPED | {character: rf"\ensuremath{{{code}}}" for character, code in MATHS.items()}
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>
body {{font-family: sans-serif}} table {{border-collapse: collapse}} th, td {{padding: .2em .6em}}
</style>
</head><body>
{table}</body></html>
"""


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write tables in all formats, either all files or none.

    Args:
        tables: with different names.
        folder: is created.

    Returns:
        Paths of NAME.csv, NAME_long.csv, NAME.tex, NAME.md and NAME.html of each table.
    """
    texts: dict[Path, str] = {}
    for table in tables:
        texts |= {
            folder / f"{table.name}.csv": to_csv(table),
            folder / f"{table.name}_long.csv": _csv(table.data),
            folder / f"{table.name}.tex": to_latex(table),
            folder / f"{table.name}.md": to_markdown(table),
            folder / f"{table.name}.html": PAGE.format(
                title=escape(table.title), table=to_html(table)
            ),
        }
    write_all(texts)
    return list(texts)


def to_csv(table: Table) -> str:
    """Return a CSV with one header line, "DDD17 mIoU ↑ published"; missing numbers are empty."""
    cells = table.cells.replace(NONE, "")
    cells.columns = pd.Index([" ".join(_header(column)) for column in cells.columns])
    return _csv(cells.reset_index())


def to_latex(table: Table) -> str:
    """Return `table*` environments scaled to the page, with booktabs, spanning headers and notes.

    Large tables are split; the first line names the packages. The output compiles with pdfLaTeX,
    XeLaTeX and LuaLaTeX; pdfLaTeX prints the code points of characters for which it has no font.
    """
    grid = _grid(table)
    label = re.sub(r"[^A-Za-z0-9_.:-]", "-", table.name)
    texts = [r"% \usepackage{booktabs,adjustbox}"]
    parts = product(range(0, max(1, len(grid.cells)), HIGHEST), _parts(grid, WIDEST))
    for number, (first, columns) in enumerate(parts, start=1):
        cells = grid.cells.iloc[first : first + HIGHEST, columns]
        bold = grid.bold.loc[cells.index, cells.columns]
        style = _styler(cells, bold, "textbf:--rwrap;", _latex)
        layout = "".join("l" if column < grid.labels else "c" for column in columns)
        body = style.to_latex(hrules=True, multicol_align="c", column_format=layout).splitlines()
        top = body.index(r"\midrule") + 1
        for row in reversed(range(len(cells))):  # from below, since a rule moves the rows below it
            if first + row in grid.headings:
                text = _latex(str(cells.iloc[row, 0]))
                body[top + row] = rf"\multicolumn{{{len(columns)}}}{{l}}{{\textit{{{text}}}}} \\"
            if row and first + row in grid.rules:
                body.insert(top + row, r"\midrule")
        texts += [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\caption{{{_latex(table.title)}{', continued' if number > 1 else ''}.}}",
            rf"\label{{tab:{label}{f'-{number}' if number > 1 else ''}}}",
            r"\begin{adjustbox}{max width=\textwidth,max totalheight=0.8\textheight}",
            *body,
            r"\end{adjustbox}",
            *(rf"\par{{\footnotesize {_latex(note)}}}" for note in table.notes if number == 1),
            r"\end{table*}",
        ]
    return "\n".join(texts) + "\n"


def to_markdown(table: Table) -> str:
    """Return a Markdown table with a heading above and notes below."""
    grid = _grid(table)
    cells = grid.cells.map(_markdown)
    cells = cells.where(~grid.bold, "**" + cells + "**")
    headers = [_markdown(" / ".join(_header(column))) for column in cells.columns]
    text = cells.to_markdown(index=False, headers=headers, tablefmt="pipe", disable_numparse=True)
    notes = "".join(f"\n- {_markdown(note)}" for note in table.notes)
    return f"### {_markdown(table.title)}\n\n{text}\n{notes}\n"


def to_html(table: Table) -> str:
    """Return the table with its caption and notes as an HTML fragment."""
    grid = _grid(table)
    style = _styler(grid.cells, grid.bold, "font-weight: bold", _html)
    style = style.set_caption(_html(table.title)).set_uuid(re.sub(r"\W", "-", table.name))
    notes = "".join(f"<p><small>{_html(note)}</small></p>\n" for note in table.notes)
    return style.to_html() + notes


def print_table(table: Table, *, all_columns: bool = False) -> None:
    """Print a table as wide as the terminal.

    Args:
        table: table to print.
        all_columns: print all columns, in parts that fit; otherwise those that fit, of the
            main metric first.
    """
    from rich.console import Console
    from rich.table import Table as RichTable
    from rich.text import Text

    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else WIDEST
    order = list(table.cells.columns)
    if not all_columns:
        order.sort(key=lambda column: table.main not in _header(column))
    grid = _grid(table._replace(cells=table.cells[order], bold=table.bold[order]))
    parts = list(_parts(grid, console.width))
    for columns in parts if all_columns else parts[:1]:
        printed = RichTable(
            title=Text(one_line(table.title)), title_justify="left", title_style="bold", box=None
        )
        for column in grid.cells.columns[columns]:
            printed.add_column(Text("\n".join(map(one_line, _header(column)))), vertical="bottom")
        cells = grid.cells.iloc[:, columns].map(one_line).map(Text)
        for text in cells.to_numpy()[grid.bold.iloc[:, columns].to_numpy()]:
            text.style = "bold"
        for row, texts in enumerate(cells.to_numpy()):
            if row in grid.rules:
                printed.add_row()
            printed.add_row(*texts)
        console.print(printed)
    hidden = 0 if all_columns else sum(len(columns) - grid.labels for columns in parts[1:])
    if hidden:
        console.print(
            f"columns not shown: {hidden} (`tables --only {table.name}` shows all)", style="dim"
        )
    console.print()


class _Grid(NamedTuple):
    """Table to display: the first `labels` columns are the row labels, group headings are rows."""

    cells: pd.DataFrame
    bold: pd.DataFrame
    rules: set[int]
    headings: set[int]
    labels: int


def _grid(table: Table) -> _Grid:
    """Turn the index of a table into columns, and its groups into rows above their first row."""
    labels = table.cells.index.to_frame(index=False).astype(str)
    groups = labels.pop("Group") if "Group" in labels else pd.Series("", labels.index)
    is_first = (groups != "") & (groups != groups.shift(fill_value=""))
    cells = pd.concat([labels, table.cells.reset_index(drop=True)], axis=1)
    bold = pd.DataFrame(False, cells.index, cells.columns)
    bold.iloc[:, len(labels.columns) :] = table.bold.to_numpy()
    levels = table.cells.columns.nlevels
    if levels > 1:
        names = [(*[""] * (levels - 1), name) for name in labels]
        cells.columns = bold.columns = pd.MultiIndex.from_tuples([*names, *table.cells.columns])
    rows = cells.index + is_first.cumsum()
    headings = rows[is_first] - 1
    size = range(len(rows) + len(headings))
    cells = cells.set_axis(rows).reindex(size, fill_value="")
    cells.iloc[headings, 0] = groups[is_first]
    return _Grid(
        cells,
        bold.set_axis(rows).reindex(size, fill_value=False),
        {int(rows[rule] - is_first[rule]) for rule in table.rules},
        {int(heading) for heading in headings},
        len(labels.columns),
    )


def _levels(label: Any) -> tuple[str, ...]:
    return tuple(map(str, label)) if isinstance(label, tuple) else (str(label),)


def _header(column: Any) -> list[str]:
    return [level for level in _levels(column) if level]


def _parts(grid: _Grid, width: int) -> Iterator[list[int]]:
    """Yield positions of columns that fit into `width` characters, the labels first in each part.

    The columns of a metric stay together.
    """
    rows = grid.cells.drop(index=list(grid.headings))
    widths = [
        2 + max(map(len, [*_header(column), *rows.iloc[:, position]]))
        for position, column in enumerate(rows.columns)
    ]
    labels = list(range(grid.labels))
    part = labels
    for _, group in groupby(
        range(grid.labels, len(widths)), lambda position: _levels(rows.columns[position])[:2]
    ):
        columns = list(group)
        if sum(widths[position] for position in part + columns) > width and part != labels:
            yield part
            part = labels
        part = part + columns
    yield part


def _styler(cells: pd.DataFrame, bold: pd.DataFrame, style: str, formatter: Any) -> Styler:
    """Return a Styler without index that escapes cells and headers with `formatter`."""
    styles = bold.map(lambda strong: style if strong else "")
    styler = cells.style.hide(axis="index").apply(lambda _: styles, axis=None).format(formatter)
    for level in range(cells.columns.nlevels):
        styler = styler.format_index(formatter, axis=1, level=level)
    return styler


def _csv(frame: pd.DataFrame) -> str:
    safe = frame.apply(
        lambda column: column if pd.api.types.is_numeric_dtype(column) else column.map(_inert)
    )
    return safe.rename(columns=_inert).to_csv(index=False, lineterminator="\n")


def _inert(value: Any) -> Any:
    """Escape text that a spreadsheet would take for a formula."""
    if not isinstance(value, str):
        return value
    text = one_line(value)
    return f"'{text}" if FORMULA.match(text) else text


def _html(text: str) -> str:
    return escape(one_line(text))


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[\]])", r"\\\1", one_line(text))


def _latex(text: str) -> str:
    def code_point(match: re.Match[str]) -> str:
        return rf"{{\ifdefined\Umathchar {match[0]}\else\texttt{{U+{ord(match[0]):04X}}}\fi}}"

    return re.sub("[^\0-\x7fÀ-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿ]", code_point, one_line(text).translate(LATEX))

"""Export tables to files (CSV, LaTeX, Markdown and HTML, with pandas) and to the terminal (with rich)."""

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
WIDEST, HIGHEST = 165, 60
# LaTeX code by letter.
ESCAPED = dict(
    zip(
        r"{}$&#%_[]*",
        [r"\{", r"\}", r"\$", r"\&", r"\#", r"\%", r"\_", "{[}", "{]}", "{*}"],
        strict=True,
    )
)
ESCAPED |= {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    '"': "''",
}
ESCAPED |= {"<": r"\textless{}", ">": r"\textgreater{}", "|": r"\textbar{}"}
MATHS = {
    "±": r"\pm",
    "×": r"\times",
    "≤": r"\leq",
    "≥": r"\geq",
    "≈": r"\approx",
    "→": r"\rightarrow",
    "−": "-",
}
MATHS |= {
    "↑": r"\uparrow",
    "↓": r"\downarrow",
    "†": r"^\dagger",
    "‡": r"^\ddagger",
    "§": r"^\S",
    "¶": r"^\P",
}
MATHS |= {"‖": r"^\|", "◇": r"^\diamond", "△": r"^\triangle"}
MATHS |= {"λ": r"\lambda", "Λ": r"\Lambda"}  # Unicode spells it LAMDA
MATHS |= {
    each: rf"\{unicodedata.name(each).split()[-1].lower()}" for each in "αβγδεζηθικμνξπρστυφχψω"
}
MATHS |= {each: rf"\{unicodedata.name(each).split()[-1].capitalize()}" for each in "ΓΔΘΞΠΣΥΦΨΩ"}
MATHS |= {
    each: f"^{{{unicodedata.normalize('NFKC', each)}}}"
    for each in "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁼⁽⁾ºªᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻ™"
}
MATHS |= {
    each: f"_{{{unicodedata.normalize('NFKC', each)}}}"
    for each in "₀₁₂₃₄₅₆₇₈₉₊₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ"
}
MATHS |= {"⁻": "^{-}", "₋": "_{-}"}
LETTERS = str.maketrans(
    ESCAPED | {letter: rf"\ensuremath{{{code}}}" for letter, code in MATHS.items()}
)
PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body {{font-family: sans-serif}} table {{border-collapse: collapse}} th, td {{padding: .2em .6em}}</style>
</head><body>
{table}</body></html>
"""


def write_tables(tables: Sequence[Table], folder: Path) -> list[Path]:
    """Write NAME.csv, NAME_long.csv, NAME.tex, NAME.md and NAME.html of each table; either all files or none."""
    texts: dict[Path, str] = {}
    for table in tables:
        texts[folder / f"{table.name}.csv"] = to_csv(table)
        texts[folder / f"{table.name}_long.csv"] = _csv(table.data)
        texts[folder / f"{table.name}.tex"] = to_latex(table)
        texts[folder / f"{table.name}.md"] = to_markdown(table)
        texts[folder / f"{table.name}.html"] = PAGE.format(
            title=escape(table.title), table=to_html(table)
        )
    write_all(texts)
    return list(texts)


def to_csv(table: Table) -> str:
    """Return a CSV with one header line ("DDD17 mIoU ↑ published"); cells without a number are empty."""
    cells = table.cells.replace(NONE, "")
    cells.columns = pd.Index([" ".join(_header(column)) for column in cells.columns])
    return _csv(cells.reset_index())


def to_latex(table: Table) -> str:
    """Return `table*` environments scaled to the page: booktabs, spanning headers, rules between groups, notes below.

    Large tables are split; the first line names the packages. The output compiles with pdfLaTeX,
    XeLaTeX and LuaLaTeX; pdfLaTeX prints the code points of characters for which it has no font.
    """
    shown = _shown(table)
    label = re.sub(r"[^A-Za-z0-9_.:-]", "-", table.name)
    texts = [r"% \usepackage{booktabs,adjustbox}"]
    parts = product(range(0, max(1, len(shown.cells)), HIGHEST), _parts(shown, WIDEST))
    for number, (first, columns) in enumerate(parts, start=1):
        cells = shown.cells.iloc[first : first + HIGHEST, columns]
        style = _styler(
            cells, shown.bold.loc[cells.index, cells.columns], "textbf:--rwrap;", _latex
        )
        layout = "".join("l" if column < shown.labels else "c" for column in columns)
        body = style.to_latex(hrules=True, multicol_align="c", column_format=layout).splitlines()
        top = body.index(r"\midrule") + 1
        for heading in shown.headings & set(range(first, first + len(cells))):
            text = _latex(str(cells.iloc[heading - first, 0]))
            body[top + heading - first] = (
                rf"\multicolumn{{{len(columns)}}}{{l}}{{\textit{{{text}}}}} \\"
            )
        for rule in sorted(
            (rule - first for rule in shown.rules if 0 < rule - first < len(cells)), reverse=True
        ):
            body.insert(top + rule, r"\midrule")
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
    shown = _shown(table)
    cells = shown.cells.map(_markdown)
    cells = cells.where(~shown.bold, "**" + cells + "**")
    headers = [_markdown(" / ".join(_header(column))) for column in cells.columns]
    text = cells.to_markdown(index=False, headers=headers, tablefmt="pipe", disable_numparse=True)
    notes = "".join(f"\n- {_markdown(note)}" for note in table.notes)
    return f"### {_markdown(table.title)}\n\n{text}\n{notes}\n"


def to_html(table: Table) -> str:
    """Return the table with its caption and notes as an HTML fragment."""
    shown = _shown(table)
    style = _styler(shown.cells, shown.bold, "font-weight: bold", _html).set_caption(
        _html(table.title)
    )
    notes = "".join(f"<p><small>{_html(note)}</small></p>\n" for note in table.notes)
    return style.set_uuid(re.sub(r"\W", "-", table.name)).to_html() + notes


def print_table(table: Table, *, whole: bool = False) -> None:
    """Print a table as wide as the terminal.

    Args:
        table: table to print.
        whole: print all columns, in parts that fit; otherwise only as many as fit, those of the
            main metric first.
    """
    from rich.console import Console
    from rich.table import Table as Grid
    from rich.text import Text

    console = Console(highlight=False)
    console.width = console.width if console.is_terminal else WIDEST
    order = list(table.cells.columns)
    if not whole:
        order.sort(key=lambda column: table.main not in _header(column))
    shown = _shown(table._replace(cells=table.cells[order], bold=table.bold[order]))
    parts = list(_parts(shown, console.width))
    for columns in parts if whole else parts[:1]:
        grid = Grid(
            title=Text(one_line(table.title)), title_justify="left", title_style="bold", box=None
        )
        for column in shown.cells.columns[columns]:
            grid.add_column(Text("\n".join(map(one_line, _header(column)))), vertical="bottom")
        cells, bold = (each.iloc[:, columns].to_numpy() for each in (shown.cells, shown.bold))
        for row, (texts, strong) in enumerate(zip(cells, bold, strict=True)):
            if row in shown.rules:
                grid.add_row()
            grid.add_row(
                *(
                    Text(one_line(text), "bold" if on else "")
                    for text, on in zip(texts, strong, strict=True)
                )
            )
        console.print(grid)
    if more := 0 if whole else sum(len(columns) - shown.labels for columns in parts[1:]):
        console.print(
            f"columns not shown: {more} (`tables --only {table.name}` shows all)", style="dim"
        )
    console.print()


class _Shown(NamedTuple):
    """Table to display: the first `labels` columns are the row labels, and group headings are rows."""

    cells: pd.DataFrame
    bold: pd.DataFrame
    rules: set[int]
    headings: set[int]
    labels: int


def _shown(table: Table) -> _Shown:
    names = [name for name in table.cells.index.names if name != "Group"]
    levels = table.cells.columns.nlevels
    columns = [
        *((*[""] * (levels - 1), name) for name in names),
        *map(_levels, table.cells.columns),
    ]
    rows: list[list[str]] = []
    bold: list[list[bool]] = []
    rules, headings, heading = set[int](), set[int](), ""
    for position, (label, texts, strong) in enumerate(
        zip(
            table.cells.index,
            table.cells.to_numpy().tolist(),
            table.bold.to_numpy().tolist(),
            strict=True,
        )
    ):
        facts = dict(zip(table.cells.index.names, _levels(label), strict=True))
        rules |= {len(rows)} if position in table.rules else set()
        if facts.get("Group", "") not in ("", heading):
            headings.add(len(rows))
            rows.append([facts["Group"], *[""] * (len(columns) - 1)])
            bold.append([False] * len(columns))
        heading = facts.get("Group", "")
        rows.append([*(facts[name] for name in names), *texts])
        bold.append([*[False] * len(names), *strong])
    index = (
        pd.MultiIndex.from_tuples(columns)
        if levels > 1
        else pd.Index([name for (name,) in columns])
    )
    return _Shown(
        pd.DataFrame(rows, columns=index),
        pd.DataFrame(bold, columns=index),
        rules,
        headings,
        len(names),
    )


def _levels(label: Any) -> tuple[str, ...]:
    return tuple(map(str, label)) if isinstance(label, tuple) else (str(label),)


def _header(column: Any) -> list[str]:
    return [level for level in _levels(column) if level]


def _parts(shown: _Shown, width: int) -> Iterator[list[int]]:
    """Yield positions of columns that fit into `width` characters, labels first; a metric's columns stay together."""
    rows = shown.cells.drop(index=list(shown.headings))
    widths = [
        2 + max(map(len, [*_header(column), *rows.iloc[:, place]]))
        for place, column in enumerate(rows.columns)
    ]
    labels = list(range(shown.labels))
    part, room = [*labels], width - sum(widths[: shown.labels])
    for _, group in groupby(
        range(shown.labels, len(widths)), lambda place: _levels(rows.columns[place])[:2]
    ):
        places = list(group)
        needed = sum(widths[place] for place in places)
        if needed > room and len(part) > len(labels):
            yield part
            part, room = [*labels], width - sum(widths[: shown.labels])
        part += places
        room -= needed
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
    def code_point(found: re.Match[str]) -> str:
        return rf"{{\ifdefined\Umathchar {found[0]}\else\texttt{{U+{ord(found[0]):04X}}}\fi}}"

    return re.sub("[^\0-\x7fÀ-ÏÑ-ÖØ-Ýß-ïñ-öø-ýÿ]", code_point, one_line(text).translate(LETTERS))

"""Export tables to CSV, LaTeX, Markdown and HTML, and print them to the terminal with rich."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from html import escape
from itertools import accumulate, groupby, pairwise, product
from pathlib import Path
from typing import Any

import pandas as pd

from tespec.comparison.tables import NONE, Table
from tespec.core.errors import one_line
from tespec.core.files import write_all

# Text that a spreadsheet would evaluate as a formula; numbers and lone signs are harmless.
FORMULA = re.compile(r"(?=[=+\-@|%].)(?![+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$)", re.IGNORECASE)
# characters and rows of a LaTeX table; larger ones are split to stay legible
WIDEST = 165
HIGHEST = 60
# LaTeX code by character: special characters, signs that tables print, and marks of machines;
# brackets and stars would be arguments of the end of the row above
LATEX = str.maketrans(
    dict(
        line.split()
        for line in r"""
{ \{
} \}
$ \$
& \&
# \#
% \%
_ \_
[ {[}
] {]}
* {*}
\ \textbackslash{}
~ \textasciitilde{}
^ \textasciicircum{}
< \textless{}
> \textgreater{}
| \textbar{}
" ''
± $\pm$
× $\times$
− $-$
→ $\rightarrow$
↑ $\uparrow$
↓ $\downarrow$
δ $\delta$
₁ $_1$
₂ $_2$
₃ $_3$
† $^\dagger$
‡ $^\ddagger$
§ $^\S$
¶ $^\P$
‖ $^\|$
◇ $^\diamond$
△ $^\triangle$
ᵃ $^a$
ᵇ $^b$
ᶜ $^c$
ᵈ $^d$
ᵉ $^e$
ᶠ $^f$
ᵍ $^g$
ʰ $^h$
ⁱ $^i$
ʲ $^j$
ᵏ $^k$
ˡ $^l$
ᵐ $^m$
ⁿ $^n$
ᵒ $^o$
ᵖ $^p$
""".strip().splitlines()
    )
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
        tables: with different names, as `make_tables` gives them.
        folder: is created.

    Returns:
        Paths of NAME.csv, NAME_long.csv, NAME.tex, NAME.md and NAME.html of each table.
    """
    texts: dict[Path, str] = {}
    for table in tables:
        texts |= {
            folder / f"{table.name}.csv": to_csv(table),
            folder / f"{table.name}_long.csv": _csv(table.data.infer_objects()),
            folder / f"{table.name}.tex": to_latex(table),
            folder / f"{table.name}.md": to_markdown(table),
            folder / f"{table.name}.html": PAGE.format(
                title=_html(table.title), table=to_html(table)
            ),
        }
    write_all(texts)
    return list(texts)


def to_csv(table: Table) -> str:
    """Return a CSV with one header line, "DDD17 mIoU ↑ published"; missing numbers are empty."""
    header = [" ".join(filter(None, levels)) for levels in _levels(table)]
    return _csv(table.cells.replace(NONE, "").set_axis(header, axis=1).reset_index())


def to_latex(table: Table) -> str:
    """Return `table*` environments scaled to the page, with rules and colours as in the paper.

    The first line names the packages. Large tables are split. The text is UTF-8, which LaTeX reads
    by default since 2018; letters other than Latin ones need a font that has them.
    """
    header, rows = _texts(table, _latex, r"\textbf{{{}}}".format, r"\color{{gray}}{}".format)
    levels = _levels(table)
    n_labels = len(header) - len(levels)
    label = re.sub(r"[^A-Za-z0-9_.:-]", "-", table.name)
    lines = [r"% \usepackage[table]{xcolor} \usepackage{booktabs,adjustbox}"]
    parts = product(range(0, len(rows), HIGHEST), _parts(table, WIDEST, wraps=False))
    for number, (first_row, columns) in enumerate(parts, start=1):
        scored = [levels[column - n_labels] for column in columns if column >= n_labels]
        lines += [
            r"\begin{table*}[t]",
            r"\centering",
            rf"\rowcolors{{{len(levels[0]) + 2}}}{{gray!20}}{{white}}",
            rf"\caption{{{_latex(table.title)}{', continued' if number > 1 else ''}.}}",
            rf"\label{{tab:{label}{f'-{number}' if number > 1 else ''}}}",
            r"\begin{adjustbox}{max width=\textwidth,max totalheight=0.8\textheight}",
            rf"\begin{{tabular}}{{{'l' * n_labels}{'c' * len(scored)}}}",
            r"\toprule",
        ]
        for depth in range(1, len(levels[0])):
            paths = groupby(path[:depth] for path in scored)
            spans = [(path[-1], len(list(group))) for path, group in paths]
            starts = accumulate((count for _, count in spans), initial=n_labels + 1)
            texts = [rf"\multicolumn{{{count}}}{{c}}{{{_latex(text)}}}" for text, count in spans]
            rules = [rf"\cmidrule(lr){{{a}-{b - 1}}}" for a, b in pairwise(starts)]
            lines += [" & ".join([""] * n_labels + texts) + r" \\", " ".join(rules)]
        texts = header[:n_labels] + [_latex(path[-1]) for path in scored]
        lines += [" & ".join(texts) + r" \\", r"\midrule"]
        for row in rows[first_row : first_row + HIGHEST]:
            if len(row) > 1:
                lines.append(" & ".join(row[column] for column in columns) + r" \\")
            elif row:
                lines.append(rf"\multicolumn{{{len(columns)}}}{{l}}{{\textit{{{row[0]}}}}} \\")
            elif lines[-1] != r"\midrule":
                lines.append(r"\midrule")
        lines += [
            r"\bottomrule",
            r"\end{tabular}",
            r"\end{adjustbox}",
            *(rf"\par{{\footnotesize {_latex(note)}}}" for note in table.notes if number == 1),
            r"\end{table*}",
        ]
    return "\n".join(lines) + "\n"


def to_markdown(table: Table) -> str:
    """Return a Markdown table with a heading above and notes below."""
    header, rows = _texts(table, _markdown, "**{}**".format, separator=" / ")
    lines = [header, ["---"] * len(header), *filter(None, rows)]
    text = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    notes = "".join(f"\n- {_markdown(note)}" for note in table.notes)
    return f"### {_markdown(table.title)}\n\n{text}\n{notes}\n"


def to_html(table: Table) -> str:
    """Return the table with its caption and notes as an HTML fragment."""
    header, rows = _texts(table, _html, "<b>{}</b>".format, separator="<br>")
    head = f"<thead><tr><th>{'</th><th>'.join(header)}</th></tr></thead>"
    body = [f"<tr><td>{'</td><td>'.join(row)}</td></tr>" for row in rows if row]
    notes = [f"<p><small>{_html(note)}</small></p>" for note in table.notes]
    start = f"<table><caption>{_html(table.title)}</caption>"
    return "\n".join([start, head, "<tbody>", *body, "</tbody></table>", *notes, ""])


def print_table(table: Table, *, all_columns: bool = False) -> None:
    """Print a table as wide as the terminal; headers and row labels wrap, cells do not.

    Args:
        table: table to print.
        all_columns: print all columns, in parts that fit; otherwise those that fit, of the
            main metric first.
    """
    from rich import markup
    from rich.console import Console
    from rich.table import Table as RichTable

    console = Console(highlight=False, emoji=False)
    console.width = console.width if console.is_terminal else WIDEST
    first = "" if all_columns else table.main
    parts = list(_parts(table, console.width, wraps=True, first=first))
    if max(sum(part.values()) for part in parts) > console.width:
        table = _with_one_label(table)
        parts = list(_parts(table, console.width, wraps=True, first=first))
    header, rows = _texts(table, lambda text: markup.escape(one_line(text)), "[bold]{}[/]".format)
    n_labels = len(header) - len(table.cells.columns)
    console.print(one_line(table.title), style="bold", markup=False)
    for part in parts if all_columns else parts[:1]:
        printed = RichTable(box=None)
        for column, width in part.items():
            printed.add_column(header[column], width=None if column < n_labels else width - 2)
        for row in rows:
            printed.add_row(*(row[column] for column in part if column < len(row)))
        console.print(printed, "")
    if len(parts) > 1 and not all_columns:
        hidden = len(header) - len(parts[0])
        console.print(f"columns not shown: {hidden} (`tables --only` shows all)\n", style="dim")


def _levels(table: Table) -> list[tuple[str, ...]]:
    """Return the headers of the columns without row labels, from the task to the source."""
    return [*table.cells.columns.to_frame().itertuples(index=False, name=None)]


def _texts(
    table: Table,
    escaped: Callable[[str], str] = one_line,
    bold: Callable[[str], str] = str,
    grey: Callable[[str], str] = str,
    separator: str = "\n",
) -> tuple[list[str], list[list[str]]]:
    """Turn a table into the texts of a format, with the row labels as the first columns.

    Args:
        table: table.
        escaped: escapes a text.
        bold: formats an escaped text.
        grey: formats an escaped text.
        separator: stands between the levels of a header.

    Returns:
        Header and rows. A row of one text is the heading of a group, an empty one is a rule.
    """
    labels = table.cells.index.to_frame(index=False).drop(columns="Group", errors="ignore")
    header = [escaped(str(name)) for name in labels]
    header += [separator.join(map(escaped, filter(None, levels))) for levels in _levels(table)]
    rows: list[list[str]] = []
    previous = (None, "")
    parts = zip(
        table.blocks,
        table.grey,
        labels.to_numpy(),
        table.cells.to_numpy(),
        table.bold.to_numpy(),
        strict=True,
    )
    for block, is_grey, names, texts, are_bold in parts:
        if rows and block != previous:
            rows.append([])
        if block[1] not in ("", previous[1]):
            rows.append([escaped(block[1])])
        previous = block
        row = [*map(escaped, names)]
        row += [
            bold(escaped(text)) if is_bold else escaped(text)
            for text, is_bold in zip(texts, are_bold, strict=True)
        ]
        rows.append([*map(grey, row)] if is_grey else row)
    return header, rows


def _parts(table: Table, limit: int, *, wraps: bool, first: str = "") -> Iterator[dict[int, int]]:
    """Divide the columns into parts of `limit` characters, each with the row labels.

    Args:
        table: table.
        limit: greatest width of a part.
        wraps: whether labels and headers wrap at spaces; otherwise the columns of a metric stay
            together.
        first: title of the metric whose columns come first.

    Yields:
        Width of each column of a part, with two characters between columns, by position.
    """
    header, rows = _texts(table)
    paths = [()] * (len(header) - len(table.cells.columns)) + _levels(table)
    columns = zip(header, *(row for row in rows if len(row) > 1), strict=True)
    groups: dict[tuple[str, ...], dict[int, int]] = defaultdict(dict)
    for column, (path, texts) in enumerate(zip(paths, columns, strict=True)):
        wrapped = texts[:1] if path else texts
        words = "\n".join(wrapped).split(None if wraps else "\n")
        key = path if wraps else path[:2]
        groups[key][column] = 2 + max(map(len, [*words, *texts[len(wrapped) :]]))
    labels = groups.pop(())
    part = labels
    for path in sorted(groups, key=lambda path: first not in ("", *path)):
        group = groups[path]
        if part != labels and sum((part | group).values()) > limit:
            yield part
            part = labels
        part = part | group
    yield part


def _with_one_label(table: Table) -> Table:
    """Join the row labels into one, besides the group."""
    labels = table.cells.index.to_frame(index=False).drop(columns="Group", errors="ignore")
    joined = labels.astype(str).agg(", ".join, axis=1)
    return table._replace(
        cells=table.cells.set_axis(pd.Index(joined, name=", ".join(map(str, labels))))
    )


def _csv(frame: pd.DataFrame) -> str:
    inert = frame.apply(lambda column: column.map({text: _inert(text) for text in column.unique()}))
    return inert.rename(columns=_inert).to_csv(index=False, lineterminator="\n")


def _inert(value: Any) -> Any:
    """Escape text that a spreadsheet would take for a formula."""
    if isinstance(value, str):
        line = one_line(value)
        return f"'{line}" if FORMULA.match(line) else line
    return value


def _latex(text: str) -> str:
    return one_line(text).translate(LATEX)


def _markdown(text: str) -> str:
    return re.sub(r"([\\|*_`<\[\]&~$])", r"\\\1", one_line(text))


def _html(text: str) -> str:
    return escape(one_line(text))

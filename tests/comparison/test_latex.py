"""LaTeX compiles with the packages that its first line names: by its structure, and where there is a compiler by it."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from test_footnotes import measured_everywhere

from tespec.comparison.ablations import measured_table, read_ablation
from tespec.comparison.published import TABLES, plain_tables, read_published
from tespec.comparison.records import Record
from tespec.comparison.render import PREAMBLE, render_latex
from tespec.comparison.side_by_side import published_table
from tespec.comparison.table import Cell, Column, Group, Row, Table

PACKAGES = {
    "booktabs": {"toprule", "midrule", "bottomrule", "cmidrule"},
    "graphicx": {"resizebox"},
    "xcolor": {"textcolor"},
}
KERNEL = """
    begin end centering caption label setlength tabcolsep sbox multicolumn textit textbf ifdim wd linewidth usebox else
    fi par smallskip footnotesize scriptsize rlap textbackslash textasciitilde textasciicircum textless
    textgreater textbar pm uparrow downarrow Delta delta alpha times dagger ddagger S P
"""
SPAN = re.compile(r"\\multicolumn\{(\d+)\}\{[lc]\}")


def check(text: str) -> list[list[list[str]]]:
    """Refuse what would not compile; gives the rows of each tabular as cells."""
    assert text.startswith(PREAMBLE + "\n")
    assert r"% \usepackage{" + ",".join(PACKAGES) + "}" == PREAMBLE
    body = text.removeprefix(PREAMBLE)
    bare = re.sub(r"\\[{}$&#%_\\]", "", body)  # characters that are printed, and ends of rows
    assert set(re.findall(r"\\([A-Za-z]+)", bare)) <= set(KERNEL.split()).union(*PACKAGES.values())
    assert not re.search(r"\\[^A-Za-z]", bare)
    assert not set('#%~"') & set(bare)
    for line in bare.splitlines():
        assert line.count("$") % 2 == 0, line
        assert not set("^_") & set(re.sub(r"\$[^$]*\$", "", line)) or line.startswith(r"\label{"), line
        assert "&" not in line or line in bare[bare.index(r"\toprule") : bare.rindex(r"\bottomrule")]
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0
    open_environments = []
    for kind, name in re.findall(r"\\(begin|end)\{([a-z*]+)\}", body):
        if kind == "begin":
            open_environments.append(name)
        else:
            assert open_environments.pop() == name
    assert not open_environments
    labels = re.findall(r"\\label\{tab:([A-Za-z0-9_.:-]+)\}", body)
    assert len(labels) == len(set(labels)) == body.count(r"\begin{table*}")
    found = []
    for layout, inner in re.findall(r"\\begin\{tabular\}\{(l?c*)\}\n(.*?)\\end\{tabular\}", body, re.DOTALL):
        rows = [line.removesuffix(r" \\").split(" & ") for line in inner.splitlines() if line.endswith(r"\\")]
        for cells in rows:
            assert sum(int(span[1]) if (span := SPAN.match(cell)) else 1 for cell in cells) == len(layout), cells
        for first, last in re.findall(r"\\cmidrule\(lr\)\{(\d+)-(\d+)\}", inner):
            assert 1 <= int(first) <= int(last) <= len(layout)
        found.append(rows)
    assert len(found) == len(labels)
    return found


@pytest.fixture
def every_table(record: Callable[..., Record]) -> dict[str, Table]:
    """All tables; those of methods with measured numbers of each published row on the sample world and on real data."""
    found = {name: published_table(name, measured_everywhere(read_published(name), record)) for name in TABLES}
    found |= {f"{name}_paper": published_table(name, []) for name in TABLES}
    return found | plain_tables() | {"ablation_steps": measured_table(read_ablation("steps"), None)}


def test_every_table_is_whole(every_table: dict[str, Table]) -> None:
    for name, table in every_table.items():
        parts = check(render_latex(table))
        assert (len(parts) > 1) == (name in TABLES), name
        for rows in parts:
            # At 4.6 pt a letter, 10 pt type is scaled to 6 pt at least on a page of 470 pt.
            widest = max(sum(len(re.sub(r"\\[a-z]+|[{}$^]", "", cell)) for cell in row) for row in rows)
            assert 4.6 * widest < 470 / 0.6


def test_hostile_texts_are_printed() -> None:
    bad = r"\input{a} $x^2_3$ 50% & # ~ [2cm] * <b> |c| \end{tabular}"
    row = Row((Cell(bad), Cell("1.0", 1.0, bold=True, mark="§")), grey=True)
    columns = (Column((bad,), "a", number=False), Column((bad, "b"), "b"))
    (rows,) = check(render_latex(Table(bad, columns, (Group(bad, (row,)),), {"§": bad}, (bad,), r"a b\{")))
    assert rows[-1][0].startswith(r"\textcolor{gray}{\textbackslash{}input\{a\} \$x\textasciicircum{}2\_3\$ 50\% ")
    assert rows[-1][1] == r"\textcolor{gray}{\textbf{1.0$^\S$}}"


def test_the_label_is_the_tables_name(every_table: dict[str, Table]) -> None:
    assert r"\label{tab:ablation_steps}" in render_latex(every_table["ablation_steps"])
    assert r"\label{tab:depth-2}" in render_latex(every_table["depth"])
    assert r"\label{tab:gains-over-b}" in render_latex(Table("Gains over b", (Column(("a",), "a"),), ()))


def test_latex_compiles(every_table: dict[str, Table], tmp_path: Path) -> None:
    if shutil.which("pdflatex") is None:
        pytest.skip("pdflatex is not installed")
    pages = [r"\documentclass{article}", PREAMBLE.removeprefix("% "), r"\begin{document}"]
    pages += [render_latex(table) + r"\clearpage" for table in every_table.values()]
    (tmp_path / "table.tex").write_text("\n".join([*pages, r"\end{document}"]), encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "table.tex"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, errors="replace", timeout=60)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overfull" not in done.stdout

import csv
import re
import shutil
import string
import subprocess
from html import escape
from itertools import groupby

import pandas as pd
import pytest
from made_records import record

import tespec
from tespec.comparison.export import print_table, to_html, to_latex, to_markdown, write_tables
from tespec.comparison.frame import COLUMNS, to_frame
from tespec.comparison.gains import gains_table
from tespec.comparison.tables import make_tables
from tespec.core.paths import REPOSITORY

NAMES = (
    "a_b%c&d#e",
    "λ ≥ 中",
    "10%",
    "$x^2$ {y} \\z ~",
    "[1] *",
    "<b>|é`",
    "two\nlines",
    "δ₁ ²ᵃ Ω ± −",
)
FORMULAS = ("=1+1", "+cmd", "-2+3", "@SUM(A1)", "\t=1", "|calc", "%0A")


PAPER = {
    "segmentation": "tab-sem-seg.tex",
    "detection": "tab-obj-det.tex",
    "depth": "tab-depth-est.tex",
}
# ends a line, hides text, rings the bell, or turns the writing direction
CONTROLS = ("\x1b[2J", "\a", "a\rb", "a\u2028b", "\u202eb", "\x85", "\x00", "a\u200bb")


@pytest.fixture(scope="module")
def study():
    """Tables of the committed study."""
    frame = tespec.results(REPOSITORY / "results" / "sample")
    return [*make_tables(frame), gains_table(frame, "scratch")]


def named_table(names):
    """Segmentation table whose rows and groups have `names`."""
    facts = record().facts
    made = [
        record(
            f"m{number}",
            facts=facts | {"title": name, "group": name, "pretraining_data": name},
            miou=number,
        )
        for number, name in enumerate(names)
    ]
    (table,) = make_tables(to_frame(made), only=["segmentation"])
    return table


@pytest.fixture
def odd():
    """Table whose names need escaping in every format."""
    return named_table((*NAMES, *FORMULAS))


def latex_rows(text):
    """Cells of the rows of all LaTeX tables, a cell of several columns repeated."""
    rows = []
    for line in text.splitlines():
        if line.endswith(r"\\"):
            cells = []
            for cell in re.split(r"(?<!\\)&", line.removesuffix(r"\\")):
                span = re.match(r"\s*\\multicolumn\{(\d+)\}", cell)
                cells += [cell.strip()] * int(span[1] if span else 1)
            rows.append(cells)
    return rows


def test_csv_keeps_numbers_and_disarms_formulas(odd, tmp_path):
    write_tables([odd], tmp_path)
    texts = [(tmp_path / f"segmentation{end}.csv").read_text() for end in ("", "_long")]
    wide, long = (list(csv.reader(text.splitlines())) for text in texts)
    for rows in (wide, long):
        assert len({len(row) for row in rows}) == 1
        for text in (cell for row in rows for cell in row if cell[:1] in tuple("=+-@\t|%")):
            assert len(text) == 1 or float(text) is not None  # a lone sign or a number
    assert wide[0][:5] == ["Group", "Method", "Backbone", "Recurrent", "Pre-training"]
    titles = {row[1] for row in wide}
    assert {
        "'=1+1",
        "'+cmd",
        "'-2+3",
        "'@SUM(A1)",
        "a_b%c&d#e",
        "λ ≥ 中",
        "10%",
        "two lines",
    } <= titles
    frame = pd.read_csv(tmp_path / "segmentation_long.csv")
    assert set(COLUMNS) < set(frame)
    measured = frame[(frame["source"] == "measured") & (frame["metric"] == "miou")]
    assert sorted(measured["value"]) == [
        float(number) for number in range(len(NAMES) + len(FORMULAS))
    ]
    assert frame.loc[frame["source"] == "paper", "value"].count() == 50


def test_negative_numbers_stay_numbers(tmp_path):
    scores = {"scratch": (8.0, 10.0), "tespec": (5.0, 6.0)}
    made = [
        record(name, seed=seed, miou=miou)
        for name in scores
        for seed, miou in enumerate(scores[name])
    ]
    write_tables([gains_table(to_frame(made), "scratch")], tmp_path)
    assert pd.read_csv(tmp_path / "gains_scratch.csv")["gain"].tolist() == [-3.5]
    (mean,) = pd.read_csv(tmp_path / "gains_scratch_long.csv")["mean"]
    assert mean == pytest.approx(-3.5)


def test_html_and_markdown_escape_names(odd):
    html, markdown = to_html(odd), to_markdown(odd)
    assert "&lt;b&gt;|é`" in html
    assert "<b>|" not in html
    assert "<td><b>62.774</b></td>" in html
    assert "<th>DDD17<br>mIoU ↑<br>measured (sample, sample, full)</th>" in html
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    # the heading of a group is a row of one cell
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines} - {2}) == 1
    assert "a\\_b%c\\&d#e" in markdown
    assert "**62.774**" in markdown
    assert "DDD17 / mIoU ↑ / measured (sample, sample, full)" in markdown


def test_latex_has_rules_headings_labels_and_no_bare_special_letters(odd):
    text = to_latex(odd)
    assert text.startswith("% \\usepackage[table]{xcolor} \\usepackage{booktabs,adjustbox}\n")
    assert "a\\_b\\%c\\&d\\#e" in text
    assert "\\textbf{62.774}" in text
    heading = r"\{l\}\{\\textit\{The best performance in the literature\}\}"
    assert re.search(r"\\midrule\n\\multicolumn\{\d+\}" + heading, text)
    labels = re.findall(r"\\label\{(.*?)\}", text)
    assert labels == [
        "tab:segmentation",
        *(f"tab:segmentation-{number}" for number in range(2, len(labels) + 1)),
    ]
    assert len(labels) == text.count("\\begin{table*}")
    # A split table repeats the labels of its rows and loses no column.
    assert text.count("published") >= 4


def test_latex_is_well_formed_with_any_punctuation():
    names = [f"{a}{b}" for a in string.punctuation for b in ("", "\\", "x{", "}")]
    table = named_table(names)._replace(title=string.punctuation, notes=(string.punctuation,))
    text = to_latex(table)
    bare = re.sub(r"\\[{}$&#%_]", "", text)  # escaped characters
    depth = 0
    for letter in bare:
        depth += {"{": 1, "}": -1}.get(letter, 0)
        assert depth >= 0
    assert depth == 0
    for environment in ("table*", "adjustbox", "tabular"):
        assert text.count(rf"\begin{{{environment}}}") == text.count(rf"\end{{{environment}}}")
    body = bare.split("\n", 1)[1]
    assert not re.search(r'[#%~^<>|"]|\\\\ *[\[*]', re.sub(r"\$[^$\n]*\$", "", body))
    assert not re.search(r"(?m)^\s*[\[*]", body)
    layouts = re.findall(r"\\begin\{tabular\}\{(l+c+)\}", text)
    for layout, part in zip(layouts, text.split(r"\begin{tabular}")[1:], strict=True):
        assert {len(row) for row in latex_rows(part)} == {len(layout)}


@pytest.mark.parametrize("name", PAPER)
def test_latex_has_the_papers_rows_numbers_and_marks(name):
    (table,) = make_tables(to_frame([]), only=[name])
    rows = table.cells.index.get_level_values("Group") != "Other publications"
    published = table._replace(
        cells=table.cells[rows],
        bold=table.bold[rows],
        blocks=table.blocks[: sum(rows)],
        grey=table.grey[: sum(rows)],
    )
    source = (REPOSITORY / "tests" / "comparison" / "data" / PAPER[name]).read_text()
    source = re.sub(r"~\\cite\{.*?\}", "", source).replace(r"\color{gray} ", r"\color{gray}")
    source = source.replace(r"\algoNameFull (\textbf{Ours})", "TESPEC (Ours)")
    source = re.sub(r"\\\\ *\n", r"\\\\" + "\n", source)
    digits = len(re.search(r"\d\.(\d+)", published.cells.iloc[0, -1])[1])
    source = re.sub(r"\b\d+\.\d+", lambda number: f"{float(number[0]):.{digits}f}", source)
    papers, made = (
        [row for row in latex_rows(text.split(r"\midrule", 1)[1]) if len(set(row)) > 1]
        for text in (source, to_latex(published))
    )
    cells = [
        [re.sub(r"(?<!\w)(Yes|No)$", lambda word: word[0].lower(), cell) for cell in row]
        for row in papers
    ]
    assert made == cells
    assert len(made) == {"segmentation": 13, "detection": 12, "depth": 13}[name]


def test_latex_has_rules_below_spanning_headers():
    (table,) = make_tables(to_frame([]), only=["segmentation"])
    first = to_latex(table).split(r"\end{table*}")[0]
    assert r"\multicolumn{2}{c}{DSEC} & \multicolumn{2}{c}{DDD17}" in first
    assert "\\\\\n\\cmidrule(lr){5-6} \\cmidrule(lr){7-8}\n" in first
    assert "\\rowcolors{5}{gray!20}{white}" in first
    blocks = [block for block, _ in groupby(table.blocks)]
    assert first.count(r"\midrule") == len(blocks) > 2


def test_control_characters_are_escaped(tmp_path, capsys):
    names = [f"A{control}B" for control in CONTROLS]
    table = named_table(names)._replace(title=" ".join(names), notes=names)
    print_table(table)
    texts = [capsys.readouterr().out]
    texts += [path.read_text(encoding="utf-8") for path in write_tables([table], tmp_path)]
    for text in texts:
        assert text.replace("\n", "").isprintable()
    for name in names:
        escaped = name.encode("unicode_escape").decode()
        assert f" {escaped} " in texts[0]
        assert f"<td>{escape(escaped)}</td>" in texts[-1]


def test_each_table_has_a_name_and_a_caption_of_its_own(study):
    for texts in ([table.name for table in study], [table.title for table in study]):
        assert len({*texts}) == len(texts) > 10


@pytest.mark.parametrize("width", [60, 80, 120, 165])
def test_a_terminal_of_any_width_shows_cells_in_full(study, capsys, monkeypatch, width):
    monkeypatch.setattr("tespec.comparison.export.WIDEST", width)
    for table in study:
        print_table(table, all_columns=True)
        lines = capsys.readouterr().out.splitlines()
        assert max(map(len, lines)) <= width
        for column in table.cells:
            for text in table.cells[column]:
                assert any(f" {text} " in line for line in lines)
        # Blocks repeat all row labels.
        words = " ".join(lines).split()
        for label in table.cells.index.get_level_values(-1):
            assert {*str(label).split()} <= {*words}


def test_wide_tables_are_split_between_metrics():
    names = ("delta_1", "delta_2", "delta_3", "abs", "rms", "rms_log")
    scores = {name: {"title": name, "better": "lower", "unit": ""} for name in names}
    measured = record(task="mvsec", metrics=dict.fromkeys(names, 1.0), scores=scores)
    (table,) = make_tables(to_frame([measured]), only=["depth"])
    parts = to_latex(table).split("\\begin{table*}")[1:]
    assert len(parts) > 1
    # The published and the measured column of a metric stay in the same part.
    pairs = [re.findall(r"published & measured \(sample, sample", part) for part in parts]
    assert sum(map(len, pairs)) == 6
    assert all(
        len(pair) == part.count("measured (sample, sample")
        for pair, part in zip(pairs, parts, strict=True)
    )


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(odd, tmp_path):
    real = make_tables(tespec.results(REPOSITORY / "results" / "sample"))
    bodies = "\\clearpage\n".join(map(to_latex, (odd, *real)))
    preamble = "\\documentclass[twocolumn]{article}\n\\usepackage{booktabs,adjustbox}\n"
    text = f"{preamble}\\begin{{document}}\n{bodies}"
    (tmp_path / "tables.tex").write_text(f"{text}\\end{{document}}\n", encoding="utf-8")
    command = ["pdflatex", "-interaction=nonstopmode", "-halt-on-error", "tables.tex"]
    done = subprocess.run(
        command, cwd=tmp_path, capture_output=True, encoding="latin-1", timeout=120
    )
    assert done.returncode == 0, done.stdout[-2000:]
    # Every table fits the page.
    assert not re.search(r"Overfull|Float too large", done.stdout)


@pytest.mark.parametrize("whole", [False, True])
def test_a_terminal_shows_what_fits(odd, capsys, monkeypatch, whole):
    monkeypatch.setattr("tespec.comparison.export.WIDEST", 100)
    print_table(odd, all_columns=whole)
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 100
    assert "62.774" in text
    assert ("columns not shown" in text) == (not whole)
    assert ("72.871" in text) == whole

import csv
import re
import shutil
import subprocess

import pandas as pd
import pytest
from made_records import record

import tespec
from tespec.comparison.export import print_table, to_html, to_latex, to_markdown, write_tables
from tespec.comparison.frame import COLUMNS, to_frame
from tespec.comparison.tables import gains_table, make_tables
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


@pytest.fixture
def odd():
    """Table whose names need escaping in every format."""
    facts = record().facts
    made = [
        record(
            f"m{number}",
            facts=facts | {"title": name, "group": name, "pretraining_data": name},
            miou=number,
        )
        for number, name in enumerate((*NAMES, *FORMULAS))
    ]
    (table,) = make_tables(to_frame(made), only=["segmentation"])
    return table


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
    assert pd.read_csv(tmp_path / "gains_scratch_long.csv")["mean"].tolist() == [-3.5]


def test_html_and_markdown_escape_names(odd):
    html, markdown = to_html(odd), to_markdown(odd)
    assert "&lt;b&gt;|é`" in html
    assert "<b>" not in html
    assert re.search(r"font-weight: bold", html)
    lines = [line for line in markdown.splitlines() if line.startswith("|")]
    assert len({len(re.findall(r"(?<!\\)\|", line)) for line in lines}) == 1
    assert "a\\_b%c&d#e" in markdown
    assert "**62.774**" in markdown
    assert "DDD17 / mIoU ↑ / measured (sample, sample)" in markdown


def test_latex_has_rules_headings_labels_and_no_bare_special_letters(odd):
    text = to_latex(odd)
    assert text.startswith("% \\usepackage{booktabs,adjustbox}\n")
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

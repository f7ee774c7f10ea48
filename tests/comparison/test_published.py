"""The published numbers and facts are those of the paper's source, and of the settings of its profile."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tespec.comparison import published as module
from tespec.comparison.published import PLAIN, TABLES, published_frame, read_published, titles_of
from tespec.core.config import as_facts, finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import PUBLISHED

DATA = Path(__file__).parent / "data"
EXCERPTS = {"segmentation": "tab-sem-seg.tex", "detection": "tab-obj-det.tex", "depth": "tab-depth-est.tex"}
MARKS = {"†": r"$^\dagger$", "‡": r"$^\ddagger$", "": ""}
# (task, metric) of the paper's number columns, from left to right.
COLUMNS = {
    "segmentation": [(task, metric) for task in ("dsec", "ddd17") for metric in ("miou", "mean_class_acc")],
    "detection": [("gen1", "map"), ("1mpx", "map")],
    "depth": [("mvsec", metric) for metric in ("delta_1", "delta_2", "delta_3", "abs", "rms", "rms_log")],
}
ROWS = {"segmentation": 13, "detection": 12, "depth": 13}
EXCERPT = {name: (DATA / file).read_text(encoding="utf-8") for name, file in EXCERPTS.items()}
every_table = pytest.mark.parametrize("name", TABLES)


def published_lines(name: str, decimals: int) -> list[list[list[str]]]:
    """Cells of the paper's rows, a list for each group of lines between two rules; numbers with equal decimals."""
    body = EXCERPT[name].split(r"\midrule")[1].split(r"\bottomrule")[0].replace(r"\color{gray} ", r"\color{gray}")
    body = re.sub(r"\b\d+\.\d+\b", lambda number: f"{float(number[0]):.{decimals}f}", body)
    groups = [[row.strip() for row in block.split(r"\\") if "&" in row] for block in body.split(r"\hline")]
    return [[[cell.strip() for cell in row.split("&")] for row in group] for group in groups]


def source_of(row: dict[str, Any], name: str, decimals: int) -> list[str]:
    """The line of the paper's source that a row has to come from, by cells."""
    cite = rf"~\cite{{{row['citation']}}}" if "citation" in row else ""
    title = row["title"].replace("TESPEC (Ours)", r"\algoNameFull (\textbf{Ours})")
    cells = [
        title + MARKS[row.get("mark", "")] + cite,
        row["backbone"],
        "Yes" if row["recurrent"] else "No",
        row["pretraining"],
    ]
    metrics = list(titles_of(name)[1])
    for task, metric in COLUMNS[name]:
        value = row["scores"][task][metrics.index(metric)]
        text = "-" if value is None else f"{value:.{decimals}f}"
        cells.append(rf"\textbf{{{text}}}" if metric in row.get("bold", {}).get(task, ()) else text)
    return [cell if row.get("ranked", True) else rf"\color{{gray}}{cell}" for cell in cells]


@every_table
def test_every_cell_and_heading_is_the_papers(name: str) -> None:
    table = read_published(name)
    papers = published_lines(name, table["decimals"])
    assert [[source_of(row, name, table["decimals"]) for row in group["rows"]] for group in table["groups"]] == papers
    assert sum(map(len, papers)) == ROWS[name]
    headings = [group["heading"] for group in table["groups"] if group["heading"]]
    assert headings == re.findall(r"\\textit\{(.*?)\.?\}", EXCERPT[name])[:1]


@every_table
def test_metrics_point_where_the_papers_arrows_do(name: str) -> None:
    arrows = [{"up": "↑", "down": "↓"}[arrow] for arrow in re.findall(r"\\(up|down)arrow", EXCERPT[name])]
    metrics = read_published(name)["metrics"]
    better = [{"higher": "↑", "lower": "↓"}[metric["better"]] for metric in metrics]
    assert arrows == better * (len(arrows) // len(better))
    assert [metric["title"][-1] for metric in metrics] == better


@every_table
def test_marks_are_explained_and_the_dagger_tells_test_time_augmentation(name: str) -> None:
    rows = [row for group in read_published(name)["groups"] for row in group["rows"]]
    assert {row["mark"] for row in rows if "mark" in row} == set(read_published(name)["marks"])
    dagger = [row.get("mark") == "†" and name == "segmentation" for row in rows]
    assert [row.get("test_time_augmentation", False) for row in rows] == dagger


def test_the_frame_holds_each_published_number_once() -> None:
    frame = published_frame()
    paper = frame[frame["source"] == "paper"]
    assert paper.groupby("table")["order"].nunique().to_dict() == ROWS
    assert len(paper) == sum(ROWS[name] * len(columns) for name, columns in COLUMNS.items())
    assert not paper.duplicated(["table", "order", "task", "metric"]).any()
    for name, columns in COLUMNS.items():
        metrics = list(titles_of(name)[1])
        rows = [row for group in read_published(name)["groups"] for row in group["rows"]]
        wanted = [row["scores"][task][metrics.index(metric)] for row in rows for task, metric in columns]
        found = paper[paper["table"] == name]["value"]
        assert [None if value != value else value for value in found] == wanted
    assert not frame.loc[frame["source"] == "beyond", "ranked"].any()
    assert set(paper.loc[~paper["ranked"], "method"]) == {"pcdepth"}


def test_bold_numbers_are_the_best_of_the_ranked_rows() -> None:
    for _, column in published_frame().groupby(["table", "task", "metric"]):
        ranked = column[column["ranked"]]["value"]
        best = ranked.max() if column["better"].iloc[0] == "higher" else ranked.min()
        assert (column["bold"] == (column["ranked"] & (column["value"] == best))).all()


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("depth.yaml", "[0.634, ", "["),
        ("depth.yaml", "backbone:", "back:"),
        ("beyond.yaml", "{dsec: [null, null], ddd17", "{dsec: [null], ddd17"),
        ("beyond.yaml", "miou:", "mIoU:"),
        ("depth.yaml", "mvsec: [", "mvsce: ["),
        ("depth.yaml", "[0.634, ", "[a, "),
        ("beyond.yaml", "marks:", "marks: ["),
    ],
)
def test_an_incomplete_row_is_refused_in_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, old: str, new: str
) -> None:
    for path in PUBLISHED.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    text = (tmp_path / file).read_text(encoding="utf-8")
    (tmp_path / file).write_text(text.replace(old, new, 1), encoding="utf-8")
    monkeypatch.setattr(module, "PUBLISHED", tmp_path)
    monkeypatch.setattr(module, "read_published", read_published.__wrapped__)
    with pytest.raises(UserError, match=file) as refused:
        published_frame()
    assert "\n" not in str(refused.value)


FACTS_SOURCE = (DATA / "tab-supp-facts.tex").read_text(encoding="utf-8")
FACTS = read_published(PLAIN)
LATEX_OF = {
    r"\algoNameFull": "TESPEC",
    r"$\intervalLength$": "T",
    r"$\denormEvents$": "N",
    r"$c_1$, $c_2$": "c1, c2",
    r"$d_{\text{max}}, \alpha$": "d_max, α",
    r"$\times$": "× ",
    r"$4\times$": "4×",
    r"$2\times$": "2×",
    r"$1\times$": "1×",
    r"$50\%$": "50%",
}


def papers_rows(label: str) -> list[list[str]]:
    """Cells of a table of the paper's source, those over several columns repeated."""
    before = FACTS_SOURCE.split(rf"\label{{{label}}}")[0]
    body = before[before.rindex(r"\begin{tabular}") :].split(r"\end{tabular}")[0]
    body = re.sub(r"\\begin\{tabular\}\{.*\}\n", "", body)
    body = re.sub(r"\\(top|mid|bottom)rule|\\hline|\\rowcolor\{.*?\}|\\cmidrule(\(.*?\))?\{.*?\}", "", body)
    rows = []
    for line in body.split(r"\\"):
        cells = []
        for cell in line.split("&"):
            spanned = re.fullmatch(r"\\multicolumn\{(\d)\}\{\w+\}\{(.*)\}", cell.strip(), re.DOTALL)
            count, text = (int(spanned[1]), spanned[2]) if spanned else (1, cell.strip())
            text = re.sub(r"\\multirow\{\d\}\{\*\}\{(.*)\}", r"\1", re.sub(r"\\text\{(.*?)\}$", r"\1", text))
            for sign, shown in LATEX_OF.items():
                text = text.replace(sign, shown)
            cells += [re.sub(r"\s+", " ", text).strip()] * count
        if any(cells):
            rows.append(cells)
    return rows


@pytest.mark.parametrize("name", FACTS)
def test_every_cell_of_a_table_of_facts_is_the_papers(name: str) -> None:
    facts = FACTS[name]
    papers = papers_rows(facts["label"])
    ours = [row for group in facts["groups"] for row in group["rows"]]
    assert [row for row in papers if row in ours] == ours
    # What is left over are headers and headings.
    rest = [cell for row in papers if row not in ours for cell in row if cell]
    assert not any(re.search(r"\d\.\d|\b\d{3}", cell) for cell in rest)


def test_all_tables_of_facts_are_there() -> None:
    labels = set(re.findall(r"\\label\{(.*?)\}", FACTS_SOURCE)) - {"tab:all-config", "tab:all-augmentation"}
    assert {facts["label"] for facts in FACTS.values()} == labels


SETTINGS_OF = [
    ("settings_detection", "gen1"),
    ("settings_detection", "1mpx"),
    ("settings_depth", "mvsec"),
    ("settings_segmentation", "dsec"),
    ("settings_segmentation", "ddd17"),
]


@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
@pytest.mark.parametrize(("name", "task"), SETTINGS_OF)
def test_the_paper_profile_has_the_papers_settings(name: str, task: str, arch: str) -> None:
    headers = [" ".join(column).lower() for column in FACTS[name]["columns"]]
    paper = column_of(name, headers.index(f"{arch} {task}"))
    facts = as_facts(finetuning_settings(task, arch, "paper"))
    check_settings(paper, facts)
    if arch == "feedforward" or task not in ("ddd17", "dsec"):
        assert facts["window_ms"] in (None, float(paper["T"].removesuffix("ms")))


def test_the_paper_profile_has_the_papers_pretraining() -> None:
    paper = column_of("settings_pretraining", 1)
    facts = as_facts(pretraining_settings("tespec", "paper"))
    check_settings(paper, facts)
    assert facts["window_ms"] == float(paper["T"].removesuffix("ms"))
    assert facts["objective"]["mask"]["ratio"] == float(paper["Masking Ratio"].removesuffix("%")) / 100
    assert facts["objective"]["target"]["norm_events"] == float(paper["N"].replace(",", ""))


def column_of(name: str, index: int) -> dict[str, str]:
    """A column of a table of settings, by the names of the rows."""
    return {row[0]: row[index] for group in FACTS[name]["groups"] for row in group["rows"]}


def check_settings(paper: dict[str, str], facts: dict) -> None:
    optimisation = facts["optimisation"]
    divisors = [float(each.replace(",", "")) for each in paper["c1, c2"].split(", ")]
    assert facts["batch_size"] == int(paper["Effective Batch Size"])
    assert optimisation["peak_lr"] == float(paper["Peak Learning Rate"])
    assert [optimisation["start_divisor"], optimisation["end_divisor"]] == divisors
    assert optimisation["optimizer"] == paper["Optimizer"]
    assert optimisation["schedule"] == paper["Scheduler"].lower()
    assert optimisation["steps"] == int(paper["Training Steps"].replace(",", ""))
    assert optimisation["warmup_steps"] == int(paper["Warm Up Steps"].replace(",", ""))
    assert facts["segments"] == int(paper["Sequence Length"])

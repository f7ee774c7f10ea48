"""The published numbers and facts are those of the paper's source, and of the settings of its profile."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tespec.comparison.published import PAPER, PublishedRow, Scheme, plain_tables, read_published
from tespec.core.config import as_facts, finetuning_settings, pretraining_settings

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
every_column = pytest.mark.parametrize(("name", "key"), [(name, key) for name, keys in COLUMNS.items() for key in keys])


def excerpt(name: str) -> str:
    """The table in the paper's source."""
    return (DATA / EXCERPTS[name]).read_text(encoding="utf-8")


def published_lines(name: str, decimals: int) -> list[list[list[str]]]:
    """Cells of the paper's rows, a list for each group of lines between two rules; numbers with equal decimals."""
    body = excerpt(name).split(r"\midrule")[1].split(r"\bottomrule")[0].replace(r"\color{gray} ", r"\color{gray}")
    body = re.sub(r"\b\d+\.\d+\b", lambda number: f"{float(number[0]):.{decimals}f}", body)
    groups = [[row.strip() for row in block.split(r"\\") if "&" in row] for block in body.split(r"\hline")]
    return [[[cell.strip() for cell in row.split("&")] for row in group] for group in groups]


def source_of(row: PublishedRow, name: str, decimals: int) -> list[str]:
    """The line of the paper's source that a row has to come from, by cells."""
    cite = rf"~\cite{{{row.citation}}}" if row.citation else ""
    title = row.title.replace("TESPEC (Ours)", r"\algoNameFull (\textbf{Ours})")
    cells = [
        title + MARKS[row.mark] + cite,
        row.backbone,
        "Yes" if row.recurrent else "No",
        row.pretraining,
    ]
    for key in COLUMNS[name]:
        value = row.scores[key]
        text = "-" if value is None else f"{value:.{decimals}f}"
        cells.append(rf"\textbf{{{text}}}" if key in row.bold else text)
    return [cell if row.ranked else rf"\color{{gray}}{cell}" for cell in cells]


@pytest.fixture(params=sorted(EXCERPTS))
def named(request: pytest.FixtureRequest) -> tuple[str, Scheme]:
    """Each published table with its name."""
    return request.param, read_published(request.param)


def test_every_cell_is_the_papers(named: tuple[str, Scheme]) -> None:
    name, reference = named
    decimals = reference.decimals
    papers = published_lines(name, decimals)
    assert [[source_of(row, name, decimals) for row in group.rows] for group in reference.groups] == papers
    assert sum(map(len, papers)) == ROWS[name]


def test_heading_of_the_literature_rows_is_the_papers(named: tuple[str, Scheme]) -> None:
    name, reference = named
    heading = re.search(r"\\textit\{(.*?)\.?\}", excerpt(name))
    assert heading is not None
    assert [group.heading for group in reference.groups if group.heading] == [heading[1]]


def test_metrics_point_where_the_papers_arrows_do(named: tuple[str, Scheme]) -> None:
    name, reference = named
    arrows = [{"up": "↑", "down": "↓"}[arrow] for arrow in re.findall(r"\\(up|down)arrow", excerpt(name))]
    better = [{"higher": "↑", "lower": "↓"}[metric.better] for metric in reference.metrics]
    assert arrows == better * (len(arrows) // len(better))
    assert [metric.title[-1] for metric in reference.metrics] == better


@every_column
def test_bold_numbers_are_the_best_of_the_ranked_rows(name: str, key: tuple[str, str]) -> None:
    reference = read_published(name)
    better = next(metric.better for metric in reference.metrics if metric.name == key[1])
    rows = [row for row in reference.rows if row.ranked]
    values = [value for row in rows if (value := row.scores[key]) is not None]
    best = max(values) if better == "higher" else min(values)
    assert [row for row in rows if key in row.bold] == [row for row in rows if row.scores[key] == best]


def test_the_row_out_of_the_ranking_would_lead_it() -> None:
    (row,) = (row for name in EXCERPTS for row in read_published(name).rows if not row.ranked)
    best = next(each for each in read_published("depth").rows if each.method == "tespec")
    delta, ours = row.scores["mvsec", "delta_1"], best.scores["mvsec", "delta_1"]
    assert row.method == "pcdepth"
    assert delta is not None
    assert ours is not None
    assert delta > ours


def test_marks_are_explained(named: tuple[str, Scheme]) -> None:
    _, reference = named
    assert {row.mark for row in reference.rows} - {""} == set(reference.marks)


def test_the_dagger_tells_test_time_augmentation() -> None:
    rows = read_published("segmentation").rows
    assert all(row.test_time_augmentation == (row.mark == "†") for row in rows)


FACTS_SOURCE = (DATA / "tab-supp-facts.tex").read_text(encoding="utf-8")
FACTS = yaml.safe_load((PAPER / "plain.yaml").read_text(encoding="utf-8"))
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


def test_numbers_have_values_and_texts_have_none() -> None:
    tables = plain_tables()
    (steps,) = (row for row in tables["settings_pretraining"].rows if row.cells[0].text == "Training Steps")
    assert steps.cells[1].value == 400_000
    (divisors,) = (row for row in tables["settings_depth"].rows if row.cells[0].text == "c1, c2")
    assert divisors.cells[1].value is None
    assert tables["runtime"].columns[1].number
    assert not tables["settings_depth"].columns[1].number


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
    table = plain_tables()[name]
    titles = {"recurrent": "Recurrent", "feedforward": "Feedforward"}
    headers = [column.headers for column in table.columns]
    index = next(
        at for at, each in enumerate(headers) if each[0] == titles[arch] and each[-1].lower() == task
    )  # fmt: skip
    paper = {row.cells[0].text: row.cells[index].text for row in table.rows}
    facts = as_facts(finetuning_settings(task, arch, "paper"))
    check_settings(paper, facts)
    if arch == "feedforward" or task not in ("ddd17", "dsec"):
        assert facts["window_ms"] in (None, float(paper["T"].removesuffix("ms")))


def test_the_paper_profile_has_the_papers_pretraining() -> None:
    paper = {row.cells[0].text: row.cells[1].text for row in plain_tables()["settings_pretraining"].rows}
    facts = as_facts(pretraining_settings("tespec", "paper"))
    check_settings(paper, facts)
    assert facts["window_ms"] == float(paper["T"].removesuffix("ms"))
    assert facts["objective"]["mask"]["ratio"] == float(paper["Masking Ratio"].removesuffix("%")) / 100
    assert facts["objective"]["target"]["norm_events"] == float(paper["N"].replace(",", ""))


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

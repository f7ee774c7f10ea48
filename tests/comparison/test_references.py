from __future__ import annotations

import re
from pathlib import Path

import pytest

from tespec.comparison.published import PublishedRow, Scheme, read_published

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

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tespec.comparison.references import Published, read_reference

EXCERPT = Path(__file__).parent / "data" / "tab-sem-seg.tex"
MARKS = {"†": r"$^\dagger$", "‡": r"$^\ddagger$", "": ""}
COLUMNS = [("dsec", "miou"), ("dsec", "mean_class_acc"), ("ddd17", "miou"), ("ddd17", "mean_class_acc")]


def published_lines() -> list[list[str]]:
    """Cells of the paper's rows, as they stand in its source, one list for each group of lines between two rules."""
    body = EXCERPT.read_text().split(r"\midrule")[1].split(r"\bottomrule")[0]
    groups = [[row.strip() for row in block.split(r"\\") if "&" in row] for block in body.split(r"\hline")]
    return [[*group] for group in groups]


def source_of(row: Published) -> list[str]:
    """The line of the paper's source that a row has to come from, by cells."""
    cite = rf"~\cite{{{row.citation}}}" if row.citation else ""
    title = row.title.replace("TESPEC (Ours)", r"\algoNameFull (\textbf{Ours})")
    cells = [
        title + MARKS[row.mark] + cite,
        row.backbone,
        "Yes" if row.recurrent else "No",
        row.pretraining,
    ]
    for key in COLUMNS:
        value = row.scores[key]
        text = "-" if value is None else f"{value:.3f}"
        cells.append(rf"\textbf{{{text}}}" if key in row.bold else text)
    return cells


def test_every_cell_of_the_segmentation_table_is_the_papers() -> None:
    ours = [[source_of(row) for row in group.rows] for group in read_reference("segmentation").groups]
    papers = [[[cell.strip() for cell in line.split("&")] for line in group] for group in published_lines()]
    assert ours == papers
    assert sum(map(len, papers)) == 13


def test_heading_of_the_literature_row_is_the_papers() -> None:
    heading = re.search(r"\\textit\{(.*?)\.?\}", EXCERPT.read_text())
    assert heading is not None
    assert read_reference("segmentation").groups[0].heading == heading[1]


@pytest.mark.parametrize("key", COLUMNS)
def test_bold_numbers_are_the_best_of_the_ranked_rows(key: tuple[str, str]) -> None:
    rows = [row for row in read_reference("segmentation").rows if row.ranked]
    best = max(value for row in rows if (value := row.scores[key]) is not None)
    assert [row for row in rows if key in row.bold] == [row for row in rows if row.scores[key] == best]


def test_a_mark_is_explained_and_tells_test_time_augmentation() -> None:
    reference = read_reference("segmentation")
    assert {row.mark for row in reference.rows} - {""} == set(reference.marks)
    assert all(row.test_time_augmentation == (row.mark == "†") for row in reference.rows)

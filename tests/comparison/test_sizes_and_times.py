"""The table of sizes and times: the paper's numbers, and those of records next to them."""

import re
from pathlib import Path

import pytest
from made_records import record

from tespec.comparison.cost import cost_table
from tespec.comparison.frame import to_frame

SOURCE = (Path(__file__).parent / "data" / "tab-supp-cost.tex").read_text()
TASKS = ("DSEC", "DDD17", "MVSEC", "Gen1", "1Mpx")


def published():
    """Published texts by row and column title."""
    cells = cost_table(to_frame([])).cells
    return {
        (row[1], column[0]): cells.loc[row, column]
        for row in cells.index
        for column in cells.columns
    }


@pytest.mark.parametrize(
    ("module", "row", "columns"),
    [
        ("Feedforward backbone", "Feed-forward backbone", TASKS),
        ("Recurrent backbone", "Recurrent backbone", TASKS),
        (r"\algoNameFull decoder head", "TESPEC's decoder", ["Pre-training"]),
        ("Object Detection head", "Head", ["Gen1", "1Mpx"]),
        ("Semantic Segmentation head", "Head", ["DSEC", "DDD17"]),
        ("Monocular Depth Estimation head", "Head", ["MVSEC"]),
    ],
)
def test_the_sizes_are_the_papers(module, row, columns):
    (size,) = re.findall(rf"{re.escape(module)} & ([\d.]+)", SOURCE)
    assert {published()[row, column] for column in columns} == {size}


def test_the_times_are_the_papers():
    found = published()
    hours = re.findall(r"(\d+)h", SOURCE)
    names = ("ECDP", "ECDDP", "TESPEC")
    assert [float(found[f"{name}'s pre-training", "Pre-training"]) for name in names] == [
        *map(float, hours)
    ]
    lines = re.findall(r"\\text\{(?:No|Yes)\} & (.*?) \\\\", SOURCE)
    rows = ("Feed-forward fine-tuning", "Recurrent fine-tuning", "Feed-forward", "Recurrent")
    assert [[found[row, task] for task in TASKS] for row in rows] == [
        line.split(" & ") for line in lines
    ]


def test_measured_numbers_are_means_over_runs_of_their_row_in_a_column_of_their_own():
    cost = {"backbone_parameters": 1.5, "head_parameters": 0.25, "inference_ms": 4.0}
    made = [
        record(seed=0, cost=cost, time={"train": 3600.0}),
        record(seed=1, cost=cost | {"inference_ms": 6.0}, time={"train": 7200.0}),
        record(seed=2, overrides={"optimisation.steps": 9}, time={"train": 9e9}),  # other settings
        record(
            seed=3, facts={"title": "A", "group": "B", "backbone": "ResNet50"}, time={"train": 9e9}
        ),
        record("tespec", kind="pretraining", task="sample", cost=cost, time={"train": 1800.0}),
    ]
    cells = cost_table(to_frame(made)).cells
    measured = {
        (row[1], column[0]): cells.loc[row, column]
        for row in cells.index
        for column in cells.columns
        if column[2] == "measured (sample, sample)" and cells.loc[row, column] != "-"
    }
    assert measured == {
        ("Recurrent backbone", "DDD17"): "1.5",
        ("Head", "DDD17"): "0.25",
        ("Recurrent fine-tuning", "DDD17"): "1.5",
        ("Recurrent", "DDD17"): "5",
        ("TESPEC's decoder", "Pre-training"): "0.25",
        ("TESPEC's pre-training", "Pre-training"): "0.5",
    }

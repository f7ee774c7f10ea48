"""The table of sizes and times: the paper's numbers, and those of records next to them."""

import re
from functools import cache
from pathlib import Path

import pytest
from made_records import record

from tespec.comparison.cost import cost_table
from tespec.comparison.frame import to_frame

SOURCE = (Path(__file__).parent / "data" / "tab-supp-cost.tex").read_text()
TASKS = ("DSEC", "DDD17", "MVSEC", "Gen1", "1Mpx")


@cache
def published():
    """Published texts by row and column title."""
    cells = cost_table(to_frame([])).cells
    return {
        (row[1], column[0]): text for column, texts in cells.items() for row, text in texts.items()
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
        record(seed=3, backbone="swin_micro", time={"train": 36_000.0}),
        record("tespec", kind="pretraining", task="sample", cost=cost, time={"train": 1800.0}),
    ]
    cells = cost_table(to_frame(made)).cells
    measured = {
        (row[1], row[2], column[0]): text
        for column, texts in cells.items()
        for row, text in texts.items()
        if column[2] == "measured (sample, sample, full) on A, 1 threads" and text != "-"
    }
    assert measured == {
        ("Recurrent backbone", "Swin-T/7", "DDD17"): "1.5 (2)",
        ("Head", "Swin-T/7", "DDD17"): "0.25 (2)",
        ("Recurrent fine-tuning", "Swin-T/7", "DDD17"): "1.5 (2)",
        ("Recurrent fine-tuning", "swin_micro", "DDD17"): "10 (1)",
        ("Recurrent", "Swin-T/7", "DDD17"): "5 (2)",
        ("TESPEC's decoder", "Swin-T/7", "Pre-training"): "0.25 (1)",
        ("TESPEC's pre-training", "Swin-T/7", "Pre-training"): "0.5 (1)",
    }

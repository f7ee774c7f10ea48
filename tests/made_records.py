from dataclasses import fields
from typing import Any

from tespec.comparison.cell import Cell
from tespec.comparison.records import Record, new_record

CELL: dict[str, Any] = {
    "kind": "evaluation",
    "task": "ddd17",
    "data": "sample",
    "profile": "sample",
    "backbone": "swin_tiny",
}
CELL_FIELDS = {field.name for field in fields(Cell)}
SCORES = {
    name: {"title": title, "better": "higher", "unit": "%"}
    for name, title in (("miou", "mIoU ↑"), ("mean_class_acc", "mAcc ↑"))
}


def cell(method: str = "scratch", arch: str = "recurrent", **changes: Any) -> Cell:
    """Cell of an evaluation on the sample world; `changes` replace its fields."""
    return Cell(**{**CELL, "method": method, "arch": arch, **changes})


def pretraining(method: str = "tespec", arch: str = "recurrent", **changes: Any) -> Cell:
    """Cell of a pre-training on the sample world; `changes` replace its fields."""
    return cell(method, arch, **{"kind": "pretraining", "task": "1mpx", **changes})


def record(
    method: str = "scratch",
    arch: str = "recurrent",
    seed: int = 0,
    miou: float | None = 40.0,
    title: str = "",
    **changes: Any,
) -> Record:
    """Record of a run on the sample world; `changes` replace fields of its cell and its own."""
    of_cell = {name: value for name, value in changes.items() if name in CELL_FIELDS}
    values: dict[str, Any] = {
        "seed": seed,
        "data_fingerprint": "0123456789ab",
        "facts": {"title": title or method.title(), "group": "Mine"},
        "config": {},
        "scores": SCORES,
        "metrics": {"miou": miou, "mean_class_acc": None if miou is None else miou + 10},
        "recordings": {"dir1": {"miou": miou}},
        "classes": {"flat": 80.0, "vehicle": 20.0},
        "command": "python benchmarks/run.py",
        "environment": {"device": "cpu", "cpu": "A", "threads": 1, "packages": {"torch": "2.13.0"}},
        "time": {"train": 12.5},
    }
    others = {name: value for name, value in changes.items() if name not in CELL_FIELDS}
    return new_record(cell=cell(method, arch, **of_cell), **(values | others))

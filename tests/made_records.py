from typing import Any

from tespec.comparison.records import CHOICES, Record, new_record

CHOSEN: dict[str, Any] = {
    "kind": "evaluation",
    "method": "scratch",
    "method_version": 1,
    "plugin": "",
    "task": "ddd17",
    "task_version": 1,
    "arch": "recurrent",
    "profile": "sample",
    "split": "test",
    "seed": 0,
    "overrides": {},
    "data_fingerprint": "0123456789ab",
    "start_sha256": "",
}
TITLES = {"miou": "mIoU ↑", "mean_class_acc": "mAcc ↑"}
SCORES = {name: {"title": title, "better": "higher", "unit": "%"} for name, title in TITLES.items()}


def record(
    method: str = "scratch",
    arch: str = "recurrent",
    seed: int = 0,
    miou: float | None = 40.0,
    title: str = "",
    **changes: Any,
) -> Record:
    """Record of a run on the sample world; `changes` replace its choices and fields."""
    chosen = CHOSEN | {"method": method, "arch": arch, "seed": seed}
    fields: dict[str, Any] = {
        "facts": {
            "title": title or method.title(),
            "group": "Mine",
            "backbone": "Swin-T/7",
            "pretraining_data": "-",
        },
        "config": {"label_fraction": 1.0},
        "data": "sample",
        "scores": SCORES,
        "metrics": {"miou": miou, "mean_class_acc": None if miou is None else miou + 10},
        "recordings": {"dir1": {"miou": miou}},
        "classes": {"flat": 80.0, "vehicle": 20.0},
        "command": "python benchmarks/run.py",
        "environment": {"device": "cpu", "cpu": "A", "threads": 1, "packages": {"torch": "2.13.0"}},
        "time": {"train": 12.5},
    }
    chosen |= {name: value for name, value in changes.items() if name in CHOICES}
    return new_record(
        chosen, **(fields | {name: value for name, value in changes.items() if name not in CHOICES})
    )

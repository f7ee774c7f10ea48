"""Records that no run computed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tespec.comparison.records import Record, new_record

TITLES = {"scratch": "No Pre-training", "tespec": "TESPEC", "mine": "My method"}


def make_record(
    name: str = "scratch", /, arch: str = "recurrent", seed: int = 0, miou: float = 40.0, **changes: Any
) -> Record:
    own = {"arch": arch, "window_ms": None if arch == "recurrent" else 100.0}
    fields: dict[str, Any] = {
        "kind": "evaluation",
        "method_name": name,
        "method": {"title": TITLES.get(name, name), "backbone": "Swin-T/7", "pretraining_data": "-"},
        "task": "ddd17",
        "arch": arch,
        "profile": "sample",
        "data": "sample",
        "data_fingerprint": "0123456789ab",
        "seed": seed,
        "config": {"optimisation": {"steps": 150}, "deviations": ["narrow backbone"]} | own,
        "protocol": {"scores": "mean over classes", "events": f"of the {arch} model"},
        "metrics": {"miou": miou, "mean_class_acc": miou + 10, "pixel_acc": 90.0},
        "groups": {"moving": {"miou": miou + 2}, "standing": {"miou": miou - 5}},
        "recordings": {"dir1": {"miou": miou}},
        "classes": {"flat": 80.0},
        "weights": {"source": "random initialisation", "sha256": ""},
        "command": "python benchmarks/run.py",
        "environment": {"python": "3.12.0"},
        "time": {"train": 12.5},
        "curve": [{"step": 10, "loss": 1.5}],
    }
    return new_record(**(fields | changes))


@pytest.fixture
def record() -> Callable[..., Record]:
    """Makes a record of the sample world; keyword arguments replace its fields."""
    return make_record


@pytest.fixture
def sample_records() -> list[Record]:
    """Two methods with three and two seeds, a feed-forward cell and a plug-in without published rows."""
    return [
        *(make_record("scratch", seed=seed, miou=40.0 + seed) for seed in range(3)),
        *(make_record("tespec", seed=seed, miou=60.0 + 2 * seed) for seed in range(2)),
        make_record("tespec", "feedforward", miou=38.25),
        make_record("mine", "feedforward", miou=39.5),
    ]

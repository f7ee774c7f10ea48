"""Records and pictures of a report."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from tespec.comparison.records import Record, new_record, write_record

HOSTILE = "</script><script>document.title='taken'</script>\"'><img src=x onerror=\"document.title='taken'\">"


def make_record(name: str = "scratch", seed: int = 0, miou: float = 40.0, **changes: Any) -> Record:
    fields: dict[str, Any] = {
        "kind": "evaluation",
        "method_name": name,
        "method": {"title": f"Method {name}", "backbone": "Swin-T/7", "pretraining_data": "-"},
        "task": "ddd17",
        "arch": "recurrent",
        "profile": "sample",
        "data": "sample",
        "data_fingerprint": "0123456789ab",
        "seed": seed,
        "config": {"arch": "recurrent", "optimisation": {"steps": 20}},
        "protocol": {"scores": "mean over classes"},
        "metrics": {"miou": miou, "mean_class_acc": miou + 10},
        "groups": {},
        "recordings": {"dir1": {"miou": miou}, "dir2": {"miou": miou + 1}},
        "classes": {"flat": 80.0, "human": miou / 2},
        "weights": {"source": "random initialisation", "sha256": ""},
        "command": f"python benchmarks/run.py --method {name} --task ddd17 --seed {seed}",
        "environment": {"cpu": "a processor", "device": "cpu", "modified": True},
        "time": {"train": 12.5, "evaluate": 3.0, "total": 16.0},
        "resources": {"peak_memory_bytes": 2.0**30},
        "curve": [{"step": step, "loss": 2.0 / step} for step in (1, 5, 10)],
    }
    return new_record(**(fields | changes))


@pytest.fixture
def make() -> Callable[..., Record]:
    """Makes a record; keyword arguments replace its fields."""
    return make_record


@pytest.fixture
def hostile() -> Record:
    """A record of a stranger with mark-up wherever it may have text."""
    return make_record(
        "mine",
        method={"title": HOSTILE, "backbone": HOSTILE, "pretraining_data": HOSTILE, "group": HOSTILE},
        protocol={HOSTILE: HOSTILE},
        classes={HOSTILE: 3.0},
        recordings={HOSTILE: {"miou": 2.0}, "b": {"miou": 1.0}},
        command=HOSTILE,
        environment={"cpu": HOSTILE, "device": HOSTILE, "revision": HOSTILE},
        weights={"source": HOSTILE, "sha256": HOSTILE},
        data=HOSTILE,
    )


@pytest.fixture
def results(tmp_path: Path) -> Path:
    """A results folder with two methods over two seeds, and pictures of them."""
    folder = tmp_path / "results"
    (folder / "pictures").mkdir(parents=True)
    for name, miou in (("scratch", 40.0), ("tespec", 44.0)):
        for seed in range(2):
            record = make_record(name, seed, miou + seed)
            write_record(record, folder / "runs")
            Image.new("RGB", (1500, 300), (200, 30, 60)).save(folder / "pictures" / f"{record['name']}.png")
    return folder

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image

from tespec.comparison.records import Record, new_record
from tespec.report.comparison_figure import draw_comparison


def made(kind: str, name: str, task: str, arch: str, seed: int, **metrics: float) -> Record:
    fields: dict[str, Any] = {
        "kind": kind,
        "method_name": name,
        "method": {"title": name},
        "task": task,
        "arch": arch,
        "profile": "small",
        "data": "sample",
        "data_fingerprint": "0123456789ab",
        "seed": seed,
        "config": {"arch": arch},
        "protocol": {},
        "metrics": metrics,
        "groups": {},
        "recordings": {},
        "classes": {},
        "weights": {"sha256": ""},
        "command": "",
        "environment": {},
        "time": {"total": 1.0},
        "curve": [],
    }
    return new_record(**fields)


def test_every_task_is_a_panel_with_dots_and_references(tmp_path):
    records = [
        made("evaluation", name, "ddd17", arch, seed, miou=30.0 + seed)
        for name in ("scratch", "tespec")
        for arch in ("recurrent", "feedforward")
        for seed in range(3)
    ]
    records += [made("evaluation", "scratch", "mvsec", "recurrent", 0, abs=4.0)]
    one = tmp_path / "one.png"
    draw_comparison(records, one)
    plain = np.asarray(Image.open(one).convert("RGB"))
    assert plain.std() > 5
    floor = made("reference", "prior", "ddd17", "feedforward", 0, miou=20.0)
    other = tmp_path / "two.png"
    draw_comparison([*records, floor], other)
    assert np.asarray(Image.open(other)).tobytes() != np.asarray(Image.open(one)).tobytes()
    # A floor of other data is not this one's.
    elsewhere = {"data_fingerprint": "another", "written": "2999-01-01T00:00:00+00:00"}
    draw_comparison([*records, floor | elsewhere], other)
    assert np.asarray(Image.open(other)).tobytes() == np.asarray(Image.open(one)).tobytes()
    # What is scored on the validation split, as controls are, is not drawn.
    later = made("evaluation", "scratch", "ddd17", "recurrent", 0, miou=90.0)
    draw_comparison([*records, later | {"split": "val", "written": "2999-01-01T00:00:00+00:00"}], other)
    assert np.asarray(Image.open(other)).tobytes() == np.asarray(Image.open(one)).tobytes()
    draw_comparison([*records, floor], other)
    assert np.asarray(Image.open(other)).tobytes() != np.asarray(Image.open(one)).tobytes()

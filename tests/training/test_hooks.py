from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tespec.core.errors import UserError
from tespec.training.hooks import TrackHook, check_tracker

CURVE = [{"step": 2, "loss": 3.0}, {"step": 4, "loss": 2.0}]


def loop(step: int, steps: int = 4) -> Any:
    return SimpleNamespace(step=step, settings=SimpleNamespace(steps=steps))


def tracked(name: str, folder: Path, stop_at: int = 4) -> None:
    """A run that is stopped, resumed and finished."""
    curve = SimpleNamespace(curve=[])
    hook = TrackHook(name, "evaluation-x", folder, curve, {"seed": 3})
    hook.before_run(loop(0))
    for step in range(1, stop_at + 1):
        curve.curve = [point for point in CURVE if point["step"] <= step]
        hook.after_train_iter(loop(step), step - 1)
    hook.after_run(loop(stop_at))
    if stop_at == 4:
        hook.result({"miou": 61.5}, 4)


def test_plain_files_hold_curve_and_result(tmp_path: Path) -> None:
    tracked("files", tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "tracking" / "scalars.json").read_text().splitlines()]
    assert lines == [
        {"train/loss": 3.0, "step": 2},
        {"train/loss": 2.0, "step": 4},
        {"result/miou": 61.5, "step": 4},
    ]
    assert "seed = 3" in (tmp_path / "tracking" / "config.py").read_text()


def test_a_resumed_run_repeats_no_point(tmp_path: Path) -> None:
    curve = SimpleNamespace(curve=CURVE[:1])
    hook = TrackHook("files", "evaluation-x", tmp_path, curve, {})
    hook.before_run(loop(2))
    curve.curve = CURVE
    hook.after_train_iter(loop(4), 3)
    (line,) = (tmp_path / "tracking" / "scalars.json").read_text().splitlines()
    assert json.loads(line)["step"] == 4


def test_tensorboard_holds_curve_and_result(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracked("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "tracking")).Reload()
    assert [(each.step, each.value) for each in events.Scalars("train/loss")] == [(2, 3.0), (4, 2.0)]
    assert [each.value for each in events.Scalars("result/miou")] == [61.5]


def test_a_tracker_that_is_not_installed_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tespec.training.hooks.find_spec", lambda package: None)
    with pytest.raises(UserError, match=r"--track wandb: the package wandb is not installed; pip install wandb"):
        check_tracker("wandb")

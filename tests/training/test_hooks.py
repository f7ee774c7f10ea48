"""What a tracker is told of a run that is stopped and resumed."""

import json
from types import SimpleNamespace

import pytest

from tespec.core.errors import UserError
from tespec.training.hooks import TrackHook, check_tracker

CURVE = [{"step": 2, "loss": 3.0}, {"step": 4, "loss": 2.0}]


def tracked(name, folder):
    for first, last in ((0, 2), (2, 4)):
        curve = SimpleNamespace(curve=[point for point in CURVE if point["step"] <= first])
        hook = TrackHook(name, "evaluation-x", folder, curve, {"seed": 3})
        hook.before_run(None)
        curve.curve = [point for point in CURVE if point["step"] <= last]
        loop = SimpleNamespace(step=last, settings=SimpleNamespace(steps=4))
        hook.after_train_iter(loop, last - 1)
        hook.after_run(loop)
    hook.result({"miou": 61.5})


def test_plain_files_hold_curve_and_result(tmp_path):
    tracked("files", tmp_path)
    lines = [json.loads(line) for line in (tmp_path / "tracking" / "scalars.json").read_text().splitlines()]
    assert lines == [
        {"train/loss": 3.0, "step": 2},
        {"train/loss": 2.0, "step": 4},
        {"result/miou": 61.5, "step": 4},
    ]
    assert "seed = 3" in (tmp_path / "tracking" / "config.py").read_text()


def test_tensorboard_holds_curve_and_result(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    tracked("tensorboard", tmp_path)
    events = EventAccumulator(str(tmp_path / "tracking")).Reload()
    assert [(each.step, each.value) for each in events.Scalars("train/loss")] == [(2, 3.0), (4, 2.0)]
    assert [each.value for each in events.Scalars("result/miou")] == [61.5]


def test_a_tracker_is_refused_at_once_where_it_is_not_installed(monkeypatch):
    monkeypatch.setattr("tespec.training.hooks.find_spec", lambda package: None)
    with pytest.raises(UserError, match=r"--track wandb: the package wandb is not installed; pip install wandb"):
        check_tracker("wandb")

"""What is drawn and streamed is what was scored, for every task, architecture and sampling."""

from contextlib import suppress
from dataclasses import asdict, replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

import tespec
from tespec import inference
from tespec.core.boxes import Boxes
from tespec.core.config import as_facts
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task
from tespec.tasks.play import play
from tespec.weights.files import write_weights

CPU = torch.device("cpu")
KINDS = [
    ("recurrent", "mixed"),  # carries its state, as "stream" does
    ("recurrent", "random"),
    ("feedforward", "random"),
]
CASES = [("ddd17", *kind, "none") for kind in KINDS]
# Trained on both kinds of segments, a network is evaluated like one trained on streams.
PURE = [kind for kind in KINDS if kind[1] != "mixed"]
CASES += [("gen1", *kind, "none") for kind in PURE]
SLOW = [("ddd17", "recurrent", sampling, "flip") for sampling in ("stream", "random")]
SLOW += [("mvsec", *kind, "none") for kind in PURE]
CASES += [pytest.param(*case, marks=pytest.mark.slow) for case in SLOW]


@torch.no_grad()
def trained(world, folder, name, arch, *changes):
    """Save a network with random weights as a fine-tuning does; return file, network and task."""
    data = Data(world / name, "sample")
    task = build_task(settings_of(data, name, arch, None, changes), data.root)
    task.scored = task.scored[:1]
    torch.manual_seed(0)
    model = task.model().eval()
    for memory in model.backbone.lstms.parameters():
        memory.mul_(4)  # an untrained ConvLSTM has little effect
    if name == "gen1":  # so that an untrained network finds boxes, which depend on its input
        head = model.head
        for conv in (
            *head.multi_level_conv_cls,
            *head.multi_level_conv_obj,
            *head.multi_level_conv_reg,
        ):
            conv.bias.zero_()
            conv.weight.mul_(30)
    recipe = as_facts(task.settings) | {"histograms": asdict(task.histogram_spec)}
    write_weights(folder / "model.safetensors", model.state_dict(), recipe)
    return folder / "model.safetensors", model, task


def scored(task, model):
    """What the evaluation gives to the scorer, by recording and time of the label in us."""
    calls = Mock(wraps=task.score)
    task.score = calls
    task.evaluate(model, CPU)
    arguments = [call.args for call in calls.call_args_list]
    return {
        (recording.name, int(recording.label_times[label])): predicted
        for _, predicted, _, recording, label in arguments
    }


def drawn(path, name, world, folder, monkeypatch):
    """Predictions that `--predict` would draw if its figure had a row for every window."""
    shown = []
    monkeypatch.setattr(inference, "ROWS", 1000)
    monkeypatch.setattr(
        inference, "draw", lambda predictions, *_: shown.extend(predictions) or Figure()
    )
    inference.predict(path, name, folder / "out", CPU, root=world, clip=(0, 1e9))
    return [prediction.predicted for prediction in shown]


def assert_same(one, other):
    """Assert equal predictions up to rounding, which depends on the size of a batch."""
    if isinstance(one, Boxes):
        assert len(one.label) == len(other.label) > 0
        np.testing.assert_array_equal(one.label, other.label)
        np.testing.assert_allclose(one.score, other.score, rtol=1e-4)
        np.testing.assert_allclose(one.corners, other.corners, rtol=1e-4, atol=1e-3)
    elif one.dtype == np.uint8:
        assert (one != other).mean() < 1e-3  # rounding decides between nearly equal logits
    else:
        np.testing.assert_allclose(one, other, rtol=1e-4)


@pytest.mark.parametrize(("name", "arch", "sampling", "views"), CASES)
def test_every_pixel_and_box_that_is_shown_is_the_one_that_was_scored(
    tiny_world, tmp_path, monkeypatch, name, arch, sampling, views
):
    changes = [
        f"sampling={sampling}",
        "batch_size=2",
        *(["segments=2"] if arch == "recurrent" else []),
    ]
    changes += [] if views == "none" else [f"test_time_augmentation={views}"]
    path, model, task = trained(tiny_world, tmp_path, name, arch, *changes)
    of_scorer = scored(task, model)
    (recording,) = task.scored
    times = recording.label_times.tolist()
    pictures = drawn(path, recording.name, tiny_world / name, tmp_path, monkeypatch)
    streamed = dict(tespec.stream(recording.name, path, data=tiny_world / name))
    assert len(pictures) == len(times) == len(of_scorer) > 0
    assert list(streamed) == recording.windows[:, 1].tolist()
    for time, picture in zip(times, pictures, strict=True):
        assert_same(picture, of_scorer[recording.name, time])
        assert_same(streamed[time], picture)


@pytest.mark.parametrize("name", ["ddd17", "gen1", "mvsec"])
def test_a_state_that_is_carried_predicts_something_else_than_one_that_is_reset(
    tiny_world, tmp_path, name
):
    """So the comparisons above tell one from the other."""
    _, model, task = trained(
        tiny_world, tmp_path, name, "recurrent", "sampling=random", "segments=2"
    )
    player = task.player(task.settings, model, task.histogram_spec, task.size, CPU)
    reset, carried = (
        [played.output for played in play(player._replace(spec=spec), task.scored)]
        for spec in (player.spec, replace(player.spec, reset=False))
    )
    same = 0
    for one, other in zip(reset, carried, strict=True):
        with suppress(AssertionError):
            assert_same(one, other)
            same += 1
    assert same < 0.2 * len(reset)

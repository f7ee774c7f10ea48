"""Predictions of a trained network on a recording: those that are scored and drawn."""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from networks import written
from PIL import Image

from tespec import inference
from tespec.core import progress
from tespec.core.boxes import make_boxes
from tespec.core.errors import UserError
from tespec.datasets.batches import EvaluationBatches
from tespec.inference import ROWS, Prediction, TrainedNetwork, draw, find, load_trained, predict, run_inference
from tespec.tasks.base import Task

RECORDING = Path(__file__).parents[1] / "data" / "davis.aedat4"
CPU = torch.device("cpu")


@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
@torch.no_grad()
def test_inference_predicts_what_the_evaluation_scores(tiny_world, tmp_path, arch):
    path, model, task = written(tiny_world, tmp_path, "ddd17", arch)
    recording = task.scored[0]
    moments = list(run_inference(load_trained(path), recording, recording.labelled[3:8].tolist()))
    scored, state = {}, None
    settings = replace(task.settings, segments=5, evaluation_lanes=1, batch_size=1)
    for batch in EvaluationBatches(settings, [recording]):
        logits, state = model.predict(batch.histograms, state if arch == "recurrent" else None, batch.place)
        scored |= {label: mask for (_, label), mask in zip(batch.frames, task.read(logits), strict=True)}
    assert len(moments) == 5
    for label, moment in enumerate(moments, start=3):
        assert np.array_equal(moment.predicted, scored[label])
        assert np.array_equal(moment.truth, recording.labels[label])
        assert moment.seconds == pytest.approx((recording.label_times[label] - recording.windows[0, 0]) / 1e6)
    # A path into the data set comes with its labels as well.
    found = find(task.settings, str(recording.path), tiny_world / "ddd17")
    assert (found.name, len(found), len(found.labels)) == (recording.name, len(recording), len(recording.labels))


@pytest.mark.parametrize("name", ["gen1", "mvsec"])
def test_a_figure_is_drawn_and_the_network_built_once(tiny_world, tmp_path, monkeypatch, capsys, name):
    path, _, task = written(tiny_world, tmp_path, name)
    built, build = [], inference.fresh_backbone
    monkeypatch.setattr(inference, "fresh_backbone", lambda *arguments: built.append(1) or build(*arguments))
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0)
    drawn = predict(path, task.scored[0].name, tmp_path / "out", CPU, root=tiny_world / name, clip=(0.0, 0.6))
    assert (drawn.windows > ROWS, drawn.labelled > 0, built) == (True, True, [1])
    done = re.findall(r"(\d+)/(\d+) windows", capsys.readouterr().err)[-1]
    assert done[0] == done[1]
    assert list((tmp_path / "out").iterdir()) == [drawn.figure]
    with Image.open(drawn.figure) as figure:
        assert figure.width > 3 * 300


def test_a_recording_without_labels(tiny_world, tmp_path):
    path, _, _ = written(tiny_world, tmp_path, "mvsec")
    drawn = predict(path, str(RECORDING), tmp_path / "out", CPU)
    assert (drawn.windows, drawn.labelled) == (2, 0)


MISTAKES = [
    ("dir99", {}, r"--predict dir99: no such recording; give a path, or one of dir2"),
    ("no/such.raw", {}, r"--predict no/such.raw: no such file or folder; check the path"),
    ("dir0", {"clip": (50, 60)}, r"no window ends between 50 and 60 s; it lasts .* s; give another --clip"),
    (str(RECORDING), {"sensor_px": "2x2"}, r"davis\.aedat4: "),
    (str(RECORDING), {"sensor_px": "wide"}, r"give WIDTHxHEIGHT in px"),
    (str(RECORDING.parent), {}, r"holds \d recordings; name one of them"),
]


def test_mistakes_are_named_and_nothing_is_written(tiny_world, tmp_path):
    path, _, _ = written(tiny_world, tmp_path, "ddd17")
    for recording, options, message in MISTAKES:
        with pytest.raises(UserError, match=message):
            predict(path, recording, tmp_path / "out", CPU, root=tiny_world / "ddd17", **options)
    assert not (tmp_path / "out").exists()


def test_boxes_of_low_scores_are_not_drawn(tiny_world, tmp_path):
    path, _, task = written(tiny_world, tmp_path, "gen1")
    boxes = make_boxes(np.array([[1, 1, 5, 5], [2, 2, 8, 8]]), np.array([0, 1]), np.array([0.9, 0.2]))
    network = load_trained(path)._replace(task=SimpleNamespace(read=lambda predictions: [boxes]))
    (moment,) = run_inference(network, task.scored[0], [0])
    assert moment.predicted.label.tolist() == [0]


def depths(value, truth):
    """A figure of a prediction of one depth everywhere, in m, and of the depth of its upper half."""
    known = np.full((32, 32), np.nan, np.float32)
    known[:16] = truth
    shown = Prediction(2.0, 50.0, np.ones((20, 32, 32), np.uint8), np.full((32, 32), value, np.float32), known)
    settings = SimpleNamespace(head={"min_depth": 3.0, "max_depth": 40.0}, classes=())
    return draw([shown], TrainedNetwork(None, Task, settings), True)


def test_colours_of_depth_span_the_range_of_the_head_in_every_panel():
    figure = depths(90.0, 5.0)
    images = [axis.images[-1] for axis in figure.axes if axis.get_title() != "events"]
    assert [image.get_clim() for image in images if image.get_label() == "depth in m"] == [(3.0, 40.0)] * 2
    (bar,) = [bar for axis in figure.axes for bar in axis.child_axes]
    assert (bar.get_yticks()[0], bar.get_yticks()[-1], bar.get_ylabel()) == (3, 40, "depth in m")
    assert "events of 50 ms" in figure.axes[0].get_ylabel()
    assert "no label" in [text.get_text() for text in figure.legends[0].get_texts()]

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from networks import written
from PIL import Image

from tespec.core.boxes import make_boxes
from tespec.core.errors import UserError
from tespec.datasets.evaluation import EvaluationSteps
from tespec.inference.load import load_trained
from tespec.inference.predict import Request, chosen, find, play, predict
from tespec.pictures.panels import draw_label
from tespec.pictures.predictions import Prediction, Style, draw_figure, draw_video
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task

RECORDING = Path(__file__).parents[1] / "data" / "davis.aedat4"
CPU = torch.device("cpu")


@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
@torch.no_grad()
def test_playing_says_what_the_evaluation_scores(tiny_world, tmp_path, arch):
    path, model, task = written(tiny_world, tmp_path, "ddd17", arch)
    recording = task.scored[0]
    moments = list(play(*load_trained(path), recording, (0.5, 1.5), CPU))
    assert 0 < len(moments) < len(recording)
    scored, state = {}, None
    for batch in EvaluationSteps([recording], 1, 5, 10, "edges", stateful=arch == "recurrent"):
        place = torch.tensor([(frame.lane, frame.segment) for frame in batch.frames])
        logits, state = model.predict(batch.histograms, state if arch == "recurrent" else None, place)
        for frame, mask in zip(batch.frames, task.read(logits), strict=True):
            scored[frame.label] = mask
    first = len(scored) - sum((recording.windows[:, 1] - recording.windows[0, 0]) / 1e6 >= 0.5)
    for number, moment in enumerate(moments):
        assert np.array_equal(moment.predicted, scored[first + number])
        assert np.array_equal(moment.truth, recording.labels[first + number])


@pytest.mark.parametrize("name", ["gen1", "mvsec"])
def test_a_figure_and_a_video_are_drawn(tiny_world, tmp_path, name):
    path, _, task = written(tiny_world, tmp_path, name)
    drawn = predict(path, Request(task.scored[0].name, tmp_path / "out", (0.0, 0.6), 0.3), tiny_world / name, CPU)
    assert drawn.labelled > 0
    assert sorted((tmp_path / "out").iterdir()) == sorted((drawn.figure, drawn.video))
    with Image.open(drawn.video) as video:
        assert video.n_frames == drawn.moments
    with Image.open(drawn.figure) as figure:
        assert figure.width > 3 * 300


def test_a_recording_without_labels(tiny_world, tmp_path):
    path, _, _ = written(tiny_world, tmp_path, "ddd17")
    drawn = predict(path, Request(str(RECORDING), tmp_path / "out", (0.0, 10.0), 0.3), None, CPU)
    assert (drawn.moments, drawn.labelled) == (2, 0)


MISTAKES = [
    ("dir99", (0, 1), r"--predict dir99: no such recording; give a path, or one of dir2"),
    ("no/such.raw", (0, 1), r"--predict no/such.raw: no such file or folder; check the path"),
    ("dir0", (50, 60), r"no window ends between 50 and 60 s; it lasts .* s; give another --clip"),
]


@pytest.mark.parametrize(("recording", "clip", "message"), MISTAKES)
def test_mistakes_are_named_and_nothing_is_written(tiny_world, tmp_path, recording, clip, message):
    path, _, _ = written(tiny_world, tmp_path, "ddd17")
    with pytest.raises(UserError, match=message):
        predict(path, Request(recording, tmp_path / "out", clip, 0.3), tiny_world / "ddd17", CPU)
    assert not (tmp_path / "out").exists()


def test_a_path_into_the_data_set_comes_with_its_labels(tiny_world):
    data = Data(tiny_world / "ddd17", "sample")
    settings = settings_of(data, "ddd17", "recurrent")
    recording = build_task(settings, data.root).scored[0]
    found = find(settings, str(recording.path), data.root)
    assert (found.name, len(found)) == (recording.name, len(recording))


def prediction(truth=None, seconds=1.0):
    boxes = make_boxes(np.array([[1, 1, 5, 5], [2, 2, 8, 8]]), np.array([0, 1]), np.array([0.9, 0.2]))
    return Prediction(seconds, 50.0, np.zeros((20, 32, 32), np.uint8), boxes, truth)


def test_boxes_of_low_scores_are_not_drawn():
    assert prediction().above(0.3).predicted.label.tolist() == [0]
    assert len(prediction().above(0.0).predicted.label) == 2
    mask = replace(prediction(), predicted=np.zeros((32, 32), np.uint8))
    assert mask.above(0.5) is mask


def test_windows_with_labels_are_chosen_and_spread():
    played = [prediction(prediction().predicted if number % 3 == 0 else None, number) for number in range(31)]
    assert [each.seconds for each in chosen(played)] == [0, 9, 21, 30]
    assert chosen(played[1:2]) == played[1:2]


def depths(value, truth):
    """A prediction of one depth everywhere, in m, and what is true of its upper half."""
    known = np.full((32, 32), np.nan, np.float32)
    known[:16] = truth
    return Prediction(2.0, 50.0, np.ones((20, 32, 32), np.uint8), np.full((32, 32), value, np.float32), known)


def test_colours_of_depth_span_what_is_true_in_every_panel(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("tespec.pictures.predictions.save_figure", lambda figure, path, dpi: figures.append(figure))
    draw_figure([depths(1.0, 3.0), depths(90.0, 40.0)], Style(draw_label, ()), tmp_path / "x.png")
    (figure,) = figures
    shown = [axis.images[-1] for axis in figure.axes if axis.get_title() != "events"]
    limits = {image.get_clim() for image in shown if image.get_label() == "depth in m"}
    assert limits == {(3.0, 40.0)}
    bars = [bar for axis in figure.axes for bar in axis.child_axes]
    assert [(bar.get_yticks()[0], bar.get_yticks()[-1], bar.get_ylabel()) for bar in bars] == [
        (3, 40, "depth in m")
    ] * 2
    assert "events of 50 ms" in figure.axes[0].get_ylabel()
    assert "no label" in [text.get_text() for text in figure.legends[0].get_texts()]


def test_without_truth_colours_span_what_is_predicted(tmp_path, monkeypatch):
    figures = []
    monkeypatch.setattr("tespec.pictures.predictions.save_figure", lambda figure, path, dpi: figures.append(figure))
    draw_figure(
        [replace(depths(value, 0.0), truth=None) for value in (4.0, 9.0)], Style(draw_label, ()), tmp_path / "x"
    )
    assert len(figures[0].axes) == 4
    assert figures[0].axes[1].images[-1].get_clim() == (4.0, 9.0)


def test_frames_of_a_video_have_one_size(tmp_path):
    draw_video(
        [prediction(), prediction(prediction().predicted)],
        Style(draw_label, ("car", "pedestrian")),
        tmp_path / "video.gif",
        50,
    )
    with Image.open(tmp_path / "video.gif") as video:
        assert video.n_frames == 2

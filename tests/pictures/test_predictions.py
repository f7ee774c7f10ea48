"""Figures and videos of predictions."""

import numpy as np
from PIL import Image

from tespec.core.boxes import make_boxes
from tespec.pictures.panels import draw_label
from tespec.pictures.predictions import Prediction, Style, draw_figure, draw_video, value_limits


def test_boxes_of_low_scores_are_not_drawn():
    boxes = make_boxes(np.array([[1, 1, 5, 5], [2, 2, 8, 8]]), np.array([0, 1]), np.array([0.9, 0.2]))
    given = Prediction(1.0, 50.0, np.zeros((20, 32, 32), np.uint8), boxes, None)
    assert [given.above(score).predicted.label.tolist() for score in (0.3, 0.0)] == [[0], [0, 1]]


def depths(value, truth):
    """A prediction of one depth everywhere, in m, and the depth of its upper half."""
    known = np.full((32, 32), np.nan, np.float32)
    known[:16] = truth
    return Prediction(2.0, 50.0, np.ones((20, 32, 32), np.uint8), np.full((32, 32), value, np.float32), known)


def test_colours_of_depth_span_the_truth_in_every_panel(tmp_path, monkeypatch):
    figures, shown = [], [depths(1.0, 3.0), depths(90.0, 40.0)]
    monkeypatch.setattr("tespec.pictures.predictions.save_figure", lambda figure, path, dpi: figures.append(figure))
    limits = value_limits(draw_label, [each.truth for each in shown])
    draw_figure(shown, Style(draw_label, (), True, limits), tmp_path / "x.png")
    (figure,) = figures
    images = [axis.images[-1] for axis in figure.axes if axis.get_title() != "events"]
    assert {image.get_clim() for image in images if image.get_label() == "depth in m"} == {(3.0, 40.0)}
    bars = [bar for axis in figure.axes for bar in axis.child_axes]
    ticks = [(bar.get_yticks()[0], bar.get_yticks()[-1], bar.get_ylabel()) for bar in bars]
    assert ticks == [(3, 40, "depth in m")] * 2
    assert "events of 50 ms" in figure.axes[0].get_ylabel()
    assert "no label" in [text.get_text() for text in figure.legends[0].get_texts()]
    assert value_limits(draw_label, [np.zeros((4, 4), np.uint8)]) is None


def test_a_video_shows_every_frame_as_long_as_the_others(tmp_path):
    shown = [depths(value, 5.0) for value in (2.0, 9.0, 60.0)]
    draw_video(iter(shown), Style(draw_label, (), True, (2.0, 80.0)), tmp_path / "video.gif", 50)
    with Image.open(tmp_path / "video.gif") as video:
        assert (video.n_frames, video.info["loop"]) == (3, 0)
        frames = []
        for number in range(3):
            video.seek(number)
            assert video.info["duration"] == 50
            frames.append(video.convert("RGB").tobytes())
    assert len(set(frames)) == 3

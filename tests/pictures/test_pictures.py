from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tespec.pictures.drawing import (
    NEGATIVE,
    POSITIVE,
    Moment,
    _pictures,
    draw_moments,
    event_image,
    grey_image,
    spread_of,
)


def moment(title="moving", seed=0):
    rng = np.random.default_rng(seed)
    grey = [rng.normal(size=(24, 32)).astype(np.float32) for _ in range(3)]
    histogram, mask = rng.integers(0, 3, (20, 24, 32), np.uint8), rng.random((24, 32)) < 0.5
    return Moment(title, histogram, grey[0], grey[1], mask, grey[2])


def test_event_colours_follow_the_polarity_that_wins():
    histogram = np.zeros((4, 1, 4), np.uint8)
    histogram[:, 0, 0] = [0, 0, 200, 200]
    histogram[:, 0, 1] = [200, 200, 3, 0]
    histogram[:, 0, 2] = [1, 0, 0, 1]
    picture = event_image(histogram)
    np.testing.assert_allclose(picture[0], [POSITIVE, NEGATIVE, NEGATIVE, (1, 1, 1)], rtol=1e-6)


def test_zero_is_mid_grey_and_the_spread_is_black_to_white():
    picture = grey_image(np.array([[-9.0, -2.0, 0.0, 1.0, 2.0]], np.float32), 2.0)
    np.testing.assert_allclose(picture[0], np.array([0, 0, 0.5, 0.75, 1])[:, None].repeat(3, 1))


def test_a_picture_has_a_row_for_each_moment_and_is_the_same_each_time(tmp_path):
    one, two, again = (tmp_path / "new" / name for name in ("one.png", "two.png", "again.png"))
    draw_moments([moment()], one)
    draw_moments([moment(), moment("standing", 1)], two)
    draw_moments([moment()], again)
    assert one.read_bytes() == again.read_bytes()
    with Image.open(one) as short, Image.open(two) as tall:
        assert short.width == tall.width
        assert tall.height > 1.7 * short.height
    assert sorted(path.name for path in one.parent.iterdir()) == ["again.png", "one.png", "two.png"]


def test_a_still_image_is_drawn_too(tmp_path):
    still = moment()
    blank = Moment("still", np.zeros_like(still.histogram), *(np.zeros((24, 32), np.float32),) * 2, still.mask,
                   np.zeros((24, 32), np.float32))  # fmt: skip
    draw_moments([blank], tmp_path / "still.png")
    with Image.open(tmp_path / "still.png") as image:
        assert image.getextrema()[0][1] == 255


def test_nothing_half_written_is_left_in_place_of_a_picture(tmp_path, monkeypatch):
    path = tmp_path / "kept.png"
    path.write_bytes(b"before")

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("tespec.pictures.drawing.Figure.savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        draw_moments([moment()], path)
    assert path.read_bytes() == b"before"


def titles_of(monkeypatch, tmp_path, *shown):
    said = []
    monkeypatch.setattr("matplotlib.axes.Axes.set_title", lambda axis, title, **_: said.append(title))
    draw_moments(*shown[:1], tmp_path / "x.png", *shown[1:])
    return said


def test_the_columns_name_the_equation_of_what_they_show(monkeypatch, tmp_path):
    for target, title in (
        ("intensity", "intensity, Eq. 7 (target)"),
        ("high_pass", "intensity, Eq. 6 (target)"),
        ("uniform_decay", "intensity, uniform decay (target)"),
        ("histograms", "positive minus negative events (target)"),
    ):
        columns = titles_of(monkeypatch, tmp_path, [moment()], target)
        assert columns[1:3] == ["intensity, Eq. 6", title]


def test_an_autoencoders_whole_reconstruction_is_shown(monkeypatch, tmp_path):
    shown = moment()
    nothing_hidden = replace(shown, mask=np.zeros_like(shown.mask))
    assert titles_of(monkeypatch, tmp_path, [nothing_hidden])[3:] == ["input", "reconstruction"]
    pictures = _pictures(nothing_hidden)
    np.testing.assert_array_equal(pictures[3], pictures[0])
    np.testing.assert_array_equal(pictures[4], grey_image(shown.reconstruction, spread_of(shown.target)))

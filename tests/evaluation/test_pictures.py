import numpy as np
import pytest
from PIL import Image

from tespec.evaluation.pictures import NEGATIVE, POSITIVE, Moment, draw_moments, event_image, grey_image


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
        assert tall.height > 1.8 * short.height
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

    monkeypatch.setattr("tespec.evaluation.pictures.Figure.savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        draw_moments([moment()], path)
    assert path.read_bytes() == b"before"

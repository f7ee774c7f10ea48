"""Pictures of masked reconstructions."""

import numpy as np
import pytest
from PIL import Image

from tespec.pictures import reconstruction
from tespec.pictures.panels import event_image
from tespec.pictures.reconstruction import MASKED, ReconstructedSegment, draw_segments


def segment(title="moving", seed=0):
    rng = np.random.default_rng(seed)
    grey = [rng.normal(size=(24, 32)).astype(np.float32) for _ in range(3)]
    histogram, mask = rng.integers(0, 3, (20, 24, 32), np.uint8), rng.random((24, 32)) < 0.5
    return ReconstructedSegment(title, histogram, grey[0], grey[1], mask, grey[2])


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draw segments and return the figure instead of writing it."""
    figures = []
    monkeypatch.setattr(reconstruction, "save_figure", lambda figure, path, dpi: figures.append(figure))

    def draw(*segments, **options):
        draw_segments(segments, tmp_path / "x.png", **options)
        return figures[-1]

    return draw


def titles(figure):
    return [axis.get_title() for axis in figure.axes[:5]]


def test_a_picture_has_a_row_for_each_segment_and_is_the_same_each_time(tmp_path):
    one, two, again = (tmp_path / "new" / name for name in ("one.png", "two.png", "again.png"))
    still = segment("standing")._replace(target=np.zeros((24, 32), np.float32))  # has no contrast to scale
    for path, segments in ((one, [segment()]), (two, [segment(), still]), (again, [segment()])):
        draw_segments(segments, path)
    assert one.read_bytes() == again.read_bytes()
    with Image.open(one) as short, Image.open(two) as tall:
        assert short.width == tall.width == 1600
        assert tall.height > 1.5 * short.height


@pytest.mark.parametrize(
    ("target", "title", "unit"),
    [
        ("intensity", "intensity, Eq. 7", "log intensity"),
        ("high_pass", "intensity, Eq. 6", "log intensity"),
        ("histograms", "positive minus negative events", "events"),
    ],
)
def test_columns_name_the_target_and_bars_the_unit(drawn, target, title, unit):
    figure = drawn(segment(), target=target)
    assert titles(figure)[2] == f"target: {title}"
    assert [bar.get_ylabel() for axis in figure.axes for bar in axis.child_axes] == [unit, unit, "log intensity"]


def test_masked_pixels_are_covered_and_replaced_on_the_targets_scale(drawn):
    shown = segment()._replace(reconstruction=5 * segment().reconstruction)
    figure = drawn(shown)
    seen, target, result = (figure.axes[place].images[0] for place in (1, 2, 3))
    masked = np.broadcast_to(MASKED, (shown.mask.sum(), 3))
    np.testing.assert_allclose(np.asarray(seen.get_array())[shown.mask], masked, rtol=1e-6)
    assert [text.get_text() for text in figure.legends[0].get_texts()][2] == "masked"
    assert target.get_clim() == result.get_clim()
    np.testing.assert_array_equal(result.get_array()[shown.mask], shown.reconstruction[shown.mask])
    np.testing.assert_array_equal(result.get_array()[~shown.mask], shown.target[~shown.mask])


def test_an_autoencoders_whole_reconstruction_is_shown(drawn):
    shown = segment()._replace(mask=np.zeros((24, 32), bool))
    figure = drawn(shown)
    assert (titles(figure)[1], titles(figure)[3]) == ("input", "reconstruction")
    np.testing.assert_allclose(figure.axes[1].images[0].get_array(), event_image(shown.histogram))
    np.testing.assert_array_equal(figure.axes[3].images[0].get_array(), shown.reconstruction)

"""What pre-training sees, aims at and rebuilds."""

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from tespec.pictures import pretraining
from tespec.pictures.panels import event_image
from tespec.pictures.pretraining import HIDDEN, RebuiltSegment, draw_segments


def segment(title="moving", seed=0):
    rng = np.random.default_rng(seed)
    grey = [rng.normal(size=(24, 32)).astype(np.float32) for _ in range(3)]
    histogram, mask = rng.integers(0, 3, (20, 24, 32), np.uint8), rng.random((24, 32)) < 0.5
    return RebuiltSegment(title, histogram, grey[0], grey[1], mask, grey[2])


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws, and gives the figure that would be written."""
    figures = []
    monkeypatch.setattr(pretraining, "save_figure", lambda figure, path, dpi: figures.append(figure))

    def draw(*segments, **options):
        draw_segments(segments, tmp_path / "x.png", **options)
        return figures[-1]

    return draw


def titles(figure):
    return [axis.get_title() for axis in figure.axes[:5]]


def bar_titles(figure):
    return [bar.get_ylabel() for axis in figure.axes for bar in axis.child_axes]


def test_a_picture_has_a_row_for_each_segment_and_is_the_same_each_time(tmp_path):
    one, two, again = (tmp_path / "new" / name for name in ("one.png", "two.png", "again.png"))
    draw_segments([segment()], one)
    draw_segments([segment(), segment("standing", 1)], two)
    draw_segments([segment()], again)
    assert one.read_bytes() == again.read_bytes()
    with Image.open(one) as short, Image.open(two) as tall:
        assert short.width == tall.width
        assert tall.height > 1.5 * short.height
    assert sorted(path.name for path in one.parent.iterdir()) == ["again.png", "one.png", "two.png"]


def test_a_still_image_is_drawn_too(tmp_path):
    still, nothing = segment(), np.zeros((24, 32), np.float32)
    blank = RebuiltSegment("still", np.zeros_like(still.histogram), nothing, nothing, still.mask, nothing)
    draw_segments([blank], tmp_path / "still.png")
    with Image.open(tmp_path / "still.png") as image:
        assert image.getextrema()[0][1] == 255


def test_nothing_half_written_is_left_in_place_of_a_picture(tmp_path, monkeypatch):
    path = tmp_path / "kept.png"
    path.write_bytes(b"before")

    def fail(*_, **__):
        raise OSError("disk full")

    monkeypatch.setattr("matplotlib.figure.Figure.savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        draw_segments([segment()], path)
    assert path.read_bytes() == b"before"


@pytest.mark.parametrize(
    ("target", "title", "unit"),
    [
        ("intensity", "intensity, Eq. 7", "log intensity"),
        ("high_pass", "intensity, Eq. 6", "log intensity"),
        ("uniform_decay", "intensity, uniform decay", "log intensity"),
        ("histograms", "positive minus negative events", "events"),
    ],
)
def test_columns_name_the_equation_and_bars_the_unit(drawn, target, title, unit):
    figure = drawn(segment(), target=target)
    assert titles(figure)[2] == f"target: {title}"
    assert titles(figure)[4] == "for comparison: intensity, Eq. 6"
    assert bar_titles(figure) == [unit, unit, "log intensity"]


def test_hidden_pixels_are_covered_and_named(drawn):
    shown = segment()
    figure = drawn(shown)
    seen = np.asarray(figure.axes[1].images[0].get_array())
    np.testing.assert_allclose(seen[shown.mask], np.broadcast_to(HIDDEN, (shown.mask.sum(), 3)), rtol=1e-6)
    assert [text.get_text() for text in figure.legends[0].get_texts()][2] == "hidden from the network"


def test_target_and_reconstruction_share_a_scale(drawn):
    shown = segment()
    figure = drawn(replace(shown, reconstruction=5 * shown.reconstruction))
    target, rebuilt = (figure.axes[place].images[0] for place in (2, 3))
    assert target.get_clim() == rebuilt.get_clim()
    np.testing.assert_array_equal(rebuilt.get_array()[~shown.mask], shown.target[~shown.mask])


def test_an_autoencoders_whole_reconstruction_is_shown(drawn):
    shown = segment()
    figure = drawn(replace(shown, mask=np.zeros_like(shown.mask)))
    assert titles(figure)[1] == "input"
    assert titles(figure)[3] == "reconstruction"
    np.testing.assert_allclose(figure.axes[1].images[0].get_array(), event_image(shown.histogram))
    np.testing.assert_array_equal(figure.axes[3].images[0].get_array(), shown.reconstruction)

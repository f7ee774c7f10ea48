"""Pictures: distinct colours, legends, colour bars and rows."""

from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from PIL import Image
from scipy.spatial.distance import pdist

from tespec import pictures
from tespec.core.boxes import make_boxes
from tespec.core.files import read_yaml
from tespec.core.paths import REPOSITORY
from tespec.metrics.segmentation import IGNORE
from tespec.pictures import (
    MASKED,
    NEGATIVE,
    POSITIVE,
    UNKNOWN,
    colours_of,
    draw_label,
    draw_segments,
    event_image,
    save_figure_as,
)
from tespec.report import MARKERS

# Matrices that simulate colour blindness in linear RGB (Machado, Oliveira and Fernandes 2009,
# severity 1).
EYES = {
    "all cones": np.eye(3),
    "protanopia": [
        [0.152286, 1.052583, -0.204868],
        [0.114503, 0.786281, 0.099216],
        [-0.003882, -0.048116, 1.051998],
    ],
    "deuteranopia": [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ],
    "tritanopia": [
        [1.255528, -0.076749, -0.178779],
        [-0.078411, 0.930809, 0.147602],
        [0.004733, 0.691367, 0.303900],
    ],
}
# Minimum CIE 1976 distances between colours; a difference of about 2.3 is just noticeable.
LEAST = {"ddd17": 28.0, "dsec": 18.0, "gen1": 45.0, "1mpx": 45.0}


def least_distance(colours, eyes):
    """Minimum distance of sRGB colours (N, 3) seen by `eyes`, in CIE L*a*b* (D65)."""
    colours = np.asarray(colours, float)
    linear = np.where(colours <= 0.04045, colours / 12.92, ((colours + 0.055) / 1.055) ** 2.4)
    visible = (linear @ np.asarray(eyes).T).clip(0, 1).astype(np.float32)
    return pdist(cv2.cvtColor(visible[None], cv2.COLOR_LRGB2Lab)[0]).min()


STARTS = {
    ".png": b"\x89PNG",
    ".jpg": b"\xff\xd8\xff",
    ".JPEG": b"\xff\xd8\xff",
    ".pdf": b"%PDF",
    ".svg": b"<?xml",
}


@pytest.mark.parametrize("suffix", STARTS)
def test_a_file_has_the_format_of_its_suffix(tmp_path, suffix):
    path = tmp_path / f"figure{suffix}"
    for _ in range(2):  # a named file is replaced
        assert save_figure_as(Figure(figsize=(1, 1)), path, "name", dpi=20) == path
        assert path.read_bytes().startswith(STARTS[suffix])
    assert list(tmp_path.iterdir()) == [path]


def test_figures_of_one_name_in_a_folder_replace_none(tmp_path):
    out = tmp_path / "new" / "figures.v2"
    out.mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        figures = [Figure(figsize=(side, 1)) for side in range(1, 5)]
        written = list(pool.map(lambda f: save_figure_as(f, out, "drive.raw", 20), figures))
    names = ["drive.raw.png", "drive.raw-2.png", "drive.raw-3.png", "drive.raw-4.png"]
    assert sorted(written) == sorted(out / name for name in names) == sorted(out.iterdir())
    assert [cv2.imread(str(path)).shape[1] for path in written] == [20, 40, 60, 80]
    assert save_figure_as(figures[0], tmp_path / "b", "a", 20) == tmp_path / "b" / "a.png"


@pytest.mark.parametrize("eyes", EYES)
def test_colours_are_told_apart(eyes):
    for task, least in LEAST.items():
        classes = read_yaml(REPOSITORY / "configs" / "tasks" / f"{task}.yaml")["classes"]
        colours = list(colours_of([], classes).values())
        assert least_distance(colours, EYES[eyes]) >= least
        assert min(least_distance([colour, UNKNOWN], EYES[eyes]) for colour in colours) >= 20
    assert least_distance([POSITIVE, NEGATIVE, MASKED, (1, 1, 1)], EYES[eyes]) >= 30
    assert least_distance([to_rgb(marker["color"]) for marker in MARKERS], EYES[eyes]) >= 10


def legend_of(figure):
    (legend,) = figure.legends
    entries = zip(legend.get_texts(), legend.get_patches(), strict=True)
    return {text.get_text(): patch.get_facecolor()[:3] for text, patch in entries}


def test_a_mask_has_the_colours_of_its_legend():
    classes = [f"class {number}" for number in range(11)]
    mask = np.array([[*range(11), IGNORE]], np.uint8)
    figure, axes = pictures.make_panels(
        1, ["labels"], mask.shape, 6, 0, colours_of([mask], classes)
    )
    assert draw_label(axes[0, 0], mask) is None
    drawn = np.asarray(axes[0, 0].images[-1].get_array())
    assert drawn.shape == (1, 12, 3)  # no alpha, so opaque
    assert [to_hex(colour) for colour in drawn[0]] == [
        to_hex(colour) for colour in legend_of(figure).values()
    ]
    assert list(legend_of(figure)) == [*classes, "no label"]
    assert len(set(legend_of(figure).values())) == 12
    assert "no label" not in colours_of([mask[:, :11]], classes)


def test_events_have_the_colours_of_their_legend():
    histogram = np.zeros((4, 1, 4), np.uint8)
    histogram[:, 0, :3] = np.transpose([[0, 0, 200, 200], [200, 200, 3, 0], [1, 0, 0, 1]])
    np.testing.assert_allclose(
        event_image(histogram)[0], [POSITIVE, NEGATIVE, NEGATIVE, (1, 1, 1)], rtol=1e-6
    )
    figure, _ = pictures.make_panels(1, ["events"], (1, 4), 4, 0, pictures.POLARITIES)
    legend = [(name[:8], colour) for name, colour in legend_of(figure).items()]
    assert legend == [("positive", POSITIVE), ("negative", NEGATIVE)]


def test_grey_is_zero_and_the_bar_names_black_and_white():
    image = np.array([[-9.0, -2.0, 0.0, 1.0, 2.0]], np.float32)
    axis = Figure().subplots()
    pictures.show_grey(axis, image, "events", reach=2.0)
    np.testing.assert_allclose(
        axis.images[-1].to_rgba(image)[0, :, 0], [0, 0, 0.5, 0.75, 1], atol=0.01
    )
    (bar,) = axis.child_axes
    assert (bar.get_yticks().tolist(), bar.get_ylabel()) == ([-2, 0, 2], "events")
    assert pictures.reach_of(np.zeros((2, 2), np.float32)) == 1


def test_a_depth_is_drawn_plain_and_says_its_unit():
    depth = np.array([[2.0, 80.0, np.nan, 0.0, -1.0]], np.float32)
    axis = Figure().subplots()
    shown = draw_label(axis, depth)
    assert shown.get_label() == "depth in m"
    assert np.ma.getmaskarray(shown.get_array()).tolist() == [[False, False, True, True, True]]
    below = np.asarray(axis.images[0].get_array())
    np.testing.assert_allclose(below, np.broadcast_to(UNKNOWN, below.shape), rtol=1e-6)
    assert list(colours_of([depth], ())) == ["no label"]


def test_boxes_of_low_scores_are_not_drawn():
    boxes = make_boxes([[1, 1, 5, 5], [2, 2, 8, 8]], [0, 1], [0.9, 0.2])
    axis = Figure().subplots()
    draw_label(axis, boxes)
    (drawn,) = axis.patches
    assert (drawn.get_width(), [text.get_text() for text in axis.texts]) == (4, ["0.90"])


def segment(title="moving"):
    rng = np.random.default_rng(0)
    grey = [rng.normal(size=(24, 32)).astype(np.float32) for _ in range(3)]
    histogram, mask = rng.integers(0, 3, (20, 24, 32), np.uint8), rng.random((24, 32)) < 0.5
    return pictures.ReconstructedSegment(title, histogram, grey[0], grey[1], mask, grey[2])


def test_a_picture_has_a_row_for_each_segment_and_is_the_same_each_time(tmp_path):
    one, two, again = (tmp_path / "new" / name for name in ("one.png", "two.png", "again.png"))
    # has no contrast to scale
    still = segment("standing")._replace(target=np.zeros((24, 32), np.float32))
    for path, segments in ((one, [segment()]), (two, [segment(), still]), (again, [segment()])):
        draw_segments(segments, path)
    assert one.read_bytes() == again.read_bytes()
    with Image.open(one) as short, Image.open(two) as tall:
        assert short.width == tall.width == 1600
        assert tall.height > 1.5 * short.height


def test_masked_pixels_are_replaced_on_the_targets_scale_and_columns_name_target_and_unit(
    monkeypatch, tmp_path
):
    figures = []
    monkeypatch.setattr(pictures, "save_figure", lambda figure, path, dpi: figures.append(figure))
    shown = segment()._replace(reconstruction=5 * segment().reconstruction)
    unmasked_segment = shown._replace(mask=np.zeros((24, 32), bool))  # as for an autoencoder
    for row in (shown, unmasked_segment):
        draw_segments([row], tmp_path / "x.png", "histograms")
    masked, unmasked = (figure.axes[:5] for figure in figures)
    assert masked[2].get_title() == "target: positive minus negative events"
    assert [bar.get_ylabel() for axis in masked for bar in axis.child_axes] == [
        "events",
        "events",
        "log intensity",
    ]
    visible, expected, result = (masked[column].images[0] for column in (1, 2, 3))
    np.testing.assert_allclose(np.asarray(visible.get_array())[shown.mask], MASKED[0], rtol=1e-6)
    assert list(legend_of(figures[0]))[2] == "masked"
    assert expected.get_clim() == result.get_clim()
    np.testing.assert_array_equal(
        result.get_array(), np.where(shown.mask, shown.reconstruction, shown.target)
    )
    assert (unmasked[1].get_title(), unmasked[3].get_title()) == ("input", "reconstruction")
    np.testing.assert_allclose(
        unmasked[1].images[0].get_array(), event_image(unmasked_segment.histogram)
    )
    np.testing.assert_array_equal(
        unmasked[3].images[0].get_array(), unmasked_segment.reconstruction
    )

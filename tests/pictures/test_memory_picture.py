"""The figure of the loss since the state was zeroed."""

import math

import pytest
from PIL import Image

from tespec.core.errors import UserError
from tespec.pictures import memory
from tespec.pictures.memory import memory_figure


def record(kind="intensity", seed=0, groups=("moving", "standing")):
    points = [
        {"seconds": 0.05 * step}
        | {
            f"{group}{of}": value
            for group in groups
            for of, value in (("", 0.5 + 0.1 * seed + 0.3 / step), ("_knowing_nothing", 2.0), ("_count", 9.0))
        }
        for step in range(1, 61)
    ]
    objective = {"type": "masked_reconstruction", "target": {"kind": kind}} if kind != "cpc" else {"type": "cpc"}
    facts = {
        "kind": "pretraining",
        "config": {"objective": objective, "segments": 4},
        "data_fingerprint": "0",
        "seed": seed,
    }
    return facts | {"curves": {"since_zeroed": points}}


@pytest.fixture
def drawn(monkeypatch, tmp_path):
    """Draws, and gives the panels that would be written."""
    figures = []
    monkeypatch.setattr(memory, "save_figure", lambda figure, path, dpi: figures.append(figure))

    def draw(*records):
        memory_figure(records, tmp_path / "x.png")
        return figures[-1].axes

    return draw


def test_a_line_is_the_mean_share_over_seeds_with_its_standard_error(drawn):
    moving, standing = drawn(*(record(seed=seed) for seed in range(3)))
    assert (moving.get_title(), standing.get_title()) == ("camera moving", "camera standing")
    line, _ = moving.get_lines()
    # Chunks of four segments, drawn at their middles.
    assert line.get_xdata()[[0, -1]] == pytest.approx([0.125, 2.925])
    chunk = 0.3 * (1 + 1 / 2 + 1 / 3 + 1 / 4) / 4
    assert line.get_ydata()[0] == pytest.approx((0.5 + 0.1 + chunk) / 2)
    (band,) = moving.collections
    low, high = band.get_paths()[0].get_extents().y0, band.get_paths()[0].get_extents().y1
    error = 0.05 / math.sqrt(3)
    lowest = 0.3 * (1 / 57 + 1 / 58 + 1 / 59 + 1 / 60) / 4
    assert (low, high) == pytest.approx(((0.6 + lowest) / 2 - error, (0.6 + chunk) / 2 + error))


def test_targets_and_objectives_are_lines_of_their_own_told_apart_without_colour(drawn):
    rebuilt, own = drawn(*(record(kind, groups=("all",)) for kind in ("cpc", "histograms", "high_pass", "intensity")))
    assert (rebuilt.get_title(), own.get_title()) == ("all moments", "")
    assert (rebuilt.get_ylabel(), own.get_ylabel()) == ("loss of hidden patches", "own loss")
    lines = [*rebuilt.get_lines()[:-1], *own.get_lines()[:-1]]
    assert [line.get_label() for line in lines] == ["intensity, Eq. 7", "intensity, Eq. 6", "histograms", "CPC"]
    assert len({(line.get_linestyle(), line.get_marker()) for line in lines}) == 4
    assert not rebuilt.collections  # one seed has no standard error
    # Losses of another kind do not squeeze each other.
    assert not rebuilt.get_shared_y_axes().joined(rebuilt, own)
    assert rebuilt.get_shared_x_axes().joined(rebuilt, own)


def test_other_settings_are_another_line(drawn):
    other = record()
    other["config"]["segments"] = 5
    panel, _ = drawn(record(), record(seed=1), other)
    assert [line.get_label() for line in panel.get_lines()[:-1]] == ["intensity, Eq. 7", "intensity, Eq. 7 (2)"]


def test_the_same_records_give_the_same_bytes(tmp_path):
    paths = [tmp_path / "a.png", tmp_path / "b.png"]
    for path in paths:
        memory_figure([record(), record("cpc")], path)
    assert paths[0].read_bytes() == paths[1].read_bytes()
    with Image.open(paths[0]) as picture:
        assert picture.size[0] > 800


def test_records_without_it_are_refused(tmp_path):
    without = record() | {"curves": {}}
    with pytest.raises(UserError, match="no record holds the loss since the state was zeroed"):
        memory_figure([without, {"kind": "evaluation"}], tmp_path / "x.png")

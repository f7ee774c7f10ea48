"""Histograms: bins, counts, regions, rectified pixels and zooms, against other implementations."""

import subprocess
import sys
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import pytest
import torch
from event_files import (
    assert_same_events,
    event_arrays,
    in_memory,
    plain_histogram,
    random_events,
    whole,
)
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import avg_pool2d, interpolate

from tespec.core.settings import Augmentation
from tespec.datasets.augment import FlipZoom, apply_maps, sample_flip_zoom
from tespec.events import event_histogram, open_events, window_histograms
from tespec.events.histogram import Region, bin_times, rvt_bin_times

DATA = Path(__file__).parents[1] / "data"
WINDOW = {"t_start": 0, "t_end": 3_000, "height": 6, "width": 8}
RULES = st.sampled_from(["edges", "rvt"])
SIZE = ROWS, COLUMNS = 20, 30
REGIONS = (
    Region(20, 30),
    Region(17, 30),
    Region(10, 15, 2),
    Region(5, 7, 4, "all"),
    Region(6, 10, 3),
)
FLIP_ZOOM = Augmentation(
    flip=0.5, zoom=0.9, zoom_in_fraction=0.6, zoom_in=(1.0, 4.0), zoom_out=(1.0, 2.0)
)


@given(st.integers(-(10**15), 10**15), st.integers(1, 10**7), st.integers(1, 50), st.data())
def test_edges_are_those_of_exact_arithmetic(start, span, bins, data):
    times = bin_times(start, start + span, bins)
    t = data.draw(st.integers(start, start + span - 1))
    k = floor(Fraction(t - start, span) * bins)
    assert times[k] <= t < times[k + 1]
    assert (times[0], times[-1], len(times)) == (start, start + span, bins + 1)


@pytest.mark.parametrize("bins", [1, 3, 10, 41])
@pytest.mark.parametrize("span", [0, 1, 9, 3000, 49_999, 50_000, 300_000, 3_600_000_000])
def test_rvt_borders_are_those_of_its_float32_formula(span, bins):
    """Formula and dtypes of uzh-rpg/RVT's StackedHistogram, also beyond float32's precision."""
    first = 7_000_123
    times = rvt_bin_times(first, first + span, bins)
    near = (
        (torch.tensor(times)[:, None] + torch.arange(-400, 400))
        .flatten()
        .clamp(first, first + span)
    )
    t = torch.cat(
        [torch.arange(first, first + min(span, 300_000)), near, torch.tensor([first + span])]
    )
    share = (t - t[0]) / max(t[-1] - t[0], 1)
    wanted = torch.clamp((share * bins).floor(), max=bins - 1).numpy()
    np.testing.assert_array_equal(np.searchsorted(times, t.numpy(), side="right") - 1, wanted)


@given(event_arrays(), st.integers(1, 11), RULES)
def test_it_counts_as_the_plain_way_does(events, bins, rule):
    options = WINDOW | {"bins": bins, "rule": rule}
    found = event_histogram(*events, **options)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, plain_histogram(*events, **options))


@pytest.mark.parametrize("dtype", [np.int16, np.int64, np.uint32])
def test_any_integer_type_and_any_stride_is_taken(dtype):
    events = random_events(9_000, height=60, width=80)  # more than a block
    options = {"t_start": 0, "t_end": 50_000, "bins": 1, "height": 60, "width": 80}
    table = np.stack([events.x, events.y, events.p], axis=1).astype(dtype)
    found = event_histogram(table[:, 0], table[:, 1], events.t, table[:, 2], **options)
    np.testing.assert_array_equal(found, plain_histogram(*events, **options))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"x": [0, 8]}, {}, "x has values outside of 0 to 7"),
        ({"x": [0, -1]}, {}, "x has values"),
        ({"y": [6, 0]}, {}, "y has values"),
        ({"p": [0, 2]}, {}, "p has values"),
        ({"t": [5, 4]}, {}, "not sorted"),
        ({"t": [5]}, {}, "shapes"),
        ({"t": [0.5, 1.5]}, {}, "not integers"),
        ({}, {"rule": "sums"}, "unknown binning rule 'sums'; choose from edges, rvt"),
        ({}, {"t_end": 0}, "is empty"),
        ({}, {"bins": 0}, "bins"),
    ],
)
def test_what_cannot_be_counted_is_refused(change, options, message):
    columns = {name: np.array(change.get(name, [0, 1])) for name in ("x", "y", "t", "p")}
    with pytest.raises(ValueError, match=message):
        event_histogram(*columns.values(), **{"bins": 2, **WINDOW, **options})


def test_importing_events_does_not_import_torch():
    code = "import sys, tespec.events; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("number", range(4))
def test_bins_are_those_of_tonic(number):
    """tonic 1.6.0 (tests/data/tonic_frames.py) divides a window at the same bin edges."""
    with np.load(DATA / "tonic_frames.npz") as frames:
        start, shape = int(frames[f"start_{number}"]), tuple(frames[f"shape_{number}"])
        wanted = np.zeros(np.prod(shape), np.uint8)
        wanted[frames[f"places_{number}"]] = frames[f"counts_{number}"]
    events = open_events(DATA / "evt3_640x480_2.08s.raw").slice(start, start + 50_000)
    found = event_histogram(
        *events, t_start=start, t_end=start + 50_000, bins=10, height=480, width=640
    )
    assert shape == (10, 2, 480, 640)
    assert wanted.sum() == len(events.t) > 1_000
    np.testing.assert_array_equal(
        found.reshape(2, 10, 480, 640).swapaxes(0, 1), wanted.clip(max=10).reshape(shape)
    )


def recording(seed=0, count=4_000, span_us=5_000, start_us=0):
    x, y, t, p = random_events(
        count, height=ROWS, width=COLUMNS, start=start_us, end=start_us + span_us, seed=seed
    )
    # few pixels, so that many counts reach the limit
    return in_memory(x // 3 * 3, y // 3 * 3, t, p, *SIZE)


def in_region(counts, region):
    """Reduce counts of the full sensor, in float64, to a region: downsample, crop and clip."""
    if region.keep == "nearest":
        kept = interpolate(counts, scale_factor=1 / region.factor, mode="nearest-exact")
    else:
        kept = avg_pool2d(counts, region.factor, divisor_override=1)
    return kept[..., : region.height, : region.width].clamp(max=10)


@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([1, 7, 400, 4000]),
    span_us=st.sampled_from([1, 900, 5_000, 40_000]),
    start_us=st.sampled_from([0, 123_456, -7_890]),
    first=st.integers(-60_000, 60_000),
    length=st.integers(1, 30_000),
    bins=st.integers(1, 12),
    region=st.sampled_from(REGIONS),
    rule=RULES,
)
def test_windows_are_counted_as_their_events_are(
    seed, count, span_us, start_us, first, length, bins, region, rule
):
    stream = recording(seed, count, span_us, start_us)
    windows = [(start_us + first, start_us + first + length), (start_us, start_us + span_us)]
    options = {"bins": bins, "height": ROWS, "width": COLUMNS, "rule": rule, "most": np.inf}
    plain = [
        plain_histogram(*whole(stream), t_start=start, t_end=end, **options)
        for start, end in windows
    ]
    found = window_histograms(stream, windows, bins, rule=rule, region=region)
    np.testing.assert_array_equal(found, in_region(torch.from_numpy(np.stack(plain)), region))


@pytest.mark.parametrize("rule", ["edges", "rvt"])
def test_rectified_histograms_are_those_of_the_moved_events(rule):
    stream = recording(3, 9_000, 40_000, 123_456)
    pixels = np.random.default_rng(0).integers(-1, 20, (*SIZE, 2)).astype(np.int16)
    rectified = stream.rectified(pixels)
    x, y, t, p = whole(stream)
    column, row = pixels[y, x].T
    kept = (column >= 0) & (row >= 0)
    moved = in_memory(column[kept], row[kept], t[kept], p[kept], *SIZE)
    assert 0 < kept.sum() < len(t)
    windows = [(123_456, 130_000), (130_000, 163_456), (0, 1)]
    # Flips, and zooms that repeat events.
    views = [sample_flip_zoom(np.random.default_rng(seed), FLIP_ZOOM, *SIZE) for seed in range(8)]
    for region, view in [
        *((region, None) for region in REGIONS[:2]),
        *((REGIONS[0], view) for view in views),
    ]:
        options = {"region": region, "maps": view and view[:2], "rule": rule}
        found, wanted = (
            window_histograms(stream, windows, 5, **options) for stream in (rectified, moved)
        )
        np.testing.assert_array_equal(found, wanted)
    assert_same_events(rectified.slice(125_000, 140_001), moved.slice(125_000, 140_001))


@given(seed=st.integers(0, 2**32), region=st.sampled_from(REGIONS), rule=RULES)
def test_a_view_of_the_events_is_that_of_their_histogram(seed, region, rule):
    stream, rng, sides = recording(seed), np.random.default_rng(seed), (region.height, region.width)
    windows = [(0, 3_000), (3_000, 5_000), (9_000, 9_500)]
    plain = window_histograms(stream, windows, 4, rule=rule, region=region)
    for view in (
        sample_flip_zoom(rng, FLIP_ZOOM, *sides),
        FlipZoom(*(rng.integers(-1, side, side) for side in sides)),
    ):
        out = np.full_like(plain, 7)
        window_histograms(stream, windows, 4, rule=rule, region=region, maps=view[:2], out=out)
        np.testing.assert_array_equal(out, apply_maps(plain, view, 0))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda stream: window_histograms(stream, [5], 2), "windows have the shape"),
        (lambda stream: window_histograms(stream, [[1, 2, 3]], 2), "windows have the shape"),
        (lambda stream: window_histograms(stream, [[20, 20]], 2), "is empty"),
        (
            lambda stream: window_histograms(
                stream, [[0, 9]], 2, out=np.zeros((1, 4, 20, 31), np.uint8)
            ),
            "out must be",
        ),
        (
            lambda stream: window_histograms(
                stream, [[0, 9]], 2, out=np.zeros((1, 4, 20, 30), np.int8)
            ),
            "out must be",
        ),
    ],
)
def test_mistakes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(recording(count=9))

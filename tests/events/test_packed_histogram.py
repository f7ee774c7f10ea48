"""Histograms of windows of a recording: rules, regions, rectified pixels, views, on the CPU and by torch."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from event_cases import plain_histogram
from hypothesis import given
from hypothesis import strategies as st

from tespec.core.errors import UserError
from tespec.core.settings import Augmentation
from tespec.datasets.augment import FlipZoom, sample_flip_zoom
from tespec.events import ArrayStream, Events, on_device, window_histograms
from tespec.events.histogram import bin_times, rvt_bin_times, window_words
from tespec.events.on_device import as_seen, count_words
from tespec.events.packing import pack
from tespec.events.spatial import Region, apply_maps
from tespec.events.store import WORDS, open_store

HEIGHT, WIDTH = 20, 30
REGIONS = (Region(20, 30), Region(17, 30), Region(10, 15, 2), Region(5, 7, 4, "all"), Region(6, 10, 3))
VIEWS = Augmentation(flip=0.5, zoom=0.9, zoom_in_share=0.6, zoom_in=(1.0, 4.0), zoom_out=(1.0, 2.0))
EVERYTHING = -(1 << 40), 1 << 40


def recording(seed=0, count=4_000, span_us=5_000, start_us=0):
    rng = np.random.default_rng(seed)
    t = np.sort(start_us + rng.integers(0, span_us, count))
    # Few pixels, so that many counts reach the limit.
    x, y = (rng.integers(0, side, count) // 3 * 3 for side in (WIDTH, HEIGHT))
    return ArrayStream(x, y, t, rng.integers(0, 2, count), HEIGHT, WIDTH)


def in_region(events, region):
    """Events that a region keeps, by its definition."""
    (x, y, t, p), factor = events, region.factor
    kept = (x // factor < region.width) & (y // factor < region.height)
    if region.keep == "nearest":
        kept &= (x % factor == factor // 2) & (y % factor == factor // 2)
    return Events(x[kept] // factor, y[kept] // factor, t[kept], p[kept])


def plain(events, windows, bins, region, rule, clip):
    """Histograms of events in a region; bins of the rule "rvt" go by the events of the whole sensor."""
    found = np.zeros((len(windows), 2 * bins, region.height, region.width), int)
    x, y, time, p = in_region(events, region)
    for histogram, (start, end) in zip(found, windows, strict=True):
        t = events.t[(events.t >= start) & (events.t < end + (rule == "rvt"))]
        if len(t):
            times = bin_times(start, end, bins) if rule == "edges" else rvt_bin_times(int(t[0]), int(t[-1]), bins)
            k = np.searchsorted(times, time, side="right") - 1
            inside = (k >= 0) & (k < bins)
            np.add.at(histogram, ((k + bins * p)[inside], y[inside], x[inside]), 1)
    return np.minimum(found, clip)


@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([1, 7, 400, 4000]),
    span_us=st.sampled_from([1, 900, 5_000, 40_000]),
    start_us=st.sampled_from([0, 123_456, -7_890]),
    first=st.integers(-9_000, 9_000),
    length=st.integers(1, 30_000),
    bins=st.integers(1, 12),
    region=st.sampled_from(REGIONS),
    rule=st.sampled_from(["edges", "rvt"]),
    clip=st.sampled_from([1, 10, 255]),
)
def test_equal_to_counting_the_events(seed, count, span_us, start_us, first, length, bins, region, rule, clip):
    stream = recording(seed, count, span_us, start_us)
    windows = [(start_us + first, start_us + first + length), (start_us, start_us + span_us)]
    counted = window_histograms(stream, windows, bins, rule=rule, region=region, clip=clip)
    np.testing.assert_array_equal(counted, plain(stream.slice(*EVERYTHING), windows, bins, region, rule, clip))
    words, counts = window_words(stream, windows, bins, rule=rule, region=region)
    found = count_words(torch.from_numpy(words.view(np.int32)), torch.from_numpy(counts)[None], region, clip)
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found[0], counted)


def test_borders_of_windows_or_each_with_its_end_and_outside_of_the_recording():
    stream, borders = recording(span_us=30_000), [1_000, 6_000, 6_500, 20_000]
    found = window_histograms(stream, borders, 5)
    np.testing.assert_array_equal(found, window_histograms(stream, list(pairwise(borders)), 5))
    size = {"height": HEIGHT, "width": WIDTH}
    wanted = plain_histogram(*stream.slice(*EVERYTHING), t_start=6_000, t_end=6_500, bins=5, **size)
    np.testing.assert_array_equal(found[1], wanted)
    assert not window_histograms(stream, [(-9_000, -1), (60_000, 70_000)], 2, rule="rvt").any()


@pytest.mark.parametrize("view", [False, True])
@pytest.mark.parametrize("rule", ["edges", "rvt"])
def test_rectified_histograms_are_those_of_the_moved_events(rule, view):
    stream = recording(3, 9_000, 40_000, 123_456)
    pixels = np.random.default_rng(0).integers(-1, 20, (HEIGHT, WIDTH, 2)).astype(np.int16)
    rectified = stream.rectified(pixels)
    x, y, t, p = stream.slice(*EVERYTHING)
    column, row = pixels[y, x].T
    kept = (column >= 0) & (row >= 0)
    moved = ArrayStream(column[kept], row[kept], t[kept], p[kept], HEIGHT, WIDTH)
    assert 0 < kept.sum() < len(t)
    windows = [(123_456, 130_000), (130_000, 163_456), (0, 1)]
    for seed in range(8 if view else 1):  # flips, and zooms that show events several times
        maps = sample_flip_zoom(np.random.default_rng(seed), VIEWS, HEIGHT, WIDTH) if view else None
        for region in (REGIONS[0], REGIONS[1])[: 1 + (not view)]:
            options = {"region": region, "view": maps, "rule": rule}
            counted = window_histograms(rectified, windows, 5, **options)
            np.testing.assert_array_equal(counted, window_histograms(moved, windows, 5, **options))
    for found, wanted in zip(
        window_words(rectified, windows, 5, rule=rule), window_words(moved, windows, 5, rule=rule), strict=True
    ):
        np.testing.assert_array_equal(found, wanted)
    for found, wanted in zip(rectified.slice(125_000, 140_001), moved.slice(125_000, 140_001), strict=True):
        np.testing.assert_array_equal(found, wanted)


@given(seed=st.integers(0, 2**32), region=st.sampled_from(REGIONS), rule=st.sampled_from(["edges", "rvt"]))
def test_a_view_of_the_events_is_that_of_their_histogram(seed, region, rule):
    stream, rng = recording(seed), np.random.default_rng(seed)
    sides = region.height, region.width
    windows = [(0, 3_000), (3_000, 5_000), (9_000, 9_500)]
    plain = window_histograms(stream, windows, 4, rule=rule, region=region)
    for view in (sample_flip_zoom(rng, VIEWS, *sides), FlipZoom(*(rng.integers(-1, side, side) for side in sides))):
        out = np.full_like(plain, 7)
        window_histograms(stream, windows, 4, rule=rule, region=region, view=view, out=out)
        np.testing.assert_array_equal(out, apply_maps(plain, view, 0))


def test_keeping_the_nearest_equals_nearest_exact_sub_sampling():
    rng, factor = np.random.default_rng(0), 3
    stream = ArrayStream(
        rng.integers(0, 60, 20_000), rng.integers(0, 36, 20_000), np.arange(20_000), np.ones(20_000, int), 36, 60
    )
    full = torch.from_numpy(window_histograms(stream, [0, 20_000], 4))
    wanted = torch.nn.functional.interpolate(full.float(), scale_factor=1 / factor, mode="nearest-exact")
    found = window_histograms(stream, [0, 20_000], 4, region=Region(12, 20, factor, "nearest"))
    np.testing.assert_array_equal(found, wanted.numpy())


def test_events_that_the_region_drops_do_not_travel():
    stream = recording()
    words, counts = window_words(stream, [0, 5_000], 4, region=Region(10, 15, 2))
    assert len(words) == counts.sum() == len(in_region(stream.slice(*EVERYTHING), Region(10, 15, 2)).t) < 2_000
    assert counts.dtype == np.int32


def test_torch_counts_up_to_the_limit_some_planes_at_a_time(monkeypatch):
    count = 70_000
    at = np.zeros(count, np.int64)
    stream, region = ArrayStream(at + 2, at + 1, np.arange(count) // 100, at + 1, HEIGHT, WIDTH), Region(HEIGHT, WIDTH)
    wanted = window_histograms(stream, [0, 350, 700], 3)
    assert wanted.max() == wanted[0, 3, 1, 2] == 10
    words, counts = window_words(stream, [0, 350, 700], 3)
    for cells in (1, 5 * HEIGHT * WIDTH, 1 << 26):
        monkeypatch.setattr(on_device, "CELLS_AT_ONCE", cells)
        found = count_words(torch.from_numpy(words.view(np.int32)), torch.from_numpy(counts)[None], region)
        np.testing.assert_array_equal(found[0], wanted)


@given(seed=st.integers(0, 2**32), channels=st.integers(1, 3))
def test_torch_shows_views_as_index_maps_do(seed, channels):
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 11, (2, 3, channels, HEIGHT, WIDTH), np.uint8)
    views = [
        sample_flip_zoom(rng, VIEWS, HEIGHT, WIDTH),
        FlipZoom(*(rng.integers(-1, side, side) for side in (HEIGHT, WIDTH))),
    ]
    rows, columns = (torch.from_numpy(np.stack(maps)) for maps in zip(*(view[:2] for view in views), strict=True))
    wanted = [apply_maps(lane, view, 0) for lane, view in zip(frames, views, strict=True)]
    np.testing.assert_array_equal(as_seen(torch.from_numpy(frames), rows, columns), wanted)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda stream: window_histograms(stream, [5], 2), "windows have the shape"),
        (lambda stream: window_histograms(stream, [[1, 2, 3]], 2), "windows have the shape"),
        (lambda stream: window_histograms(stream, [10, 20, 20], 2), "is empty"),
        (lambda stream: window_histograms(stream, [0, 9], 2, out=np.zeros((1, 4, 20, 31), np.uint8)), "out must be"),
        (lambda stream: window_histograms(stream, [0, 9], 2, out=np.zeros((1, 4, 20, 30), np.int8)), "out must be"),
        (lambda stream: Region(4, 4, 0), "must be positive and keep"),
        (lambda stream: Region(4, 4, 2, "mean"), "must be positive and keep"),
    ],
)
def test_mistakes_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call(recording(count=9))


@pytest.mark.parametrize("change", [31, 1023 << 22], ids=["column outside", "microsecond outside"])
def test_damaged_words_are_refused_where_they_are_read(change, tmp_path):
    folder = pack(recording(count=400), tmp_path / "recording")
    words = np.fromfile(folder / WORDS, "<u4")
    words[200] |= change
    words.tofile(folder / WORDS)
    stream = open_store(folder)
    at = int(recording(count=400).slice(*EVERYTHING).t[200])
    assert len(stream.slice(0, at // 1000 * 1000).t)
    for read in (
        lambda: stream.slice(at, at + 1),
        lambda: window_histograms(stream, [(0, 5_000)], 10),
        lambda: window_words(stream, [(0, 5_000)], 10),
    ):
        with pytest.raises(UserError, match="damaged"):
            read()

"""Histograms of the packed store are those of its events, whatever the window, the bins and the region."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Augmentation
from tespec.datasets.augment import Maps, draw_maps
from tespec.events.histogram import count_events
from tespec.events.on_device import as_seen, count_words
from tespec.events.packing import pack
from tespec.events.spatial import Region, apply_maps
from tespec.events.store import WORDS, open_store
from tespec.events.stream import ArrayStream
from tespec.events.windows import window_histograms, window_words

HEIGHT, WIDTH = 20, 30
REGIONS = (Region(20, 30), Region(17, 30), Region(10, 15, 2), Region(5, 7, 4, "all"), Region(6, 10, 3))


def recording(seed: int, count: int, span_us: int, start_us: int) -> ArrayStream:
    rng = np.random.default_rng(seed)
    t = np.sort(start_us + rng.integers(0, span_us, count))
    # Few pixels, so that many counts reach the limit.
    x, y = (rng.integers(0, side, count) // 3 * 3 for side in (WIDTH, HEIGHT))
    return ArrayStream(x, y, t, rng.integers(0, 2, count), HEIGHT, WIDTH)


@settings(deadline=None, max_examples=60)
@given(
    seed=st.integers(0, 2**32),
    count=st.sampled_from([1, 7, 400, 4000]),
    span_us=st.sampled_from([1, 900, 5_000, 40_000]),
    start_us=st.sampled_from([0, 123_456, -7_890]),
    first=st.integers(-9_000, 9_000),
    length=st.integers(1, 30_000),
    bins=st.integers(1, 12),
    region=st.sampled_from(REGIONS),
    clip=st.sampled_from([1, 10, 255]),
)
def test_equal_to_counting_the_events(
    seed, count, span_us, start_us, first, length, bins, region, clip, tmp_path_factory
):
    stream = recording(seed, count, span_us, start_us)
    packed = open_store(pack(stream, tmp_path_factory.mktemp("store") / "recording"))
    windows = [(start_us + first, start_us + first + length), (start_us, start_us + span_us)]
    counted = window_histograms(packed, windows, bins, region=region, clip=clip)
    np.testing.assert_array_equal(counted, window_histograms(stream, windows, bins, region=region, clip=clip))


@pytest.mark.parametrize("view", [None, "flip and zoom"])
@pytest.mark.parametrize("rule", ["edges", "rvt"])
def test_rectified_histograms_are_those_of_the_moved_events(tmp_path, rule, view):
    stream = recording(3, 4000, 40_000, 123_456)
    places = np.random.default_rng(0).integers(-1, 20, (HEIGHT, WIDTH, 2)).astype(np.int16)
    packed = open_store(pack(stream, tmp_path / "store")).rectified(places)
    x, y, t, p = stream.slice(0, 1 << 40)
    column, row = places[y, x].T
    kept = (column >= 0) & (row >= 0)
    moved = ArrayStream(column[kept], row[kept], t[kept], p[kept], HEIGHT, WIDTH)
    assert 0 < kept.sum() < len(t)
    windows = [(123_456, 130_000), (130_000, 163_456), (0, 1)]
    maps = None if view is None else draw_maps(np.random.default_rng(1), VIEWS, HEIGHT, WIDTH)
    options = {"region": REGIONS[0], "view": maps, "rule": rule}
    counted = window_histograms(packed, windows, 5, **options)
    np.testing.assert_array_equal(counted, window_histograms(moved, windows, 5, **options))
    if view is None:
        found = counted_by_torch(packed, windows, 5, REGIONS[0], rule)
        np.testing.assert_array_equal(found[0], counted)
    for found, wanted in zip(packed.slice(125_000, 140_001), moved.slice(125_000, 140_001), strict=True):
        np.testing.assert_array_equal(found, wanted)


VIEWS = Augmentation(flip=0.5, zoom=0.9, zoom_in_share=0.6, zoom_in=(1.0, 4.0), zoom_out=(1.0, 2.0))


@settings(deadline=None, max_examples=60)
@given(seed=st.integers(0, 2**32), region=st.sampled_from(REGIONS), rule=st.sampled_from(["edges", "rvt"]))
def test_a_view_of_the_events_is_that_of_their_histogram(seed, region, rule, tmp_path_factory):
    stream = recording(seed, 4000, 5_000, 0)
    packed = open_store(pack(stream, tmp_path_factory.mktemp("store") / "recording"))
    view = draw_maps(np.random.default_rng(seed), VIEWS, region.height, region.width)
    windows = [(0, 3_000), (3_000, 5_000), (9_000, 9_500)]
    wanted = apply_maps(window_histograms(stream, windows, 4, rule=rule, region=region), view, 0)
    for each in (stream, packed):
        out = np.full_like(wanted, 7)
        window_histograms(each, windows, 4, rule=rule, region=region, view=view, out=out)
        np.testing.assert_array_equal(out, wanted)


def counted_by_torch(packed, windows, bins, region, rule="edges", clip=10):
    """What is counted of packed events where torch computes."""
    words, counts = window_words(packed, windows, bins, rule=rule)
    return count_words(torch.from_numpy(words.view(np.int32)), torch.from_numpy(counts)[None], region, clip)


@settings(deadline=None, max_examples=60)
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
def test_torch_counts_packed_events_as_the_kernel_of_the_cpu(
    seed, count, span_us, start_us, first, length, bins, region, rule, clip, tmp_path_factory
):
    stream = recording(seed, count, span_us, start_us)
    packed = open_store(pack(stream, tmp_path_factory.mktemp("store") / "recording"))
    windows = [(start_us + first, start_us + first + length), (start_us, start_us + span_us)]
    wanted = window_histograms(packed, windows, bins, region=region, rule=rule, clip=clip)
    found = counted_by_torch(packed, windows, bins, region, rule, clip)
    assert found.dtype == torch.uint8
    np.testing.assert_array_equal(found[0], wanted)


def test_torch_counts_up_to_the_limit_however_many_there_are(tmp_path: Path) -> None:
    count = 70_000
    at = np.zeros(count, np.int64)
    stream = ArrayStream(at + 2, at + 1, np.arange(count) // 100, at + 1, HEIGHT, WIDTH)
    packed, region = open_store(pack(stream, tmp_path / "recording")), Region(HEIGHT, WIDTH)
    for clip in (10, 255):
        found = counted_by_torch(packed, [0, 700], 1, region, clip=clip)
        assert (int(found.sum()), int(found[0, 0, 1, 1, 2])) == (clip, clip)


@settings(deadline=None, max_examples=40)
@given(seed=st.integers(0, 2**32), channels=st.integers(1, 3))
def test_torch_shows_views_as_index_maps_do(seed, channels):
    rng = np.random.default_rng(seed)
    frames = rng.integers(0, 11, (2, 3, channels, HEIGHT, WIDTH), np.uint8)
    views = [draw_maps(rng, VIEWS, HEIGHT, WIDTH), Maps(*(rng.integers(-1, side, side) for side in (HEIGHT, WIDTH)))]
    rows, columns = (torch.from_numpy(np.stack(maps)) for maps in zip(*(view[:2] for view in views), strict=True))
    wanted = [apply_maps(lane, view, 0) for lane, view in zip(frames, views, strict=True)]
    np.testing.assert_array_equal(as_seen(torch.from_numpy(frames), rows, columns), wanted)


def test_any_index_map_is_a_view(tmp_path: Path) -> None:
    stream = recording(0, 4000, 5_000, 0)
    packed, rng = open_store(pack(stream, tmp_path / "recording")), np.random.default_rng(0)
    view = Maps(*(rng.integers(-1, side, side) for side in (HEIGHT, WIDTH)))
    nothing = Maps(*(np.full(side, -1) for side in (HEIGHT, WIDTH)))
    wanted = apply_maps(window_histograms(stream, [0, 5_000], 4), view, 0)
    np.testing.assert_array_equal(window_histograms(packed, [0, 5_000], 4, view=view), wanted)
    assert not window_histograms(packed, [0, 5_000], 4, view=nothing).any()


@pytest.mark.parametrize("out", [np.zeros((1, 4, 20, 31), np.uint8), np.zeros((1, 4, 20, 30), np.int8)])
def test_an_array_that_does_not_fit_is_refused(out: NDArray[np.uint8]) -> None:
    with pytest.raises(ValueError, match="out must be"):
        window_histograms(recording(0, 9, 900, 0), [0, 900], 2, out=out)


@pytest.mark.parametrize("change", [31 << 0, 1023 << 22], ids=["column outside", "microsecond outside"])
def test_damaged_words_are_refused(change: int, tmp_path: Path) -> None:
    folder = pack(recording(0, 400, 5_000, 0), tmp_path / "recording")
    words = np.fromfile(folder / WORDS, "<u4")
    words[200] |= change
    words.tofile(folder / WORDS)
    packed = open_store(folder)
    with pytest.raises(UserError, match="damaged"):
        window_histograms(packed, [(0, 5_000)], 10)
    with pytest.raises(UserError, match="damaged"):
        window_words(packed, [(0, 5_000)], 10)


@pytest.mark.parametrize("stored", [True, False])
def test_what_an_array_held_is_replaced_or_counted_on_top_of(stored: bool, tmp_path: Path) -> None:
    stream = recording(0, 400, 5_000, 0)
    packed = open_store(pack(stream, tmp_path / "recording"))
    times, seen = np.array([0, 1_000, 5_000]), Region(HEIGHT, WIDTH).seen()

    def count(out: NDArray[np.uint8], fresh: bool) -> NDArray[np.uint8]:
        if stored:
            packed.count_events(times, seen, 255, out, fresh=fresh)
        else:
            sizes = {"height": HEIGHT, "width": WIDTH, "clip": 255}
            count_events(*stream.slice(0, 5_000), times, out=out, fresh=fresh, **sizes)
        return out

    counts = count(np.zeros((4, HEIGHT, WIDTH), np.uint8), False)
    held = np.full_like(counts, 7)
    np.testing.assert_array_equal(count(held.copy(), True), counts)
    np.testing.assert_array_equal(count(held.copy(), False), counts + 7)

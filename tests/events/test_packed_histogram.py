"""Histograms of the packed store are those of its events, whatever the window, the bins and the region."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.histogram import count_events
from tespec.events.packing import pack
from tespec.events.spatial import Region
from tespec.events.store import WORDS, open_store
from tespec.events.stream import ArrayStream
from tespec.events.windows import window_histograms

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


@pytest.mark.parametrize("change", [31 << 0, 1023 << 22], ids=["column outside", "microsecond outside"])
def test_damaged_words_are_refused(change: int, tmp_path: Path) -> None:
    folder = pack(recording(0, 400, 5_000, 0), tmp_path / "recording")
    words = np.fromfile(folder / WORDS, "<u4")
    words[200] |= change
    words.tofile(folder / WORDS)
    packed = open_store(folder)
    with pytest.raises(UserError, match="damaged"):
        window_histograms(packed, [(0, 5_000)], 10)


@pytest.mark.parametrize("stored", [True, False])
def test_what_an_array_held_is_replaced_or_counted_on_top_of(stored: bool, tmp_path: Path) -> None:
    stream = recording(0, 400, 5_000, 0)
    packed = open_store(pack(stream, tmp_path / "recording"))
    times, region = np.array([0, 1_000, 5_000]), Region(HEIGHT, WIDTH)

    def count(out: NDArray[np.uint8], fresh: bool) -> NDArray[np.uint8]:
        if stored:
            packed.count_events(times, region, 255, out, fresh=fresh)
        else:
            sizes = {"height": HEIGHT, "width": WIDTH, "clip": 255}
            count_events(*stream.slice(0, 5_000), times, out=out, fresh=fresh, **sizes)
        return out

    counts = count(np.zeros((4, HEIGHT, WIDTH), np.uint8), False)
    held = np.full_like(counts, 7)
    np.testing.assert_array_equal(count(held.copy(), True), counts)
    np.testing.assert_array_equal(count(held.copy(), False), counts + 7)

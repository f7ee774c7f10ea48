"""Histograms of window after window."""

from itertools import pairwise

import numpy as np
import pytest
from event_cases import HEIGHT, WIDTH, plain_histogram, random_stream

from tespec.events import ArrayStream, window_histograms
from tespec.events.packing import pack
from tespec.events.spatial import Region
from tespec.events.store import open_store

BORDERS = [1_000, 6_000, 6_500, 20_000]


@pytest.mark.parametrize("rule", ["edges", "rvt"])
@pytest.mark.parametrize("windows", [BORDERS, list(pairwise(BORDERS))])
def test_each_window_is_the_histogram_of_its_events(rule, windows):
    stream = random_stream(3_000)
    found = window_histograms(stream, windows, 5, rule=rule)
    assert found.shape == (3, 10, HEIGHT, WIDTH)
    for histogram, start, end in zip(found, BORDERS[:-1], BORDERS[1:], strict=True):
        options = {"t_start": start, "t_end": end, "bins": 5, "height": HEIGHT, "width": WIDTH, "rule": rule}
        np.testing.assert_array_equal(histogram, plain_histogram(*stream.slice(0, 50_000), **options))


def test_windows_may_overlap_and_lie_outside_of_the_recording():
    stream = random_stream(3_000)
    found = window_histograms(stream, [(0, 20_000), (10_000, 30_000), (-9_000, -1), (60_000, 70_000)], 2, clip=255)
    assert found[0].any()
    assert found[1].any()
    assert not found[2:].any()
    np.testing.assert_array_equal(found[0, [1, 3]], found[1, [0, 2]])


def test_windows_of_an_empty_recording_are_zero():
    stream = random_stream(0)
    assert not window_histograms(stream, [0, 10, 20], 3, rule="rvt").any()


def test_a_region_is_counted_alone():
    stream = random_stream(5_000)
    found = window_histograms(stream, [0, 50_000], 4, region=Region(4, WIDTH), clip=255)
    full = window_histograms(stream, [0, 50_000], 4, clip=255)
    np.testing.assert_array_equal(found, full[:, :, :4])


def test_rvt_borders_are_those_of_the_events_that_the_region_drops_too():
    y = np.array([5, 0, 0, 5])
    zeros = np.zeros(4, int)
    stream = ArrayStream(zeros, y, np.array([0, 40, 60, 100]), zeros, HEIGHT, WIDTH)
    found = window_histograms(stream, [0, 1000], 10, rule="rvt", region=Region(2, WIDTH))
    assert np.flatnonzero(found[0, :, 0, 0]).tolist() == [4, 6]


@pytest.mark.parametrize("windows", [[5], [[1, 2, 3]], 7])
def test_other_shapes_are_refused(windows):
    with pytest.raises(ValueError, match="windows have the shape"):
        window_histograms(random_stream(3), windows, 2)


def test_an_empty_window_is_refused():
    with pytest.raises(ValueError, match="is empty"):
        window_histograms(random_stream(3), [10, 20, 20], 2)


def rvt_reference(x, y, t, p, ends, length, bins, height, width, clip=10):
    """Windows of `length` us as uzh-rpg/RVT's preprocessing makes them, after its description.

    From the first event not before a window's start to the last not after its end; bins between these two events, in
    float32; counts up to `clip`.
    """
    frames = np.zeros((len(ends), 2 * bins, height, width), np.int64)
    for frame, end in zip(frames, ends, strict=True):
        begin, stop = np.searchsorted(t, end - length, "left"), np.searchsorted(t, end, "right")
        if begin == stop:
            continue
        inside = slice(begin, stop)
        share = (t[inside] - t[begin]).astype(np.float32) / np.float32(max(t[stop - 1] - t[begin], 1))
        bin_of = np.minimum(np.floor(share * np.float32(bins)), bins - 1).astype(int)
        np.add.at(frame, (bin_of + bins * p[inside], y[inside], x[inside]), 1)
    return np.minimum(frames, clip).astype(np.uint8)


@pytest.mark.parametrize("packed", [False, True])
def test_the_rule_rvt_gives_what_rvts_archives_hold(tmp_path, packed):
    length, ends = 5_000, np.arange(5_000, 60_000, 5_000)
    events = random_stream(4_000, end=50_001).slice(0, 60_000)
    # Many events at the very borders, where a half-open window loses them.
    t = np.sort(np.where(np.arange(4_000) % 9 == 0, np.round(events.t, -3) // 5_000 * 5_000, events.t))
    stream = ArrayStream(events.x, events.y, t, events.p, HEIGHT, WIDTH)
    if packed:
        stream = open_store(pack(stream, tmp_path / "store"))
    windows = np.stack([ends - length, ends], axis=1)
    wanted = rvt_reference(events.x, events.y, t, events.p, ends, length, 10, HEIGHT, WIDTH)
    np.testing.assert_array_equal(window_histograms(stream, windows, 10, rule="rvt"), wanted)
    assert np.isin(ends, t).sum() > 5
    # By "edges" each event counts once.
    whole = window_histograms(stream, np.append(0, ends), 10, clip=255).sum(dtype=int)
    assert whole == (t < ends[-1]).sum() < window_histograms(stream, windows, 10, rule="rvt", clip=255).sum(dtype=int)

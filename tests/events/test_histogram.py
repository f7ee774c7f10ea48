"""Histograms of arrays of events: bins, counts, and other people's code on real events."""

import subprocess
import sys
from fractions import Fraction
from math import floor
from pathlib import Path

import numpy as np
import pytest
import torch
from event_cases import HEIGHT, WIDTH, event_arrays, plain_histogram, random_events
from hypothesis import given
from hypothesis import strategies as st

from tespec.events import event_histogram, load_events
from tespec.events.histogram import bin_times, rvt_bin_times

DATA = Path(__file__).parents[1] / "data"
WINDOW = {"t_start": 0, "t_end": 3_000, "height": HEIGHT, "width": WIDTH}
WINDOW_US, BINS, SIZE = 50_000, 10, {"height": 480, "width": 640}


@given(st.integers(-(10**15), 10**15), st.integers(1, 10**7), st.integers(1, 50), st.data())
def test_edges_are_those_of_exact_arithmetic(start, span, bins, data):
    times = bin_times(start, start + span, bins)
    t = data.draw(st.integers(start, start + span - 1))
    k = floor(Fraction(t - start, span) * bins)
    assert times[k] <= t < times[k + 1]
    assert (times[0], times[-1], len(times)) == (start, start + span, bins + 1)


def rvt_bins(t, bins):
    """The formula of uzh-rpg/RVT's StackedHistogram, with its types."""
    share = (t - t[0]) / max(t[-1] - t[0], 1)
    return torch.clamp((share * bins).floor(), max=bins - 1).numpy()


@pytest.mark.parametrize("bins", [1, 3, 10, 41])
@pytest.mark.parametrize("span", [0, 1, 9, 3000, 49_999, 50_000, 300_000])
def test_rvt_borders_are_those_of_its_float32_formula_at_every_time(span, bins):
    first = 7_000_123
    t = torch.arange(first, first + span + 1)
    times = rvt_bin_times(first, first + span, bins)
    np.testing.assert_array_equal(np.searchsorted(times, t.numpy(), side="right") - 1, rvt_bins(t, bins))


def test_rvt_borders_hold_in_long_windows_where_float32_cannot_name_every_microsecond():
    first, span, bins = 10**12, 3_600_000_000, 10
    borders = torch.tensor(rvt_bin_times(first, first + span, bins)[1:-1])
    near = (borders[:, None] + torch.arange(-400, 400)).flatten()
    t = torch.cat([torch.tensor([first]), near, torch.tensor([first + span])])
    found = np.searchsorted(rvt_bin_times(first, first + span, bins), t.numpy(), side="right") - 1
    np.testing.assert_array_equal(found, rvt_bins(t, bins))


@given(event_arrays(), st.integers(1, 11), st.sampled_from(["edges", "rvt"]), st.sampled_from([1, 10, 255]))
def test_it_counts_as_the_plain_way_does(events, bins, rule, clip):
    options = WINDOW | {"bins": bins, "rule": rule, "clip": clip}
    found = event_histogram(*events, **options)
    assert found.dtype == np.uint8
    np.testing.assert_array_equal(found, plain_histogram(*events, **options))


def test_the_rules_part_ways_in_a_sparse_window():
    t, zeros = np.array([20_000, 21_000, 30_000]), np.zeros(3, np.uint16)
    options = {"t_start": 0, "t_end": 50_000, "bins": 10, "height": 1, "width": 1}

    def bins_of(rule):
        histogram = event_histogram(zeros, zeros, t, zeros.astype(np.uint8), rule=rule, **options)
        return np.repeat(np.arange(20), histogram.ravel()).tolist()

    assert bins_of("edges") == [4, 4, 6]
    assert bins_of("rvt") == [0, 1, 9]


@pytest.mark.parametrize("dtype", [np.int16, np.int32, np.int64, np.uint32])
def test_any_integer_type_and_any_stride_is_taken(dtype):
    events = random_events(9_000)  # more than a block
    options = {"t_start": 0, "t_end": 50_000, "bins": 1, "height": HEIGHT, "width": WIDTH, "clip": 255}
    table = np.stack([events.x, events.y, events.p], axis=1).astype(dtype)
    found = event_histogram(table[:, 0], table[:, 1], events.t, table[:, 2], **options)
    np.testing.assert_array_equal(found, plain_histogram(*events, **options))


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"x": [0, WIDTH]}, {}, "x has values outside of 0 to 7"),
        ({"x": [0, -1]}, {}, "x has values"),
        ({"y": [HEIGHT, 0]}, {}, "y has values"),
        ({"p": [0, -1]}, {}, "p has values"),
        ({"p": [0, 2]}, {}, "p has values"),
        ({"t": [5, 4]}, {}, "not sorted"),
        ({"t": [5]}, {}, "shapes"),
        ({"t": [0.5, 1.5]}, {}, "not whole numbers"),
        ({}, {"rule": "sums"}, "unknown binning rule 'sums'; choose from edges, rvt"),
        ({}, {"t_end": 0}, "is empty"),
        ({}, {"bins": 0}, "bins"),
        ({}, {"clip": 256}, "clip"),
        ({}, {"clip": 0}, "clip"),
    ],
)
def test_what_cannot_be_counted_is_refused(change, options, message):
    columns = {name: np.array(change.get(name, [0, 1])) for name in ("x", "y", "t", "p")}
    with pytest.raises(ValueError, match=message):
        event_histogram(*columns.values(), **{"bins": 2, **WINDOW, **options})


def test_importing_events_does_not_import_torch():
    code = "import sys, tespec.events; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.fixture(scope="module")
def real():
    return load_events(DATA / "evt3_640x480_2.08s.raw")


@pytest.mark.parametrize("number", range(4))
def test_bins_are_those_of_tonic(real, number):
    """tonic 1.6.0 (tests/data/tonic_frames.py), which cuts the window at the same borders."""
    with np.load(DATA / "tonic_frames.npz") as frames:
        start, shape = int(frames[f"start_{number}"]), tuple(frames[f"shape_{number}"])
        wanted = np.zeros(np.prod(shape), np.uint8)
        wanted[frames[f"places_{number}"]] = frames[f"counts_{number}"]
    end = start + WINDOW_US
    found = event_histogram(*real.slice(start, end), t_start=start, t_end=end, bins=BINS, clip=255, **SIZE)
    assert shape == (BINS, 2, 480, 640)
    assert wanted.sum() == len(real.slice(start, end).t) > 1_000
    np.testing.assert_array_equal(found.reshape(2, BINS, 480, 640).swapaxes(0, 1), wanted.reshape(shape))


@pytest.mark.parametrize("rule", ["edges", "rvt"])
@pytest.mark.parametrize("start", [0, 1_555_555])
def test_both_rules_are_those_of_a_plain_loop_on_real_events(real, rule, start):
    start += real.t_first
    events = real.slice(start, start + WINDOW_US + 1)
    arguments = {"t_start": start, "t_end": start + WINDOW_US, "bins": BINS, "rule": rule, **SIZE}
    np.testing.assert_array_equal(event_histogram(*events, **arguments), plain_histogram(*events, **arguments))

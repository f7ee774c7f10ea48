"""Histograms against other people's code, on real events."""

from pathlib import Path

import numpy as np
import pytest
from event_cases import plain_histogram

from tespec.events import event_histogram, open_events

DATA = Path(__file__).parents[1] / "data"
WINDOW_US, BINS, SIZE = 50_000, 10, {"height": 480, "width": 640}


@pytest.fixture(scope="module")
def real():
    return open_events(DATA / "evt3_640x480_2.08s.raw")


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
@pytest.mark.parametrize("start", [0, 412_345, 1_555_555])
def test_both_rules_are_those_of_a_plain_loop_on_real_events(real, rule, start):
    start += real.t_first
    events = real.slice(start, start + WINDOW_US + 1)
    arguments = {"t_start": start, "t_end": start + WINDOW_US, "bins": BINS, "rule": rule, **SIZE}
    np.testing.assert_array_equal(event_histogram(*events, **arguments), plain_histogram(*events, **arguments))

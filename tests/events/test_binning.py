"""Borders of the time bins."""

from fractions import Fraction
from math import floor

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tespec.events.histogram import bin_times, check_window, rvt_bin_times


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


@pytest.mark.parametrize("bins", [1, 2, 3, 7, 10, 41, 49])
@pytest.mark.parametrize("span", [0, 1, 2, 9, 41, 3000, 49_999, 50_000, 50_001, 300_000])
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


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((0, 10, 5, "sums", 10), "unknown binning rule 'sums'; choose from edges, rvt"),
        ((10, 10, 5, "edges", 10), "is empty"),
        ((0, 10, 0, "edges", 10), "bins"),
        ((0, 10, 5, "edges", 256), "clip"),
        ((0, 10, 5, "edges", 0), "clip"),
    ],
)
def test_mistakes_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        check_window(*arguments)

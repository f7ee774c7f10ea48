"""Cropping and downsampling of event coordinates."""

import numpy as np
import pytest
import torch
from event_cases import assert_same_events, event_arrays, random_events
from hypothesis import given
from hypothesis import strategies as st

from tespec.events import Events, event_histogram
from tespec.events.spatial import Region

OPTIONS = {"t_start": 0, "t_end": 50_000, "bins": 4}


@pytest.mark.parametrize("factor", [2, 3, 4])
def test_keeping_the_nearest_equals_sub_sampling_the_full_histogram(factor):
    height, width = 12 * factor, 20 * factor
    events = random_events(20_000, height=height, width=width)
    full = torch.from_numpy(event_histogram(*events, height=height, width=width, **OPTIONS))
    wanted = torch.nn.functional.interpolate(full[None].float(), scale_factor=1 / factor, mode="nearest-exact")[0]
    kept = Region(12, 20, factor, "nearest").apply(events)
    np.testing.assert_array_equal(event_histogram(*kept, height=12, width=20, **OPTIONS), wanted.numpy())


@pytest.mark.parametrize("factor", [2, 3])
def test_keeping_all_equals_summing_the_full_histogram(factor):
    height, width = 12 * factor, 20 * factor
    events = random_events(2_000, height=height, width=width)
    full = event_histogram(*events, height=height, width=width, clip=255, **OPTIONS)
    wanted = full.reshape(-1, 12, factor, 20, factor).sum(axis=(2, 4))
    kept = Region(12, 20, factor, "all").apply(events)
    np.testing.assert_array_equal(event_histogram(*kept, height=12, width=20, clip=255, **OPTIONS), wanted)


def test_cropping_equals_cropping_the_full_histogram():
    events = random_events(2_000, height=30, width=40)
    full = event_histogram(*events, height=30, width=40, **OPTIONS)
    kept = Region(20, 33).apply(events)
    np.testing.assert_array_equal(event_histogram(*kept, height=20, width=33, **OPTIONS), full[:, :20, :33])


@given(event_arrays(), st.integers(1, 6), st.integers(1, 8), st.integers(1, 4), st.sampled_from(["nearest", "all"]))
def test_it_maps_as_the_plain_way_does(events, height, width, factor, keep):
    x, y = events.x // factor, events.y // factor
    kept = (x < width) & (y < height)
    if keep == "nearest":
        kept &= (events.x % factor == factor // 2) & (events.y % factor == factor // 2)
    wanted = Events(x[kept], y[kept], events.t[kept], events.p[kept])
    assert_same_events(Region(height, width, factor, keep).apply(events), wanted)


@pytest.mark.parametrize("change", [{"factor": 0}, {"keep": "mean"}])
def test_mistakes_are_refused(change):
    with pytest.raises(ValueError, match="must be positive and keep"):
        Region(**({"height": 4, "width": 4} | change))

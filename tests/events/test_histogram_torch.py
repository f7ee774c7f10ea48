"""The device path of event histograms."""

import numpy as np
import pytest
import torch
from event_cases import HEIGHT, WIDTH, event_arrays, random_events
from hypothesis import given
from hypothesis import strategies as st

from tespec.events import event_histogram
from tespec.events.histogram import event_histogram_torch

WINDOW = {"t_start": 0, "t_end": 3_000, "height": HEIGHT, "width": WIDTH}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]


def tensors(events, device="cpu"):
    return [torch.from_numpy(column.astype(np.int64)).to(device) for column in events]


@pytest.mark.parametrize("device", DEVICES)
@given(event_arrays(), st.integers(1, 11), st.sampled_from(["edges", "rvt"]), st.sampled_from([1, 10, 255]))
def test_it_equals_the_numpy_path(device, events, bins, rule, clip):
    options = WINDOW | {"bins": bins, "rule": rule, "clip": clip}
    found = event_histogram_torch(*tensors(events, device), **options)
    assert found.dtype == torch.uint8
    assert found.device.type == device
    np.testing.assert_array_equal(found.cpu().numpy(), event_histogram(*events, **options))


@pytest.mark.parametrize("device", DEVICES)
def test_it_runs_where_only_deterministic_algorithms_are_allowed(device):
    events = tensors(random_events(20_000), device)
    options = {"t_start": 0, "t_end": 50_000, "bins": 10, "height": HEIGHT, "width": WIDTH, "clip": 255}
    free = event_histogram_torch(*events, **options)
    torch.use_deterministic_algorithms(True)
    try:
        assert torch.equal(event_histogram_torch(*events, **options), free)
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.parametrize("rule", ["edges", "rvt"])
def test_events_may_come_in_any_order(rule):
    events = tensors(random_events(1_000))
    shuffled = torch.randperm(1_000, generator=torch.Generator().manual_seed(0))
    options = {"t_start": 0, "t_end": 50_000, "bins": 10, "height": HEIGHT, "width": WIDTH, "rule": rule}
    wanted = event_histogram_torch(*events, **options)
    assert torch.equal(event_histogram_torch(*(column[shuffled] for column in events), **options), wanted)


def test_small_integer_types_are_taken():
    events = random_events(1_000)
    options = {"t_start": 0, "t_end": 50_000, "bins": 10, "height": HEIGHT, "width": WIDTH}
    small = [
        torch.from_numpy(column.astype(dtype)) for column, dtype in zip(events, ("i2", "u2", "i8", "u1"), strict=True)
    ]
    np.testing.assert_array_equal(event_histogram_torch(*small, **options).numpy(), event_histogram(*events, **options))


@pytest.mark.parametrize("change", [{"x": [0, WIDTH]}, {"x": [-1, 0]}, {"y": [0, HEIGHT]}, {"p": [0, 2]}, {"t": [1]}])
def test_events_that_cannot_be_counted_are_refused(change):
    columns = {name: torch.tensor(change.get(name, [0, 1])) for name in ("x", "y", "t", "p")}
    with pytest.raises(ValueError, match=r"outside of|shapes"):
        event_histogram_torch(*columns.values(), bins=2, **WINDOW)

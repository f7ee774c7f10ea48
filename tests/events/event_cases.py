"""Events for tests, and plain references of what is computed from them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from tespec.core.errors import UserError
from tespec.events import ArrayStream, Events, load_events

HEIGHT, WIDTH = 6, 8


def random_events(count, *, height=HEIGHT, width=WIDTH, start=0, end=50_000, seed=0):
    rng = np.random.default_rng(seed)
    return Events(
        rng.integers(0, width, count).astype(np.uint16),
        rng.integers(0, height, count).astype(np.uint16),
        np.sort(rng.integers(start, end, count)).astype(np.int64),
        rng.integers(0, 2, count).astype(np.uint8),
    )


def random_stream(count, *, height=HEIGHT, width=WIDTH, start=0, end=50_000, seed=0):
    events = random_events(count, height=height, width=width, start=start, end=end, seed=seed)
    return ArrayStream(*events, height, width)


@st.composite
def event_arrays(draw, *, start=-2_000, end=4_000, largest=400):
    """None, one, or many events; one polarity or both; few pixels, so that counts pass 255; equal times or not."""
    count = draw(st.sampled_from([0, 1, 2, 5, 40, largest]))
    span = draw(st.sampled_from([1, 7, end - start]))
    columns, rows = draw(st.sampled_from([(1, 1), (3, 2), (WIDTH, HEIGHT)]))
    polarity = draw(st.sampled_from([(0, 1), (1, 2), (0, 2)]))
    first = draw(st.integers(start, end - span))
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    return Events(
        rng.integers(0, columns, count).astype(np.uint16),
        rng.integers(0, rows, count).astype(np.uint16),
        np.sort(rng.integers(first, first + span, count)).astype(np.int64),
        rng.integers(*polarity, count).astype(np.uint8),
    )


def plain_histogram(x, y, t, p, *, t_start, t_end, bins, height, width, rule="edges", clip=10):
    """Event by event, in whole numbers for "edges" and in RVT's float32 and closed windows for "rvt"."""
    counts = np.zeros((2 * bins, height, width), np.int64)
    inside = [i for i in range(len(t)) if t_start <= t[i] < t_end or (rule == "rvt" and t[i] == t_end)]
    for i in inside:
        if rule == "edges":
            k = (int(t[i]) - t_start) * bins // (t_end - t_start)
        else:
            first, last = int(t[inside[0]]), int(t[inside[-1]])
            share = np.float32(int(t[i]) - first) / np.float32(max(last - first, 1))
            k = min(int(np.floor(share * np.float32(bins))), bins - 1)
        counts[k + bins * int(p[i]), y[i], x[i]] += 1
    return np.minimum(counts, clip).astype(np.uint8)


def assert_same_events(found, wanted):
    for name, dtype in zip(("x", "y", "t", "p"), ("u2", "u2", "i8", "u1"), strict=True):
        values = getattr(found, name)
        assert values.dtype == np.dtype(dtype)
        np.testing.assert_array_equal(values, getattr(wanted, name), err_msg=name)


def read(path, *size):
    """All events of a recording."""
    stream = load_events(path, *size)
    return stream.slice(stream.t_first, stream.t_last + 1)


def assert_refused(path, message, *size):
    """In one line that begins with the file and ends with a remedy."""
    with pytest.raises(UserError, match=message) as caught:
        load_events(path, *size)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)

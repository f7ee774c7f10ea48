"""Where the time bins of a window begin: the two rules, as integer times, exact for every event."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

RULES = ("edges", "rvt")


def first_after(t_end: int, rule: str) -> int:
    """The first time in us that is no longer in a window that ends at `t_end`.

    By "edges" an event at the end belongs to the next window; by "rvt" to both, as uzh-rpg/RVT,
    scripts/genx/preprocess_dataset.py, takes events from the first not before a window to the last not after it.
    """
    return t_end + (rule == "rvt")


def check_window(t_start: int, t_end: int, bins: int, rule: str, clip: int) -> None:
    """Check the arguments that every histogram shares.

    Raises:
        ValueError: unknown rule, empty window, no bins, or a clip that does not fit a byte.
    """
    if rule not in RULES:
        raise ValueError(f"unknown binning rule {rule!r}; choose from {', '.join(RULES)}")
    if t_end <= t_start:
        raise ValueError(f"the window [{t_start}, {t_end}) us is empty")
    if bins < 1 or not 0 < clip < 256:
        raise ValueError(f"bins ({bins}) must be positive and clip ({clip}) between 1 and 255")


def bin_times(t_start: int, t_end: int, bins: int) -> NDArray[np.int64]:
    """Bins of the rule "edges" (Eq. 3), which divides the window between its borders.

    Returns:
        (bins + 1,) times in us: bin k holds the events with times[k] <= t < times[k + 1], which are those with
        floor((t - t_start) / (t_end - t_start) * bins) == k in exact arithmetic.
    """
    span = t_end - t_start
    return np.array([t_start - (-k * span // bins) for k in range(bins + 1)], np.int64)


def rvt_bin_times(first: int, last: int, bins: int) -> NDArray[np.int64]:
    """Bins of the rule "rvt", which divides the window between its first and its last event.

    The bin of an event is that of uzh-rpg/RVT, data/utils/representations.py, including its rounding: division and
    product in float32, the last event in the last bin, and all events in bin 0 where they have one time.

    Args:
        first: time of the window's first event in us.
        last: time of its last event in us.
        bins: number of bins.

    Returns:
        (bins + 1,) times in us: bin k holds the events with times[k] <= t < times[k + 1].
    """
    span = max(last - first, 1)
    k = np.arange(1, bins)
    exact = np.array([-(-i * span // bins) for i in range(1, bins)], np.int64)
    # float32 moves a border by at most 4 roundings of 2**-24, and one more us.
    reach = (span >> 20) + 2
    candidates = exact[:, None] + np.arange(-reach, reach + 1)
    scaled = candidates.astype(np.float32) / np.float32(span) * np.float32(bins)
    before = (np.floor(scaled) < k[:, None]).sum(axis=1)
    return np.concatenate(([first], first + exact - reach + before, [last + 1])).astype(np.int64)

"""Event histograms on the device; see `tespec.events.histogram`."""

from __future__ import annotations

import torch
from torch import Tensor

from tespec.events.histogram import bin_times, check_window, first_after, rvt_bin_times


def event_histogram_torch(
    x: Tensor,
    y: Tensor,
    t: Tensor,
    p: Tensor,
    *,
    t_start: int,
    t_end: int,
    bins: int,
    height: int,
    width: int,
    rule: str = "edges",
    clip: int = 10,
) -> Tensor:
    """Counts of the events of one window, on the device of the events; equal to `event_histogram`.

    Whole numbers are added up, so the order in which a device does it makes no difference.

    Args:
        x: (N,) columns in px, inside the sensor; any integer type, as y, t and p.
        y: (N,) rows in px, inside the sensor.
        t: (N,) times in us, in any order; events outside of the window are left out.
        p: (N,) polarities, 0 or 1.
        t_start: first time of the window in us.
        t_end: end of the window in us; an event at it is outside by "edges" and inside by "rvt".
        bins: time bins per window.
        height: rows of the sensor.
        width: columns of the sensor.
        rule: "edges" or "rvt".
        clip: largest count; counts saturate there.

    Returns:
        (2*bins, height, width) uint8.

    Raises:
        ValueError: see `event_histogram`.
    """
    check_window(t_start, t_end, bins, rule, clip)
    x, y, t, p = (values.to(torch.int64) for values in (x, y, t, p))
    if not x.shape == y.shape == t.shape == p.shape:
        raise ValueError(f"x, y, t and p have the shapes {', '.join(str(tuple(v.shape)) for v in (x, y, t, p))}")
    outside = (x < 0) | (x >= width) | (y < 0) | (y >= height) | (p < 0) | (p > 1)
    if outside.any():
        raise ValueError(f"events outside of the {width}x{height} px sensor, or polarities other than 0 and 1")
    inside = (t >= t_start) & (t < first_after(t_end, rule))
    times = bin_times(t_start, t_end, bins)
    if rule == "rvt" and inside.any():
        first, last = t[inside].aminmax()
        times = rvt_bin_times(int(first), int(last), bins)
    k = torch.searchsorted(torch.from_numpy(times).to(t.device), t, right=True) - 1
    cells = 2 * bins * height * width
    # Events outside of the window go to one more cell at the end: shapes do not depend on the data.
    cell = torch.where(inside, ((p * bins + k) * height + y) * width + x, cells)
    counts = torch.zeros(cells + 1, dtype=torch.int32, device=t.device)
    counts.scatter_add_(0, cell, torch.ones_like(cell, dtype=torch.int32))
    return counts[:cells].clamp_(max=clip).to(torch.uint8).view(2 * bins, height, width)

"""Intensity from events: the estimate that TESPEC rebuilds (Eq. 7), and the filter of single events (Eq. 6)."""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from tespec.events.stream import check_events


def estimate_intensity(
    histograms: Tensor,
    state: Tensor | None = None,
    *,
    alpha: float = 5.0,
    norm_events: float = 5000.0,
    contrast: float = 1.0,
    bin_seconds: float | Tensor = 0.005,
) -> tuple[Tensor, Tensor]:
    """Log-intensity image at the end of each segment (Eq. 7), in fp32.

    Bin by bin the whole image decays by exp(-alpha * bin_seconds * n / N), where n is the number of events of the
    frame in that bin, and then gains contrast * (positive - negative) at each pixel. A segment is computed in closed
    form, as one weighted sum over its bins; without events the image stays the same to the bit.

    Args:
        histograms: (B, T, 2*bins, H, W) counts, negative polarity first.
        state: (B, H, W) image before the first segment; None is zero everywhere.
        alpha: decay in 1/s.
        norm_events: N, in events.
        contrast: C, the log-intensity step of one event.
        bin_seconds: length of a bin in s, one for all or (B, T).

    Returns:
        the video (B, T, H, W) float32 and the image after the last segment (B, H, W) float32.

    Raises:
        ValueError: shapes that do not fit.
    """
    if histograms.ndim != 5 or histograms.shape[2] % 2:
        raise ValueError(f"histograms have the shape {tuple(histograms.shape)} instead of (B, T, 2*bins, H, W)")
    lanes, segments, channels, height, width = histograms.shape
    if state is not None and state.shape != (lanes, height, width):
        raise ValueError(f"state has the shape {tuple(state.shape)} instead of {(lanes, height, width)}")
    device = histograms.device
    seconds = torch.as_tensor(bin_seconds, dtype=torch.float64, device=device).expand(lanes, segments)
    rate = (-alpha / norm_events * seconds)[..., None, None]
    video = torch.zeros((lanes, segments, height, width), device=device)
    exponent = torch.zeros((lanes, segments, 1, 1), dtype=torch.float64, device=device)
    # From the last bin to the first: what a bin adds has decayed by the events of the bins after it. One channel at a
    # time is held as fp32. No matrix product, which would be rounded to TF32 or bf16 where the caller allows that.
    for k in reversed(range(channels // 2)):
        negative = histograms[:, :, k].to(torch.float32)
        positive = histograms[:, :, channels // 2 + k].to(torch.float32)
        count = positive.sum((-2, -1), keepdim=True) + negative.sum((-2, -1), keepdim=True)
        video.addcmul_(positive - negative, (contrast * exponent.exp()).to(torch.float32))
        exponent = exponent + rate * count
    decay = exponent.exp().to(torch.float32)
    image = torch.zeros((lanes, height, width), device=device) if state is None else state.to(torch.float32)
    for segment in range(segments):
        image = video[:, segment].addcmul_(decay[:, segment], image)
    return video, image.clone()  # apart from the video, which need not be kept alive for it


def high_pass_intensity(
    x: NDArray[np.integer],
    y: NDArray[np.integer],
    t: NDArray[np.integer],
    p: NDArray[np.integer],
    *,
    height: int,
    width: int,
    alpha: float = 5.0,
    contrast: float = 1.0,
    times: NDArray[np.integer],
) -> NDArray[np.float32]:
    """Log-intensity images by the filter that updates each pixel at its own events (Eq. 6).

    An event decays its pixel by exp(-alpha * time since that pixel's last event) and adds +-contrast. Eq. 6 says
    nothing of pixels between their events; as in the high-pass filter it comes from (Scheerlinck et al., "Continuous-
    time Intensity Estimation Using Event Cameras", ACCV 2018), reading an image decays every pixel to that time.

    Args:
        x: (N,) columns in px, inside the sensor.
        y: (N,) rows in px, inside the sensor.
        t: (N,) times in us, sorted.
        p: (N,) polarities, 0 or 1.
        height: rows of the sensor.
        width: columns of the sensor.
        alpha: decay in 1/s.
        contrast: C, the log-intensity step of one event.
        times: (K,) times of the images in us, sorted; an image holds the events before its time.

    Returns:
        (K, height, width) float32.

    Raises:
        ValueError: events outside of the sensor, or times out of order.
    """
    check_events(x, y, t, p, height, width)
    limits = np.asarray(times, np.int64)
    if (t[1:] < t[:-1]).any() or (limits[1:] < limits[:-1]).any():
        raise ValueError("the events or the times of the images are not sorted")
    last = np.zeros((height, width), np.int64)
    image = np.zeros((height, width), np.float64)
    video = np.empty((len(limits), height, width), np.float32)
    begin = 0
    for index, (limit, end) in enumerate(zip(limits, np.searchsorted(t, limits), strict=True)):
        _filter(x[begin:end], y[begin:end], t[begin:end], p[begin:end], alpha * 1e-6, contrast, image, last)
        video[index] = image * np.exp(-alpha * 1e-6 * np.maximum(limit - last, 0))
        begin = end
    return video


@njit(cache=True, nogil=True)
def _filter(x, y, t, p, alpha, contrast, image, last):  # type: ignore[no-untyped-def]
    for i in range(len(t)):
        row, column = y[i], x[i]
        decayed = math.exp(-alpha * (t[i] - last[row, column])) * image[row, column]
        image[row, column] = decayed + (contrast if p[i] else -contrast)
        last[row, column] = t[i]

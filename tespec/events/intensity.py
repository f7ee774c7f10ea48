"""Intensity from events: the estimate that TESPEC rebuilds (Eq. 7), and the filter of single events (Eq. 6)."""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor


def estimate_intensity(
    histograms: Tensor,
    state: Tensor | None = None,
    *,
    alpha: float = 5.0,
    norm_events: float = 5000.0,
    contrast: float = 1.0,
    bin_seconds: float = 0.005,
) -> tuple[Tensor, Tensor]:
    """Log-intensity image at the end of each segment (Eq. 7), in fp32.

    Bin by bin the whole image decays by exp(-alpha * bin_seconds * n / N), where n is the number of events of the
    frame in that bin, and then gains contrast * (positive - negative) at each pixel. A segment is computed in closed
    form, as one weighted sum over its bins.

    Args:
        histograms: (B, T, 2*bins, H, W) counts, negative polarity first.
        state: (B, H, W) image before the first segment; None is zero everywhere.
        alpha: decay in 1/s.
        norm_events: N, in events.
        contrast: C, the log-intensity step of one event.
        bin_seconds: length of a bin in s.

    Returns:
        the video (B, T, H, W) float32 and the image after the last segment (B, H, W) float32.
    """
    lanes, segments, channels, height, width = histograms.shape
    bins = channels // 2
    counts = histograms.flatten(-2).sum(-1, dtype=torch.int64).unflatten(-1, (2, bins)).sum(-2)  # (B, T, bins)
    rates = counts.to(torch.float64) * (-alpha * bin_seconds / norm_events)
    after = rates.flip(-1).cumsum(-1).flip(-1) - rates  # log of the decay that follows each bin
    weights = contrast * after.exp().to(torch.float32)  # (B, T, bins)
    decay = rates.sum(-1).exp().to(torch.float32)  # (B, T)
    signed = torch.cat([-weights, weights], dim=-1).unsqueeze(-2)  # (B, T, 1, 2*bins)
    image = histograms.new_zeros((lanes, height, width), dtype=torch.float32) if state is None else state.float()
    video = image.new_empty((lanes, segments, height, width))
    for segment in range(segments):
        frames = histograms[:, segment].flatten(-2).to(torch.float32)
        gained = torch.bmm(signed[:, segment], frames).view(lanes, height, width)
        image = decay[:, segment, None, None] * image + gained
        video[:, segment] = image
    return video, image


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

    An event decays its pixel by exp(-alpha * time since that pixel's last event) and adds +-contrast. Images are read
    out decayed to the time of reading, as by the high-pass filter of Scheerlinck et al. (ACCV 2018).

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
    """
    last = np.full((height, width), t[0] if len(t) else 0, np.int64)
    image = np.zeros((height, width), np.float64)
    video = np.empty((len(times), height, width), np.float32)
    begin = 0
    for index, (time, end) in enumerate(zip(times, np.searchsorted(t, times), strict=True)):
        _filter(x[begin:end], y[begin:end], t[begin:end], p[begin:end], alpha * 1e-6, contrast, image, last)
        video[index] = image * np.exp(-alpha * 1e-6 * np.maximum(int(time) - last, 0))
        begin = end
    return video


@njit(cache=True, nogil=True)
def _filter(x, y, t, p, alpha, contrast, image, last):  # type: ignore[no-untyped-def]
    for i in range(len(t)):
        row, column = y[i], x[i]
        decayed = math.exp(-alpha * (t[i] - last[row, column])) * image[row, column]
        image[row, column] = decayed + (contrast if p[i] else -contrast)
        last[row, column] = t[i]

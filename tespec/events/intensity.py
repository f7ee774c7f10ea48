"""Intensity from events: the estimate that TESPEC rebuilds (Eq. 7), and the filter of single events (Eq. 6)."""

from __future__ import annotations

import math

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor

from tespec.events.intensity_kernel import fill_video
from tespec.events.stream import check_events


def estimate_intensity(
    histograms: Tensor,
    state: Tensor | None = None,
    *,
    alpha: float = 5.0,
    norm_events: float | None = 5000.0,
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
        norm_events: N, in events; None lets the image decay by exp(-alpha * bin_seconds) in every bin, with or without
            events: the filter of Eq. 6, with the times of events rounded to the ends of their bins.
        contrast: C, the log-intensity step of one event.
        bin_seconds: length of a bin in s, one for all or (B, T).

    Returns:
        the video (B, T, H, W) float32 and the image after the last segment (B, H, W) float32.

    Raises:
        ValueError: shapes that do not fit.
    """
    if histograms.ndim != 5 or histograms.shape[2] % 2:
        raise ValueError(f"histograms have the shape {tuple(histograms.shape)} instead of (B, T, 2*bins, H, W)")
    lanes, segments, _, height, width = histograms.shape
    if state is not None and state.shape != (lanes, height, width):
        raise ValueError(f"state has the shape {tuple(state.shape)} instead of {(lanes, height, width)}")
    seconds = torch.as_tensor(bin_seconds, dtype=torch.float64, device=histograms.device).expand(lanes, segments)
    rates = (-alpha / (norm_events or 1.0) * seconds).unsqueeze(-1)
    image = histograms.new_zeros((lanes, height, width), dtype=torch.float32) if state is None else state.float()
    if histograms.device.type == "cpu" and histograms.dtype is torch.uint8:
        return _on_cpu(histograms, image, rates, contrast, norm_events is None)
    return _on_device(histograms, image, rates, contrast, norm_events is None)


def _on_cpu(histograms: Tensor, image: Tensor, rates: Tensor, contrast: float, by_time: bool) -> tuple[Tensor, Tensor]:
    lanes, segments, _, height, width = histograms.shape
    counts, before = histograms.contiguous().flatten(-2), image.contiguous().flatten(1)
    # NumPy asks for huge pages, torch does not: touching fresh small ones takes longer than the sums.
    video = torch.from_numpy(np.empty((lanes, segments, height, width), np.float32))
    exponents = rates.squeeze(-1).contiguous()
    fill_video(counts.numpy(), exponents.numpy(), contrast, by_time, before.numpy(), video.flatten(2).numpy())
    return video, video[:, -1].clone()  # apart from the video, which need not be kept alive for it


def _on_device(
    histograms: Tensor, image: Tensor, rates: Tensor, contrast: float, by_time: bool
) -> tuple[Tensor, Tensor]:
    bins, segments = histograms.shape[2] // 2, histograms.shape[1]
    if by_time:
        exponents = rates.expand(*histograms.shape[:2], bins)
    else:
        events = histograms.flatten(-2).sum(-1, dtype=torch.int64)
        exponents = rates * (events[..., :bins] + events[..., bins:])
    weights, decay = _weights(exponents, contrast)
    video = torch.zeros((*histograms.shape[:2], *histograms.shape[-2:]), device=histograms.device)
    # One channel at a time is held as fp32. No matrix product, which would be rounded to TF32 or bf16 where the caller
    # allows that.
    for k in range(bins):
        signed = histograms[:, :, bins + k].float() - histograms[:, :, k].float()
        video.addcmul_(signed, weights[..., k, None, None])
    for segment in range(segments):
        image = video[:, segment].addcmul_(decay[:, segment, None, None], image)
    return video, image.clone()


def _weights(exponents: Tensor, contrast: float) -> tuple[Tensor, Tensor]:
    """Weight of each bin's signed count (B, T, bins), and decay (B, T) of the image before, both float32.

    What a bin adds decays by the events of the bins after it; `exponents` (B, T, bins) float64 are those of the bins.
    """
    after = exponents.flip(-1).cumsum(-1).flip(-1)
    weights = contrast * torch.nn.functional.pad(after[..., 1:], (0, 1)).exp()
    return weights.float(), after[..., 0].exp().float()


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
    last = np.full((height, width), t[0] if len(t) else 0, np.int64)
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

"""Intensity from event histograms: TESPEC's estimate (Eq. 7), and the filter of prior work (Eq. 6)."""

import numpy as np
import torch
from numba import njit
from torch import Tensor

BLOCK = 4096  # pixels per block, whose sums stay in the L1 cache while their channels are read


def estimate_intensity(
    histograms: Tensor,
    state: Tensor | None = None,
    *,
    alpha: float = 5.0,
    norm_events: float = 5000.0,
    contrast: float = 1.0,
    bin_seconds: float | Tensor = 0.005,
) -> tuple[Tensor, Tensor]:
    """Estimate the log-intensity image at the end of each segment (Eq. 7), in fp32.

    In each bin the image first decays by exp(-alpha * bin_seconds * n / N), where n is the number
    of events of the frame in that bin, and then gains contrast * (positive - negative) at each
    pixel. A segment is computed in closed form, as one weighted sum over its bins; without events
    the image stays bit-identical.

    Args:
        histograms: (B, T, 2*bins, H, W) counts, negative polarity first.
        state: (B, H, W) image before the first segment; None means zeros.
        alpha: decay in 1/s.
        norm_events: N, in events.
        contrast: C, the log-intensity step of one event.
        bin_seconds: length of a bin in s, one for all or (B, T).

    Returns:
        The video (B, T, H, W) float32 and the image after the last segment (B, H, W) float32.
    """
    lanes, segments, channels, height, width = _checked(histograms, state, ())
    bins, compiled = (
        channels // 2,
        histograms.device.type == "cpu" and histograms.dtype is torch.uint8,
    )
    counts = histograms.flatten(-2)
    rates = (-alpha / norm_events * _seconds(bin_seconds, histograms)).unsqueeze(-1)
    # NumPy takes a tenth of torch's time.
    events = (
        torch.from_numpy(counts.numpy().sum(-1, dtype=np.int64)) if compiled else counts.sum(-1)
    )
    exponents = rates * (events[..., :bins] + events[..., bins:])
    # The gain of a bin decays with the events of all later bins.
    after = exponents.flip(-1).cumsum(-1).flip(-1)
    weights = (contrast * torch.nn.functional.pad(after[..., 1:], (0, 1)).exp()).float()
    decay = after[..., 0].exp().float()
    image = (
        histograms.new_zeros((lanes, height, width), dtype=torch.float32)
        if state is None
        else state.float()
    )
    if compiled:
        # NumPy requests huge pages, torch does not: first access to small pages takes longer than
        # the sums.
        video = torch.from_numpy(np.empty((lanes, segments, height, width), np.float32))
        arrays = (counts, weights, decay, image.flatten(1), video.flatten(-2))
        _fill_video(*(each.contiguous().numpy() for each in arrays))
        # a copy, so that the state does not keep the video alive
        return video, video[:, -1].clone()
    video = torch.zeros((lanes, segments, height, width), device=histograms.device)
    # Convert one channel at a time to fp32 to save memory. A matrix product would round to TF32 or
    # bf16 if the caller allows it.
    for k in range(bins):
        signed = histograms[:, :, bins + k].float() - histograms[:, :, k].float()
        video.addcmul_(signed, weights[..., k, None, None])
    for segment in range(segments):
        image = video[:, segment].addcmul_(decay[:, segment, None, None], image)
    return video, image.clone()


@njit(cache=True, nogil=True)
def _fill_video(histograms, weights, decay, images, video):  # type: ignore[no-untyped-def]
    """Write each image (P,) of the video (B, T, P): the previous image, decayed, plus the weighted signed counts.

    Takes histograms (B, T, 2*bins, P) uint8; weights (B, T, bins), decay (B, T) and initial images
    (B, P) float32.
    """
    lanes, segments, bins = weights.shape
    for lane in range(lanes):
        previous = images[lane]
        for segment in range(segments):
            image, histogram = video[lane, segment], histograms[lane, segment]
            for begin in range(0, len(image), BLOCK):
                block = image[begin : begin + BLOCK]
                block[:] = decay[lane, segment] * previous[begin : begin + BLOCK]
                for k in range(bins):
                    weight = weights[lane, segment, k]
                    negative, positive = (
                        histogram[k, begin : begin + BLOCK],
                        histogram[bins + k, begin : begin + BLOCK],
                    )
                    for i in range(len(block)):
                        block[i] += weight * (np.float32(positive[i]) - np.float32(negative[i]))
            previous = image


def _checked(histograms: Tensor, state: Tensor | None, planes: tuple[int, ...]) -> torch.Size:
    """Return the shape of histograms after checking it; a `state` must have the shape (B, *planes, H, W)."""
    wanted = (len(histograms), *planes, *histograms.shape[-2:])
    if (
        histograms.ndim != 5
        or histograms.shape[2] % 2
        or (state is not None and state.shape != wanted)
    ):
        shapes = f"{tuple(histograms.shape)}, state {None if state is None else tuple(state.shape)}"
        raise ValueError(
            f"histograms have the shape {shapes} instead of (B, T, 2*bins, H, W), {wanted}"
        )
    return histograms.shape


def _seconds(bin_seconds: float | Tensor, histograms: Tensor) -> Tensor:
    """Bin lengths (B, T) in s, float64, on the device of the histograms."""
    if not isinstance(bin_seconds, Tensor):
        # Filled, not copied: the CPU would wait for a copy to a GPU.
        bin_seconds = torch.full((), bin_seconds, dtype=torch.float64, device=histograms.device)
    return bin_seconds.to(histograms.device, torch.float64).expand(histograms.shape[:2])


def estimate_high_pass(
    histograms: Tensor,
    state: Tensor | None = None,
    *,
    alpha: float = 5.0,
    contrast: float = 1.0,
    bin_seconds: float | Tensor = 0.005,
) -> tuple[Tensor, Tensor]:
    """Estimate the log-intensity image at the end of each segment by the filter of prior work (Eq. 6), in fp32.

    Every event counts as if it fell on the end of its bin. A pixel with events in a bin decays by
    exp(-alpha * time since the end of the bin of its last event) and gains contrast * (positive -
    negative). A pixel without events stays bit-identical, so blur persists (paper, Sec. 3). The
    filter that Eq. 6 builds on decays its image on every read (Scheerlinck et al., "Continuous-time
    Intensity Estimation Using Event Cameras", ACCV 2018).

    Arguments and results are those of `estimate_intensity`, except for the state (B, 2, H, W): the
    image, and the time since each pixel's last event in s, which has no effect on a pixel at zero.
    """
    lanes, segments, channels, height, width = _checked(histograms, state, (2,))
    bins, step = channels // 2, _seconds(bin_seconds, histograms).float()[..., None, None]
    state = (
        histograms.new_zeros((lanes, 2, height, width), dtype=torch.float32)
        if state is None
        else state.float()
    )
    image, age = state.unbind(1)
    gained = torch.zeros((lanes, segments, height, width), device=histograms.device)
    last = torch.full_like(gained, -1.0)  # bin of each pixel's last event in the segment
    # The gain within a segment does not depend on the previous image: compute all segments
    # together, bin by bin.
    for k in range(bins):
        negative, positive = histograms[:, :, k], histograms[:, :, bins + k]
        seen = (negative != 0) | (positive != 0)
        decayed = gained * torch.exp(-alpha * step * (k - last))
        gained = torch.where(
            seen, decayed + contrast * (positive.float() - negative.float()), gained
        )
        last = last.masked_fill(seen, k)
    video = torch.empty_like(gained)
    for segment in range(segments):
        seconds_here, ended = step[:, segment], last[:, segment]
        elapsed = age + (ended + 1) * seconds_here
        changed = torch.exp(-alpha * elapsed) * image + gained[:, segment]
        image = video[:, segment] = torch.where(ended < 0, image, changed)
        age = torch.where(ended < 0, age + bins * seconds_here, (bins - 1 - ended) * seconds_here)
    return video, torch.stack([image, age], 1)

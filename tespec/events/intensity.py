"""Intensity from event histograms: TESPEC's estimate (Eq. 7), and prior work's filter (Eq. 6)."""

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

    Example:
        >>> histograms = torch.zeros(1, 2, 4, 1, 1, dtype=torch.uint8)  # 2 segments of 2 bins
        >>> histograms[0, 0, 2:] = 3  # 3 positive events in both bins of the first segment
        >>> video, state = estimate_intensity(histograms, alpha=0.0, contrast=0.5)
        >>> video.flatten().tolist(), state.tolist()
        ([3.0, 3.0], [[[3.0]]])
    """
    lanes, segments, channels, height, width = _check_shapes(histograms, state, ())
    bins = channels // 2
    is_compiled = histograms.device.type == "cpu" and histograms.dtype is torch.uint8
    counts = histograms.flatten(-2)  # (B, T, 2 * bins, H * W)
    rates = (-alpha / norm_events * _seconds(bin_seconds, histograms)).unsqueeze(-1)
    if is_compiled:  # NumPy takes a tenth of torch's time.
        events = torch.from_numpy(counts.numpy().sum(-1, dtype=np.int64))
    else:
        events = counts.sum(-1)  # (B, T, 2 * bins)
    exponents = rates * (events[..., :bins] + events[..., bins:])
    # The gain of a bin decays with the events of all later bins.
    after = exponents.flip(-1).cumsum(-1).flip(-1)
    weights = (contrast * torch.nn.functional.pad(after[..., 1:], (0, 1)).exp()).float()
    decay = after[..., 0].exp().float()  # (B, T)
    if state is None:
        state = torch.zeros((lanes, height, width), device=histograms.device)
    image = state.float()
    if is_compiled:
        # NumPy requests huge pages, torch does not: first access to small pages takes longer than
        # the sums.
        video = torch.from_numpy(np.empty((lanes, segments, height, width), np.float32))
        arrays = (counts, weights, decay, image.flatten(1), video.flatten(-2))
        _fill_video(*(array.contiguous().numpy() for array in arrays))
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
    """Write the images of a video: the previous image, decayed, plus the weighted signed counts.

    Args:
        histograms: (B, T, 2*bins, P) uint8.
        weights: (B, T, bins) float32.
        decay: (B, T) float32.
        images: (B, P) float32, before the first segment.
        video: (B, T, P) float32, overwritten.
    """
    lanes, segments, bins = weights.shape
    for lane in range(lanes):
        previous = images[lane]
        for segment in range(segments):
            image = video[lane, segment]
            histogram = histograms[lane, segment]
            for begin in range(0, len(image), BLOCK):
                block = image[begin : begin + BLOCK]
                block[:] = decay[lane, segment] * previous[begin : begin + BLOCK]
                for k in range(bins):
                    weight = weights[lane, segment, k]
                    negative = histogram[k, begin : begin + BLOCK]
                    positive = histogram[bins + k, begin : begin + BLOCK]
                    for i in range(len(block)):
                        block[i] += weight * (np.float32(positive[i]) - np.float32(negative[i]))
            previous = image


def _check_shapes(histograms: Tensor, state: Tensor | None, planes: tuple[int, ...]) -> torch.Size:
    """Return the shape of histograms; a `state` must have the shape (B, *planes, H, W)."""
    expected = (len(histograms), *planes, *histograms.shape[-2:])
    state_shape = None if state is None else tuple(state.shape)
    if histograms.ndim != 5 or histograms.shape[2] % 2 or state_shape not in (None, expected):
        raise ValueError(
            f"histograms have the shape {tuple(histograms.shape)}, state {state_shape} "
            f"instead of (B, T, 2*bins, H, W), {expected}"
        )
    return histograms.shape


def _seconds(bin_seconds: float | Tensor, histograms: Tensor) -> Tensor:
    """Return bin lengths (B, T) in s, float64, on the device of the histograms."""
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
    """Estimate the log-intensity image at the end of each segment by Eq. 6, in fp32.

    Every event counts as if it fell on the end of its bin. A pixel with events in a bin decays by
    exp(-alpha * time since the end of the bin of its last event) and gains contrast * (positive -
    negative). A pixel without events stays bit-identical, so blur persists (paper, Sec. 3). The
    filter that Eq. 6 builds on decays its image on every read (Scheerlinck et al., "Continuous-time
    Intensity Estimation Using Event Cameras", ACCV 2018).

    Args:
        histograms: (B, T, 2*bins, H, W) counts, negative polarity first.
        state: (B, 2, H, W) the image, and the time since each pixel's last event in s, which has no
            effect on a pixel at zero; None means zeros.
        alpha: decay in 1/s.
        contrast: log-intensity step of one event.
        bin_seconds: length of a bin in s, one for all or (B, T).

    Returns:
        The video (B, T, H, W) float32 and the state after the last segment (B, 2, H, W) float32.
    """
    lanes, segments, channels, height, width = _check_shapes(histograms, state, (2,))
    bins = channels // 2
    step = _seconds(bin_seconds, histograms).float()[..., None, None]  # (B, T, 1, 1)
    if state is None:
        state = torch.zeros((lanes, 2, height, width), device=histograms.device)
    image, age = state.float().unbind(1)
    images = []
    for segment in range(segments):
        for k in range(bins):
            negative = histograms[:, segment, k]
            positive = histograms[:, segment, bins + k]
            has_events = (negative != 0) | (positive != 0)
            age = age + step[:, segment]
            gain = contrast * (positive.float() - negative.float())
            image = torch.where(has_events, torch.exp(-alpha * age) * image + gain, image)
            age = age.masked_fill(has_events, 0.0)
        images.append(image)
    return torch.stack(images, 1), torch.stack([image, age], 1)

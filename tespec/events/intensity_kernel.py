"""The sums of Eq. 7 over byte histograms on a CPU: each count is read twice and never held as a float."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

BLOCK = 4096  # pixels whose sums stay in the first-level cache while their channels are read


def count_events_per_bin(histograms: NDArray[np.uint8]) -> NDArray[np.int64]:
    """(N, bins) events of both polarities in each bin of histograms (N, 2*bins, pixels)."""
    counts = np.empty(histograms.shape[:2], np.int64)
    _count(histograms, counts)
    return counts.reshape(len(counts), 2, -1).sum(1)


def weighted_video(
    histograms: NDArray[np.uint8],
    weights: NDArray[np.float32],
    decay: NDArray[np.float32],
    image: NDArray[np.float32],
    video: NDArray[np.float32],
) -> None:
    """Fill video (B, T, pixels): each image is the one before, decayed, plus the weighted signed counts.

    Args:
        histograms: (B, T, 2*bins, pixels), negative polarity first.
        weights: (B, T, bins) of each bin's signed count.
        decay: (B, T) of the image before the segment.
        image: (B, pixels) before the first segment.
        video: written.
    """
    for lane, previous in enumerate(image):
        for segment in range(video.shape[1]):
            _accumulate(
                histograms[lane, segment], weights[lane, segment], decay[lane, segment], previous, video[lane, segment]
            )
            previous = video[lane, segment]


@njit(cache=True, nogil=True)
def _count(histograms, counts):  # type: ignore[no-untyped-def]
    for n in range(histograms.shape[0]):
        for channel in range(histograms.shape[1]):
            plane = histograms[n, channel]
            total = np.int64(0)
            for i in range(len(plane)):
                total += np.int64(plane[i])
            counts[n, channel] = total


@njit(cache=True, nogil=True)
def _accumulate(histogram, weights, decay, previous, image):  # type: ignore[no-untyped-def]
    bins = len(weights)
    for begin in range(0, len(image), BLOCK):
        block, before = image[begin : begin + BLOCK], previous[begin : begin + BLOCK]
        for i in range(len(block)):
            block[i] = decay * before[i]
        for k in range(bins):
            negative, positive = histogram[k, begin : begin + BLOCK], histogram[bins + k, begin : begin + BLOCK]
            weight = weights[k]
            for i in range(len(block)):
                block[i] += weight * (np.float32(positive[i]) - np.float32(negative[i]))

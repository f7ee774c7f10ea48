"""The sums of Eq. 7 over byte histograms on a CPU: counts are read from memory once and never held as floats."""

from __future__ import annotations

import math

import numpy as np
from numba import njit

PAIR = 2
BLOCK = 4096  # pixels whose sums stay in the first-level cache while their channels are read


@njit(cache=True, nogil=True)
def fill_video(histograms, rates, contrast, by_time, images, video):  # type: ignore[no-untyped-def]
    """Fill the video: each image is the one before, decayed, plus the weighted signed counts.

    Segment by segment, so that its counts still lie in a cache when they are weighed by what counting them told.

    Args:
        histograms: (B, T, 2*bins, pixels) uint8, negative polarity first.
        rates: (B, T) float64, exponent of the decay per event of a bin, or per bin.
        contrast: of one event.
        by_time: whether rates are per bin.
        images: (B, pixels) float32 before the first segment.
        video: (B, T, pixels) float32, written.
    """
    bins = histograms.shape[2] // 2
    weights = np.empty(bins, np.float32)
    for lane in range(len(histograms)):
        previous = images[lane]
        for segment in range(histograms.shape[1]):
            histogram = histograms[lane, segment]
            after = 0.0  # exponent of what follows a bin
            for k in range(bins - 1, -1, -1):
                weights[k] = contrast * math.exp(after)
                events = 1 if by_time else _sum(histogram[k]) + _sum(histogram[bins + k])
                after += rates[lane, segment] * events
            _accumulate(histogram, weights, np.float32(math.exp(after)), previous, video[lane, segment])
            previous = video[lane, segment]


@njit(cache=True, nogil=True)
def _sum(plane):  # type: ignore[no-untyped-def]
    total = np.int64(0)
    for i in range(len(plane)):
        total += np.int64(plane[i])
    return total


@njit(cache=True, nogil=True)
def _accumulate(histogram, weights, decay, previous, image):  # type: ignore[no-untyped-def]
    bins = len(weights)
    for begin in range(0, len(image), BLOCK):
        block, before = image[begin : begin + BLOCK], previous[begin : begin + BLOCK]
        for i in range(len(block)):
            block[i] = decay * before[i]
        for k in range(0, bins - bins % PAIR, PAIR):
            early, late = weights[k], weights[k + 1]
            negative, positive = histogram[k, begin : begin + BLOCK], histogram[bins + k, begin : begin + BLOCK]
            negative_late = histogram[k + 1, begin : begin + BLOCK]
            positive_late = histogram[bins + k + 1, begin : begin + BLOCK]
            # Two bins at a time: the sums are read and written half as often.
            for i in range(len(block)):
                with_early = block[i] + early * (np.float32(positive[i]) - np.float32(negative[i]))
                block[i] = with_early + late * (np.float32(positive_late[i]) - np.float32(negative_late[i]))
        if bins % PAIR:
            negative, positive = histogram[bins - 1, begin : begin + BLOCK], histogram[-1, begin : begin + BLOCK]
            for i in range(len(block)):
                block[i] += weights[bins - 1] * (np.float32(positive[i]) - np.float32(negative[i]))

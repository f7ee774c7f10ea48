"""Eq. 7 and Eq. 6 over byte histograms on a CPU: counts are read from memory once and never held as floats."""

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


@njit(cache=True, nogil=True)
def fill_high_pass(histograms, alpha, contrast, seconds, pixels, video):  # type: ignore[no-untyped-def]
    """Fill the video: a pixel with events in a bin decays over the time since its last one, and gains its signed count.

    Args:
        histograms: (B, T, 2*bins, pixels) uint8, negative polarity first.
        alpha: decay in 1/s.
        contrast: of one event.
        seconds: (B, T) float64, length of a bin.
        pixels: (B, 2, pixels) float32, the image and the time since each pixel's last event in s; brought up to the end
            of the last segment.
        video: (B, T, pixels) float32, written.
    """
    for lane in range(len(histograms)):
        image, age = pixels[lane, 0], pixels[lane, 1]
        for segment in range(histograms.shape[1]):
            _filter_segment(histograms[lane, segment], alpha, contrast, seconds[lane, segment], image, age)
            video[lane, segment] = image


@njit(cache=True, nogil=True)
def _filter_segment(histogram, alpha, contrast, seconds, image, age):  # type: ignore[no-untyped-def]
    bins = len(histogram) // 2
    last = np.empty(BLOCK, np.int64)  # bin of a pixel's last event in the segment, -1 without one
    for begin in range(0, len(image), BLOCK):
        block, since = image[begin : begin + BLOCK], age[begin : begin + BLOCK]
        last[:] = -1
        for k in range(bins):
            negative, positive = histogram[k, begin : begin + BLOCK], histogram[bins + k, begin : begin + BLOCK]
            for i in range(len(block)):
                if negative[i] or positive[i]:
                    elapsed = (k - last[i]) * seconds
                    if last[i] < 0:
                        elapsed += since[i]
                    signed = np.float64(positive[i]) - np.float64(negative[i])
                    block[i] = math.exp(-alpha * elapsed) * block[i] + contrast * signed
                    last[i] = k
        for i in range(len(block)):
            if last[i] < 0:
                since[i] += bins * seconds
            else:
                since[i] = (bins - 1 - last[i]) * seconds

"""Which predicted boxes are found in the ground truth, by COCO's rule."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

CLOSEST = 1 - 1e-10  # an overlap that always suffices (pycocotools, cocoeval.py)


def match(
    predicted: NDArray[np.float64],
    truth: NDArray[np.float64],
    ends_predicted: NDArray[np.int64],
    ends_truth: NDArray[np.int64],
    thresholds: NDArray[np.float64],
) -> NDArray[np.bool_]:
    """Match the boxes of each group, which are those of one class in one frame.

    A predicted box takes the box of ground truth that it overlaps most, among those that are not taken yet; of two
    equal ones the later. Arithmetic and order are those of pycocotools, so that results are the same to the bit.

    Args:
        predicted: (P, 4) left, top, width, height; group after group, each by falling score.
        truth: (N, 4) likewise, in the order in which it is given.
        ends_predicted: (G + 1,) where the groups of `predicted` begin and end.
        ends_truth: (G + 1,) likewise of `truth`.
        thresholds: (K,) least intersection over union.

    Returns:
        (K, P) whether a predicted box found one.
    """
    found = np.zeros((len(thresholds), len(predicted)), np.bool_)
    least = np.minimum(thresholds, CLOSEST)
    most_predicted, most_truth = (int(np.diff(ends).max(initial=0)) for ends in (ends_predicted, ends_truth))
    overlaps, taken = np.empty((most_predicted, most_truth)), np.empty(most_truth, np.bool_)
    _match(predicted, truth, ends_predicted, ends_truth, least, overlaps, taken, found)
    return found


@njit(cache=True, nogil=True)
def _match(predicted, truth, ends_predicted, ends_truth, least, overlaps, taken, found):  # type: ignore[no-untyped-def]
    for group in range(len(ends_truth) - 1):
        boxes = predicted[ends_predicted[group] : ends_predicted[group + 1]]
        known = truth[ends_truth[group] : ends_truth[group + 1]]
        if not len(boxes) or not len(known):
            continue
        _overlap(boxes, known, overlaps)
        for k in range(len(least)):
            taken[:] = False
            for i in range(len(boxes)):
                best, place = least[k], -1
                for j in range(len(known)):
                    if not taken[j] and overlaps[i, j] >= best:
                        best, place = overlaps[i, j], j
                if place >= 0:
                    taken[place] = True
                    found[k, ends_predicted[group] + i] = True


@njit(cache=True, nogil=True)
def _overlap(boxes, known, overlaps):  # type: ignore[no-untyped-def]
    """Intersection over union, as pycocotools computes it (maskApi.c, bbIou)."""
    for i in range(len(boxes)):
        left, top, width, height = boxes[i]
        for j in range(len(known)):
            other_left, other_top, other_width, other_height = known[j]
            overlaps[i, j] = 0.0
            wide = min(left + width, other_left + other_width) - max(left, other_left)
            if wide <= 0:
                continue
            high = min(top + height, other_top + other_height) - max(top, other_top)
            if high <= 0:
                continue
            shared = wide * high
            overlaps[i, j] = shared / (width * height + other_width * other_height - shared)

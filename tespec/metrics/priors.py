"""Label-prior baselines: the most frequent labels of the training set, ignoring the input."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError

STEP = 8.0  # px; side of the cells that group the centres of boxes
MOST = 100  # boxes per frame, the number that is scored
BLOCK = 1 << 26  # depth values in memory at a time

Depths = NDArray[np.float32]


def class_prior(masks: Iterable[NDArray[np.uint8]], classes: int) -> NDArray[np.float32]:
    """Count the masks (H, W) with each class at each pixel, (classes, H, W) float32; raise `UserError` without a mask.

    Label 255 is ignored; a pixel that is never labelled gets the class counts of all pixels
    together.
    """
    every, counts = np.arange(classes)[:, None, None], np.zeros((), np.float32)
    for mask in masks:
        counts = counts + (mask == every).astype(np.float32)
    if not counts.ndim:
        raise UserError("class prior", "the training set has no labels", "check the data")
    counts[:, counts.sum(axis=0) == 0] = counts.sum(axis=(1, 2))[:, None]
    return counts


def depth_prior(maps: Sequence[Depths], nearest: float, farthest: float) -> Depths:
    """Median depth (H, W) float32 of each pixel in m, over depths from `nearest` to `farthest`.

    A pixel without any gets the median of all depths. The maps are read once per block of rows that
    fits in memory.
    """
    height, width = maps[0].shape if len(maps) else (0, 0)
    rows = max(1, BLOCK // max(len(maps) * width, 1))
    medians = np.full((height, width), np.nan, np.float32)
    for top in range(0, height, rows):
        stack = np.stack([each[top : top + rows] for each in maps])
        stack[~((stack >= nearest) & (stack <= farthest))] = np.nan
        seen = np.isfinite(stack).any(axis=0)
        medians[top : top + rows][seen] = np.nanmedian(stack[:, seen], axis=0)
    if np.isnan(medians).all():
        raise UserError("depth prior", "no training label has a valid depth", "check the data")
    if np.isnan(medians).any():
        medians[np.isnan(medians)] = _median(
            lambda: (each[(each >= nearest) & (each <= farthest)] for each in maps)
        )
    return medians


def _median(values: Callable[[], Iterable[Depths]]) -> np.float32:
    """Median of positive floats, which are read twice and never all held in memory."""
    # Their bits sort in the same order, so counts of the upper half of the bits locate the median.
    counts = sum(np.bincount(each.view(np.uint32) >> 16, minlength=1 << 16) for each in values())
    ends = np.cumsum(counts)
    middle = np.array([(ends[-1] - 1) // 2, ends[-1] // 2])
    low, high = np.searchsorted(ends, middle, side="right")
    upper = ((each, each.view(np.uint32) >> 16) for each in values())
    near = np.sort(np.concatenate([each[(low <= half) & (half <= high)] for each, half in upper]))
    found: np.float32 = near[middle - np.r_[0, ends][low]].mean(dtype=np.float32)
    return found


def box_prior(labels: Iterable[Boxes]) -> Boxes:
    """Most frequent boxes, each the mean of boxes of the same class, centre and size, scored by their share of frames.

    Centres are grouped in cells of 8 px, widths and heights by factors of the square root of two.
    """
    frames = list(labels)
    corners = np.concatenate([each.corners for each in frames] or [np.empty((0, 4), np.float32)])
    if not len(corners):
        raise UserError("box prior", "no training label contains a box", "check the data")
    places = np.floor((corners[:, :2] + corners[:, 2:]) / 2 / STEP)
    sizes = np.round(2 * np.log2(np.maximum(corners[:, 2:] - corners[:, :2], 1.0)))
    label = np.concatenate([each.label for each in frames])
    keys = np.column_stack([label, places, sizes]).astype(np.int64)
    kinds, kind, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    sums = np.zeros((len(kinds), 4))
    np.add.at(sums, kind.ravel(), corners)
    common = np.argsort(-counts, kind="stable")[:MOST]
    shares = np.minimum(1.0, counts[common] / len(frames))
    return make_boxes(sums[common] / counts[common, None], kinds[common, 0], shares)

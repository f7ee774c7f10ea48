"""Label-prior baselines: the most frequent labels of the training set, ignoring the input."""

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError

CELL = 8.0  # px; side of the cells that group the centres of boxes
MAX_BOXES = 100  # per frame; more are not scored
VALUES_AT_ONCE = 1 << 26  # depth values in memory at a time

Depths = NDArray[np.float32]


def class_prior(masks: Iterable[NDArray[np.uint8]], classes: int) -> NDArray[np.float32]:
    """Count the masks with every class at every pixel.

    Args:
        masks: (H, W) classes; 255 is ignored.
        classes: number of classes.

    Returns:
        (classes, H, W) counts; a pixel that is never labelled has those of all pixels together.

    Raises:
        UserError: no mask is given.
    """
    labels = np.arange(classes)[:, None, None]
    counts = np.zeros((), np.float32)  # without dimensions until the first mask
    for mask in masks:
        counts = counts + (mask == labels).astype(np.float32)  # (classes, H, W)
    if not counts.ndim:
        raise UserError("class prior", "the training set has no labels", "check the data")
    is_unlabelled = counts.sum(axis=0) == 0
    counts[:, is_unlabelled] = counts.sum(axis=(1, 2))[:, None]
    return counts


def depth_prior(maps: Sequence[Depths], nearest: float, farthest: float) -> Depths:
    """Compute the median depth of every pixel.

    Rows are processed in blocks that fit in memory; each block reads every map.

    Args:
        maps: (H, W) depths in m, NaN where unknown.
        nearest: minimum of valid depth in m.
        farthest: maximum of valid depth in m.

    Returns:
        (H, W) in m; a pixel without valid depth has the median of all depths.

    Raises:
        UserError: no depth is valid.
    """
    height, width = maps[0].shape if len(maps) else (0, 0)
    rows = max(1, VALUES_AT_ONCE // max(len(maps) * width, 1))
    medians = np.full((height, width), np.nan, np.float32)
    for top in range(0, height, rows):
        stack = np.stack([depth[top : top + rows] for depth in maps])
        is_valid = (stack >= nearest) & (stack <= farthest)  # False for NaN
        stack[~is_valid] = np.nan
        known = np.isfinite(stack).any(axis=0)
        medians[top : top + rows][known] = np.nanmedian(stack[:, known], axis=0)
    if np.isnan(medians).all():
        raise UserError("depth prior", "no training label has a valid depth", "check the data")
    if np.isnan(medians).any():
        medians[np.isnan(medians)] = _median(
            lambda: (depth[(depth >= nearest) & (depth <= farthest)] for depth in maps)
        )
    return medians


def _median(values: Callable[[], Iterable[Depths]]) -> np.float32:
    """Median of positive floats, which are read twice and never all in memory."""
    # Positive floats sort like their bits: a histogram of the upper 16 bits finds the bin of the
    # median, and only the values in that bin are sorted.
    counts = sum(np.bincount(part.view(np.uint32) >> 16, minlength=1 << 16) for part in values())
    ends = np.cumsum(counts)
    middle = np.array([(ends[-1] - 1) // 2, ends[-1] // 2])  # ranks of the middle values
    low, high = np.searchsorted(ends, middle, side="right")
    first, last = (np.array([low, high + 1], np.uint32) << 16).view(np.float32)
    near = np.sort(np.concatenate([part[(first <= part) & (part < last)] for part in values()]))
    below = np.r_[0, ends][low]  # number of values below the first bin
    median: np.float32 = near[middle - below].mean(dtype=np.float32)
    return median


def box_prior(labels: Iterable[Boxes]) -> Boxes:
    """Find the most frequent boxes, with their number per frame, at most 1, as score.

    A box is the mean of boxes of the same class, centre and size. Centres are grouped in cells of
    8 px, widths and heights in steps of a factor of the square root of two.
    """
    frames = list(labels)
    corners = np.concatenate([boxes.corners for boxes in frames] or [np.empty((0, 4), np.float32)])
    if not len(corners):
        raise UserError("box prior", "no training label contains a box", "check the data")
    cells = np.floor((corners[:, :2] + corners[:, 2:]) / 2 / CELL)
    sizes = np.round(2 * np.log2(np.maximum(corners[:, 2:] - corners[:, :2], 1.0)))
    label = np.concatenate([boxes.label for boxes in frames])
    keys = np.column_stack([label, cells, sizes]).astype(np.int64)
    kinds, kind_of_box, counts = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    sums = np.zeros((len(kinds), 4))
    np.add.at(sums, kind_of_box.ravel(), corners)
    common = np.argsort(-counts, kind="stable")[:MAX_BOXES]
    scores = np.minimum(1.0, counts[common] / len(frames))
    return make_boxes(sums[common] / counts[common, None], kinds[common, 0], scores)

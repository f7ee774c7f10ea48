"""Label-prior baselines: the most frequent labels of the training set, ignoring the input."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError

STEP = 8.0  # px between places that count as one
MOST = 100  # boxes of a frame, as many as are scored
BLOCK = 1 << 26  # depths that are in memory at once

Depths = NDArray[np.float32]


def class_prior(masks: Iterable[NDArray[np.uint8]], classes: int) -> NDArray[np.float32]:
    """(classes, H, W) float32 number of masks (H, W) with each class at each pixel; labels of 255 do not count.

    A pixel that is never labelled counts as all of them together.

    Raises:
        UserError: there is no mask.
    """
    counts: NDArray[np.float32] | None = None
    every = np.arange(classes)[:, None, None]
    for mask in masks:
        shown = (mask[None] == every).astype(np.float32)
        counts = shown if counts is None else counts + shown
    if counts is None:
        raise UserError("class prior", "there is no training label", "check the data")
    never = counts.sum(axis=0) == 0
    counts[:, never] = counts.sum(axis=(1, 2))[:, None]
    return counts


def depth_prior(maps: Sequence[Depths], nearest: float, farthest: float) -> Depths:
    """(H, W) float32 median depth of each pixel in m, of the depths from `nearest` to `farthest`.

    A pixel without any has the median of all. The maps are read once for each block of rows that fits the memory.

    Raises:
        UserError: there is no depth at all.
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
        raise UserError("depth prior", "no training label holds a depth", "check the data")
    if np.isnan(medians).any():
        known = lambda: (each[(each >= nearest) & (each <= farthest)] for each in maps)  # noqa: E731
        medians[np.isnan(medians)] = _median(known)
    return medians


def _median(values: Callable[[], Iterable[Depths]]) -> np.float32:
    """Median of positive numbers that are read several times instead of kept.

    Positive floats are in the order of their bits, so two counts of 16 bits each find the number of any rank.
    """

    def ranked(rank: int) -> np.float32:
        high = np.zeros(1 << 16, np.int64)
        for each in values():
            high += np.bincount(each.view(np.uint32) >> 16, minlength=1 << 16)
        first = int(np.searchsorted(high.cumsum(), rank, side="right"))
        low = np.zeros(1 << 16, np.int64)
        for each in values():
            bits = each.view(np.uint32)
            low += np.bincount(bits[bits >> 16 == first] & 0xFFFF, minlength=1 << 16)
        second = int(np.searchsorted(low.cumsum(), rank - int(high[:first].sum()), side="right"))
        return np.uint32(first << 16 | second).view(np.float32)

    count = sum(each.size for each in values())
    return np.mean([ranked((count - 1) // 2), ranked(count // 2)], dtype=np.float32)


def box_prior(labels: Iterable[Boxes]) -> Boxes:
    """The most common boxes, each the mean of those of its class, place and size; scored by the share of frames.

    Places are one within 8 px, sizes within a factor of the square root of two.

    Raises:
        UserError: there is no box.
    """
    found: dict[tuple[int, ...], list[NDArray[np.float32]]] = defaultdict(list)
    frames = 0
    for boxes in labels:
        frames += 1
        middle = (boxes.corners[:, :2] + boxes.corners[:, 2:]) / 2
        places = np.floor(middle / STEP).astype(int)
        sizes = np.round(2 * np.log2(np.maximum(boxes.size, 1.0))).astype(int)
        for label, place, size, corners in zip(boxes.label, places, sizes, boxes.corners, strict=True):
            found[(int(label), *place.tolist(), *size.tolist())].append(corners)
    if not found:
        raise UserError("box prior", "no training label holds a box", "check the data")
    common = sorted(found.items(), key=lambda item: (-len(item[1]), item[0]))[:MOST]
    return make_boxes(
        np.stack([np.mean(corners, axis=0) for _, corners in common]),
        np.array([key[0] for key, _ in common]),
        np.array([min(1.0, len(corners) / frames) for _, corners in common]),
    )

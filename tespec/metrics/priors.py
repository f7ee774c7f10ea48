"""What can be said of a test frame without looking at it: the most likely labels, counted on the training set."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError

STEP = 8.0  # px between places that count as one
MOST = 100  # boxes of a frame, as many as are scored


def class_prior(masks: Iterable[NDArray[np.uint8]], classes: int) -> NDArray[np.float32]:
    """(classes, H, W) float32 how many of the masks (H, W) show each class at each pixel; labels of 255 do not count.

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


def depth_prior(maps: Iterable[NDArray[np.float32]], nearest: float, farthest: float) -> NDArray[np.float32]:
    """(H, W) float32 median depth of each pixel in m, of what lies from `nearest` to `farthest`.

    A pixel without any has the median of all.

    Raises:
        UserError: there is no depth at all.
    """
    stack = np.stack(list(maps))
    stack = np.where((stack >= nearest) & (stack <= farthest), stack, np.float32(np.nan))
    known = np.isfinite(stack)
    if not known.any():
        raise UserError("depth prior", "no training label holds a depth", "check the data")
    medians = np.full(stack.shape[1:], np.median(stack[known]), np.float32)
    seen = known.any(axis=0)
    medians[seen] = np.nanmedian(stack[:, seen], axis=0)
    return medians


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

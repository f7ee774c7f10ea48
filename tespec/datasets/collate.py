"""Labels of a step as tensors, seen through each lane's augmentation: one function for each kind of label."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.datasets.augment import Maps, apply_maps, move_boxes
from tespec.datasets.masks import IGNORE

# Labels of a step, each with its lane's maps, and the (H, W) of the histograms, to tensors by name.
Collate = Callable[..., dict[str, Tensor]]


def stack_masks(labels: Sequence[tuple[NDArray[np.uint8], Maps]], size: tuple[int, int]) -> dict[str, Tensor]:
    """`labels` (L, H, W) uint8 class of each pixel, 255 where there is none."""
    seen = [apply_maps(mask, maps, IGNORE) for mask, maps in labels]
    return {"labels": torch.from_numpy(np.array(seen, np.uint8).reshape(-1, *size))}


def stack_depths(labels: Sequence[tuple[NDArray[np.float32], Maps]], size: tuple[int, int]) -> dict[str, Tensor]:
    """`labels` (L, H, W) float32 depth in m, NaN where there is none.

    Raises:
        UserError: the augmentation zooms, which changes the size of things but not their depth.
    """
    if any(abs(side) != 1.0 for _, maps in labels for side in maps.scale):
        raise UserError("augmentation.zoom", "zooming does not go with depth", "set it to 0")
    seen = [apply_maps(depth, maps, np.nan) for depth, maps in labels]
    return {"labels": torch.from_numpy(np.array(seen, np.float32).reshape(-1, *size))}


def join_boxes(labels: Sequence[tuple[Boxes, Maps]], size: tuple[int, int]) -> dict[str, Tensor]:
    """`boxes` (M, 6) float32: number of the label within the step, class, left, top, right and bottom in px."""
    seen = [move_boxes(boxes, maps) for boxes, maps in labels]
    rows = [
        np.column_stack([np.full(len(boxes.label), number), boxes.label, boxes.corners])
        for number, boxes in enumerate(seen)
    ]
    return {"boxes": torch.from_numpy(np.concatenate([np.empty((0, 6)), *rows]).astype(np.float32))}

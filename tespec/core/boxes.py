"""Bounding boxes of one frame, used for labels, predictions and scores."""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray


class Boxes(NamedTuple):
    """Bounding boxes of one frame."""

    # (N, 4) left, top, right and bottom in px of the histogram; the width is right - left. As in
    # RVT, boxes that are clipped to the image end at its last pixel, side - 1.
    corners: NDArray[np.float32]
    label: NDArray[np.int64]  # (N,) class index
    score: NDArray[np.float32]  # (N,) confidence in [0, 1]; 1 for ground truth

    def keep(self, kept: NDArray[np.generic]) -> "Boxes":
        """Select boxes by a boolean mask (N,) or by indices, in their order."""
        return Boxes(self.corners[kept], self.label[kept], self.score[kept])

    @property
    def size(self) -> NDArray[np.float32]:
        """Width and height in px, (N, 2) float32."""
        return self.corners[:, 2:] - self.corners[:, :2]


def make_boxes(
    corners: NDArray[np.floating],
    label: NDArray[np.integer],
    score: NDArray[np.floating] | None = None,
) -> Boxes:
    """Build `Boxes` from arrays of any dtype and equal lengths; without scores they are ground truth, with score 1."""
    given = np.ones(len(label), np.float32) if score is None else np.asarray(score, np.float32)
    boxes = Boxes(
        np.asarray(corners, np.float32).reshape(-1, 4), np.asarray(label, np.int64), given
    )
    if not len(boxes.corners) == len(boxes.label) == len(boxes.score):
        raise ValueError(
            f"{len(boxes.corners)} corners, {len(boxes.label)} labels and {len(boxes.score)} scores"
        )
    return boxes

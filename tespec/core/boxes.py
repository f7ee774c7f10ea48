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

    def keep(self, selected: NDArray[np.generic]) -> "Boxes":
        """Select boxes by a boolean mask (N,) or by indices, in their order."""
        return Boxes(self.corners[selected], self.label[selected], self.score[selected])

    @property
    def size(self) -> NDArray[np.float32]:
        """Width and height in px, (N, 2) float32."""
        return self.corners[:, 2:] - self.corners[:, :2]


def make_boxes(
    corners: NDArray[np.floating],
    label: NDArray[np.integer],
    score: NDArray[np.floating] | None = None,
) -> Boxes:
    """Build `Boxes` from arrays of any dtype.

    Args:
        corners: (N, 4) left, top, right and bottom in px.
        label: (N,) class indices.
        score: (N,) confidences in [0, 1]; None for ground truth, which has score 1.

    Raises:
        ValueError: the lengths differ.

    >>> make_boxes([[0, 0, 8, 4]], [1]).size
    array([[8., 4.]], dtype=float32)
    """
    corners = np.asarray(corners, np.float32).reshape(-1, 4)
    scores = np.ones(len(label), np.float32) if score is None else np.asarray(score, np.float32)
    if not len(corners) == len(label) == len(scores):
        raise ValueError(f"{len(corners)} corners, {len(label)} labels and {len(scores)} scores")
    return Boxes(corners, np.asarray(label, np.int64), scores)

"""Which boxes count: those large enough, and late enough in a recording."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tespec.boxes import Boxes


@dataclass(frozen=True)
class BoxFilter:
    """Filter of ground truth and predictions alike, as RVT evaluates Gen1 and 1Mpx.

    Attributes:
        min_diagonal: px of the histograms.
        min_side: px of the histograms, for width and height.
        skip_us: time from a recording's start up to which nothing counts, in us.

    Raises:
        ValueError: a number is negative.
    """

    min_diagonal: float
    min_side: float
    skip_us: int = 500_000

    def __post_init__(self) -> None:
        if min(self.min_diagonal, self.min_side, self.skip_us) < 0:
            raise ValueError(f"a filter of boxes has no negative numbers, but this one is {self}")

    def apply(self, boxes: Boxes, time_us: int) -> Boxes:
        """The boxes that count, of a frame at a time in us since its recording's start."""
        if time_us <= self.skip_us:
            return boxes.keep(np.zeros(len(boxes.label), np.bool_))
        return filter_boxes(boxes, self.min_diagonal, self.min_side)

    def describe(self) -> str:
        """What counts, in words."""
        return (
            f"time > {self.skip_us / 1e6:g} s, diagonal >= {self.min_diagonal:g} px, "
            f"width and height >= {self.min_side:g} px"
        )


def filter_boxes(boxes: Boxes, min_diagonal: float, min_side: float) -> Boxes:
    """Boxes of at least this diagonal, width and height in px; those without an area are never kept.

    Sizes are differences of the corners in float32 and are compared as they are, those of ground truth as well: RVT's
    loader takes its labels' sizes from clamped corners in float32 too, so that a box of 10 px may miss a limit of 10 px
    by the rounding of its place.

    Source: uzh-rpg/RVT, utils/evaluation/prophesee/io/box_filtering.py; data/genx_utils/labels.py, clamp_to_frame_.
    """
    size = boxes.size
    large = (size >= np.float32(min_side)).all(axis=1)
    large &= np.square(size).sum(axis=1) >= np.float32(min_diagonal**2)
    return boxes.keep(large & (size > 0).all(axis=1))

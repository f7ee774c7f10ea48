"""Scores of depth in metres: HMNet's errors of each frame, averaged within recordings, then over them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.scores import Score
from tespec.metrics.frames import Kind, members

CUT_OFFS = (10, 20, 30)  # m
SCORES = {
    "abs": Score("Abs ↓", "lower", "m"),
    **{f"delta_{power}": Score(f"δ{sign} ↑", "higher") for power, sign in enumerate("₁₂₃", start=1)},
    "rms": Score("RMS ↓", "lower", "m"),
    "rms_log": Score("RMSlog ↓", "lower"),
    "abs_rel": Score("AbsRel ↓", "lower"),
    **{f"abs_{metres}": Score(f"Abs {metres} m ↓", "lower", "m") for metres in CUT_OFFS},
}
NAMES = ("delta_1", "delta_2", "delta_3", "abs", "rms", "rms_log", "abs_rel", *(f"abs_{m}" for m in CUT_OFFS))

ERRORS = (
    "delta_1, delta_2, delta_3: share of pixels with max(truth / predicted, predicted / truth) below 1.25, 1.25^2, "
    "1.25^3; abs: mean |truth - predicted| in m; rms: root of its mean square in m; rms_log: the same of natural "
    "logarithms; abs_rel: mean |truth - predicted| / truth; "
    f"{', '.join(f'abs_{m}' for m in CUT_OFFS)}: abs of the pixels with a true depth of at most so many metres"
)


def frame_errors(
    predicted: NDArray[np.floating], truth: NDArray[np.floating], min_depth: float, max_depth: float
) -> NDArray[np.float64]:
    """Errors of one frame over the pixels whose true depth lies in [min_depth, max_depth], both ends included.

    Source: hamarh/HMNet_pth, experiments/depth/scripts/eval_depth.py.

    Args:
        predicted: (H, W) m.
        truth: (H, W) m, NaN where it is not known.
        min_depth: m.
        max_depth: m.

    Returns:
        (10,) errors in the order of `NAMES`; NaN where no pixel counts.

    Raises:
        ValueError: shapes differ, or a prediction is not finite and above zero.
    """
    if predicted.ndim != 2 or predicted.shape != truth.shape:
        raise ValueError(f"predictions {predicted.shape} and depths {truth.shape} are not two equal images")
    if not (np.isfinite(predicted) & (predicted > 0)).all():
        raise ValueError("predicted depths that are not finite and above zero")
    kept = (truth >= min_depth) & (truth <= max_depth)
    if not kept.any():
        return np.full(len(NAMES), np.nan)
    true, found = truth[kept].astype(np.float64), predicted[kept].astype(np.float64)
    error, ratio = np.abs(true - found), np.maximum(true / found, found / true)
    nearer = [error[true <= limit] for limit in CUT_OFFS]
    return np.array(
        [
            *((ratio < 1.25**power).mean() for power in (1, 2, 3)),
            error.mean(),
            math.sqrt(np.square(error).mean()),
            math.sqrt(np.square(np.log(ratio)).mean()),
            (error / true).mean(),
            *(each.mean() if each.size else np.nan for each in nearer),
        ]
    )


DEFINITION = (
    "errors of each frame, their mean over the frames of a recording, and the mean of the recordings' means; depth is "
    f"predicted in metres, neither scaled by the ground truth nor clipped; {ERRORS}, over the frames that have some; "
    "frames without valid depth are skipped; pooled and groups: mean over their frames"
)


@dataclass(frozen=True)
class DepthScores:
    """Mean errors, and how many frames they stand on.

    Attributes:
        values: by name, see `DEFINITION`; a cut-off that no pixel falls under is missing.
        frames: frames with valid depth.
        skipped: frames without.
    """

    values: dict[str, float]
    frames: int
    skipped: int

    def metrics(self) -> dict[str, float]:
        """The scores by name."""
        return dict(self.values)


class DepthFrame(NamedTuple):
    """Errors of one frame.

    Attributes:
        recording: its recording's name.
        groups: groups of frames it belongs to.
        errors: (10,) float64 in the order of `NAMES`; NaN where no pixel counts.
    """

    recording: str
    groups: tuple[str, ...]
    errors: NDArray[np.float64]


DepthState = tuple[DepthFrame, ...]


class DepthScorer:
    """Errors of all frames of a test set, averaged over recordings, over frames, and over named groups of frames.

    Args:
        min_depth: m; nearer ground truth does not count. 1.978 m is a normalised log depth of 0.
        max_depth: m; neither does ground truth beyond.

    Raises:
        ValueError: not 0 < min_depth < max_depth.
    """

    def __init__(self, min_depth: float = 1.978, max_depth: float = 80.0) -> None:
        if not 0 < min_depth < max_depth:
            raise ValueError(f"depths from {min_depth} to {max_depth} m are no range above zero")
        self.min_depth, self.max_depth = min_depth, max_depth
        self._frames: list[DepthFrame] = []

    def update(
        self, predicted: NDArray[np.floating], truth: NDArray[np.floating], recording: str, groups: Sequence[str] = ()
    ) -> None:
        """Take one frame: predicted and true depth (H, W) in m, NaN where unknown, its recording and its groups.

        Raises:
            ValueError: shapes differ, or a prediction is not finite and above zero.
        """
        errors = frame_errors(predicted, truth, self.min_depth, self.max_depth)
        self._frames.append(DepthFrame(recording, tuple(groups), errors))

    def state(self) -> DepthState:
        """All that was taken, as a value for `merge` of another process."""
        return tuple(self._frames)

    def merge(self, states: Iterable[DepthState]) -> None:
        """Take the frames of other scorers; in whatever way frames were shared out, the scores are the same."""
        for state in states:
            self._frames.extend(state)

    def definition(self) -> str:
        """What the scores mean, and once frames were taken, how many count."""
        skipped = sum(map(_empty, self._frames))
        counts = f"; {len(self._frames) - skipped} frames scored, {skipped} skipped" if self._frames else ""
        return f"{DEFINITION}; valid: true depth from {self.min_depth:g} to {self.max_depth:g} m{counts}"

    def overall(self) -> DepthScores:
        """Mean of the recordings' means; recordings without valid depth do not count.

        Raises:
            UserError: no frame has valid depth.
        """
        pooled = self.pooled()
        recordings = [each.values for each in self.by("recording").values()]
        names = [name for name in NAMES if any(name in values for values in recordings)]
        means = {name: _mean([values[name] for values in recordings if name in values]) for name in names}
        return DepthScores(means, pooled.frames, pooled.skipped)

    def pooled(self) -> DepthScores:
        """Mean over all frames, whichever recording they belong to.

        Raises:
            UserError: no frame has valid depth.
        """
        scores = _over_frames(self._frames)
        if not scores.frames:
            raise UserError(
                "depth scores",
                f"none of {scores.skipped} frames has depth from {self.min_depth:g} to {self.max_depth:g} m",
                "evaluate recordings with depth in this range, or change min_depth and max_depth",
            )
        return scores

    def by(self, kind: Kind) -> dict[str, DepthScores]:
        """Mean over the frames of each "recording" or "group" that has valid depth, by name."""
        scores = {name: _over_frames(frames) for name, frames in members(self._frames, kind).items()}
        return {name: each for name, each in scores.items() if each.frames}


def _over_frames(frames: Sequence[DepthFrame]) -> DepthScores:
    valid = [frame.errors for frame in frames if not _empty(frame)]
    columns = zip(NAMES, np.reshape(valid, (-1, len(NAMES))).T, strict=True)
    known = {name: column[~np.isnan(column)].tolist() for name, column in columns}
    means = {name: _mean(column) for name, column in known.items() if column}
    return DepthScores(means, len(valid), len(frames) - len(valid))


def _empty(frame: DepthFrame) -> bool:
    return bool(np.isnan(frame.errors).all())


def _mean(numbers: Sequence[float]) -> float:
    # An exact sum does not depend on the order of the frames.
    return math.fsum(numbers) / len(numbers)

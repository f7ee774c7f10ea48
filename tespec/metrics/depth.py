"""Depth errors in metres: HMNet's of each frame, averaged within recordings, then over them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.scores import Score
from tespec.metrics.frames import Kind, counted, members

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

DEFINITION = (
    "errors of each frame, their mean over the frames of a recording, and the mean of the recordings' means; depth is "
    "predicted in metres, neither scaled by the ground truth nor clipped; delta_1, delta_2, delta_3: share of pixels "
    "with max(truth / predicted, predicted / truth) below 1.25, 1.25^2, 1.25^3; abs: mean |truth - predicted| in m; "
    "rms: root of its mean square in m; rms_log: the same of natural logarithms; abs_rel: mean |truth - predicted| / "
    f"truth; {', '.join(f'abs_{m}' for m in CUT_OFFS)}: abs of the pixels with a true depth of at most so many metres, "
    "over the frames that have some; frames without valid depth are skipped; pooled and groups: mean over their frames"
)


def frame_errors(
    predicted: NDArray[np.floating], truth: NDArray[np.floating], min_depth: float, max_depth: float
) -> NDArray[np.float64]:
    """Errors of one frame over the pixels whose true depth lies in [min_depth, max_depth].

    Source: hamarh/HMNet_pth, experiments/depth/scripts/eval_depth.py.

    Args:
        predicted: (H, W) m.
        truth: (H, W) m, NaN where it is not known.
        min_depth: m.
        max_depth: m.

    Returns:
        (10,) errors in the order of `NAMES`; NaN if no pixel counts.

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


@dataclass(frozen=True)
class DepthScores:
    """Mean errors.

    Attributes:
        values: by name, see `DEFINITION`; a cut-off without any pixel is missing.
        frames: number of frames with valid depth.
        skipped: number of frames without.
        partial: which means are over fewer frames or recordings than others; "" if none.
    """

    values: dict[str, float]
    frames: int
    skipped: int
    partial: str = ""

    def metrics(self) -> dict[str, float]:
        """The scores by name."""
        return dict(self.values)


class DepthFrame(NamedTuple):
    """Errors (10,) of one frame in the order of `NAMES`, NaN if no pixel counts, its recording and its groups."""

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
        """Add one frame: predicted and true depth (H, W) in m, NaN where unknown, its recording and its groups.

        Raises:
            ValueError: shapes differ, or a prediction is not finite and above zero.
        """
        errors = frame_errors(predicted, truth, self.min_depth, self.max_depth)
        self._frames.append(DepthFrame(recording, tuple(groups), errors))

    def state(self) -> DepthState:
        """All frames, as a value for `merge` of another process."""
        return tuple(self._frames)

    def merge(self, states: Iterable[DepthState]) -> None:
        """Add the frames of other scorers; the scores do not depend on how frames were distributed."""
        for state in states:
            self._frames.extend(state)

    def definition(self) -> str:
        """What the scores mean, how many frames count, and which means are over fewer recordings."""
        text = f"{DEFINITION}; valid: true depth from {self.min_depth:g} to {self.max_depth:g} m"
        if not self._frames:
            return text
        skipped = sum(map(_is_empty, self._frames))
        partial = self.overall().partial if skipped < len(self._frames) else ""
        counts = f"; {len(self._frames) - skipped} frames scored, {skipped} skipped"
        return text + counts + (f"; means over fewer: {partial}" if partial else "")

    def overall(self) -> DepthScores:
        """Mean of the recordings' means; recordings without valid depth do not count.

        Raises:
            UserError: no frame has valid depth.
        """
        pooled, recordings = self.pooled(), [each.values for each in self.by("recording").values()]
        columns = {name: [each[name] for each in recordings if name in each] for name in NAMES}
        declared = len(members(self._frames, "recording"))
        return DepthScores(_means(columns), pooled.frames, pooled.skipped, _partial(columns, declared, "recordings"))

    def pooled(self) -> DepthScores:
        """Mean over all frames of all recordings.

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
    valid = [frame.errors for frame in frames if not _is_empty(frame)]
    errors = zip(NAMES, np.reshape(valid, (-1, len(NAMES))).T, strict=True)
    columns = {name: column[~np.isnan(column)].tolist() for name, column in errors}
    return DepthScores(_means(columns), len(valid), len(frames) - len(valid), _partial(columns, len(valid), "frames"))


def _is_empty(frame: DepthFrame) -> bool:
    return bool(np.isnan(frame.errors).all())


def _means(columns: Mapping[str, Sequence[float]]) -> dict[str, float]:
    # An exact sum does not depend on the order of the frames.
    return {name: math.fsum(column) / len(column) for name, column in columns.items() if column}


def _partial(columns: Mapping[str, Sequence[float]], declared: int, unit: str) -> str:
    return counted({name: len(column) for name, column in columns.items()}, declared, unit)

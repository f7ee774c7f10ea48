"""Metrics of depth estimation: HMNet's errors per frame, averaged within recordings, then over recordings."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.metrics import FrameScorer, MeasuredFrame, Score, Scores, fewer

CUT_OFFS = (10, 20, 30)  # m
SCORES = {
    "abs": Score("Abs ↓", "lower", "m"),
    **{
        f"delta_{power}": Score(f"δ{sign} ↑", "higher") for power, sign in enumerate("₁₂₃", start=1)
    },
    "rms": Score("RMS ↓", "lower", "m"),
    "rms_log": Score("RMSlog ↓", "lower"),
    "abs_rel": Score("AbsRel ↓", "lower"),
    **{f"abs_{metres}": Score(f"Abs {metres} m ↓", "lower", "m") for metres in CUT_OFFS},
}
NAMES = (
    "delta_1",
    "delta_2",
    "delta_3",
    "abs",
    "rms",
    "rms_log",
    "abs_rel",
    *(f"abs_{m}" for m in CUT_OFFS),
)

DEFINITION = (
    "errors are computed per frame, averaged over the frames of a recording, then over the recordings; depth is "
    "predicted in metres, neither scaled by the ground truth nor clipped; delta_1, delta_2, delta_3: share of pixels "
    "with max(truth / predicted, predicted / truth) below 1.25, 1.25^2, 1.25^3; abs: mean |truth - predicted| in m; "
    "rms: root mean square error in m; rms_log: the same for natural logarithms; abs_rel: mean |truth - predicted| / "
    f"truth; {', '.join(f'abs_{m}' for m in CUT_OFFS)}: abs over pixels with a true depth of at most that many metres, "
    "over the frames that have such pixels; frames without valid depth are skipped; groups: mean over their frames"
)


def frame_errors(
    predicted: NDArray[np.floating], truth: NDArray[np.floating], min_depth: float, max_depth: float
) -> NDArray[np.float64]:
    """Errors (10,), in the order of `NAMES`, of a frame (H, W) in m, over pixels whose true depth is in the range.

    All are NaN without such a pixel. Source: hamarh/HMNet_pth,
    experiments/depth/scripts/eval_depth.py.
    """
    if predicted.ndim != 2 or predicted.shape != truth.shape:
        raise ValueError(
            f"predictions {predicted.shape} and depths {truth.shape} are not (H, W) images of equal size"
        )
    if not (np.isfinite(predicted) & (predicted > 0)).all():
        raise ValueError("predicted depths must be finite and positive")
    kept = (truth >= min_depth) & (truth <= max_depth)
    if not kept.any():
        return np.full(len(NAMES), np.nan)
    true, found = truth[kept].astype(np.float64), predicted[kept].astype(np.float64)
    error, ratio = np.abs(true - found), np.maximum(true / found, found / true)
    near = [error[true <= limit] for limit in CUT_OFFS]
    deltas = [(ratio < 1.25**power).mean() for power in (1, 2, 3)]
    rms, rms_log = math.sqrt(np.square(error).mean()), math.sqrt(np.square(np.log(ratio)).mean())
    nearest = [each.mean() if each.size else np.nan for each in near]
    return np.array([*deltas, error.mean(), rms, rms_log, (error / true).mean(), *nearest])


class DepthScorer(FrameScorer[MeasuredFrame]):
    """Depth errors of a test set, averaged over recordings and over named groups of frames.

    Ground truth outside of `min_depth` to `max_depth` in m is ignored; 1.978 m is a normalised log
    depth of 0.
    """

    def __init__(self, min_depth: float = 1.978, max_depth: float = 80.0) -> None:
        if not 0 < min_depth < max_depth:
            raise ValueError(f"need 0 < min_depth < max_depth, got {min_depth} and {max_depth} m")
        super().__init__()
        self.min_depth, self.max_depth = min_depth, max_depth

    def update(
        self,
        predicted: NDArray[np.floating],
        truth: NDArray[np.floating],
        recording: str,
        groups: Sequence[str] = (),
    ) -> None:
        """Add one frame: predicted and true depth (H, W) in m, NaN where unknown, its recording and its groups."""
        errors = frame_errors(predicted, truth, self.min_depth, self.max_depth)
        self._frames.append(MeasuredFrame(recording, tuple(groups), errors))

    def definition(self) -> str:
        """Describe the metrics and how many frames they cover."""
        text = f"{DEFINITION}; valid: true depth from {self.min_depth:g} to {self.max_depth:g} m"
        skipped = sum(bool(np.isnan(frame.measured).all()) for frame in self._frames)
        return text + (
            f"; {len(self._frames) - skipped} frames scored, {skipped} skipped"
            if self._frames
            else ""
        )

    def overall(self) -> Scores:
        """Mean over recordings of their mean errors; recordings without valid depth are ignored."""
        recordings = [
            [each.values.get(name, np.nan) for name in NAMES]
            for each in self.by("recording").values()
        ]
        if not recordings:
            what = f"none of {len(self._frames)} frames has depth from {self.min_depth:g} to {self.max_depth:g} m"
            remedy = (
                "evaluate recordings with depth in this range, or change min_depth and max_depth"
            )
            raise UserError("depth scores", what, remedy)
        return _mean(
            np.array(recordings), len({frame.recording for frame in self._frames}), "recordings"
        )

    def _scores(self, frames: Sequence[MeasuredFrame]) -> Scores | None:
        errors = np.array([frame.measured for frame in frames])
        valid = errors[~np.isnan(errors).all(axis=1)]
        return _mean(valid, len(valid), "frames") if len(valid) else None


def _mean(errors: NDArray[np.float64], total: int, unit: str) -> Scores:
    """Mean over the rows of errors (N, 10), ignoring NaN."""
    columns = {
        name: column[~np.isnan(column)] for name, column in zip(NAMES, errors.T, strict=True)
    }
    # An exact sum does not depend on the order of the frames.
    means = {
        name: math.fsum(column) / len(column) for name, column in columns.items() if len(column)
    }
    return Scores(
        means, fewer({name: len(column) for name, column in columns.items()}, total, unit)
    )

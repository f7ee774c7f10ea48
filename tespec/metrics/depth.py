"""Metrics of depth: HMNet's errors of frames, averaged within recordings, then over recordings."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.metrics import FrameScorer, MeasuredFrame, Score, Scores, incomplete_means

CUT_OFFS = (10, 20, 30)  # m
SCORES = {
    "abs": Score("Abs ↓", "lower", "m"),
    "delta_1": Score("δ₁ ↑", "higher"),
    "delta_2": Score("δ₂ ↑", "higher"),
    "delta_3": Score("δ₃ ↑", "higher"),
    "rms": Score("RMS ↓", "lower", "m"),
    "rms_log": Score("RMSlog ↓", "lower"),
    "abs_rel": Score("AbsRel ↓", "lower"),
    **{f"abs_{metres}": Score(f"Abs {metres} m ↓", "lower", "m") for metres in CUT_OFFS},
}
ABS_NEAR = [f"abs_{metres}" for metres in CUT_OFFS]
NAMES = ("delta_1", "delta_2", "delta_3", "abs", "rms", "rms_log", "abs_rel", *ABS_NEAR)

DEFINITION = (
    "errors are computed per frame, averaged over the frames of a recording, then over the "
    "recordings; depth is predicted in metres, neither scaled by the ground truth nor clipped; "
    "delta_1, delta_2, delta_3: share of pixels with max(truth / predicted, predicted / truth) "
    "below 1.25, 1.25^2, 1.25^3; abs: mean |truth - predicted| in m; rms: root mean square error "
    "in m; rms_log: the same for natural logarithms; abs_rel: mean |truth - predicted| / truth; "
    f"{', '.join(ABS_NEAR)}: abs over pixels with a true depth of at most that many metres, over "
    "the frames that have such pixels; frames without valid depth are skipped; groups: mean over "
    "their frames"
)


def frame_errors(
    predicted: NDArray[np.floating], truth: NDArray[np.floating], min_depth: float, max_depth: float
) -> NDArray[np.float64]:
    """Compute the errors of one frame over the pixels whose true depth is in a range.

    Source: hamarh/HMNet_pth, experiments/depth/scripts/eval_depth.py.

    Args:
        predicted: (H, W) in m, finite and positive.
        truth: (H, W) in m, NaN where unknown.
        min_depth: minimum of valid true depth in m.
        max_depth: maximum of valid true depth in m.

    Returns:
        (10,) in the order of `NAMES`; NaN without a valid pixel.
    """
    if predicted.ndim != 2 or predicted.shape != truth.shape:
        raise ValueError(
            f"predictions {predicted.shape} and depths {truth.shape} "
            "are not (H, W) images of equal size"
        )
    if not (np.isfinite(predicted) & (predicted > 0)).all():
        raise ValueError("predicted depths must be finite and positive")
    valid = (truth >= min_depth) & (truth <= max_depth)
    if not valid.any():
        return np.full(len(NAMES), np.nan)
    target = truth[valid].astype(np.float64)
    depth = predicted[valid].astype(np.float64)
    error = np.abs(target - depth)
    ratio = np.maximum(target / depth, depth / target)
    deltas = [(ratio < 1.25**power).mean() for power in (1, 2, 3)]
    rms = math.sqrt(np.square(error).mean())
    rms_log = math.sqrt(np.square(np.log(ratio)).mean())
    near = [error[target <= limit] for limit in CUT_OFFS]
    abs_near = [errors.mean() if errors.size else np.nan for errors in near]
    return np.array([*deltas, error.mean(), rms, rms_log, (error / target).mean(), *abs_near])


class DepthScorer(FrameScorer[MeasuredFrame]):
    """Depth errors of a test set, averaged over recordings and over named groups of frames.

    Args:
        min_depth: minimum of valid true depth in m; 1.978 m is a normalised log depth of 0.
        max_depth: maximum of valid true depth in m.
    """

    def __init__(self, min_depth: float = 1.978, max_depth: float = 80.0) -> None:
        super().__init__()
        self.min_depth = min_depth
        self.max_depth = max_depth

    def update(
        self,
        predicted: NDArray[np.floating],
        truth: NDArray[np.floating],
        recording: str,
        groups: Sequence[str] = (),
    ) -> None:
        """Add one frame.

        Args:
            predicted: (H, W) in m, finite and positive.
            truth: (H, W) in m, NaN where unknown.
            recording: name of the recording.
            groups: names of the groups that include the frame.
        """
        errors = frame_errors(predicted, truth, self.min_depth, self.max_depth)
        self._frames.append(MeasuredFrame(recording, tuple(groups), errors))

    def definition(self) -> str:
        """Describe the metrics and how many frames they cover."""
        text = f"{DEFINITION}; valid: true depth from {self.min_depth:g} to {self.max_depth:g} m"
        if not self._frames:
            return text
        skipped = sum(bool(np.isnan(frame.measured).all()) for frame in self._frames)
        return f"{text}; {len(self._frames) - skipped} frames scored, {skipped} skipped"

    def overall(self) -> Scores:
        """Mean over recordings of their mean errors; recordings without valid depth are ignored."""
        errors = [
            [scores.values.get(name, np.nan) for name in NAMES]
            for scores in self.by("recording").values()
        ]
        if not errors:
            raise UserError(
                "depth scores",
                f"none of {len(self._frames)} frames has depth "
                f"from {self.min_depth:g} to {self.max_depth:g} m",
                "evaluate recordings with such depth, or change min_depth and max_depth",
            )
        n_recordings = len({frame.recording for frame in self._frames})
        return _mean(np.array(errors), n_recordings, "recordings")

    def _scores(self, frames: Sequence[MeasuredFrame]) -> Scores | None:
        errors = np.array([frame.measured for frame in frames])
        valid = errors[~np.isnan(errors).all(axis=1)]
        return _mean(valid, len(valid), "frames") if len(valid) else None


def _mean(errors: NDArray[np.float64], total: int, unit: str) -> Scores:
    """Mean over the rows of errors (N, 10), ignoring NaN."""
    valid = {name: column[~np.isnan(column)] for name, column in zip(NAMES, errors.T, strict=True)}
    # An exact sum does not depend on the order of the frames.
    means = {name: math.fsum(values) / len(values) for name, values in valid.items() if len(values)}
    counts = {name: len(values) for name, values in valid.items()}
    return Scores(means, incomplete_means(counts, total, unit))

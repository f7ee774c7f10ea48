"""Scores of object detection: the Prophesee protocol as RVT evaluates it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from tespec.boxes import Boxes
from tespec.errors import UserError
from tespec.evaluation.coco import AT_50, AT_75, MAX_DETECTIONS, THRESHOLDS, average_precision
from tespec.evaluation.filters import BoxFilter
from tespec.evaluation.grouping import Kind, members
from tespec.registry import METRICS

DEFINITION = (
    f"COCO average precision in percent over all frames of the test recordings at once: IoU {THRESHOLDS[0]:.2f} to "
    f"{THRESHOLDS[-1]:.2f} in steps of 0.05, all areas, at most {MAX_DETECTIONS} detections per class and frame, boxes "
    "in px of the histograms and not clipped to the image; only frames that hold ground truth after the filters are "
    "scored; map: mean over thresholds and over the classes that have ground truth; ap50, ap75: at IoU 0.50, 0.75"
)


@dataclass(frozen=True)
class DetectionScores:
    """Scores in percent, and what they stand on.

    Attributes:
        map: mean average precision, IoU 0.50 to 0.95.
        ap50: mean average precision at IoU 0.50.
        ap75: mean average precision at IoU 0.75.
        classes: average precision, IoU 0.50 to 0.95, of each class that has ground truth.
        frames: frames scored.
        truths: boxes of ground truth in them.
        predictions: predicted boxes in them, after the filters.
    """

    map: float
    ap50: float
    ap75: float
    classes: dict[str, float]
    frames: int
    truths: int
    predictions: int

    def metrics(self) -> dict[str, float]:
        """The three overall scores by name."""
        return {"map": self.map, "ap50": self.ap50, "ap75": self.ap75}


class ScoredFrame(NamedTuple):
    """Boxes of one frame after the filters; the predictions are only kept where there is ground truth.

    Attributes:
        recording: its recording's name.
        time_us: since the recording's start.
        groups: groups of frames it belongs to.
        truth: ground truth.
        predicted: predictions.
    """

    recording: str
    time_us: int
    groups: tuple[str, ...]
    truth: Boxes
    predicted: Boxes


DetectionState = tuple[ScoredFrame, ...]


@METRICS.register_module()
class DetectionScorer:
    """Boxes of a whole test set, scored together, by recording and by named group of frames.

    Args:
        classes: names, by label.
        filters: which boxes count.
        score: what the scores of predictions are, and from which on they were predicted; stands in the definition.
    """

    def __init__(self, classes: Sequence[str], filters: BoxFilter, score: str) -> None:
        self.classes = tuple(classes)
        self.filters = filters
        self.score = score
        self._frames: dict[tuple[str, int], ScoredFrame] = {}

    def update(self, predicted: Boxes, truth: Boxes, recording: str, time_us: int, groups: Sequence[str] = ()) -> None:
        """Take one labelled frame.

        Args:
            predicted: predicted boxes; boxes outside of the image are compared as they are.
            truth: ground truth.
            recording: name of the frame's recording.
            time_us: since the recording's start.
            groups: groups of frames it belongs to.

        Raises:
            ValueError: a label is no class, a number is not finite, or the frame was taken before.
        """
        for name, boxes in (("predictions", predicted), ("ground truth", truth)):
            _check(boxes, len(self.classes), f"{name} of {recording} at {time_us} us")
        left = self.filters.apply(truth, time_us)
        seen = self.filters.apply(predicted, time_us) if len(left.label) else predicted.keep(np.empty(0, np.intp))
        self._take(ScoredFrame(recording, int(time_us), tuple(groups), left, seen))

    def _take(self, frame: ScoredFrame) -> None:
        key = frame.recording, frame.time_us
        if key in self._frames:
            raise ValueError(f"{frame.recording} at {frame.time_us} us is scored twice")
        self._frames[key] = frame

    def state(self) -> DetectionState:
        """All that was taken, as a value for `merge` of another process."""
        return tuple(self._frames.values())

    def merge(self, states: Iterable[DetectionState]) -> None:
        """Take the frames of other scorers; in whatever way frames were shared out, the scores are the same.

        Raises:
            ValueError: a frame was taken before.
        """
        for state in states:
            for frame in state:
                self._take(frame)

    def definition(self) -> str:
        """What the scores mean: filters, classes, scores, and once frames were taken, how many count."""
        text = (
            f"{DEFINITION}; filters of ground truth and predictions: {self.filters.describe()}; "
            f"classes: {', '.join(self.classes)}; scores of predictions: {self.score}"
        )
        if not self._frames:
            return text
        scored = _with_truth(self._frames.values())
        boxes = sum(len(frame.truth.label) for frame in scored)
        return f"{text}; {len(scored)} of {len(self._frames)} labelled frames scored, with {boxes} boxes"

    def overall(self) -> DetectionScores:
        """Scores over all frames.

        Raises:
            UserError: no frame holds ground truth after the filters.
        """
        scores = self._scores(list(self._frames.values()))
        if scores is None:
            raise UserError(
                "detection scores",
                f"no labelled frame is left after the filters ({self.filters.describe()})",
                "evaluate recordings with boxes that pass them, or lower the filters",
            )
        return scores

    def by(self, kind: Kind) -> dict[str, DetectionScores]:
        """Scores of each "recording" or "group" that has ground truth after the filters, by name."""
        scores = {name: self._scores(frames) for name, frames in members(self._frames.values(), kind).items()}
        return {name: each for name, each in scores.items() if each is not None}

    def _scores(self, frames: list[ScoredFrame]) -> DetectionScores | None:
        # Boxes of equal scores are ranked by frame, so frames need an order that does not depend on who took them.
        scored = sorted(_with_truth(frames), key=lambda frame: frame[:2])
        if not scored:
            return None
        shares = average_precision(
            [each.truth for each in scored], [each.predicted for each in scored], len(self.classes)
        )
        present = ~np.isnan(shares[:, 0])
        percent = 100 * shares[present]
        names = [name for name, there in zip(self.classes, present, strict=True) if there]
        return DetectionScores(
            map=float(percent.mean()),
            ap50=float(percent[:, AT_50].mean()),
            ap75=float(percent[:, AT_75].mean()),
            classes=dict(zip(names, percent.mean(axis=1).tolist(), strict=True)),
            frames=len(scored),
            truths=sum(len(frame.truth.label) for frame in scored),
            predictions=sum(len(frame.predicted.label) for frame in scored),
        )


def _with_truth(frames: Iterable[ScoredFrame]) -> list[ScoredFrame]:
    return [frame for frame in frames if len(frame.truth.label)]


def _check(boxes: Boxes, classes: int, where: str) -> None:
    if len(boxes.label) and not 0 <= boxes.label.min() <= boxes.label.max() < classes:
        raise ValueError(f"{where}: labels from {boxes.label.min()} to {boxes.label.max()} for {classes} classes")
    for name, numbers in (("corners", boxes.corners), ("scores", boxes.score)):
        if not np.isfinite(numbers).all():
            raise ValueError(f"{where}: {name} that are not finite")

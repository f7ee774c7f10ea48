"""Scores of object detection: the Prophesee protocol as RVT evaluates it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.metrics.frames import Kind, counted, members

CLOSEST = 1 - 1e-10  # an overlap that always suffices (pycocotools, cocoeval.py)


@njit(cache=True, nogil=True)
def match(predicted, truth, ends_predicted, ends_truth, thresholds):  # type: ignore[no-untyped-def]
    """Match the boxes of each group, which are those of one class in one frame.

    A predicted box takes the box of ground truth that it overlaps most, among those that are not taken yet; of two
    equal ones the later. Arithmetic and order are those of pycocotools, so that results are the same to the bit.

    Args:
        predicted: (P, 4) float64 left, top, width, height; group after group, each by falling score.
        truth: (N, 4) likewise, in the order in which it is given.
        ends_predicted: (G + 1,) int64 where the groups of `predicted` begin and end.
        ends_truth: (G + 1,) likewise of `truth`.
        thresholds: (K,) float64 least intersection over union.

    Returns:
        (K, P) bool, whether a predicted box found one.
    """
    found = np.zeros((len(thresholds), len(predicted)), np.bool_)
    overlaps = np.empty((np.diff(ends_predicted).max(), np.diff(ends_truth).max()))
    for group in range(len(ends_truth) - 1):
        boxes = predicted[ends_predicted[group] : ends_predicted[group + 1]]
        known = truth[ends_truth[group] : ends_truth[group + 1]]
        if not len(boxes) or not len(known):
            continue
        _overlap(boxes, known, overlaps)
        for k in range(len(thresholds)):
            taken = np.zeros(len(known), np.bool_)
            for i in range(len(boxes)):
                best, place = min(thresholds[k], CLOSEST), -1
                for j in range(len(known)):
                    if not taken[j] and overlaps[i, j] >= best:
                        best, place = overlaps[i, j], j
                if place >= 0:
                    taken[place] = True
                    found[k, ends_predicted[group] + i] = True
    return found


@njit(cache=True, nogil=True)
def _overlap(boxes, known, overlaps):  # type: ignore[no-untyped-def]
    """Intersection over union, as pycocotools computes it (maskApi.c, bbIou)."""
    for i in range(len(boxes)):
        left, top, width, height = boxes[i]
        for j in range(len(known)):
            other_left, other_top, other_width, other_height = known[j]
            overlaps[i, j] = 0.0
            wide = min(left + width, other_left + other_width) - max(left, other_left)
            if wide <= 0:
                continue
            high = min(top + height, other_top + other_height) - max(top, other_top)
            if high <= 0:
                continue
            shared = wide * high
            overlaps[i, j] = shared / (width * height + other_width * other_height - shared)


THRESHOLDS = np.linspace(0.5, 0.95, 10)  # of intersection over union
AT_50, AT_75 = 0, 5  # places of 0.50 and 0.75 among them
MAX_DETECTIONS = 100  # of a class in a frame; those of the highest scores
RECALLS = np.linspace(0.0, 1.0, 101)  # at which precision is read


def average_precision(truth: Sequence[Boxes], predicted: Sequence[Boxes], classes: int) -> NDArray[np.float64]:
    """Average precision of each class and threshold: all areas, 101 recall points, `MAX_DETECTIONS`.

    Boxes of the same score are ranked in the order in which they are given. The numbers are those of pycocotools.

    Args:
        truth: ground truth of each frame, of one at least; boxes have sides above 0, as `filter_boxes` leaves them.
        predicted: predictions for the same frames, likewise.
        classes: number of classes; labels are 0 to classes - 1.

    Returns:
        (classes, 10) shares in [0, 1] by class and `THRESHOLDS`; NaN where a class has no ground truth.
    """
    known, found = _Grouped(truth, classes), _Grouped(predicted, classes, MAX_DETECTIONS)
    hits = match(found.boxes, known.boxes, found.ends, known.ends, THRESHOLDS)
    shares = np.full((classes, len(THRESHOLDS)), np.nan)
    for label in range(classes):
        of_truth, of_found = known.of_class(label), found.of_class(label)
        count = of_truth.stop - of_truth.start
        if count:
            order = np.argsort(-found.score[of_found], kind="stable")
            shares[label] = _read_precision(hits[:, of_found][:, order], count).mean(axis=1)
    return shares


class _Grouped:
    """Boxes of all frames in one list, class after class, in each frame after frame and by falling score.

    Attributes:
        boxes: (N, 4) left, top, width, height.
        score: (N,).
        ends: (classes * frames + 1,) where the boxes of a class in a frame begin and end.
    """

    def __init__(self, frames: Sequence[Boxes], classes: int, most: int | None = None) -> None:
        corners, label, score = (np.concatenate(column) for column in zip(*frames, strict=True))
        frame = np.repeat(np.arange(len(frames)), [len(boxes.label) for boxes in frames])
        group = label * len(frames) + frame
        order = np.lexsort((-score, group))
        group = group[order]
        if most is not None:
            rank = np.arange(len(group)) - np.searchsorted(group, group)
            order, group = order[rank < most], group[rank < most]
        corners = corners[order].astype(np.float64)
        self.boxes = np.hstack([corners[:, :2], corners[:, 2:] - corners[:, :2]])
        self.score = score[order]
        self.ends = np.searchsorted(group, np.arange(classes * len(frames) + 1))
        self._frames = len(frames)

    def of_class(self, label: int) -> slice:
        """Which of the boxes are of one class."""
        return slice(int(self.ends[label * self._frames]), int(self.ends[(label + 1) * self._frames]))


def _read_precision(hits: NDArray[np.bool_], truths: int) -> NDArray[np.float64]:
    """(K, 101) best precision from each recall on, of boxes by falling score that are right or wrong (K, P)."""
    right = hits.cumsum(axis=1, dtype=np.float64)
    precision = right / (np.arange(1, hits.shape[1] + 1) + np.spacing(1))
    best = np.maximum.accumulate(precision[:, ::-1], axis=1)[:, ::-1]
    read = np.zeros((len(hits), len(RECALLS)))
    for row, recalls, of_recall in zip(read, right / truths, best, strict=True):
        places = np.searchsorted(recalls, RECALLS)
        reached = places < len(recalls)
        row[reached] = of_recall[places[reached]]
    return read


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


DEFINITION = (
    f"COCO average precision in percent over all frames of the test recordings at once: IoU {THRESHOLDS[0]:.2f} to "
    f"{THRESHOLDS[-1]:.2f} in steps of 0.05, all areas, at most {MAX_DETECTIONS} detections per class and frame, boxes "
    "in px of the histograms and not clipped to the image; only frames that hold ground truth after the filters are "
    "scored; map: mean over thresholds and over the classes that have ground truth; ap50, ap75: at IoU 0.50, 0.75"
)


@dataclass(frozen=True)
class DetectionScores:
    """Scores in percent.

    Attributes:
        map: mean average precision, IoU 0.50 to 0.95.
        ap50: mean average precision at IoU 0.50.
        ap75: mean average precision at IoU 0.75.
        classes: average precision, IoU 0.50 to 0.95, of each class that has ground truth.
        frames: number of frames scored.
        truths: boxes of ground truth in them.
        predictions: predicted boxes in them, after the filters.
        partial: that the means are over fewer classes than declared, if they are.
    """

    map: float
    ap50: float
    ap75: float
    classes: dict[str, float]
    frames: int
    truths: int
    predictions: int
    partial: str = ""

    def metrics(self) -> dict[str, float]:
        """The three overall scores by name."""
        return {"map": self.map, "ap50": self.ap50, "ap75": self.ap75}


class ScoredFrame(NamedTuple):
    """Boxes of one frame after the filters, its time in us since the recording's start, and its groups.

    Predictions are only kept if there is ground truth.
    """

    recording: str
    time_us: int
    groups: tuple[str, ...]
    truth: Boxes
    predicted: Boxes


DetectionState = tuple[ScoredFrame, ...]


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
        """Add one labelled frame.

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
        """All frames, as a value for `merge` of another process."""
        return tuple(self._frames.values())

    def merge(self, states: Iterable[DetectionState]) -> None:
        """Add the frames of other scorers; the scores do not depend on how frames were distributed.

        Raises:
            ValueError: a frame was taken before.
        """
        for state in states:
            for frame in state:
                self._take(frame)

    def definition(self) -> str:
        """What the scores mean: filters, classes, scores, and which frames count, and which classes do not."""
        text = (
            f"{DEFINITION}; filters of ground truth and predictions: {self.filters.describe()}; "
            f"classes: {', '.join(self.classes)}; scores of predictions: {self.score}"
        )
        if not self._frames:
            return text
        scored = _with_truth(self._frames.values())
        labels = [label for frame in scored for label in frame.truth.label.tolist()]
        absent = [name for label, name in enumerate(self.classes) if label not in set(labels)]
        text += f"; {len(scored)} of {len(self._frames)} labelled frames scored, with {len(labels)} boxes"
        return text + (f"; without ground truth, so not in the means: {', '.join(absent)}" if absent else "")

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
            partial=counted(dict.fromkeys(("map", "ap50", "ap75"), len(names)), len(self.classes), "classes"),
        )


def _with_truth(frames: Iterable[ScoredFrame]) -> list[ScoredFrame]:
    return [frame for frame in frames if len(frame.truth.label)]


def _check(boxes: Boxes, classes: int, where: str) -> None:
    if len(boxes.label) and not 0 <= boxes.label.min() <= boxes.label.max() < classes:
        raise ValueError(f"{where}: labels from {boxes.label.min()} to {boxes.label.max()} for {classes} classes")
    for name, numbers in (("corners", boxes.corners), ("scores", boxes.score)):
        if not np.isfinite(numbers).all():
            raise ValueError(f"{where}: {name} that are not finite")

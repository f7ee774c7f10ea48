"""COCO AP of a test set, against pycocotools as peers call it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.rows import Row
from tespec.core.boxes import Boxes, make_boxes
from tespec.metrics.detection import BoxFilter, DetectionScorer

CLASSES = ("pedestrian", "two-wheeler", "car")
MISSING = "not measured: pycocotools is not installed (pip install -e .[test])"
WIDTH, HEIGHT = 640, 360
TRUTHS, DETECTIONS = 10, 100  # of a frame, at most
Frame = tuple[Boxes, Boxes]


def detection(conditions: Conditions) -> Iterator[Row]:
    """Frames as on 1Mpx, with as many detections as a low threshold lets through."""
    count = conditions.size(2_000, 20)
    if find_spec("pycocotools") is None:
        yield Row("detection", "one test set", "cpu", note=MISSING)
        return
    frames = make_frames(count)
    found = sum(len(predicted.label) for predicted, _ in frames)
    row = Row(
        "detection", "one test set", "cpu", f"{count:,} frames, {len(CLASSES)} classes, {found:,} detections",
        "pycocotools", work=found, unit="detections",
    )  # fmt: skip
    yield conditions.compare(
        row,
        lambda: by_scorer(frames),
        lambda: by_pycocotools(frames),
        lambda ours, peers: np.allclose(list(ours.values()), peers, atol=1e-6),
        budget=30.0,
    )


def by_scorer(frames: Sequence[Frame]) -> dict[str, float]:
    """map, ap50 and ap75 in percent by the harness, its filters included."""
    scorer = DetectionScorer(CLASSES, BoxFilter(0, 0, 0), "class score")
    for number, (predicted, truth) in enumerate(frames, 1):
        scorer.update(predicted, truth, "recording", number)
    return scorer.overall().metrics()


def make_frames(count: int) -> list[Frame]:
    """(predicted, truth) of frames that hold some truth, with good, repeated and wrong predictions."""
    generator = np.random.default_rng(0)
    frames = []
    for _ in range(count):
        truths = int(generator.integers(1, TRUTHS + 1))
        detections = int(generator.integers(DETECTIONS // 4, DETECTIONS + 1))
        corners, label = _corners(generator, truths), generator.integers(0, len(CLASSES), truths)
        near = generator.integers(0, truths, detections // 2)
        guessed = np.concatenate(
            [corners[near] + generator.normal(0, 4, (len(near), 4)), _corners(generator, detections - len(near))]
        )
        guessed[:, 2:] = np.maximum(guessed[:, 2:], guessed[:, :2] + 1)
        labels = np.concatenate([label[near], generator.integers(0, len(CLASSES), detections - len(near))])
        frames.append((make_boxes(guessed, labels, generator.random(detections)), make_boxes(corners, label)))
    return frames


def _corners(generator: np.random.Generator, count: int) -> np.ndarray:
    begin = generator.uniform(0, (WIDTH, HEIGHT), (count, 2))
    return np.concatenate([begin, begin + generator.uniform(10, 120, (count, 2))], axis=1)


def by_pycocotools(frames: Sequence[Frame]) -> list[float]:
    """map, ap50 and ap75 in percent: boxes as annotations, then evaluate, accumulate, summarize."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    with contextlib.redirect_stdout(io.StringIO()):
        truth = COCO()
        truth.dataset = {
            "info": {},
            "images": [{"id": number} for number in range(1, len(frames) + 1)],
            "categories": [{"id": label, "name": name} for label, name in enumerate(CLASSES)],
            "annotations": _annotations([truth for _, truth in frames]),
        }
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(_annotations([predicted for predicted, _ in frames])), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    scores: list[float] = (100 * evaluation.stats[:3]).tolist()
    return scores


def _annotations(frames: Sequence[Boxes]) -> list[dict[str, Any]]:
    annotations: list[dict[str, Any]] = []
    for image, boxes in enumerate(frames, 1):
        corners = boxes.corners.astype(float)
        sides = corners[:, 2:] - corners[:, :2]
        columns = (corners[:, :2].tolist(), sides.tolist(), boxes.label.tolist(), boxes.score.tolist())
        for (left, top), (width, height), label, score in zip(*columns, strict=True):
            annotations.append(
                {"id": len(annotations) + 1, "image_id": image, "category_id": label, "iscrowd": 0, "score": score,
                 "bbox": [left, top, width, height], "area": width * height}
            )  # fmt: skip
    return annotations

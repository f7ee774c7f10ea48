"""Random frames of boxes, and their score by pycocotools."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from tespec.core.boxes import Boxes, make_boxes

SENSOR = 120  # px, both sides


class Frame(NamedTuple):
    predicted: Boxes
    truth: Boxes
    recording: str
    time_us: int
    groups: tuple[str, ...]


def random_frames(
    seed: int, frames: int, classes: int, *, boxes: int = 6, levels: int = 0, missing: tuple[int, ...] = ()
) -> list[Frame]:
    """Frames of three recordings at 10 Hz, the first one not empty, with good, repeated and wrong predictions.

    Scores lie on `levels` steps, so that many are equal; 0: all of them differ. Classes `missing` are only predicted.
    """
    rng = np.random.default_rng(seed)
    present = [label for label in range(classes) if label not in missing]
    made, scores = [], (rng.permutation(frames * (2 * boxes + 3)) + 1) / (frames * (2 * boxes + 3) + 1)
    if levels:
        scores = np.ceil(scores * levels) / levels
    for number in range(frames):
        count, extra = rng.integers(0 if number else 1, boxes + 1), rng.integers(0, 4)
        corners, label = _corners(rng, count), rng.choice(present, count)
        near = corners + rng.normal(0, 3, corners.shape)
        near[:, 2:] = np.maximum(near[:, 2:], near[:, :2] + 1)  # the harness scores no box without an area, COCO does
        again = rng.random(count) < 0.3
        found = np.concatenate([near, near[again] + 1, _corners(rng, extra)])
        wrong = rng.random(count) < 0.1
        guess = np.where(wrong, rng.integers(0, classes, count), label)
        guesses = np.concatenate([guess, guess[again], rng.integers(0, classes, extra)])
        score, scores = scores[: len(found)], scores[len(found) :]
        made.append(
            Frame(
                make_boxes(found, guesses, score),
                make_boxes(corners, label),
                f"recording{rng.integers(3)}",
                (number + 1) * 100_000,
                ("moving",) if rng.random() < 0.5 else ("standing", "night"),
            )
        )
    return made


def _corners(rng: np.random.Generator, count: int) -> np.ndarray:
    left_top = rng.uniform(-20, SENSOR, (count, 2))
    return np.concatenate([left_top, left_top + rng.uniform(5, 60, (count, 2))], axis=1)


def coco_scores(frames: Sequence[tuple[Boxes, Boxes]], classes: int) -> dict[str, float]:
    """map, ap50 and ap75 in percent of (predicted, truth), by pycocotools as it comes."""
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = coco_evaluation(frames, classes)
        evaluation.summarize()
    return dict(zip(("map", "ap50", "ap75"), (100 * evaluation.stats[:3]).tolist(), strict=True))


def coco_evaluation(frames: Sequence[tuple[Boxes, Boxes]], classes: int) -> COCOeval:
    """(predicted, truth) evaluated and accumulated by pycocotools, which prints as it goes."""
    known = [_annotation(*box) for box in _numbered([truth for _, truth in frames])]
    found = [_annotation(*box) for box in _numbered([predicted for predicted, _ in frames])]
    truth = COCO()
    truth.dataset = {
        "info": {},
        "images": [{"id": number} for number in range(1, len(frames) + 1)],
        "categories": [{"id": label, "name": str(label)} for label in range(classes)],
        "annotations": known,
    }
    truth.createIndex()
    evaluation = COCOeval(truth, truth.loadRes(found), "bbox")
    evaluation.evaluate()
    evaluation.accumulate()
    return evaluation


def _numbered(frames: Sequence[Boxes]):
    number = 0
    for image, boxes in enumerate(frames, 1):
        for corners, label, score in zip(boxes.corners.astype(float), boxes.label, boxes.score, strict=True):
            number += 1
            yield number, image, corners, int(label), float(score)


def _annotation(number, image, corners, label, score):
    left, top, right, bottom = corners.tolist()
    width, height = right - left, bottom - top
    return {
        "id": number, "image_id": image, "category_id": label, "bbox": [left, top, width, height],
        "area": width * height, "score": score, "iscrowd": 0,
    }  # fmt: skip

"""Average precision by class and threshold, against the array that pycocotools keeps."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest
from box_cases import coco_evaluation
from hypothesis import given, settings
from hypothesis import strategies as st

from tespec.core.boxes import make_boxes
from tespec.metrics.detection import MAX_DETECTIONS, THRESHOLDS, average_precision

CLASSES = 3


def boxes(rng, count, side):
    """Boxes with whole sides, so that overlaps are often equal."""
    begin = rng.integers(0, 8, (count, 2))
    corners = np.concatenate([begin, begin + rng.integers(1, side, (count, 2))], axis=1)
    return make_boxes(corners.astype(float), rng.integers(0, CLASSES, count), rng.integers(1, 5, count) / 4)


def by_pycocotools(frames):
    with contextlib.redirect_stdout(io.StringIO()):
        evaluation = coco_evaluation(frames, CLASSES)
    # Threshold, recall, class, all areas, MAX_DETECTIONS.
    precision = evaluation.eval["precision"][:, :, :, 0, -1].transpose(2, 0, 1)
    return np.where((precision < 0).all(axis=(1, 2))[:, None], np.nan, precision.mean(axis=2))


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**32), st.integers(1, 12), st.integers(2, 8))
def test_of_each_class_and_threshold_with_equal_scores_and_overlaps(seed, count, side):
    rng = np.random.default_rng(seed)
    frames = [(boxes(rng, rng.integers(0, 15), side), boxes(rng, rng.integers(0, 6), side)) for _ in range(count)]
    frames.append((boxes(rng, 3, side), boxes(rng, 2, side)))
    found = average_precision([truth for _, truth in frames], [predicted for predicted, _ in frames], CLASSES)
    assert found.shape == (CLASSES, len(THRESHOLDS))
    assert found == pytest.approx(by_pycocotools(frames), abs=1e-12, nan_ok=True)


def test_more_detections_than_count():
    rng = np.random.default_rng(0)
    frames = [(boxes(rng, 5 * MAX_DETECTIONS, 8), boxes(rng, 20, 8)) for _ in range(2)]
    found = average_precision([truth for _, truth in frames], [predicted for predicted, _ in frames], CLASSES)
    assert found == pytest.approx(by_pycocotools(frames), abs=1e-12)

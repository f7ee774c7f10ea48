import tespec.core.compat  # noqa: F401  # before mmseg

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy
from mmseg.evaluation.metrics import IoUMetric

from tespec.metrics.segmentation import SegmentationScorer, confusion, scores

NAMES = ("flat", "background", "object", "vegetation")
CLASSES = len(NAMES)
PREDICTIONS = st_numpy.arrays(np.uint8, (3, 7, 9), elements=st.integers(0, CLASSES - 1))
LABELS = st_numpy.arrays(np.uint8, (3, 7, 9), elements=st.sampled_from([*range(CLASSES), 255]))


def scores_of_mmseg(predicted, labels):
    """Scores in percent and IoU by class; a class without labels has IoU 0 and no recall."""
    areas = IoUMetric.intersect_and_union(
        torch.from_numpy(predicted), torch.from_numpy(labels), CLASSES, 255
    )
    with np.errstate(invalid="ignore", divide="ignore"):
        metrics = IoUMetric.total_area_to_metrics(*areas, ["mIoU"])
    iou = 100 * np.nan_to_num(metrics["IoU"])
    recall = 100 * metrics["Acc"][~np.isnan(metrics["Acc"])]
    means = {"miou": iou.mean(), "mean_class_acc": recall.mean() if len(recall) else 0}
    return means | {"pixel_acc": 100 * np.nan_to_num(metrics["aAcc"])}, iou


@given(PREDICTIONS, LABELS)
def test_scores_are_those_of_mmsegmentation_however_frames_are_shared_out(predicted, labels):
    scorer, other = SegmentationScorer(NAMES), SegmentationScorer(NAMES)
    for number in range(3):
        target = other if number == 1 else scorer
        target.update(
            predicted[number], labels[number], f"dir{number}", ("moving",) if number else ()
        )
    scorer.merge([other.state()])
    metrics, iou = scores_of_mmseg(predicted, labels)
    assert scorer.overall().metrics() == pytest.approx(metrics)
    assert list(scorer.overall().classes.values()) == pytest.approx(iou)
    for number in range(3):
        expected = scores_of_mmseg(predicted[number], labels[number])[0]
        assert scorer.by("recording")[f"dir{number}"].metrics() == pytest.approx(expected)
    assert scorer.by("group")["moving"].metrics() == pytest.approx(
        scores_of_mmseg(predicted[1:], labels[1:])[0]
    )


def test_classes_without_labels_are_counted():
    scorer = SegmentationScorer(NAMES)
    scorer.update(np.array([[0, 1, 2]]), np.array([[0, 2, 255]]), "dir1")
    assert scorer.overall().partial == {"mean_class_acc": "2 of 4 classes"}
    assert scorer.definition().endswith("; no pixel is labelled background, vegetation")


def test_counts_beyond_32_bits_are_exact():
    large = scores(np.array([[3 * 2**40, 2**40], [0, 2**40]]), ("a", "b"))
    assert large.classes == pytest.approx({"a": 75, "b": 50})


@pytest.mark.parametrize(
    ("predicted", "labels", "message"),
    [
        ([0, 4], [0, 1], "predictions range from 0 to 4, not within 0 to 3"),
        ([0, -1], [0, 1], "predictions range from -1 to 0, not within 0 to 3"),
        ([0, 1], [0, 7], "labels range from 0 to 7, not within 0 to 3"),
        ([0, 1], [0, 1, 2], "different shapes"),
    ],
)
def test_what_is_no_class_is_refused_where_a_label_is(predicted, labels, message):
    with pytest.raises(ValueError, match=message):
        confusion(np.array(predicted), np.array(labels), CLASSES)
    assert not confusion(np.array([77]), np.array([255]), CLASSES).any()

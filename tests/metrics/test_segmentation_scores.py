import tespec.core.compat  # noqa: F401  # before mmseg

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tespec.metrics.segmentation import DEFINITION, SegmentationScorer, confusion, scores

NAMES = ("flat", "background", "object", "vegetation")
CLASSES = len(NAMES)


def images(elements):
    return st_numpy.arrays(np.uint8, (3, 7, 9), elements=elements)


PREDICTIONS = images(st.integers(0, CLASSES - 1))
LABELS = images(st.sampled_from([*range(CLASSES), 255]))


def plain_scores(predicted, labels):
    """The three scores in percent and the IoU of each class, counted class by class."""
    valid = labels != 255
    iou, recall = [], []
    for k in range(CLASSES):
        hits = ((predicted == k) & (labels == k)).sum()
        either = (((predicted == k) & valid) | (labels == k)).sum()
        labelled = (labels == k).sum()
        iou.append(100 * hits / either if either else 0.0)
        if labelled:
            recall.append(100 * hits / labelled)
    right = ((predicted == labels) & valid).sum()
    pixel_acc = 100 * right / valid.sum() if valid.any() else 0.0
    return {"miou": np.mean(iou), "mean_class_acc": np.mean(recall or [0.0]), "pixel_acc": pixel_acc}, iou


@given(PREDICTIONS, LABELS)
def test_scores_are_those_of_the_plain_definition(predicted, labels):
    scorer = SegmentationScorer(NAMES)
    for number in range(3):
        scorer.update(predicted[number], labels[number], f"dir{number}")
    metrics, iou = plain_scores(predicted, labels)
    assert scorer.overall().metrics() == pytest.approx(metrics)
    assert scorer.overall().iou == pytest.approx(iou)
    for name, each in scorer.by("recording").items():
        number = int(name[-1])
        assert each.metrics() == pytest.approx(plain_scores(predicted[number], labels[number])[0])


def test_a_class_that_occurs_nowhere_has_no_recall_and_an_iou_of_0():
    result = scores(confusion(np.array([0, 0, 1, 1]), np.array([0, 0, 1, 0]), 4))
    assert result.iou == pytest.approx((100 * 2 / 3, 50, 0, 0))
    assert result.miou == pytest.approx((200 / 3 + 50) / 4)
    assert result.mean_class_acc == pytest.approx((200 / 3 + 100) / 2)
    assert result.pixel_acc == 75
    assert "a class that occurs nowhere counting as 0" in DEFINITION


def test_mean_class_accuracy_is_that_of_mmsegmentation():
    from mmseg.evaluation.metrics import IoUMetric

    rng = np.random.default_rng(0)
    truth, found = rng.choice([0, 2, 255], (40, 60)), rng.integers(0, 3, (40, 60))
    areas = IoUMetric.intersect_and_union(torch.from_numpy(found), torch.from_numpy(truth), 4, 255)
    with np.errstate(invalid="ignore", divide="ignore"):
        theirs = IoUMetric.total_area_to_metrics(*areas, ["mIoU"])
    ours = scores(confusion(found, truth, 4))
    assert ours.mean_class_acc == pytest.approx(100 * np.nanmean(theirs["Acc"]), rel=1e-6)
    assert ours.pixel_acc == pytest.approx(100 * float(theirs["aAcc"]), rel=1e-6)


def test_classes_without_labels_are_named():
    scorer = SegmentationScorer(NAMES)
    scorer.update(np.zeros((2, 2), np.uint8), np.zeros((2, 2), np.uint8), "dir1")
    assert scorer.definition().endswith(f"; no pixel is labelled {', '.join(NAMES[1:])}")
    assert scorer.overall().partial == "mean_class_acc: 1 of 4 classes"


def test_counts_beyond_32_bits_are_exact():
    matrix = np.array([[3 * 2**40, 2**40], [0, 2**40]])
    assert scores(matrix).iou == pytest.approx((75, 50))


@pytest.mark.parametrize(
    ("predicted", "labels", "message"),
    [
        (np.array([0, 4]), np.array([0, 1]), "predictions from 0 to 4 for 4 classes"),
        (np.array([0, -1]), np.array([0, 1]), "predictions from -1 to 0 for 4 classes"),
        (np.array([0, 1]), np.array([0, 7]), "labels from 0 to 7 for 4 classes"),
        (np.zeros((2, 3)), np.zeros((3, 2)), "different shapes"),
    ],
)
def test_what_is_no_class_is_refused(predicted, labels, message):
    with pytest.raises(ValueError, match=message):
        confusion(predicted, labels, CLASSES)


def test_predictions_where_nothing_is_labelled_do_not_count():
    assert not confusion(np.array([77]), np.array([255]), CLASSES).any()

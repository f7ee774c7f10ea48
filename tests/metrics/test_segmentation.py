import tespec.core.compat  # noqa: F401  # before mmseg

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as st_numpy

from tespec.metrics.segmentation import SegmentationScorer, confusion, scores

NAMES = ("flat", "background", "object", "vegetation")
CLASSES = len(NAMES)
PREDICTIONS = st_numpy.arrays(np.uint8, (3, 7, 9), elements=st.integers(0, CLASSES - 1))
LABELS = st_numpy.arrays(np.uint8, (3, 7, 9), elements=st.sampled_from([*range(CLASSES), 255]))


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
def test_scores_are_those_of_the_plain_definition_however_frames_are_shared_out(predicted, labels):
    scorer, other = SegmentationScorer(NAMES), SegmentationScorer(NAMES)
    for number in range(3):
        each = other if number == 1 else scorer
        each.update(predicted[number], labels[number], f"dir{number}", ("moving",) if number else ())
    scorer.merge([other.state()])
    metrics, iou = plain_scores(predicted, labels)
    assert scorer.overall().metrics() == pytest.approx(metrics)
    assert list(scorer.overall().classes.values()) == pytest.approx(iou)
    for number in range(3):
        expected = plain_scores(predicted[number], labels[number])[0]
        assert scorer.by("recording")[f"dir{number}"].metrics() == pytest.approx(expected)
    assert scorer.by("group")["moving"].metrics() == pytest.approx(plain_scores(predicted[1:], labels[1:])[0])


def test_classes_without_labels_have_an_iou_of_0_and_no_recall_as_in_mmsegmentation():
    from mmseg.evaluation.metrics import IoUMetric

    rng = np.random.default_rng(0)
    truth, found = rng.choice([0, 2, 255], (40, 60)), rng.integers(0, 3, (40, 60))
    areas = IoUMetric.intersect_and_union(torch.from_numpy(found), torch.from_numpy(truth), 4, 255)
    with np.errstate(invalid="ignore", divide="ignore"):
        theirs = IoUMetric.total_area_to_metrics(*areas, ["mIoU"])
    scorer = SegmentationScorer(NAMES)
    scorer.update(found, truth, "dir1")
    ours = scorer.overall()
    assert ours.values["mean_class_acc"] == pytest.approx(100 * np.nanmean(theirs["Acc"]), rel=1e-6)
    assert ours.values["pixel_acc"] == pytest.approx(100 * float(theirs["aAcc"]), rel=1e-6)
    assert ours.values["miou"] == pytest.approx(100 * np.nan_to_num(theirs["IoU"]).mean(), rel=1e-6)
    assert ours.partial == {"mean_class_acc": "2 of 4 classes"}
    assert scorer.definition().endswith("; no pixel is labelled background, vegetation")


def test_counts_beyond_32_bits_are_exact():
    found = scores(np.array([[3 * 2**40, 2**40], [0, 2**40]]), ("a", "b"))
    assert found.classes == pytest.approx({"a": 75, "b": 50})


@pytest.mark.parametrize(
    ("predicted", "labels", "message"),
    [
        ([0, 4], [0, 1], "predictions from 0 to 4 for 4 classes"),
        ([0, -1], [0, 1], "predictions from -1 to 0 for 4 classes"),
        ([0, 1], [0, 7], "labels from 0 to 7 for 4 classes"),
        ([0, 1], [0, 1, 2], "different shapes"),
    ],
)
def test_what_is_no_class_is_refused_where_a_label_is(predicted, labels, message):
    with pytest.raises(ValueError, match=message):
        confusion(np.array(predicted), np.array(labels), CLASSES)
    assert not confusion(np.array([77]), np.array([255]), CLASSES).any()

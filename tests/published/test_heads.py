"""Heads of the tasks, their losses, boxes and metrics against values of the authors' functions."""

import math
from functools import partial

import numpy as np
import pytest
import torch
from published_values import assert_gradient, assert_loss, published
from torch import nn

from tespec.core.boxes import make_boxes
from tespec.datasets.augment import FlipZoom, transform_boxes
from tespec.metrics.depth import NAMES, DepthScorer, frame_errors
from tespec.metrics.detection import BoxFilter, DetectionScorer
from tespec.metrics.segmentation import SegmentationScorer
from tespec.models import EventSwin
from tespec.tasks import detection
from tespec.tasks.depth import DepthHead, MidasHead, gradient_loss, scale_invariant_loss, to_metres
from tespec.tasks.detection import DetectionHead, DetectionModel
from tespec.tasks.segmentation import SegmentationHead, SegmentationModel, dice_loss

CLASSES = 3

# Detection: uzh-rpg/RVT. A level of the head's outputs is (L, 8, h, w): box, objectness, classes.


def detector():
    return DetectionModel(
        EventSwin("swin_micro", img_size=(64, 96)), CLASSES, DetectionHead(channels=8)
    )


def outputs_of_head(values):
    levels = [values[f"in level {number}"].float().requires_grad_() for number in range(3)]
    kinds = slice(5, None), slice(0, 4), slice(4, 5)
    return levels, [[level[:, kind] for level in levels] for kind in kinds]


# "hard": a crowded frame, an empty one, one with boxes far from all locations, and one with boxes
# of a pixel and less. "fitted": predictions near the boxes; up to 7 locations learn a box.
@pytest.mark.parametrize("case", ["hard", "fitted", "random", "empty"])
def test_detection_assigns_and_weighs_as_rvt(case, monkeypatch):
    values, assigned = published(f"heads_simota_{case}"), []
    assign = detection.assign
    spy = lambda *args: assigned.append(assign(*args)) or assigned[0]  # noqa: E731
    monkeypatch.setattr(detection, "assign", spy)
    levels, outputs = outputs_of_head(values)
    losses = detector()._losses(outputs, values["in boxes"])
    positive, box, overlap = assigned[0]
    assert torch.equal(torch.where(positive, box, -1), values["out box"].long())
    torch.testing.assert_close(overlap, values["out overlap"], rtol=1e-5, atol=1e-8)
    for name in ("loss_box", "loss_objectness", "loss_class"):
        assert_loss(losses[name], values[f"out {name}"])
    total = sum(losses.values())
    assert_loss(total, values["out loss"])
    for level, gradient in enumerate(torch.autograd.grad(total, levels)):
        assert_gradient(gradient, values[f"grad level {level}"])


def test_batch_normalisation_of_the_detector_is_that_of_rvt():
    layers = [layer for layer in detector().modules() if isinstance(layer, nn.BatchNorm2d)]
    assert layers
    assert {(layer.eps, layer.momentum) for layer in layers} == {(1e-5, 0.1)}


# Boxes, of RVT's labels. They touch the borders, exceed them or are smaller than a pixel.


@pytest.mark.parametrize("number", range(18))
def test_boxes_are_flipped_zoomed_clipped_and_dropped_as_rvt_does(number):
    values = {name: value.numpy() for name, value in published("heads_boxes").items()}
    height, width = values["in size"]
    flipped, scale, left, top = values["in views"][number]
    shift = (-left * scale, -top * scale) if scale > 1 else (left, top)
    columns = (-scale, shift[0] + width * scale) if flipped else (scale, shift[0])
    axes = zip((scale, shift[1]), columns, strict=True)
    view = FlipZoom(np.arange(height), np.arange(width), *axes)
    boxes = values["in boxes"]
    moved = transform_boxes(make_boxes(boxes[:, 1:], boxes[:, 0].astype(int)), view)
    wanted = values[f"out view {number}"]
    assert moved.label.tolist() == wanted[:, 0].tolist()
    np.testing.assert_allclose(moved.corners, wanted[:, 1:], rtol=1e-6, atol=1e-4)


# Segmentation: uzh-rpg/ess, and Yan98/Event-Camera-Data-Dense-Pre-training (ECDDP).


def test_dice_and_cross_entropy_are_those_of_ess():
    values = published("heads_dice")
    backbone = EventSwin("swin_micro", img_size=(64, 96))
    model = SegmentationModel(backbone, 5, SegmentationHead(channels=8))
    logits, labels = values["in logits"].float().requires_grad_(), values["in labels"]
    dice = dice_loss(logits, labels)
    assert_loss(dice, values["out dice"])
    assert_gradient(torch.autograd.grad(dice, logits)[0], values["grad dice"])
    losses = model._losses(logits, labels)
    for ours, theirs in (("loss_dice", "out dice"), ("loss_ce", "out ce"), ("loss", "out loss")):
        assert_loss(losses[ours], values[theirs])
    assert_gradient(torch.autograd.grad(losses["loss"], logits)[0], values["grad loss"])


@pytest.mark.parametrize(("case", "labelled"), [("every class", 6), ("an absent class", 4)])
def test_segmentation_scores_are_those_of_ess_and_ecddp(case, labelled):
    values = published("heads_segmentation_metrics")
    values = {name.removesuffix(f", {case}"): value.numpy() for name, value in values.items()}
    scorer = SegmentationScorer("abcdef")
    for predicted, labels in zip(values["in predicted"], values["in labels"], strict=True):
        scorer.update(predicted, labels, "recording")
    scores, exactly = scorer.overall(), partial(pytest.approx, rel=1e-12)
    assert scores.values["miou"] == exactly(values["out miou"])
    assert scores.values["miou"] == exactly(values["out ecddp miou"])
    assert [*scores.classes.values()] == exactly(values["out iou"])
    assert scores.values["pixel_acc"] == exactly(values["out acc"])
    # ECDDP counts a class without labels as 0; here it has no recall.
    assert scores.values["mean_class_acc"] == exactly(values["out macc"] * 6 / labelled)


# Depth: isl-org/MiDaS and hamarh/HMNet_pth.


def test_the_depth_head_computes_what_the_one_of_midas_does():
    values = published("heads_midas")
    stages = [values[f"in stage {number}"].float().requires_grad_() for number in range(4)]
    head = MidasHead([stage.shape[1] for stage in stages], features=8)
    weights = {key.removeprefix("weight "): value.float() for key, value in values.items()}
    head.load_state_dict({name: weights[name] for name in head.state_dict()})
    depth = head(stages)
    torch.testing.assert_close(depth, values["out depth"], rtol=1e-5, atol=1e-6)
    gradients = torch.autograd.grad((depth * values["in weight"].float()).sum(), stages)
    for number, gradient in enumerate(gradients):
        assert_gradient(gradient, values[f"grad stage {number}"])


def test_losses_of_depth_are_those_of_hmnet():
    values = published("heads_depth_losses")
    prediction, valid = values["in prediction"].float().requires_grad_(), values["in valid"]
    difference = prediction - values["in target"]
    for name, loss in (
        ("si", scale_invariant_loss(difference, valid, 0.5)),
        ("gradient", gradient_loss(difference, valid, 3)),
    ):
        assert_loss(loss, values[f"out {name}"])
        gradient = torch.autograd.grad(loss, prediction, retain_graph=True)[0]
        assert_gradient(gradient, values[f"grad {name}"])


def test_normalised_log_depth_is_that_of_hmnet():
    """Up to alpha: the paper's is 3.7, HMNet's ln(80 / 1.978)."""
    values = published("heads_depth_losses")
    valid = values["in valid"]
    head = DepthHead(min_depth=1.978, max_depth=80.0, alpha=math.log(80 / 1.978))
    metres = to_metres(values["in target"][valid], head)
    torch.testing.assert_close(metres, values["in depth"].float()[valid], rtol=1e-5, atol=0)


def test_depth_scores_are_those_of_hmnet():
    values = {name: value.numpy() for name, value in published("heads_depth_metrics").items()}
    scorer = DepthScorer(1.978, 80.0)
    for predicted, truth in zip(values["in predicted"], values["in depth"], strict=True):
        scorer.update(predicted, truth, "recording")
    scores = scorer.overall().values
    assert [scores[name] for name in NAMES] == pytest.approx(values["out mean"].tolist(), rel=1e-5)
    frames = values["in predicted"], values["in depth"], values["out frames"]
    for predicted, truth, wanted in zip(*frames, strict=True):
        errors = frame_errors(predicted, truth, 1.978, 80.0)
        np.testing.assert_allclose(errors, wanted, rtol=1e-5)


# Detection scores: uzh-rpg/RVT, by pycocotools.


@pytest.mark.parametrize(("camera", "classes"), [("gen1", "ab"), ("gen4", "abc")])
def test_detection_scores_are_those_of_rvt(camera, classes):
    """Among frames before .5 s and without boxes, boxes at the filters' limits, equal scores."""
    values = {name: value.numpy() for name, value in published("heads_detection_metrics").items()}
    truth, predicted = (values[f"in {kind}, {camera}"] for kind in ("truth", "predicted"))
    scorer = DetectionScorer(classes, BoxFilter(30, 10))  # 1Mpx: half of 60 and 20 px
    for frame, time_us in enumerate(values[f"in times, {camera}"]):
        rows = [table[table[:, 0] == frame] for table in (predicted, truth)]
        boxes = [make_boxes(row[:, 2:6], row[:, 1].astype(int), row[:, 6]) for row in rows]
        scorer.update(*boxes, "recording", time_us)
    for name, score in scorer.overall().values.items():
        assert score == pytest.approx(100 * values[f"out {name}, {camera}"].item(), rel=1e-12)

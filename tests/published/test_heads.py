"""Heads of the tasks, their losses, boxes and metrics against values of the authors' functions."""

import numpy as np
import pytest
import torch
from published_values import assert_gradient, assert_loss, published
from torch import nn

from tespec.core.boxes import make_boxes
from tespec.datasets.batches import transform_boxes
from tespec.events.histogram import FlipZoom
from tespec.models import EventSwin
from tespec.tasks import detection
from tespec.tasks.detection import DetectionHead, DetectionModel

CLASSES = 3

# Detection: uzh-rpg/RVT. A level of the head's outputs is (L, 8, h, w): box, objectness, classes.


def detector():
    return DetectionModel(EventSwin("micro", img_size=(64, 96)), CLASSES, DetectionHead(channels=8))


def outputs_of_head(values):
    levels = [values[f"in level {number}"].float().requires_grad_() for number in range(3)]
    kinds = slice(5, None), slice(0, 4), slice(4, 5)
    return levels, [[level[:, kind] for level in levels] for kind in kinds]


# "hard": a crowded frame, an empty one, one with boxes far from all locations, and one with boxes of
# a pixel and less. "fitted": predictions near the boxes; up to 7 locations learn a box.
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
    view = FlipZoom(np.arange(height), np.arange(width), *zip((scale, shift[1]), columns, strict=True))
    boxes = values["in boxes"]
    moved = transform_boxes(make_boxes(boxes[:, 1:], boxes[:, 0].astype(int)), view)
    wanted = values[f"out view {number}"]
    assert moved.label.tolist() == wanted[:, 0].tolist()
    np.testing.assert_allclose(moved.corners, wanted[:, 1:], rtol=1e-6, atol=1e-4)

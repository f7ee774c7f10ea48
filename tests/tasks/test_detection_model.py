import numpy as np
import pytest
import torch

from tespec.models import EventSwin
from tespec.tasks.detection import DetectionModel

HEIGHT, WIDTH = 50, 70


def detection_model(**options):
    torch.manual_seed(0)
    return DetectionModel(EventSwin("micro", img_size=(64, 96)), 2, **options)


def batch(boxes, place=((0, 1), (0, 3), (1, 2)), seed=0):
    generator = torch.Generator().manual_seed(seed)
    return {
        "histograms": torch.randint(0, 4, (2, 4, 20, HEIGHT, WIDTH), generator=generator, dtype=torch.uint8),
        "fresh": torch.zeros(2, dtype=torch.bool),
        "label_place": torch.tensor(place, dtype=torch.int64).reshape(-1, 2),
        "boxes": padded(boxes, len(place)),
    }


def padded(boxes, labels, width=3):
    """As batches hold them, of rows of label, class, left, top, right and bottom."""
    rows = [[box[1:] for box in boxes if box[0] == label] for label in range(labels)]
    filled = [row + [[-1.0] * 5] * (width - len(row)) for row in rows]
    return torch.tensor(filled, dtype=torch.float32).reshape(-1, width, 5)


BOXES = [[0, 1, 5, 6, 30, 40], [0, 0, 40, 10, 60, 30], [2, 0, 10, 5, 45, 35]]


@pytest.mark.parametrize(("classes", "parameters"), [(2, 12_928_341), (3, 12_928_920)])
def test_parameters_of_neck_and_head(classes, parameters):
    model = DetectionModel(EventSwin("tiny", recurrent=False, img_size=(32, 32)), classes)
    counted = sum(parameter.numel() for part in (model.neck, model.head) for parameter in part.parameters())
    assert counted == parameters


def test_the_loss_is_the_sum_of_its_parts_and_reaches_every_parameter():
    model = detection_model()
    named, state = model.loss(batch(BOXES), None)
    named["loss"].backward()
    parts = [named[name] for name in ("loss_box", "loss_objectness", "loss_class")]
    torch.testing.assert_close(named["loss"], sum(parts))
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert not state[0][0].requires_grad


def test_a_step_without_labels_costs_nothing():
    model = detection_model()
    named, state = model.loss(batch([], place=[]), None)
    named["loss"].backward()
    assert named["loss"].item() == 0
    assert state is not None


def test_labels_without_boxes_cost_objectness_alone():
    named, _ = detection_model().loss(batch([]), None)
    assert named["loss_objectness"] > 0
    assert named["loss_box"] == named["loss_class"] == 0


def test_boxes_without_area_and_outside_of_the_image_do_no_harm():
    model = detection_model()
    flat = [[0, 0, 10, 10, 10.5, 30], [1, 1, 20, 20, 40, 20]]
    assert model.loss(batch(flat), None)[0]["loss_box"] == 0
    outside = [[0, 0, 500, 500, 600, 600]]
    assert torch.isfinite(model.loss(batch(outside), None)[0]["loss"])


def assert_same_boxes(found, wanted):
    np.testing.assert_allclose(found.corners, wanted.corners, atol=1e-3)
    np.testing.assert_array_equal(found.label, wanted.label)
    np.testing.assert_allclose(found.score, wanted.score, atol=1e-5)


@torch.no_grad()
def test_predictions_of_chosen_segments_and_of_a_stream_are_those_of_the_sequence():
    model, data = detection_model().eval(), batch(BOXES)
    whole, _ = model.predict(data["histograms"])
    chosen, _ = model.predict(data["histograms"], None, data["label_place"])
    for boxes, (lane, segment) in zip(chosen, data["label_place"].tolist(), strict=True):
        assert_same_boxes(boxes, whole[4 * lane + segment])
    state = None
    for segment in range(4):
        streamed, state = model.step(data["histograms"][:, segment], state)
        for lane in range(2):
            assert_same_boxes(streamed[lane], whole[4 * lane + segment])


@torch.no_grad()
@pytest.mark.parametrize("score", ["class", "objectness_x_class"])
def test_boxes_lie_in_the_image_and_do_not_overlap_within_a_class(score):
    model, data = detection_model(score=score, score_threshold=0.0001).eval(), batch(BOXES)
    (boxes, *_), _ = model.predict(data["histograms"])
    assert len(boxes.label) > 3
    assert boxes.corners.min() >= 0
    assert (boxes.corners <= (WIDTH, HEIGHT, WIDTH, HEIGHT)).all()
    assert (np.diff(boxes.score) <= 0).all()
    assert (boxes.size > 0).all()
    for label in range(2):
        corners = boxes.keep(boxes.label == label).corners
        left_top = np.maximum(corners[:, None, :2], corners[None, :, :2])
        right_bottom = np.minimum(corners[:, None, 2:], corners[None, :, 2:])
        shared = np.clip(right_bottom - left_top, 0, None).prod(axis=2)
        area = (corners[:, 2:] - corners[:, :2]).prod(axis=1)
        overlap = shared / (area[:, None] + area[None, :] - shared)
        np.fill_diagonal(overlap, 0)
        assert overlap.max(initial=0) <= 0.45 + 1e-4


@torch.no_grad()
def test_the_threshold_drops_what_lies_below():
    data = batch(BOXES)
    (none, *_), _ = detection_model(score_threshold=1.0).eval().predict(data["histograms"])
    assert len(none.label) == 0
    with pytest.raises(ValueError, match="unknown score 'best'"):
        detection_model(score="best")

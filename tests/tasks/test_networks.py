"""Networks of the three tasks: common behaviour, then the losses and predictions of every task."""

import math

import numpy as np
import pytest
import torch
from loss_cases import CASES
from torchvision.ops import box_iou

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.models import EventSwin
from tespec.registry import TASKS
from tespec.tasks.depth import (
    DepthHead,
    DepthModel,
    DepthTask,
    to_metres,
)
from tespec.tasks.detection import DetectionHead, DetectionModel
from tespec.tasks.segmentation import (
    TTA_SCALES,
    SegmentationHead,
    SegmentationModel,
    SegmentationTTA,
)

HEIGHT, WIDTH = 50, 70
NO_LABEL = {"segmentation": 255, "depth": math.nan, "detection": -1}
every_task = pytest.mark.parametrize("task", NO_LABEL)
EVERY = torch.cartesian_prod(torch.arange(2), torch.arange(3))  # lane and segment
FIRST = torch.tensor([[0, 0], [1, 0]])
RANGE = {"min_depth": 1.978, "max_depth": 80.0}


def case(task):
    """Network for 64x96 px, and a batch of 50x70 px."""
    model, batch = CASES[task]()
    if task == "detection":  # so that an untrained network finds boxes
        for conv in (*model.head.multi_level_conv_cls, *model.head.multi_level_conv_obj):
            torch.nn.init.zeros_(conv.bias)
            conv.weight.data *= 30
    cropped = {
        name: batch[name][..., :HEIGHT, :WIDTH]
        for name in ("histograms", "labels")
        if name in batch
    }
    return model, batch | cropped


@torch.no_grad()
def predicted(model, batch, index=EVERY):
    return model.eval().predict(batch["histograms"], None, index)[0]


def numbers_of(prediction):
    if isinstance(prediction, Boxes):
        return np.column_stack([prediction.corners, prediction.label, prediction.score])
    return prediction.numpy()


def test_parameters_of_the_heads():
    swin = EventSwin("swin_tiny", recurrent=False, img_size=(32, 32))
    segmentation, depth = (
        SegmentationModel(swin, 11, SegmentationHead()),
        DepthModel(swin, DepthHead(**RANGE)),
    )
    models = segmentation, depth, DetectionModel(swin, 2, DetectionHead())
    counts = [
        sum(parameter.numel() for parameter in model.parameters()) for model in (swin, *models)
    ]
    assert [count - counts[0] for count in counts[1:]] == [11_290_475, 4_112_513, 12_928_341]


@every_task
@torch.no_grad()
def test_predictions_of_chosen_segments_and_of_a_stream_are_those_of_the_sequence(task):
    model, batch = case(task)
    sequence, chosen = predicted(model, batch), predicted(model, batch, batch["label_position"])
    for prediction, (lane, segment) in zip(chosen, batch["label_position"].tolist(), strict=True):
        assert numbers_of(prediction).size
        np.testing.assert_allclose(
            numbers_of(prediction), numbers_of(sequence[3 * lane + segment]), rtol=1e-3, atol=1e-3
        )
    state = None
    for segment, histograms in enumerate(batch["histograms"].unbind(1)):
        alone, _ = model.predict(histograms.unsqueeze(1), state, FIRST)
        streamed, state = model.step(histograms, state)
        for lane in range(2):
            expected = numbers_of(sequence[3 * lane + segment])
            np.testing.assert_allclose(numbers_of(alone[lane]), expected, rtol=1e-3, atol=1e-3)
            np.testing.assert_array_equal(
                numbers_of(streamed[lane]), numbers_of(model.postprocess(alone)[lane])
            )
            assert task == "detection" or streamed[lane].shape == (HEIGHT, WIDTH)


@every_task
def test_a_step_trains_everything_and_hands_on_a_detached_state(task):
    model, batch = case(task)
    losses, state = model.loss(batch, None)
    losses["loss"].backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert model.backbone.get_parameter("swin.patch_embed.proj.weight").grad.abs().sum() > 0
    assert not any(part.requires_grad for pair in state for part in pair)
    if task != "depth":
        torch.testing.assert_close(
            losses["loss"], sum(loss for name, loss in losses.items() if name != "loss")
        )


@every_task
@pytest.mark.parametrize("labels", ["none", "empty", "out of range"])
def test_a_step_without_labels_that_count_costs_nothing(task, labels):
    model, batch = case(task)
    if labels == "none" and task != "segmentation":  # its head normalises over the labels
        batch |= {
            name: batch[name][:0] for name in ("label_position", "labels", "boxes") if name in batch
        }
    else:
        name = "boxes" if task == "detection" else "labels"
        beyond = 500.0 if (task, labels) == ("depth", "out of range") else NO_LABEL[task]
        batch[name] = torch.full_like(batch[name], beyond)
    losses, state = model.loss(batch, None)
    losses["loss"].backward()
    if task == "detection" and labels != "none":
        assert losses["loss_objectness"] > 0  # a frame known to be without boxes
        assert losses["loss_box"] == losses["loss_class"] == 0
    else:
        assert losses["loss"].item() == pytest.approx(0, abs=1e-6)
    # The optimizer would skip a gradient of None.
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    assert state is not None


@every_task
def test_a_frozen_backbone_has_no_gradient_and_records_no_graph(task):
    model, batch = case(task)
    model.freeze_backbone()
    assert not model.train().backbone.training
    recorded = []
    model.backbone.register_forward_hook(lambda *_: recorded.append(torch.is_grad_enabled()))
    model.loss(batch, None)[0]["loss"].backward()
    assert recorded == [False]
    assert all(parameter.grad is None for parameter in model.backbone.parameters())
    assert all(parameter.grad is not None for parameter in model.head.parameters())


def test_lanes_that_start_afresh_forget_and_the_others_do_not():
    model, batch = case("segmentation")
    afresh, state = model.eval().loss(batch, None)
    choices = ([True, True], [True, False], [False, False])
    losses = [
        model.loss(batch | {"is_first": torch.tensor(choice)}, state)[0]["loss"].item()
        for choice in choices
    ]
    assert losses[0] == pytest.approx(afresh["loss"].item(), rel=1e-6)
    assert len(set(losses)) == 3


def test_flip_is_the_mean_with_the_mirrored_image():
    model, batch = case("segmentation")
    straight, mirrored = (
        predicted(model, batch),
        predicted(model, {"histograms": batch["histograms"].flip(-1)}),
    )
    seen, _ = SegmentationTTA(model, TTA_SCALES["flip"], (HEIGHT, WIDTH)).predict(
        batch["histograms"], None, EVERY
    )
    torch.testing.assert_close(seen, (straight + mirrored.flip(-1)) / 2)


def test_views_at_scales_are_symmetric_carry_their_own_state_and_share_the_head():
    model, batch = case("segmentation")
    histograms, ends = batch["histograms"], torch.tensor([[0, 2], [1, 2]])
    views = SegmentationTTA(model.eval(), TTA_SCALES["ecddp"], (HEIGHT, WIDTH))
    expected, _ = views.predict(histograms, None, ends)
    mirrored, _ = views.predict(histograms.flip(-1), None, ends)
    torch.testing.assert_close(mirrored.flip(-1), expected, rtol=1e-4, atol=1e-5)
    state = None
    for segment in range(3):
        last, state = views.predict(histograms[:, segment : segment + 1], state, FIRST)
    torch.testing.assert_close(last, expected, rtol=1e-4, atol=1e-5)
    for parameter in model.head.conv_seg.parameters():
        torch.nn.init.zeros_(parameter)
    assert not views.predict(histograms, None, ends)[0].any()


def test_wild_depths_stay_numbers():
    head = DepthHead(**RANGE)
    assert torch.isfinite(to_metres(torch.tensor([-1e9, 1e9]), head)).all()
    assert to_metres(torch.tensor([1.0, 0.0]), head).tolist() == pytest.approx(
        [80.0, 1.978], rel=1e-3
    )


@pytest.mark.parametrize(
    ("box", "learned"),
    [([0, 10, 10, 10.5, 30], True), ([1, 20, 20, 40, 20], True), ([0, 500, 500, 600, 600], False)],
)
def test_slim_and_flat_boxes_are_learned_and_those_outside_of_the_image_do_no_harm(box, learned):
    model, batch = case("detection")
    batch["boxes"] = torch.tensor([[box]] * 3, dtype=torch.float32)
    losses, _ = model.loss(batch, None)
    assert (losses["loss_box"] > 0) == learned
    losses["loss"].backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("score", ["class", "objectness_x_class"])
def test_boxes_are_ranked_and_do_not_overlap_within_a_class(score):
    model, batch = case("detection")
    model.settings = DetectionHead(score=score, score_threshold=0.0001)
    boxes = predicted(model, batch)[0]
    assert len(boxes.label) > 3
    assert (np.diff(boxes.score) <= 0).all()
    assert (boxes.size > 0).all()
    for label in range(2):
        corners = torch.from_numpy(boxes.keep(boxes.label == label).corners)
        assert box_iou(corners, corners).fill_diagonal_(0).max() <= 0.45 + 1e-4
    model.settings = DetectionHead(score_threshold=1.0)
    assert not any(len(boxes.label) for boxes in predicted(model, batch))


def test_boxes_are_not_clipped_to_the_image():
    model, batch = case("detection")
    for name, parameter in model.head.named_parameters():
        if name.startswith("multi_level_conv_"):
            torch.nn.init.zeros_(parameter)
    # With all outputs 0, YOLOX predicts a box of one stride, centred at each location (k, l) *
    # stride.
    boxes = predicted(model, batch)[0]
    size = boxes.size[:, 0]
    assert np.array_equal(boxes.size[:, 1], size)
    for stride, last in (
        (8, (88, 56)),
        (16, (80, 48)),
        (32, (64, 32)),
    ):  # of 96 x 64 px, to which the image is padded
        corners = boxes.corners[size == stride]
        np.testing.assert_array_equal(
            corners.min(0), (-stride / 2, -stride / 2, stride / 2, stride / 2)
        )
        np.testing.assert_array_equal(corners.max(0)[:2], np.array(last) - stride / 2)


def test_equal_boxes_of_two_classes_outside_of_the_image_do_not_suppress_each_other():
    model, _ = case("detection")
    corners, scores = torch.tensor([[-30.0, -30, -1, -1]] * 3), torch.tensor([0.9, 0.8, 0.7])
    assert model._boxes(corners, torch.tensor([0, 1, 1]), scores, scores).label.tolist() == [0, 1]


@every_task
@torch.no_grad()
def test_predictions_that_are_not_finite_are_refused(task):
    outputs = {"segmentation": ["conv_seg"], "depth": ["predict"]}
    for name in outputs.get(task, [f"multi_level_conv_{kind}.0" for kind in ("cls", "reg", "obj")]):
        model, batch = case(task)
        model.head.get_submodule(name).bias[0] = math.nan
        # a diverging training is stopped by its loss
        assert not model.loss(batch, None)[0]["loss"].isfinite()
        with pytest.raises(
            UserError, match="the trained model: predicts infinity or NaN; lower optimisation"
        ):
            TASKS.module_dict[task].read(predicted(model, batch))


def test_a_task_with_a_collate_of_its_own_needs_blank_labels_of_its_own():
    class Own(DepthTask):
        collate = dict

    with pytest.raises(UserError, match=r"Own\.blank_labels: is missing; define it"):
        Own.blank_labels(None, (4, 6), 1, torch.device("cpu"))

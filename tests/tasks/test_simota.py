"""Batched SimOTA assignment and its loss against mmdetection's, frame by frame."""

import pytest
import torch
from mmengine.structures import InstanceData

from tespec.models import EventSwin
from tespec.registry import MODELS
from tespec.tasks.detection import STRIDES, DetectionHead, DetectionModel, assign

pytestmark = pytest.mark.filterwarnings("ignore")  # mmdetection uses deprecated functions
SIZES = ((8, 12), (4, 6), (2, 3))  # rows and columns of the three levels: 64 x 96 px
CLASSES = 3


def reference():
    """mmdetection's head with its default losses and assigner."""
    layers = {"in_channels": 8, "feat_channels": 8, "strides": STRIDES, "norm_cfg": {"type": "mmengine.BN"}}
    trained = {"train_cfg": {"assigner": {"type": "mmdet.SimOTAAssigner"}}}
    return MODELS.build({"type": "mmdet.YOLOXHead", "num_classes": CLASSES} | layers | trained)


def random_boxes(counts, generator):
    """Random class and corners (L, M, 5) of boxes in and around the image, padded with class -1."""
    padded = torch.full((len(counts), max(1, *counts), 5), -1.0)
    for row, count in zip(padded, counts, strict=True):
        corner = torch.rand(count, 2, generator=generator) * torch.tensor([100.0, 70.0]) - 5
        side = 1 + torch.rand(count, 2, generator=generator) ** 2 * 50
        label = torch.randint(0, CLASSES, (count, 1), generator=generator)
        row[:count] = torch.cat([label, corner, corner + side], 1)
    return padded


def predictions(boxes, places, generator, good):
    """Random corners (L, P, 4) and scores (L, P, C); a share `good` of the corners is close to a box."""
    shape = len(boxes), len(places)
    middle = places[:, :2] + torch.randn(*shape, 2, generator=generator) * 4
    half = places[:, 2:] * torch.rand(*shape, 2, generator=generator) * 1.5
    chosen = torch.randint(0, boxes.shape[1], (*shape, 1), generator=generator)
    true = boxes[..., 1:].gather(1, chosen.expand(-1, -1, 4))
    near = true + torch.randn(true.shape, generator=generator) * 2
    wild = torch.cat([middle - half, middle + half], 2)
    corners = torch.where(torch.rand(*shape, 1, generator=generator) < good, near, wild)
    return corners, torch.rand(*shape, CLASSES, generator=generator)


def truth_of(boxes):
    """Boxes (M, 5) of one frame as mmdetection's, without the padding."""
    kept = boxes[boxes[:, 0] >= 0]
    return InstanceData(bboxes=kept[:, 1:], labels=kept[:, 0].long())


@pytest.mark.parametrize("good", [0.0, 0.2, 0.9])
def test_random_frames_are_assigned_as_mmdetection_assigns_them(good):
    generator, head = torch.Generator().manual_seed(0), reference()
    priors = torch.cat(head.prior_generator.grid_priors(SIZES, device="cpu", with_stride=True))
    places = torch.cat([priors[:, :2] + priors[:, 2:] / 2, priors[:, 2:3]], 1)
    for _ in range(4):
        boxes = random_boxes([0, 1, 3, 12, 40, 2], generator)
        boxes[1, 0] = torch.tensor([0.0, 500, 500, 600, 600])  # far outside of the image
        corners, scores = predictions(boxes, places, generator, good)
        learns, box, overlap = assign(places, corners, scores, boxes[..., 1:], boxes[..., 0].long())
        for frame in range(len(boxes)):
            given = {"bboxes": corners[frame], "scores": scores[frame], "priors": places[:, [0, 1, 2, 2]]}
            wanted = head.assigner.assign(InstanceData(**given), truth_of(boxes[frame]))
            assert torch.equal(torch.where(learns[frame], box[frame], -1), wanted.gt_inds - 1)
            assert torch.equal(overlap[frame], torch.where(wanted.gt_inds > 0, wanted.max_overlaps, 0.0))
        assert not learns[:2].any()
        assert learns[4].sum() > 12


def model_and_maps(seed, scale):
    torch.manual_seed(seed)
    model = DetectionModel(EventSwin("micro", img_size=(64, 96)), CLASSES, DetectionHead(channels=8))
    return model, [
        [(scale * torch.randn(4, channels, *size)).requires_grad_() for size in SIZES] for channels in (CLASSES, 4, 1)
    ]


@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("counts", [[0, 1, 7, 3], [0, 0, 0, 0]])
def test_losses_and_gradients_are_those_of_mmdetection(counts, scale):
    model, maps = model_and_maps(1, scale)
    boxes = random_boxes(counts, torch.Generator().manual_seed(2))
    named, leaves = model._losses(maps, boxes), [level for kind in maps for level in kind]
    gradients = torch.autograd.grad(sum(named.values()), leaves)
    wanted = reference().loss_by_feat(*maps, [*map(truth_of, boxes)], [{"img_shape": (64, 96)}] * len(boxes))
    for ours, theirs in (("loss_box", "loss_bbox"), ("loss_objectness", "loss_obj"), ("loss_class", "loss_cls")):
        torch.testing.assert_close(named[ours], wanted[theirs], rtol=1e-6, atol=0)
    torch.testing.assert_close(gradients, torch.autograd.grad(sum(wanted.values()), leaves), rtol=1e-5, atol=1e-7)


def test_predictions_without_bounds_at_places_that_learn_nothing_leave_the_loss_finite():
    model, maps = model_and_maps(0, 1.0)
    with torch.no_grad():
        maps[1][0][:, 2:] = 200.0  # e^200 px wide
    assert all(torch.isfinite(loss) for loss in model._losses(maps, torch.full((4, 1, 5), -1.0)).values())

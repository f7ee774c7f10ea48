"""Batched SimOTA assignment and its loss against mmdetection's, frame by frame."""

import warnings

import pytest
import torch
from mmengine.structures import InstanceData

from tespec.models import EventSwin
from tespec.registry import MODELS
from tespec.tasks.detection import STRIDES, DetectionHead, DetectionModel, assign

SIZES = ((8, 12), (4, 6), (2, 3))  # rows and columns of the three levels: 64 x 96 px
CLASSES = 3


@pytest.fixture(autouse=True)
def old_ways():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def reference():
    losses = {
        f"loss_{name}": {"type": "mmdet.CrossEntropyLoss", "use_sigmoid": True, "reduction": "sum"}
        for name in ("cls", "obj")
    }
    box = {"type": "mmdet.IoULoss", "mode": "square", "eps": 1e-16, "reduction": "sum", "loss_weight": 5.0}
    return MODELS.build(
        {
            "type": "mmdet.YOLOXHead",
            "num_classes": CLASSES,
            "in_channels": 8,
            "feat_channels": 8,
            "strides": STRIDES,
            "norm_cfg": {"type": "mmengine.BN"},
            "train_cfg": {"assigner": {"type": "mmdet.SimOTAAssigner", "center_radius": 2.5}},
            "loss_bbox": box,
            **losses,
        }
    )


def centres():
    priors = torch.cat(reference().prior_generator.grid_priors(SIZES, device="cpu", with_stride=True))
    return torch.cat([priors[:, :2] + priors[:, 2:] / 2, priors[:, 2:3]], 1)


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
    count = len(places)
    middle = places[:, :2] + torch.randn(len(boxes), count, 2, generator=generator) * 4
    half = places[:, 2:] * torch.rand(len(boxes), count, 2, generator=generator) * 1.5
    corners = torch.cat([middle - half, middle + half], 2)
    chosen = torch.randint(0, boxes.shape[1], (len(boxes), count, 1), generator=generator)
    true = boxes[..., 1:].gather(1, chosen.expand(-1, -1, 4))
    near = true + torch.randn(true.shape, generator=generator) * 2
    corners = torch.where(torch.rand(len(boxes), count, 1, generator=generator) < good, near, corners)
    return corners, torch.rand(len(boxes), count, CLASSES, generator=generator)


def of_mmdet(assigner, places, corners, scores, boxes):
    """Index and overlap of the box assigned to each place of one frame; -1 if none."""
    kept = boxes[boxes[:, 0] >= 0]
    priors = torch.cat([places, places[:, 2:]], 1)
    found = assigner.assign(
        InstanceData(bboxes=corners, scores=scores, priors=priors),
        InstanceData(bboxes=kept[:, 1:], labels=kept[:, 0].long()),
    )
    learns = found.gt_inds > 0
    return found.gt_inds - 1, torch.where(learns, found.max_overlaps, 0.0)


def assert_alike(places, corners, scores, boxes):
    assigner = reference().assigner
    learns, box, overlap = assign(places, corners, scores, boxes[..., 1:], boxes[..., 0].long())
    assert overlap.dtype == torch.float32
    for frame in range(len(boxes)):
        wanted, wanted_overlap = of_mmdet(assigner, places, corners[frame], scores[frame], boxes[frame])
        assert torch.equal(torch.where(learns[frame], box[frame], -1), wanted)
        assert torch.equal(overlap[frame], wanted_overlap)
    return learns


@pytest.mark.parametrize("good", [0.0, 0.2, 0.9])
def test_random_frames_are_assigned_as_mmdetection_assigns_them(good):
    generator = torch.Generator().manual_seed(0)
    for _ in range(4):
        boxes = random_boxes([0, 1, 3, 12, 40, 2], generator)
        boxes[1, 0] = torch.tensor([0.0, 500, 500, 600, 600])  # far outside of the image
        learns = assert_alike(centres(), *predictions(boxes, centres(), generator, good), boxes)
        assert not learns[:2].any()
        assert learns[4].sum() > 12


def model_and_maps(seed, scale):
    torch.manual_seed(seed)
    model = DetectionModel(EventSwin("micro", img_size=(64, 96)), CLASSES, DetectionHead(channels=8))
    maps = [[scale * torch.randn(4, channels, *size) for size in SIZES] for channels in (CLASSES, 4, 1)]
    for level in (level for kind in maps for level in kind):
        level.requires_grad_()
    return model, maps


@pytest.mark.parametrize("scale", [0.3, 2.0])
@pytest.mark.parametrize("counts", [[0, 1, 7, 3], [0, 0, 0, 0]])
def test_losses_and_gradients_are_those_of_mmdetection(counts, scale):
    model, maps = model_and_maps(1, scale)
    boxes = random_boxes(counts, torch.Generator().manual_seed(2))
    named = model._losses(maps, boxes)
    leaves = [level for kind in maps for level in kind]
    gradients = torch.autograd.grad(sum(named.values()), leaves)
    truth = [InstanceData(bboxes=row[row[:, 0] >= 0, 1:], labels=row[row[:, 0] >= 0, 0].long()) for row in boxes]
    wanted = reference().loss_by_feat(*maps, truth, [{"img_shape": (64, 96)}] * len(boxes))
    for ours, theirs in (("loss_box", "loss_bbox"), ("loss_objectness", "loss_obj"), ("loss_class", "loss_cls")):
        torch.testing.assert_close(named[ours], wanted[theirs], rtol=1e-6, atol=0)
    for one, other in zip(gradients, torch.autograd.grad(sum(wanted.values()), leaves), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-7)


def test_predictions_without_bounds_at_places_that_learn_nothing_leave_the_loss_finite():
    model, maps = model_and_maps(0, 1.0)
    with torch.no_grad():
        maps[1][0][:, 2:] = 200.0  # e^200 px wide
    named = model._losses(maps, torch.full((4, 1, 5), -1.0))
    assert all(torch.isfinite(value) for value in named.values())

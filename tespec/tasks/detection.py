"""Object detection: YOLOX head, losses with SimOTA, and COCO AP by the Prophesee protocol."""

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

import tespec.core.compat  # noqa: F401  # before mmdet

import pydantic
import torch
from mmcv.ops import batched_nms
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy, binary_cross_entropy_with_logits

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.distributed import global_mean, rank_computes
from tespec.core.settings import Depth, Finetuning, Fraction, NonNegativeFloat, Width, build
from tespec.datasets.batches import NO_BOX, LabelledBatches, StepBatches, pad_boxes
from tespec.datasets.lanes import FULL_BATCH, Shard
from tespec.datasets.recording import LabelledRecording, cut_at_gaps
from tespec.metrics import Score
from tespec.metrics.detection import BoxFilter, DetectionScorer
from tespec.models import Backbone
from tespec.models.layers import in_fp32
from tespec.registry import MODELS, TASKS
from tespec.tasks.base import (
    Network,
    Task,
    dummy_labels,
    groups_of,
    require_finite,
    select_labelled,
)

STAGES = (1, 2, 3)  # stages of the backbone that the neck uses, at 1/8, 1/16 and 1/32
STRIDES = (8, 16, 32)
NMS = {"type": "nms", "iou_threshold": 0.45}  # per class (uzh-rpg/RVT)
PRIOR = 0.01  # initial probability of an object at a location
CANDIDATES = 1000  # boxes of a frame, by score, that reach non-maximum suppression
# Losses and SimOTA: uzh-rpg/RVT, models/detection/yolox/models/yolo_head.py and losses.py.
BOX_WEIGHT = 5.0  # of the IoU loss
RADIUS = 1.5  # in strides: locations this near to a box's centre, along both axes, may learn it
TOP_IOUS = 10  # a box's largest IoUs; their sum is the number of locations that learn it
IOU_WEIGHT = 3.0  # of the IoU in the cost of an assignment
FAR_COST = 1e6  # of a location that is not near the box's centre
COST_EPS = 1e-8  # added to the IoU in its logarithm
IOU_EPS = 1e-16  # added to the area of the union
# PyTorch's, which RVT keeps, unlike YOLOX and mmdetection.
NORM = {"type": "mmengine.BN", "momentum": 0.1, "eps": 1e-5}


@pydantic.dataclasses.dataclass(frozen=True)
class DetectionHead:
    """Settings of the YOLOX neck and head, of their predictions, and of the scored boxes."""

    # Width of neck and head; None: twice that of the backbone's first stage. For Swin-T (192) and
    # two classes, they have 12,928,341 parameters.
    channels: Width | None = None
    neck_blocks: Depth = 2  # bottlenecks per CSP layer of the neck
    # score that ranks predictions; "class" is RVT's
    score: Literal["class", "objectness_x_class"] = "class"
    score_threshold: Fraction = 0.001  # minimum objectness times class score of a prediction
    min_diagonal: NonNegativeFloat = 0.0  # px of the sensor; smaller boxes are not scored
    min_side: NonNegativeFloat = 0.0  # px of the sensor; boxes with a smaller side are not scored
    # labels up to this time after a recording's start are not scored
    skip_ms: NonNegativeFloat = 0.0


class DetectionModel(Network):
    """Backbone, `mmdet.YOLOXPAFPN` and `mmdet.YOLOXHead` with SimOTA, as in RVT.

    The loss is 5 IoU + objectness + class.
    """

    def __init__(self, backbone: Backbone, classes: int, settings: DetectionHead) -> None:
        super().__init__(backbone)
        self.settings = settings
        width = settings.channels or 2 * backbone.channels[0]
        self.neck = MODELS.build(
            {
                "type": "mmdet.YOLOXPAFPN",
                "in_channels": [backbone.channels[stage] for stage in STAGES],
                "out_channels": width,
                "num_csp_blocks": settings.neck_blocks,
                "norm_cfg": NORM,
            }
        )
        self.head = MODELS.build(
            {
                "type": "mmdet.YOLOXHead",
                "num_classes": classes,
                "in_channels": width,
                "feat_channels": width,
                "strides": STRIDES,
                "norm_cfg": NORM,
            }
        )
        # YOLOX's initialisation: PyTorch's default for convolutions, and a prior probability for
        # objects.
        for module in (*self.neck.modules(), *self.head.modules()):
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
        for conv in (*self.head.multi_level_conv_cls, *self.head.multi_level_conv_obj):
            nn.init.constant_(conv.bias, -math.log((1 - PRIOR) / PRIOR))

    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute the losses.

        Boxes are (L, M, 5) float32: class, left, top, right and bottom in px; padding has the class
        -1. As in RVT, boxes smaller than a pixel are learned too.

        Returns:
            "loss" and its terms "loss_box", "loss_objectness" and "loss_class": sums over all
            locations, divided by the number of positive ones, of all ranks. A step without labels
            has zero loss; a label without boxes only adds to objectness.
        """
        index, boxes, empty = dummy_labels(batch["label_position"], batch["boxes"], NO_BOX)
        with rank_computes(unlabelled=empty):
            levels = [feature.float() for feature in select_labelled(features[1:], index)]
            losses = self._losses(self.head(self.neck(levels)), boxes)
        if empty:
            losses = {name: value * 0.0 for name, value in losses.items()}
        return {"loss": sum(losses.values(), torch.zeros((), device=index.device))} | losses

    @in_fp32
    def _losses(self, outputs: Sequence[Sequence[Tensor]], boxes: Tensor) -> dict[str, Tensor]:
        classes, predicted, objectness, grid = self._decode(outputs)
        label = boxes[..., 0].long()  # (L, M)
        first = boxes[..., 1:3]
        last = boxes[..., 3:]
        truth = torch.cat([(first + last) / 2, last - first], dim=2)  # (L, M, 4)
        scores = (classes.detach().sigmoid() * objectness.detach().sigmoid().unsqueeze(2)).sqrt()
        positive, box, overlap = assign(grid, predicted.detach(), scores, truth, label)  # (L, P)
        target = truth.gather(1, box.unsqueeze(2).expand(-1, -1, 4))  # (L, P, 4)
        # Locations without a box predict their target, at no cost: real predictions there may be
        # unbounded.
        ious = iou(torch.where(positive.unsqueeze(2), predicted, target), target)
        is_class = label.gather(1, box).unsqueeze(2) == torch.arange(
            classes.shape[2], device=label.device
        )
        class_loss = binary_cross_entropy_with_logits(
            classes, is_class * overlap.unsqueeze(2), reduction="none"
        )
        totals = {
            "loss_box": BOX_WEIGHT * ((1 - ious.square()) * positive).sum(),
            "loss_objectness": binary_cross_entropy_with_logits(
                objectness, positive.float(), reduction="sum"
            ),
            "loss_class": (class_loss * positive.unsqueeze(2)).sum(),
        }
        n_positive = positive.sum()
        return {name: global_mean(total, n_positive) for name, total in totals.items()}

    def _decode(self, outputs: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decode the head's outputs at all locations of all levels, in float32.

        Returns:
            class logits (L, P, C), boxes (L, P, 4) as centre and size in px, objectness logits
            (L, P), and the locations (P, 3), see `grid_of`.
        """
        flat = [[level.float().flatten(2).transpose(1, 2) for level in kind] for kind in outputs]
        classes = torch.cat(flat[0], dim=1)
        offsets = torch.cat(flat[1], dim=1)
        objectness = torch.cat(flat[2], dim=1).squeeze(2)
        levels = zip(outputs[0], STRIDES, strict=True)
        grid = torch.cat([grid_of(level.shape[2:], side, level.device) for level, side in levels])
        stride = grid[:, 2:]
        centre = (offsets[..., :2] + grid[:, :2]) * stride
        boxes = torch.cat([centre, offsets[..., 2:].exp() * stride], dim=2)
        return classes, boxes, objectness, grid

    def outputs(self, features: list[Tensor], size: Sequence[int]) -> list[Boxes]:
        """Predict the boxes of L segments.

        Returns:
            boxes by decreasing score, not limited to the image.
        """
        classes, predicted, objectness, _ = self._decode(self.head(self.neck(features[1:])))
        centre = predicted[..., :2]
        half = predicted[..., 2:] / 2
        corners = torch.cat([centre - half, centre + half], dim=2)  # (L, P, 4)
        best, label = classes.sigmoid().max(dim=2)  # (L, P)
        product = best * objectness.sigmoid()
        return list(map(self._boxes, corners, label, best, product))

    def _boxes(self, corners: Tensor, label: Tensor, best: Tensor, product: Tensor) -> Boxes:
        """Select the boxes of a frame by their scores and non-maximum suppression.

        Args:
            corners: (P, 4), left, top, right and bottom in px.
            label: (P,) class.
            best: (P,) class score.
            product: (P,) class score times objectness.
        """
        index = (product >= self.settings.score_threshold).nonzero().squeeze(1)
        require_finite(product, corners[index])
        index = index[product[index].topk(min(CANDIDATES, len(index))).indices]
        if len(index):
            # mmcv separates classes only where no coordinate is negative.
            shifted = corners[index] - corners[index].min()
            _, selected = batched_nms(shifted, product[index], label[index], NMS)
            index = index[selected]
        score = best if self.settings.score == "class" else product
        index = index[score[index].argsort(descending=True, stable=True)]
        columns = (corners, label, score)
        return make_boxes(*(column[index].detach().cpu().numpy() for column in columns))


def grid_of(size: Sequence[int], stride: int, device: torch.device) -> Tensor:
    """List the locations of a level.

    Args:
        size: (rows, columns) of the level.
        stride: px.
        device: where the result is created.

    Returns:
        (rows * columns, 3) float32: column, row and stride in px.
    """
    sides = [torch.arange(count, device=device).float() for count in size]
    row, column = torch.meshgrid(*sides, indexing="ij")  # mmdetection's version warns
    return torch.stack([column, row, torch.full_like(row, stride)], dim=-1).flatten(0, 1)


@torch.no_grad()
def assign(
    grid: Tensor, predicted: Tensor, scores: Tensor, boxes: Tensor, label: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Assign ground truth boxes to locations by SimOTA, for all frames of a step together.

    A box is learned by the locations of lowest cost; their number is the sum of its largest IoUs,
    at least one. Only locations near the centre of any box of the frame can learn. A location
    matched by multiple boxes learns the one of lowest cost; equal costs may be ranked differently
    from RVT. Shapes do not depend on the values, so nothing waits for the device.
    Source: uzh-rpg/RVT, models/detection/yolox/models/yolo_head.py, `get_assignments`.

    Args:
        grid: (P, 3) float32, column, row and stride in px of each location.
        predicted: (L, P, 4) float32, centre and size of the predicted boxes in px.
        scores: (L, P, C) float32, roots of class times objectness probability.
        boxes: (L, M, 4) float32, centre and size of the ground truth boxes in px, M at least 1.
        label: (L, M) int64 classes of the boxes; -1 marks padding, whose `boxes` are ignored.

    Returns:
        whether a location learns a box (L, P) bool, the index of that box in its frame (L, P)
        int64, and the IoU (L, P) float32 of the location's prediction with it; the last two are 0
        for locations without a box.
    """
    stride = grid[:, 2:]
    centre = (grid[:, :2] + 0.5) * stride
    is_box = (label >= 0).unsqueeze(1)  # (L, 1, M)
    distance = (centre.unsqueeze(1) - boxes[..., :2].unsqueeze(1)).abs()  # (L, P, M, 2)
    near = (distance < (RADIUS * stride).unsqueeze(1)).all(-1) & is_box  # (L, P, M)
    possible = near.any(-1, keepdim=True) & is_box

    overlap = torch.where(possible, iou(predicted.unsqueeze(2), boxes.unsqueeze(1)), 0.0)
    iou_cost = IOU_WEIGHT * torch.log(overlap + COST_EPS)
    cost = _class_costs(scores, label) - iou_cost + FAR_COST * ~near
    cost = torch.where(possible, cost, torch.inf)  # (L, P, M)

    candidates = min(TOP_IOUS, len(grid))
    count = overlap.topk(candidates, dim=1).values.sum(1, keepdim=True).int().clamp(min=1)
    cheapest = cost.topk(candidates, dim=1, largest=False)
    rank = torch.arange(candidates, device=cost.device).view(-1, 1)
    taken = (rank < count) & (cheapest.values < torch.inf)
    matched = torch.zeros_like(possible).scatter_(1, cheapest.indices, taken)
    index = torch.arange(boxes.shape[1], device=cost.device)
    best = index == cost.argmin(-1, keepdim=True)
    matched = torch.where(matched.sum(-1, keepdim=True) > 1, best, matched)
    return matched.any(-1), (matched * index).sum(-1), (matched * overlap).sum(-1)


def iou(boxes: Tensor, others: Tensor) -> Tensor:
    """Compute intersection over union, with broadcasting.

    Args:
        boxes: (..., 4), centre and size.
        others: (..., 4), centre and size.

    Returns:
        (...) in [0, 1].
    """
    half = boxes[..., 2:] / 2
    other_half = others[..., 2:] / 2
    first = torch.maximum(boxes[..., :2] - half, others[..., :2] - other_half)
    last = torch.minimum(boxes[..., :2] + half, others[..., :2] + other_half)
    sides = (last - first).clamp(min=0)
    # The gradient of `prod` would wait for the device.
    shared = sides[..., 0] * sides[..., 1]
    union = boxes[..., 2] * boxes[..., 3] + others[..., 2] * others[..., 3] - shared
    return shared / (union + IOU_EPS)


def _class_costs(scores: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy (L, P, M) of the scores (L, P, C) of locations with the classes (L, M)."""
    classes = scores.shape[-1]
    # `binary_cross_entropy` raises for NaN, which makes the losses NaN too.
    expanded = scores.nan_to_num().unsqueeze(2).expand(-1, -1, classes, -1)  # (L, P, C, C)
    target = torch.eye(classes, device=scores.device).expand_as(expanded)
    costs = binary_cross_entropy(expanded, target, reduction="none").sum(-1)  # (L, P, C)
    return costs.gather(2, label.clamp(min=0).unsqueeze(1).expand(-1, scores.shape[1], -1))


@TASKS.register_module(name="detection")
class DetectionTask(Task):
    """Task on a data set with bounding boxes; see `Task`."""

    collate = pad_boxes
    head = DetectionHead
    content = "a box that is large and late enough"
    scores: ClassVar = {
        "map": Score("mAP ↑", "higher", "%"),
        "ap50": Score("AP50 ↑", "higher", "%"),
        "ap75": Score("AP75 ↑", "higher", "%"),
    }

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> DetectionModel:
        head = build(DetectionHead, settings.head, "head")
        return DetectionModel(backbone, len(settings.classes), head)

    def steps(self, seed: int, shard: Shard = FULL_BATCH) -> StepBatches:
        """Create the training batches; stretches without labels are skipped.

        Returns:
            the batches by step.
        """
        recordings = cut_at_gaps(self.train_subset, self.settings.segments)
        return LabelledBatches(recordings, self.settings, seed, pad_boxes, shard)

    def has_target(self, recording: LabelledRecording, label: int) -> bool:
        return bool((recording.labels[label].size > 0).all(axis=1).any())

    def is_scored(self, recording: LabelledRecording, label: int) -> bool:
        filters = self.scorer().filters
        time_us = recording.label_times[label] - recording.start
        return bool(time_us > filters.skip_us and filters.keeps(recording.labels[label]).any())

    def protocol(self) -> dict[str, str]:
        """Describe the data and the evaluation, with the choice and the scores of the boxes."""
        head = self.head_settings
        ranked = "class score" if head.score == "class" else "objectness times class score"
        return super().protocol() | {
            "predictions": f"ranked by {ranked}; of each frame, the {CANDIDATES} boxes with the "
            f"highest objectness times class score, from {head.score_threshold:g} on, reach "
            "non-maximum suppression"
        }

    def scorer(self) -> DetectionScorer:
        head = self.head_settings
        factor = self.scored[0].region.factor
        filters = BoxFilter(
            head.min_diagonal / factor, head.min_side / factor, round(head.skip_ms * 1000)
        )
        return DetectionScorer(self.settings.classes, filters)

    def score(
        self, scorer: Any, predicted: Boxes, truth: Boxes, recording: LabelledRecording, label: int
    ) -> None:
        time_us = int(recording.label_times[label]) - recording.start
        scorer.update(predicted, truth, recording.name, time_us, groups_of(recording, label))

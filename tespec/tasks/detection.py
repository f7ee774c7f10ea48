"""Object detection: YOLOX on the backbone, losses with SimOTA, and COCO AP by the Prophesee protocol."""

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
from tespec.core.settings import Depth, Finetuning, NonNegativeFloat, Share, Width, build
from tespec.datasets.batches import MIN_BOX_SIDE, NO_BOX, WHOLE, LabelledBatches, Shard, StepBatches, pad_boxes
from tespec.datasets.recording import LabelledRecording, cut_at_gaps
from tespec.metrics import Score
from tespec.metrics.detection import BoxFilter, DetectionScorer
from tespec.models import Backbone
from tespec.models.layers import in_fp32
from tespec.registry import MODELS, TASKS
from tespec.tasks.base import Network, Task, dummy_labels, groups_of, require_finite, select_labelled

STAGES = (1, 2, 3)  # stages of the backbone that the neck uses, at 1/8, 1/16 and 1/32
STRIDES = (8, 16, 32)
NMS = {"type": "nms", "iou_threshold": 0.45}  # per class (uzh-rpg/RVT)
BOX_WEIGHT, SMALLEST = 5.0, 1e-16  # IoU loss: its weight (YOLOX), and the minimum IoU (mmdetection)
PRIOR = 0.01  # initial probability of an object at a location
CANDIDATES = 1000  # boxes of a frame, by score, that reach non-maximum suppression
# SimOTA, with the constants of open-mmlab/mmdetection, sim_ota_assigner.py.
REACH = 2.5  # distance from a box's centre in strides, along both axes, within which locations may learn it
LARGEST = 10  # a box's largest IoUs; their sum is the number of locations that learn it
OVERLAP_WEIGHT = 3.0
FAR = 1e5  # cost of a location that is not both inside a box and near its centre
SMALLEST_OVERLAP, SMALLEST_AREA = 1e-7, 1e-6
NORM = {"type": "mmengine.BN", "momentum": 0.03, "eps": 0.001}


@pydantic.dataclasses.dataclass(frozen=True)
class DetectionHead:
    """Settings of the YOLOX neck and head, of their predictions, and of the boxes that are scored."""

    # Width of neck and head; None: twice that of the backbone's first stage. For Swin-T (192) and two classes, they
    # have 12,928,341 parameters.
    channels: Width | None = None
    neck_blocks: Depth = 2  # bottlenecks per CSP layer of the neck
    score: Literal["class", "objectness_x_class"] = "class"  # score that ranks predictions; "class" is RVT's
    score_threshold: Share = 0.001  # minimum objectness times class score of a prediction
    min_diagonal: NonNegativeFloat = 0.0  # px of the sensor; smaller boxes are not scored
    min_side: NonNegativeFloat = 0.0  # px of the sensor; boxes with a smaller side are not scored
    skip_ms: NonNegativeFloat = 0.0  # labels up to this time after a recording's start are not scored


class DetectionModel(Network):
    """Backbone, `mmdet.YOLOXPAFPN` and `mmdet.YOLOXHead` with SimOTA; 5 IoU + objectness + class losses, as in RVT."""

    def __init__(self, backbone: Backbone, classes: int, settings: DetectionHead) -> None:
        super().__init__(backbone)
        self.settings, width = settings, settings.channels or 2 * backbone.channels[0]
        self.neck = MODELS.build({
            "type": "mmdet.YOLOXPAFPN", "in_channels": [backbone.channels[stage] for stage in STAGES],
            "out_channels": width, "num_csp_blocks": settings.neck_blocks, "norm_cfg": NORM,
        })  # fmt: skip
        self.head = MODELS.build({
            "type": "mmdet.YOLOXHead", "num_classes": classes, "in_channels": width, "feat_channels": width,
            "strides": STRIDES, "norm_cfg": NORM,
        })  # fmt: skip
        # YOLOX's initialisation: PyTorch's default for convolutions, and a prior probability for objects.
        for module in (*self.neck.modules(), *self.head.modules()):
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
        for conv in (*self.head.multi_level_conv_cls, *self.head.multi_level_conv_obj):
            nn.init.constant_(conv.bias, -math.log((1 - PRIOR) / PRIOR))

    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses "loss" and its terms "loss_box", "loss_objectness" and "loss_class".

        Each is the sum over all locations divided by the number of positive ones. A step without labels has zero loss;
        a label without boxes only adds to objectness. Boxes are (L, M, 5) float32: class, left, top, right and bottom
        in px; padding has the class -1. Boxes less than a pixel wide or high are ignored.
        """
        place, boxes, empty = dummy_labels(batch["label_place"], batch["boxes"], NO_BOX)
        with rank_computes(unlabelled=empty):
            levels = [feature.float() for feature in select_labelled(features[1:], place)]
            named = self._losses(self.head(self.neck(levels)), boxes)
        if empty:
            named = {name: value * 0.0 for name, value in named.items()}
        return {"loss": sum(named.values(), torch.zeros((), device=place.device))} | named

    @in_fp32
    def _losses(self, outputs: Sequence[Sequence[Tensor]], boxes: Tensor) -> dict[str, Tensor]:
        classes, corners, objectness, places = self._decoded(outputs)
        truth = boxes[..., 1:]
        large = (truth[..., 2:] - truth[..., :2] >= 1).all(-1)
        label = boxes[..., 0].long().masked_fill(~large, NO_BOX)
        centres = torch.cat([places[:, :2] + places[:, 2:] / 2, places[:, 2:]], dim=1)
        scores = (classes.detach().sigmoid() * objectness.detach().sigmoid().unsqueeze(2)).sqrt()
        learns, box, overlap = assign(centres, corners.detach(), scores, truth, label)
        own = truth.gather(1, box.unsqueeze(2).expand(-1, -1, 4))
        # Locations without a box predict their target, at no cost: real predictions there may be unbounded.
        found = overlaps(torch.where(learns.unsqueeze(2), corners, own), own).clamp(min=SMALLEST)
        of_class = label.gather(1, box).unsqueeze(2) == torch.arange(classes.shape[2], device=label.device)
        of_classes = binary_cross_entropy_with_logits(classes, of_class * overlap.unsqueeze(2), reduction="none")
        totals = {
            "loss_box": BOX_WEIGHT * ((1 - found.square()) * learns).sum(),
            "loss_objectness": binary_cross_entropy_with_logits(objectness, learns.float(), reduction="sum"),
            "loss_class": (of_classes * learns.unsqueeze(2)).sum(),
        }
        number = learns.sum()
        return {name: global_mean(total, number) for name, total in totals.items()}

    def _decoded(self, outputs: Sequence[Sequence[Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Decode the head's outputs at all locations of all levels, in float32.

        Returns class logits (L, P, C), boxes (L, P, 4) in px, objectness logits (L, P), and locations (P, 3): left and
        top in px, and stride.
        """
        classes, offsets, objectness = (
            torch.cat([level.float().flatten(2).transpose(1, 2) for level in kind], dim=1) for kind in outputs
        )
        levels = zip(outputs[0], STRIDES, strict=True)
        places = torch.cat([places_of(each.shape[2:], stride, each.device) for each, stride in levels])
        stride = places[:, 2:]
        middle, half = offsets[..., :2] * stride + places[:, :2], offsets[..., 2:].exp() * stride / 2
        return classes, torch.cat([middle - half, middle + half], dim=2), objectness.squeeze(2), places

    def outputs(self, features: list[Tensor], size: Sequence[int]) -> list[Boxes]:
        """Boxes of each segment by decreasing score, not clipped to the image."""
        classes, corners, objectness, _ = self._decoded(self.head(self.neck(features[1:])))
        best, label = classes.sigmoid().max(dim=2)
        return [self._boxes(*frame) for frame in zip(corners, label, best, best * objectness.sigmoid(), strict=True)]

    def _boxes(self, corners: Tensor, label: Tensor, best: Tensor, product: Tensor) -> Boxes:
        """Boxes of a frame from corners (P, 4), class, class score, and score times objectness of every location."""
        places = (product >= self.settings.score_threshold).nonzero().squeeze(1)
        require_finite(product, corners[places])
        places = places[product[places].topk(min(CANDIDATES, len(places))).indices]
        if len(places):
            # mmcv keeps classes apart only where no coordinate is negative.
            shifted = corners[places] - corners[places].min()
            _, kept = batched_nms(shifted, product[places], label[places], NMS)
            places = places[kept]
        score = (best if self.settings.score == "class" else product)[places]
        order = score.argsort(descending=True, stable=True)
        columns = (corners[places], label[places], score)
        return make_boxes(*(column[order].detach().cpu().numpy() for column in columns))


def places_of(size: Sequence[int], stride: int, device: torch.device) -> Tensor:
    """Left, top and stride in px of each location of a level, row by row, as (rows * columns, 3) float32."""
    sides = (torch.arange(count, device=device) * float(stride) for count in size)
    top, left = torch.meshgrid(*sides, indexing="ij")  # mmdetection's version warns
    return torch.stack([left, top, torch.full_like(top, stride)], dim=-1).flatten(0, 1)


@torch.no_grad()
def assign(
    places: Tensor, predicted: Tensor, scores: Tensor, boxes: Tensor, label: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """SimOTA: assign ground truth boxes to locations of the feature maps, for all frames of a step together.

    Each box is learned by the locations of lowest cost; their number is the sum of its largest IoUs, at least one. Only
    locations inside any box of the frame, or near the centre of one, can learn. A location matched by multiple boxes
    learns the one of lowest cost; ties may be resolved differently from mmdetection. Shapes do not depend on the
    values, so nothing waits for the device.
    Ge et al., "YOLOX: Exceeding YOLO Series in 2021".

    Args:
        places: (P, 3) float32, x and y of a location's centre and its stride, in px.
        predicted: (L, P, 4) float32, left, top, right and bottom of the predicted boxes in px.
        scores: (L, P, C) float32 class scores from 0 to 1.
        boxes: (L, M, 4) float32 ground truth boxes, M at least 1.
        label: (L, M) int64 classes of the boxes; -1 marks padding, whose `boxes` are ignored.

    Returns:
        whether each location learns a box (L, P) bool, the index of that box in its frame (L, P) int64, and the IoU
        (L, P) float32 of the location's prediction with it; the last two are 0 for locations without a box.
    """
    x, y, stride = places.unsqueeze(-1).unbind(1)  # (P, 1), against boxes (L, 1, M)
    left, top, right, bottom = boxes.unsqueeze(1).unbind(-1)
    there = (label >= 0).unsqueeze(1)
    inside = (x > left) & (y > top) & (x < right) & (y < bottom) & there
    middle_x, middle_y, reach = (left + right) / 2, (top + bottom) / 2, REACH * stride
    near = (x > middle_x - reach) & (y > middle_y - reach) & (x < middle_x + reach) & (y < middle_y + reach) & there
    possible = (inside | near).any(-1, keepdim=True) & there

    overlap = torch.where(possible, overlaps(predicted.unsqueeze(2), boxes.unsqueeze(1)), 0.0)
    cost = _class_costs(scores, label) - OVERLAP_WEIGHT * torch.log(overlap + SMALLEST_OVERLAP)
    cost = torch.where(possible, cost + ~(inside & near) * FAR, torch.inf)

    candidates = min(LARGEST, len(places))
    wanted = overlap.topk(candidates, dim=1).values.sum(1, keepdim=True).int().clamp(min=1)
    cheapest = cost.topk(candidates, dim=1, largest=False)
    rank = torch.arange(candidates, device=cost.device).view(-1, 1)
    taken = (rank < wanted) & (cheapest.values < torch.inf)
    matched = torch.zeros_like(possible).scatter_(1, cheapest.indices, taken)
    number = torch.arange(boxes.shape[1], device=cost.device)
    matched = torch.where(matched.sum(-1, keepdim=True) > 1, number == cost.argmin(-1, keepdim=True), matched)
    return matched.any(-1), (matched * number).sum(-1), (matched * overlap).sum(-1)


def overlaps(one: Tensor, other: Tensor) -> Tensor:
    """Intersection over union of boxes (..., 4) with others, broadcast over the leading axes."""
    sides = (torch.minimum(one[..., 2:], other[..., 2:]) - torch.maximum(one[..., :2], other[..., :2])).clamp(min=0)
    shared = sides[..., 0] * sides[..., 1]
    # The gradient of `prod` would wait for the device.
    areas = [(each[..., 2] - each[..., 0]) * (each[..., 3] - each[..., 1]) for each in (one, other)]
    return shared / (areas[0] + areas[1] - shared).clamp(min=SMALLEST_AREA)


def _class_costs(scores: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy (L, P, M) of the scores (L, P, C) of each location with the class (L, M) of each box."""
    classes = scores.shape[-1]
    # `binary_cross_entropy` raises for NaN, which makes the losses NaN too.
    each = scores.nan_to_num().unsqueeze(2).expand(-1, -1, classes, -1)
    target = torch.eye(classes, device=scores.device).expand_as(each)
    of_classes = binary_cross_entropy(each, target, reduction="none").sum(-1)
    return of_classes.gather(2, label.clamp(min=0).unsqueeze(1).expand(-1, scores.shape[1], -1))


@TASKS.register_module(name="detection")
class DetectionTask(Task):
    """Task on a data set with bounding boxes; see `Task`."""

    collate, head = pad_boxes, DetectionHead
    content = "a box that is large and late enough"
    scores: ClassVar = {
        "map": Score("mAP ↑", "higher", "%"),
        "ap50": Score("AP50 ↑", "higher", "%"),
        "ap75": Score("AP75 ↑", "higher", "%"),
    }

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> DetectionModel:
        return DetectionModel(backbone, len(settings.classes), build(DetectionHead, settings.head, "head"))

    def steps(self, seed: int, shard: Shard = WHOLE) -> StepBatches:
        """Training batches by step; stretches without labels are skipped."""
        recordings = cut_at_gaps(self.learned, self.settings.segments)
        return LabelledBatches(recordings, self.settings, seed, pad_boxes, shard)

    def is_learned(self, recording: LabelledRecording, label: int) -> bool:
        return bool((recording.labels[label].size >= MIN_BOX_SIDE).all(axis=1).any())

    def is_scored(self, recording: LabelledRecording, label: int) -> bool:
        filters = self.scorer().filters
        time_us = recording.label_times[label] - recording.start
        return bool(time_us > filters.skip_us and filters.keeps(recording.labels[label]).any())

    def scorer(self) -> DetectionScorer:
        head = build(DetectionHead, self.settings.head, "head")
        ranked = "class score" if head.score == "class" else "objectness times class score"
        described = f"{ranked}; of each frame, the {CANDIDATES} boxes with the highest objectness times class score, "
        described += f"from {head.score_threshold:g} on, reach non-maximum suppression"
        factor = self.scored[0].region.factor
        filters = BoxFilter(head.min_diagonal / factor, head.min_side / factor, round(head.skip_ms * 1000))
        return DetectionScorer(self.settings.classes, filters, described)

    def score(self, scorer: Any, predicted: Boxes, truth: Boxes, recording: LabelledRecording, label: int) -> None:
        """Update the scorer with the boxes of one frame and its time since the recording's start."""
        time_us = int(recording.label_times[label]) - recording.start
        scorer.update(predicted, truth, recording.name, time_us, groups_of(recording, label))

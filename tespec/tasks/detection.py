"""Object detection: YOLOX on the backbone with its losses, and COCO AP by the Prophesee protocol."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import tespec.core.compat  # noqa: F401  # before mmdet

import pydantic
import torch
from mmcv.ops import batched_nms
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.distributed import global_mean, rank_without_labels
from tespec.core.registry import MODELS, TASKS
from tespec.core.settings import Depth, Finetuning, NonNegativeFloat, Share, Size, Width, build
from tespec.datasets.base import TEST
from tespec.datasets.batches import NO_BOX, WHOLE, LabelledBatches, Shard, StepBatches, pad_boxes
from tespec.datasets.recording import LabelledRecording, cut_at_gaps
from tespec.metrics.detection import BoxFilter, DetectionScorer
from tespec.metrics.frames import Score
from tespec.models import Backbone
from tespec.models.layers import in_fp32
from tespec.tasks.base import Task, groups_of
from tespec.tasks.network import Network, dummy_labels, select_labelled
from tespec.tasks.simota import assign, overlaps

STAGES = (1, 2, 3)  # of the backbone that reach the neck, at 1/8, 1/16 and 1/32
STRIDES = (8, 16, 32)
OVERLAP = 0.45  # of two boxes of one class, above which non-maximum suppression drops one (uzh-rpg/RVT)
NMS = {"type": "nms", "iou_threshold": OVERLAP}
BOX_WEIGHT, SMALLEST = 5.0, 1e-16  # of the IoU loss: its weight (YOLOX), and the smallest overlap (mmdetection)
PRIOR = 0.01  # share of places that are taken for an object at the start
CANDIDATES = 1000  # best boxes of a frame that reach non-maximum suppression
BOXES = 16  # of a frame, where what a step costs is counted
NORM = {"type": "mmengine.BN", "momentum": 0.03, "eps": 0.001}


@pydantic.dataclasses.dataclass(frozen=True)
class DetectionHead:
    """The YOLOX neck and head, what they predict, and which boxes are scored.

    Attributes:
        channels: width of neck and head; None: twice that of the backbone's first stage. With Swin-T (192) neck and
            head have 12,928,341 parameters for two classes.
        neck_blocks: bottlenecks of each CSP layer of the neck.
        score: "class" ranks predictions by their class score alone (RVT), "objectness_x_class" by the product.
        score_threshold: predictions whose product of both is below are dropped.
        min_diagonal: smallest diagonal of a box that is scored, in px of the histograms.
        min_side: smallest side, likewise.
        skip_ms: labels up to this time of a recording are not scored.
    """

    channels: Width | None = None
    neck_blocks: Depth = 2
    score: Literal["class", "objectness_x_class"] = "class"
    score_threshold: Share = 0.001
    min_diagonal: NonNegativeFloat = 0.0
    min_side: NonNegativeFloat = 0.0
    skip_ms: NonNegativeFloat = 0.0


class DetectionModel(Network):
    """Backbone, `mmdet.YOLOXPAFPN` and `mmdet.YOLOXHead` with SimOTA; 5 IoU + objectness + class losses, as in RVT.

    Args:
        backbone: gives the features.
        classes: number of classes.
        settings: of neck and head.
    """

    def __init__(self, backbone: Backbone, classes: int, settings: DetectionHead) -> None:
        super().__init__(backbone)
        self.settings, width = settings, settings.channels or 2 * backbone.channels[0]
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
        # As YOLOX starts: PyTorch's own convolutions, and one place in a hundred taken for an object.
        for module in (*self.neck.modules(), *self.head.modules()):
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
        for conv in (*self.head.multi_level_conv_cls, *self.head.multi_level_conv_obj):
            nn.init.constant_(conv.bias, -math.log((1 - PRIOR) / PRIOR))

    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses "loss" and its summands "loss_box", "loss_objectness" and "loss_class".

        Each is the sum over all places divided by the number of those with an object. A step without labels costs
        nothing; a label without boxes costs objectness. Boxes are (L, M, 5) float32: class, left, top, right and
        bottom in px, the class -1 where a label has fewer than M; those less than a pixel wide or high are left out.
        """
        place, boxes, empty = dummy_labels(batch["label_place"], batch["boxes"], NO_BOX)
        if not len(boxes):
            zero = features[-1].float().sum() * 0.0
            if self.frozen:
                zero = zero.requires_grad_()  # trains nothing, but can be differentiated
            return {"loss": zero} | dict.fromkeys(("loss_box", "loss_objectness", "loss_class"), zero.detach())
        with rank_without_labels(empty):
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
        centres = torch.cat([places[:, :2] + places[:, 2:] / 2, places[:, 2:]], 1)
        scores = (classes.detach().sigmoid() * objectness.detach().sigmoid().unsqueeze(2)).sqrt()
        learns, box, overlap = assign(centres, corners.detach(), scores, truth, label)
        own = truth.gather(1, box.unsqueeze(2).expand(-1, -1, 4))
        # Places that learn no box stand for one that costs nothing: what is predicted there may be without bounds.
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
        """What the head says of all places of all levels, in float32.

        Returns:
            logits of the classes (L, P, C), boxes (L, P, 4) in px, logits of an object (L, P), and the places (P, 3),
            their left and top in px and their stride.
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
        """Boxes of each segment by falling score, clipped to the image."""
        classes, corners, objectness, _ = self._decoded(self.head(self.neck(features[1:])))
        limits = corners.new_tensor([size[1], size[0], size[1], size[0]])
        corners = torch.minimum(corners.clamp(min=0), limits)
        best, label = classes.sigmoid().max(dim=2)
        return [self._boxes(*frame) for frame in zip(corners, label, best, best * objectness.sigmoid(), strict=True)]

    def _boxes(self, corners: Tensor, label: Tensor, best: Tensor, product: Tensor) -> Boxes:
        """Boxes of a frame, from corners (P, 4), class, its score, and its product with objectness, of every place."""
        inside = ((corners[:, 2:] - corners[:, :2]) > 0).all(dim=1) & (product >= self.settings.score_threshold)
        places = inside.nonzero().squeeze(1)
        places = places[product[places].topk(min(CANDIDATES, len(places))).indices]
        if len(places):
            _, kept = batched_nms(corners[places], product[places], label[places], NMS)
            places = places[kept]
        score = (best if self.settings.score == "class" else product)[places]
        order = score.argsort(descending=True, stable=True)
        columns = (corners[places], label[places], score)
        return make_boxes(*(column[order].detach().cpu().numpy() for column in columns))


def places_of(size: Sequence[int], stride: int, device: torch.device) -> Tensor:
    """(rows * columns, 3) float32, left and top of each place of a level in px, row by row, and its stride."""
    sides = (torch.arange(count, device=device) * float(stride) for count in size)
    top, left = torch.meshgrid(*sides, indexing="ij")
    return torch.stack([left, top, torch.full_like(top, stride)], dim=-1).flatten(0, 1)


@TASKS.register_module(name="detection")
class DetectionTask(Task):
    """A data set with boxes; see `Task`."""

    collate = pad_boxes
    scores: ClassVar = {
        "map": Score("mAP ↑", "higher", "%"),
        "ap50": Score("AP50 ↑", "higher", "%"),
        "ap75": Score("AP75 ↑", "higher", "%"),
    }

    def __init__(self, settings: Finetuning, root: Path, split: str = TEST) -> None:
        self._head = build(DetectionHead, settings.head, "head")
        super().__init__(settings, root, split)

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> DetectionModel:
        """`backbone` with randomly initialised neck and head."""
        return DetectionModel(backbone, len(settings.classes), build(DetectionHead, settings.head, "head"))

    def steps(self, seed: int, shard: Shard = WHOLE) -> StepBatches:
        """Batches of the training by step; stretches without labels are left out."""
        recordings = cut_at_gaps(self.learned, self.settings.segments)
        return LabelledBatches(recordings, self.settings, seed, pad_boxes, shard)

    @classmethod
    def blank_labels(cls, settings: Finetuning, size: Size, count: int, device: torch.device) -> dict[str, Tensor]:
        """`BOXES` boxes in the middle of each label."""
        height, width = size
        box = torch.tensor([0, width / 4, height / 4, 3 * width / 4, 3 * height / 4], device=device)
        return {"boxes": box.repeat(count, BOXES, 1)}

    def scorer(self) -> DetectionScorer:
        """A scorer that has seen nothing."""
        head = self._head
        ranked = "class score" if head.score == "class" else "objectness times class score"
        described = f"{ranked}, of predictions with objectness times class score from {head.score_threshold:g}"
        filters = BoxFilter(head.min_diagonal, head.min_side, round(head.skip_ms * 1000))
        return DetectionScorer(self.settings.classes, filters, described)

    def score(self, scorer: Any, predicted: Boxes, truth: Boxes, recording: LabelledRecording, label: int) -> None:
        """Give the scorer the boxes of one frame, and the time since the recording's start."""
        time_us = int(recording.label_times[label]) - recording.start
        scorer.update(predicted, truth, recording.name, time_us, groups_of(recording, label))

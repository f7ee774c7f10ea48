"""Object detection: an event backbone with YOLOX's neck and head."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import tespec.core.compat  # noqa: F401  # before mmdet

import torch
from mmcv.ops import batched_nms
from mmengine.structures import InstanceData
from torch import Tensor, nn

from tespec.core.boxes import Boxes, make_boxes
from tespec.core.distributed import rank_without_labels, ranks_per_batch
from tespec.core.registry import MODELS
from tespec.models.backbone import Backbone, BackboneState, detach, reset
from tespec.models.labelled import first_place, pick
from tespec.models.layers import in_fp32

STAGES = (1, 2, 3)  # of the backbone that reach the neck, at 1/8, 1/16 and 1/32
STRIDES = (8, 16, 32)
OVERLAP = 0.45  # of two boxes of one class, above which non-maximum suppression drops one (uzh-rpg/RVT)
NMS = {"type": "nms", "iou_threshold": OVERLAP}
OLD_WAYS = ("torch.meshgrid", "`torch.cuda.amp.autocast", "User provided device_type of 'cuda'")
PRIOR = 0.01  # share of places that are taken for an object at the start
CANDIDATES = 1000  # best boxes of a frame that reach non-maximum suppression
SCORES = ("class", "objectness_x_class")
NORM = {"type": "mmengine.BN", "momentum": 0.03, "eps": 0.001}


@MODELS.register_module()
class DetectionModel(nn.Module):
    """Backbone, `mmdet.YOLOXPAFPN` and `mmdet.YOLOXHead` with SimOTA; 5 IoU + objectness + class losses, as in RVT.

    Args:
        backbone: gives the features.
        classes: number of classes.
        channels: width of neck and head; None: twice that of the backbone's first stage. With Swin-T (192) neck and
            head have 12,928,341 parameters for two classes.
        neck_blocks: bottlenecks of each CSP layer.
        score: "class" ranks predictions by their class score alone (RVT), "objectness_x_class" by the product.
        score_threshold: predictions whose product is below are dropped.
    """

    def __init__(
        self,
        backbone: Backbone,
        classes: int,
        channels: int | None = None,
        neck_blocks: int = 2,
        score: str = "class",
        score_threshold: float = 0.001,
    ) -> None:
        super().__init__()
        if score not in SCORES:
            raise ValueError(f"unknown score {score!r}; choose from {', '.join(SCORES)}")
        width = channels or 2 * backbone.channels[0]
        self.backbone, self.score, self.score_threshold = backbone, score, score_threshold
        self.neck = MODELS.build(
            {
                "type": "mmdet.YOLOXPAFPN",
                "in_channels": [backbone.channels[stage] for stage in STAGES],
                "out_channels": width,
                "num_csp_blocks": neck_blocks,
                "norm_cfg": NORM,
            }
        )
        losses = {
            "loss_cls": {"type": "mmdet.CrossEntropyLoss", "use_sigmoid": True, "reduction": "sum"},
            "loss_obj": {"type": "mmdet.CrossEntropyLoss", "use_sigmoid": True, "reduction": "sum"},
            "loss_l1": {"type": "mmdet.L1Loss", "reduction": "sum"},
            "loss_bbox": {
                "type": "mmdet.IoULoss",
                "mode": "square",
                "eps": 1e-16,
                "reduction": "sum",
                "loss_weight": 5.0,
            },
        }
        self.head = MODELS.build(
            {
                "type": "mmdet.YOLOXHead",
                "num_classes": classes,
                "in_channels": width,
                "feat_channels": width,
                "strides": STRIDES,
                "norm_cfg": NORM,
                "train_cfg": {"assigner": {"type": "mmdet.SimOTAAssigner", "center_radius": 2.5}},
                **losses,
            }
        )
        self._initialise()

    def _initialise(self) -> None:
        """As YOLOX starts: PyTorch's own convolutions, and one place in a hundred taken for an object."""
        for module in (*self.neck.modules(), *self.head.modules()):
            if isinstance(module, nn.Conv2d):
                module.reset_parameters()
        for conv in (*self.head.multi_level_conv_cls, *self.head.multi_level_conv_obj):
            nn.init.constant_(conv.bias, -math.log((1 - PRIOR) / PRIOR))

    def loss(
        self, batch: dict[str, Tensor], state: BackboneState | None
    ) -> tuple[dict[str, Tensor], BackboneState | None]:
        """Losses of a step; neck and head see the labelled segments alone, all at once.

        Args:
            batch: histograms (B, T, 2 * bins, H, W), fresh (B,) bool, label_place (L, 2) int64 lane and segment of
                each label, boxes (M, 6): row of label_place, class, left, top, right, bottom in px.
            state: what the step before returned, None at the start.

        Returns:
            "loss" and its summands "loss_box", "loss_objectness" and "loss_class", each the sum over all places divided
            by the number of those with an object; and the detached state. A step without labels costs nothing; a label
            without boxes costs objectness. Boxes less than a pixel wide or high are left out.
        """
        features, state = self.backbone(batch["histograms"], reset(state, batch["fresh"]))
        place, boxes = batch["label_place"], batch["boxes"]
        empty = not len(place)
        if empty and ranks_per_batch() == 1:
            nothing = features[-1].float().sum() * 0.0
            names = ("loss_box", "loss_objectness", "loss_class")
            return {"loss": nothing} | dict.fromkeys(names, nothing.detach()), detach(state)
        if empty:
            place = first_place(place)
        boxes = boxes[(boxes[:, 4:] - boxes[:, 2:4] >= 1).all(dim=1)]
        truth = [_instances(boxes[boxes[:, 0] == row]) for row in range(len(place))]
        height, width = batch["histograms"].shape[-2:]
        metas = [{"img_shape": (height, width)}] * len(place)
        with rank_without_labels(empty), _without_warnings():
            outputs = self.head(self.neck([feature.float() for feature in pick(features[1:], place)]))
            losses = in_fp32(self.head.loss_by_feat)(*outputs, truth, metas)
        named = {
            "loss_box": losses["loss_bbox"],
            "loss_objectness": losses["loss_obj"],
            "loss_class": losses["loss_cls"],
        }
        if empty:
            named = {name: value * 0.0 for name, value in named.items()}
        return {"loss": sum(named.values(), torch.zeros((), device=place.device))} | named, detach(state)

    def predict(
        self, histograms: Tensor, state: BackboneState | None = None, label_place: Tensor | None = None
    ) -> tuple[list[Boxes], BackboneState | None]:
        """Boxes of segments of histograms (B, T, 2 * bins, H, W), and the state.

        Args:
            histograms: of all segments.
            state: what the call before returned, None at the start.
            label_place: (L, 2) int64 lane and segment of those that reach the head; None: all, lane by lane.

        Returns:
            Boxes of each segment by falling score, clipped to the image; and the state.
        """
        features, state = self.backbone(histograms, state)
        if label_place is None:
            chosen = [feature.flatten(0, 1) for feature in features]
        else:
            chosen = pick(features, label_place)
        return self._boxes(chosen, histograms.shape[-2], histograms.shape[-1]), state

    def advance(self, histograms: Tensor, state: BackboneState | None = None) -> BackboneState | None:
        """The state after segments (B, T, 2 * bins, H, W) that nothing is predicted for."""
        return self.backbone(histograms, state)[1]

    def step(self, histogram: Tensor, state: BackboneState | None = None) -> tuple[list[Boxes], BackboneState | None]:
        """Boxes of one segment (B, 2 * bins, H, W) of each lane, and the state."""
        return self.predict(histogram.unsqueeze(1), state)

    def _boxes(self, features: list[Tensor], height: int, width: int) -> list[Boxes]:
        outputs = self.head(self.neck(features[1:]))
        classes, boxes, objectness = (
            torch.cat([level.float().flatten(2).transpose(1, 2) for level in kind], dim=1) for kind in outputs
        )
        sizes = [level.shape[2:] for level in outputs[0]]
        with _without_warnings():
            priors = self.head.prior_generator.grid_priors(
                sizes, dtype=boxes.dtype, device=boxes.device, with_stride=True
            )
        corners = self.head._bbox_decode(torch.cat(priors), boxes)
        limits = corners.new_tensor([width, height, width, height])
        corners = torch.minimum(corners.clamp(min=0), limits)
        best, label = classes.sigmoid().max(dim=2)
        product = best * objectness.sigmoid().squeeze(2)
        return [self._of_frame(*frame) for frame in zip(corners, label, best, product, strict=True)]

    def _of_frame(self, corners: Tensor, label: Tensor, best: Tensor, product: Tensor) -> Boxes:
        inside = ((corners[:, 2:] - corners[:, :2]) > 0).all(dim=1) & (product >= self.score_threshold)
        places = inside.nonzero().squeeze(1)
        places = places[product[places].topk(min(CANDIDATES, len(places))).indices]
        if len(places):
            _, kept = batched_nms(corners[places], product[places], label[places], NMS)
            places = places[kept]
        score = (best if self.score == "class" else product)[places]
        order = score.argsort(descending=True, stable=True)
        columns = (corners[places], label[places], score)
        return make_boxes(*(column[order].detach().cpu().numpy() for column in columns))


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Quiet where mmdet calls functions of torch in ways that recent versions warn of."""
    with warnings.catch_warnings():
        for message in OLD_WAYS:
            warnings.filterwarnings("ignore", message=message)
        yield


def _instances(boxes: Tensor) -> InstanceData:
    return InstanceData(bboxes=boxes[:, 2:], labels=boxes[:, 1].long())

"""Semantic segmentation: UperNet on the backbone, cross-entropy and Dice, mIoU, and test-time augmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import tespec.core.compat  # noqa: F401  # before mmseg

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from tespec.core.distributed import global_mean, rank_without_labels
from tespec.core.errors import UserError
from tespec.core.settings import Finetuning, Share, Size, Width, build
from tespec.datasets.base import TEST
from tespec.datasets.batches import stack_masks
from tespec.metrics import Score
from tespec.metrics.segmentation import IGNORE, SegmentationScorer
from tespec.models import Backbone
from tespec.models.backbone import BackboneState, resized
from tespec.models.layers import crop, in_fp32, padded_size
from tespec.registry import MODELS, TASKS
from tespec.tasks.base import Network, Task, dummy_labels, select_labelled

SMOOTH = 1.0


def dice_losses(logits: Tensor, labels: Tensor) -> Tensor:
    """One minus the Dice coefficient of each sample and class, absent ones included.

    Per sample and class it is 1 - (2 sum(p t) + 1) / (sum(p^2 + t^2) + 1) with softmax probabilities p and one-hot
    labels t, as in uzh-rpg/ess, utils/loss_functions.py.

    Args:
        logits: (N, classes, H, W).
        labels: (N, H, W) integers; pixels labelled 255 count in no sum.

    Returns:
        (N, classes) float32 between 0 and 1.
    """
    classes = logits.shape[1]
    labels = labels.unsqueeze(1)
    valid = labels != IGNORE
    target = labels == torch.arange(classes, device=labels.device).view(-1, 1, 1)
    share = logits.float().softmax(dim=1) * valid
    overlap = (share * target).sum(dim=(2, 3))
    total = (share.square() + target).sum(dim=(2, 3))
    return 1 - (2 * overlap + SMOOTH) / (total + SMOOTH)


@pydantic.dataclasses.dataclass(frozen=True)
class SegmentationHead:
    """UperNet's width, and the rate of dropout before its classifier.

    288 channels give it 11.29 M parameters; the paper's 11.2 M is not identifiable.
    """

    channels: Width = 288
    dropout: Share = 0.1


class SegmentationModel(Network):
    """Backbone and `mmseg.UPerHead`; trained with the unweighted sum of cross-entropy and Dice.

    Args:
        backbone: gives the four features.
        classes: number of classes; label 255 is ignored.
        settings: of the head.
    """

    def __init__(self, backbone: Backbone, classes: int, settings: SegmentationHead) -> None:
        super().__init__(backbone)
        self.head = MODELS.build(
            {
                "type": "mmseg.UPerHead",
                "in_channels": list(backbone.channels),
                "in_index": list(range(len(backbone.channels))),
                "channels": settings.channels,
                "num_classes": classes,
                "dropout_ratio": settings.dropout,
                "norm_cfg": {"type": "mmengine.BN"},
                "loss_decode": [],
            }
        )
        # What the head's own init_weights() does beyond its constructor, without its report on every tensor.
        nn.init.normal_(self.head.conv_seg.weight, std=0.01)
        nn.init.zeros_(self.head.conv_seg.bias)

    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses "loss" and its summands "loss_ce" and "loss_dice"; a step without a labelled pixel costs nothing.

        Labels are (L, H, W) uint8 with 255 where there is none.
        """
        place, labels, empty = dummy_labels(batch["label_place"], batch["labels"], IGNORE)
        with rank_without_labels(empty):
            logits = self.outputs(select_labelled(features, place), labels.shape[-2:])
        return self._losses(logits, labels, empty)

    @in_fp32
    def _losses(self, logits: Tensor, labels: Tensor, empty: bool) -> dict[str, Tensor]:
        inputs, targets = logits, labels.long()
        if torch.are_deterministic_algorithms_enabled():  # over maps CUDA has no deterministic way
            inputs, targets = logits.movedim(1, -1).flatten(0, -2), targets.flatten()
        ce = cross_entropy(inputs, targets, ignore_index=IGNORE, reduction="sum")
        ce = global_mean(ce, (labels != IGNORE).sum())
        dices = dice_losses(logits, labels)
        dice = global_mean(dices.sum(), 0 if empty else dices.numel())
        return {"loss": ce + dice, "loss_ce": ce, "loss_dice": dice}

    def outputs(self, features: list[Tensor], size: Sequence[int]) -> Tensor:
        """Logits (L, classes, H, W)."""
        padded = [4 * side for side in features[0].shape[-2:]]  # at stride 4
        return crop(interpolate(self.head(features).float(), padded, mode="bilinear", align_corners=False), size)

    def answer(self, outputs: Tensor) -> Tensor:
        """Class (B, H, W) uint8 of each pixel."""
        return outputs.argmax(dim=1).to(torch.uint8)


States = tuple[BackboneState | None, ...]
# Scales at which an image is seen, at each of them as it is and mirrored.
VIEWS: Mapping[str, tuple[float, ...]] = {
    "none": (),
    "flip": (1.0,),
    "ecddp": (1.0, 1.5, 2.0),  # Yan98/ECDDP, eval_seg.py
}


class AveragedViews:
    """A segmentation network that is asked once for each view; logits are averaged.

    Histograms are scaled bilinearly. Each view plays the recording with a state of its own; each size has a backbone
    with the same weights, and all share the head.

    Args:
        model: the trained network.
        scales: one of `VIEWS`.
        size: (H, W) of the histograms in px.
    """

    def __init__(self, model: SegmentationModel, scales: Sequence[float], size: Size) -> None:
        self._model, self._views = model, list[tuple[Backbone, Size, bool]]()  # backbone, size in px, mirrored
        for scale in scales:
            seen = (round(scale * size[0]), round(scale * size[1]))
            backbone = resized(model.backbone, padded_size(*seen))
            self._views += [(backbone, seen, mirrored) for mirrored in (False, True)]

    def predict(self, histograms: Tensor, state: States | None, label_place: Tensor) -> tuple[Tensor | None, States]:
        """Mean logits (L, classes, H, W) of the segments at label_place (L, 2) lane and segment, and the states."""
        logits, states = [], []
        for (backbone, size, mirrored), before in zip(self._views, state or [None] * len(self._views), strict=True):
            seen = histograms.flip(-1) if mirrored else histograms
            if histograms.shape[-2:] != size:
                scaled = interpolate(seen.flatten(0, 1).float(), size=size, mode="bilinear", align_corners=False)
                seen = scaled.unflatten(0, histograms.shape[:2])
            features, after = backbone(seen, before)
            states.append(after)
            if len(label_place):
                maps = self._model.outputs(select_labelled(features, label_place), size)
                maps = interpolate(maps, size=histograms.shape[-2:], mode="bilinear", align_corners=False)
                logits.append(maps.flip(-1) if mirrored else maps)
        return torch.stack(logits).mean(dim=0) if logits else None, tuple(states)


@TASKS.register_module(name="segmentation")
class SegmentationTask(Task):
    """A data set with masks; see `Task`."""

    collate, head = stack_masks, SegmentationHead
    scores: ClassVar = {
        "miou": Score("mIoU ↑", "higher", "%"),
        "mean_class_acc": Score("mAcc ↑", "higher", "%"),
        "pixel_acc": Score("acc ↑", "higher", "%"),
    }
    test_time_augmentations = tuple(VIEWS)

    def __init__(self, settings: Finetuning, root: Path, split: str = TEST) -> None:
        labels = settings.batch_size * min(settings.labels_per_chunk or settings.segments, settings.segments)
        if labels < 2:
            raise UserError("batch_size", "a step has a single label, and batch normalisation needs two", "give more")
        super().__init__(settings, root, split)

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> SegmentationModel:
        """`backbone` with a randomly initialised UperNet."""
        return SegmentationModel(backbone, len(settings.classes), build(SegmentationHead, settings.head, "head"))

    def player(self, model: SegmentationModel) -> SegmentationModel | AveragedViews:
        """The model, or its test-time augmentation."""
        scales = VIEWS[self.settings.test_time_augmentation]
        return AveragedViews(model, scales, self.size) if scales else model

    def scorer(self) -> SegmentationScorer:
        """A scorer that has seen nothing."""
        return SegmentationScorer(self.settings.classes)

    @staticmethod
    def read(predictions: Tensor) -> Sequence[NDArray[np.uint8]]:
        """Class of each pixel, from logits (L, classes, H, W)."""
        return list(predictions.argmax(dim=1).to(torch.uint8).cpu().numpy())

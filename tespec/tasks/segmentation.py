"""Semantic segmentation: UperNet on the backbone, cross-entropy and Dice loss, mIoU, and test-time augmentation."""

from collections.abc import Sequence
from typing import Any, ClassVar

import tespec.core.compat  # noqa: F401  # before mmseg

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from tespec.core.distributed import global_mean, global_sum, rank_computes
from tespec.core.settings import Finetuning, HistogramSpec, Share, Size, Width, build
from tespec.datasets.batches import stack_masks
from tespec.datasets.recording import LabelledRecording
from tespec.metrics import Score
from tespec.metrics.segmentation import IGNORE, SegmentationScorer
from tespec.models import Backbone
from tespec.models.backbone import BackboneState, resized
from tespec.models.layers import crop, in_fp32, padded_size
from tespec.registry import MODELS, TASKS
from tespec.tasks.base import Network, Task, dummy_labels, require_finite, select_labelled
from tespec.tasks.play import Player

SMOOTH = 1.0


def dice_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """One minus the Dice coefficient, averaged over the classes, absent ones included.

    Per class it is 1 - (2 sum(p t) + 1) / (sum(p^2 + t^2) + 1) with softmax probabilities p and
    one-hot labels t; each sum is over the labelled pixels of all frames of all ranks. Source:
    uzh-rpg/ess, utils/loss_functions.py, `DiceLoss`.

    Args:
        logits: (N, classes, H, W) float.
        labels: (N, H, W) integers, 255 for ignored pixels.

    Returns:
        The loss, a float32 scalar, equal on all ranks.
    """
    classes = logits.shape[1]
    labels = labels.unsqueeze(1)
    valid = labels != IGNORE
    target = labels == torch.arange(classes, device=labels.device).view(-1, 1, 1)
    probability = logits.float().softmax(dim=1) * valid
    overlap = (probability * target).sum(dim=(0, 2, 3))
    total = (probability.square() + target).sum(dim=(0, 2, 3))
    overlap, total = global_sum(torch.stack([overlap, total]))
    return (1 - (2 * overlap + SMOOTH) / (total + SMOOTH)).mean()


@pydantic.dataclasses.dataclass(frozen=True)
class SegmentationHead:
    """Settings of UperNet: its width, and the dropout rate before its classifier.

    With 288 channels it has 11.29 M parameters; the configuration of the paper's 11.2 M is unknown.
    """

    channels: Width = 288
    dropout: Share = 0.1


class SegmentationModel(Network):
    """Backbone and `mmseg.UPerHead`, trained with the unweighted sum of cross-entropy and Dice loss."""

    def __init__(self, backbone: Backbone, classes: int, settings: SegmentationHead) -> None:
        super().__init__(backbone)
        self.head = MODELS.build({
            "type": "mmseg.UPerHead", "num_classes": classes, "channels": settings.channels,
            "in_channels": list(backbone.channels), "in_index": list(range(len(backbone.channels))),
            "dropout_ratio": settings.dropout, "norm_cfg": {"type": "mmengine.BN"}, "loss_decode": [],
        })  # fmt: skip
        # The rest of the head's init_weights(), without logging every tensor.
        nn.init.normal_(self.head.conv_seg.weight, std=0.01)
        nn.init.zeros_(self.head.conv_seg.bias)

    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses "loss" and its terms "loss_ce" and "loss_dice"; a step without labels has zero loss.

        Labels are (L, H, W) uint8, 255 where unlabelled.
        """
        place, labels, empty = dummy_labels(batch["label_place"], batch["labels"], IGNORE)
        with rank_computes(unlabelled=empty):
            logits = self.outputs(select_labelled(features, place), labels.shape[-2:])
        return self._losses(logits, labels)

    @in_fp32
    def _losses(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        inputs, targets = logits, labels.long()
        if (
            torch.are_deterministic_algorithms_enabled()
        ):  # CUDA's loss over maps is not deterministic
            inputs, targets = logits.movedim(1, -1).flatten(0, -2), targets.flatten()
        ce = cross_entropy(inputs, targets, ignore_index=IGNORE, reduction="sum")
        ce = global_mean(ce, (labels != IGNORE).sum())
        dice = dice_loss(logits, labels)
        return {"loss": ce + dice, "loss_ce": ce, "loss_dice": dice}

    def outputs(self, features: list[Tensor], size: Sequence[int]) -> Tensor:
        """Logits (L, classes, H, W)."""
        padded = [4 * side for side in features[0].shape[-2:]]  # at stride 4
        return crop(
            interpolate(self.head(features).float(), padded, mode="bilinear", align_corners=False),
            size,
        )

    @staticmethod
    def answer(outputs: Tensor) -> Tensor:
        """Class (B, H, W) uint8 of each pixel."""
        return outputs.max(dim=1).indices.to(torch.uint8)  # on a CPU five times as fast as argmax


States = tuple[BackboneState, ...]
# Scales of the views of an image, each with and without mirroring; "ecddp" has those of
# Yan98/Event-Camera-Data-Dense-Pre-training, eval_seg.py, which first resizes DSEC's 440 rows to
# 448.
VIEWS: dict[str, tuple[float, ...]] = {"none": (), "flip": (1.0,), "ecddp": (1.0, 1.5, 2.0)}


class AveragedViews:
    """Test-time augmentation: average the logits of a segmentation network over scaled and mirrored views.

    Histograms of `size` (H, W) px, and the logits back to it, are scaled bilinearly with aligned
    corners, as in Yan98/Event-Camera-Data-Dense-Pre-training, eval_seg.py. Each view has its own
    recurrent state; each size has its own backbone with the same weights, and all share the head.
    """

    def __init__(self, model: SegmentationModel, scales: Sequence[float], size: Size) -> None:
        # backbone, size in px, mirrored
        self._model, self._views = model, list[tuple[Backbone, Size, bool]]()
        for scale in scales:
            seen = (round(scale * size[0]), round(scale * size[1]))
            backbone = resized(model.backbone, padded_size(*seen))
            self._views += [(backbone, seen, mirrored) for mirrored in (False, True)]

    def predict(
        self, histograms: Tensor, state: States | None, label_place: Tensor
    ) -> tuple[Tensor | None, States]:
        """Mean logits (L, classes, H, W) of the segments at label_place (L, 2), lane and segment, and the states."""
        logits, states = [], []
        for (backbone, size, mirrored), before in zip(
            self._views, state or [None] * len(self._views), strict=True
        ):
            seen = histograms.flip(-1) if mirrored else histograms
            if histograms.shape[-2:] != size:
                frames = seen.flatten(0, 1).float()
                scaled = interpolate(frames, size=size, mode="bilinear", align_corners=True)
                seen = scaled.unflatten(0, histograms.shape[:2])
            features, after = backbone(seen, before)
            states.append(after)
            if len(label_place):
                maps = self._model.outputs(select_labelled(features, label_place), size)
                maps = interpolate(maps, histograms.shape[-2:], mode="bilinear", align_corners=True)
                logits.append(maps.flip(-1) if mirrored else maps)
        return torch.stack(logits).mean(dim=0) if logits else None, tuple(states)


@TASKS.register_module(name="segmentation")
class SegmentationTask(Task):
    """Task on a data set with segmentation masks; see `Task`."""

    collate, head = stack_masks, SegmentationHead
    content = "a pixel with a class"
    scores: ClassVar = {
        "miou": Score("mIoU ↑", "higher", "%"),
        "mean_class_acc": Score("mAcc ↑", "higher", "%"),
        "pixel_acc": Score("acc ↑", "higher", "%"),
    }
    test_time_augmentations = tuple(VIEWS)

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> SegmentationModel:
        return SegmentationModel(
            backbone, len(settings.classes), build(SegmentationHead, settings.head, "head")
        )

    @classmethod
    def player(
        cls, settings: Finetuning, model: Any, spec: HistogramSpec, size: Size, device: torch.device
    ) -> Player:
        scales = VIEWS[settings.test_time_augmentation]
        views = AveragedViews(model, scales, size) if scales else model
        return super().player(settings, views, spec, size, device)

    def is_learned(self, recording: LabelledRecording, label: int) -> bool:
        return bool((recording.labels[label] != IGNORE).any())

    def scorer(self) -> SegmentationScorer:
        return SegmentationScorer(self.settings.classes)

    @staticmethod
    def read(predictions: Tensor) -> Sequence[NDArray[np.uint8]]:
        """Class of each pixel from finite logits (L, classes, H, W)."""
        require_finite(predictions)
        return list(SegmentationModel.answer(predictions).cpu().numpy())

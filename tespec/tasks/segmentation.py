"""Semantic segmentation: UperNet, cross-entropy and Dice loss, mIoU, test-time augmentation."""

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
from tespec.core.settings import Finetuning, Fraction, HistogramSpec, Size, Width, build
from tespec.datasets.batches import stack_masks
from tespec.datasets.recording import LabelledRecording
from tespec.metrics import Score
from tespec.metrics.segmentation import IGNORE, SegmentationScorer
from tespec.models.backbone import Backbone, BackboneState, resize_backbone
from tespec.models.layers import crop, in_fp32, padded_size
from tespec.registry import MODELS, TASKS
from tespec.tasks.base import Network, Task, dummy_labels, require_finite, select_labelled
from tespec.tasks.play import Predictor

SMOOTH = 1.0


def dice_loss(logits: Tensor, labels: Tensor) -> Tensor:
    """One minus the Dice coefficient, averaged over the classes, absent ones included.

    For a class it is 1 - (2 sum(p t) + 1) / (sum(p^2 + t^2) + 1) with softmax probabilities p and
    one-hot labels t; sums are over the labelled pixels of all frames of all ranks. Source:
    uzh-rpg/ess, utils/loss_functions.py, `DiceLoss`.

    Args:
        logits: (N, classes, H, W) float.
        labels: (N, H, W) integers, 255 for ignored pixels.

    Returns:
        The loss, a float32 scalar, equal on all ranks.
    """
    classes = logits.shape[1]
    labels = labels.unsqueeze(1)  # (N, 1, H, W)
    valid = labels != IGNORE
    target = labels == torch.arange(classes, device=labels.device).view(-1, 1, 1)  # one-hot
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
    dropout: Fraction = 0.1


class SegmentationModel(Network):
    """Backbone and `mmseg.UPerHead`, trained with the sum of cross-entropy and Dice loss."""

    def __init__(self, backbone: Backbone, classes: int, settings: SegmentationHead) -> None:
        super().__init__(backbone)
        self.head = MODELS.build(
            {
                "type": "mmseg.UPerHead",
                "num_classes": classes,
                "channels": settings.channels,
                "in_channels": list(backbone.channels),
                "in_index": list(range(len(backbone.channels))),
                "dropout_ratio": settings.dropout,
                "norm_cfg": {"type": "mmengine.BN"},
                "loss_decode": [],
            }
        )
        # The rest of the head's init_weights(), without logging every tensor.
        nn.init.normal_(self.head.conv_seg.weight, std=0.01)
        nn.init.zeros_(self.head.conv_seg.bias)

    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute the losses; labels are (L, H, W) uint8, 255 where unlabelled.

        Returns:
            "loss" and its terms "loss_ce" and "loss_dice"; all zero in a step without labels.
        """
        index, labels, empty = dummy_labels(batch["label_position"], batch["labels"], IGNORE)
        with rank_computes(unlabelled=empty):
            logits = self.outputs(select_labelled(features, index), labels.shape[-2:])
        return self._losses(logits, labels)

    @in_fp32
    def _losses(self, logits: Tensor, labels: Tensor) -> dict[str, Tensor]:
        inputs = logits  # (L, classes, H, W)
        targets = labels.long()  # (L, H, W)
        # CUDA's loss over maps is not deterministic
        if torch.are_deterministic_algorithms_enabled():
            inputs = inputs.movedim(1, -1).flatten(0, -2)  # (L * H * W, classes)
            targets = targets.flatten()
        ce = cross_entropy(inputs, targets, ignore_index=IGNORE, reduction="sum")
        ce = global_mean(ce, (labels != IGNORE).sum())
        dice = dice_loss(logits, labels)
        return {"loss": ce + dice, "loss_ce": ce, "loss_dice": dice}

    def outputs(self, features: list[Tensor], size: Sequence[int]) -> Tensor:
        """Predict class logits.

        Returns:
            (L, classes, H, W).
        """
        padded = [4 * side for side in features[0].shape[-2:]]  # px; stage 0 has stride 4
        logits = self.head(features).float()
        return crop(interpolate(logits, padded, mode="bilinear", align_corners=False), size)

    @staticmethod
    def postprocess(outputs: Tensor) -> Tensor:
        """Classes (B, H, W) uint8 of the pixels."""
        return outputs.max(dim=1).indices.to(torch.uint8)  # on a CPU five times as fast as argmax


States = tuple[BackboneState, ...]
# Scales of the augmentations of an image, with and without mirroring; "ecddp" has those of
# Yan98/Event-Camera-Data-Dense-Pre-training, eval_seg.py, which first resizes DSEC's 440 rows to
# 448.
TTA_SCALES: dict[str, tuple[float, ...]] = {"none": (), "flip": (1.0,), "ecddp": (1.0, 1.5, 2.0)}


class SegmentationTTA:
    """Test-time augmentation: mean logits of a network over scaled and mirrored inputs.

    Histograms, and the logits back to their size, are scaled bilinearly with aligned corners, as in
    Yan98/Event-Camera-Data-Dense-Pre-training, eval_seg.py. Every augmentation has a recurrent
    state; every size has a copy of the backbone, and all use the same head.

    Args:
        model: the network.
        scales: scales of the input.
        size: (H, W) in px of the histograms.
    """

    def __init__(self, model: SegmentationModel, scales: Sequence[float], size: Size) -> None:
        self._model = model
        self._augmentations: list[tuple[Backbone, Size, bool]] = []  # size in px, mirrored
        for scale in scales:
            scaled = (round(scale * size[0]), round(scale * size[1]))
            backbone = resize_backbone(model.backbone, padded_size(*scaled))
            self._augmentations += [(backbone, scaled, False), (backbone, scaled, True)]

    def predict(
        self, histograms: Tensor, states: States | None, label_position: Tensor
    ) -> tuple[Tensor | None, States]:
        """Predict some segments of a sequence.

        Args:
            histograms: (B, T, 2 * bins, H, W).
            states: by augmentation; None at the start.
            label_position: (L, 2) int64 lane and segment of the selected segments.

        Returns:
            their mean logits (L, classes, H, W), None if none is selected, and the states.
        """
        logits = []
        new_states = []
        size = histograms.shape[-2:]
        for index, (backbone, scaled, mirrored) in enumerate(self._augmentations):
            inputs = histograms.flip(-1) if mirrored else histograms
            if size != scaled:
                frames = inputs.flatten(0, 1).float()
                frames = interpolate(frames, scaled, mode="bilinear", align_corners=True)
                inputs = frames.unflatten(0, histograms.shape[:2])
            features, state = backbone(inputs, states[index] if states else None)
            new_states.append(state)
            if len(label_position):
                maps = self._model.outputs(select_labelled(features, label_position), scaled)
                maps = interpolate(maps, size, mode="bilinear", align_corners=True)
                logits.append(maps.flip(-1) if mirrored else maps)
        return torch.stack(logits).mean(dim=0) if logits else None, tuple(new_states)


@TASKS.register_module(name="segmentation")
class SegmentationTask(Task):
    """Task on a data set with segmentation masks; see `Task`."""

    collate = stack_masks
    head = SegmentationHead
    content = "a pixel with a class"
    scores: ClassVar = {
        "miou": Score("mIoU ↑", "higher", "%"),
        "mean_class_acc": Score("mAcc ↑", "higher", "%"),
        "pixel_acc": Score("acc ↑", "higher", "%"),
    }
    test_time_augmentations = tuple(TTA_SCALES)

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> SegmentationModel:
        head = build(SegmentationHead, settings.head, "head")
        return SegmentationModel(backbone, len(settings.classes), head)

    @classmethod
    def player(
        cls, settings: Finetuning, model: Any, spec: HistogramSpec, size: Size, device: torch.device
    ) -> Predictor:
        scales = TTA_SCALES[settings.test_time_augmentation]
        augmented = SegmentationTTA(model, scales, size) if scales else model
        return super().player(settings, augmented, spec, size, device)

    def has_target(self, recording: LabelledRecording, label: int) -> bool:
        return bool((recording.labels[label] != IGNORE).any())

    def scorer(self) -> SegmentationScorer:
        return SegmentationScorer(self.settings.classes)

    @staticmethod
    def read(predictions: Tensor) -> Sequence[NDArray[np.uint8]]:
        """Classes of pixels, (H, W) per segment, from finite logits (L, classes, H, W)."""
        require_finite(predictions)
        return list(SegmentationModel.postprocess(predictions).cpu().numpy())

"""Semantic segmentation: UperNet on the backbone, cross-entropy and Dice, mIoU, and test-time augmentation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import tespec.core.compat  # noqa: F401  # before mmseg

import numpy as np
import pydantic
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate

from tespec.core.distributed import global_mean, rank_without_labels
from tespec.core.errors import UserError
from tespec.core.registry import MODELS, TASKS
from tespec.core.scores import Score
from tespec.core.settings import Finetuning, Share, Size, Width, build
from tespec.datasets.base import TEST
from tespec.datasets.batches import stack_masks
from tespec.datasets.recording import LabelledRecording
from tespec.metrics.segmentation import IGNORE, SegmentationScorer
from tespec.models import Backbone
from tespec.models.backbone import BackboneState, resized
from tespec.models.layers import crop, in_fp32, padded_size
from tespec.tasks.base import Task, groups_of
from tespec.tasks.network import Network, pick, stand_in

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


class SegmentationModel(Network):
    """Backbone and `mmseg.UPerHead`; trained with the unweighted sum of cross-entropy and Dice.

    Args:
        backbone: gives the four features.
        classes: number of classes; label 255 is ignored.
        channels: width of the head. 288 gives it 11.29 M parameters; the paper's 11.2 M is not identifiable.
        dropout: rate before the classifier.
    """

    def __init__(self, backbone: Backbone, classes: int, channels: int = 288, dropout: float = 0.1) -> None:
        super().__init__(backbone)
        self.head = MODELS.build(
            {
                "type": "mmseg.UPerHead",
                "in_channels": list(backbone.channels),
                "in_index": list(range(len(backbone.channels))),
                "channels": channels,
                "num_classes": classes,
                "dropout_ratio": dropout,
                "norm_cfg": {"type": "mmengine.BN"},
                "align_corners": False,
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
        place, labels, empty = stand_in(batch["label_place"], batch["labels"], IGNORE)
        with rank_without_labels(empty):
            logits = self.logits(pick(features, place), self.backbone.img_size, labels.shape[-2:])
        return self._losses(logits, labels, empty)

    @in_fp32
    def _losses(self, logits: Tensor, labels: Tensor, empty: bool) -> dict[str, Tensor]:
        # Pixels in a row: over maps CUDA has no deterministic way.
        rows, classes = logits.movedim(1, -1).flatten(0, -2), labels.long().flatten()
        flat = torch.are_deterministic_algorithms_enabled()
        ce = cross_entropy(
            rows if flat else logits,
            classes if flat else labels.long(),
            ignore_index=IGNORE,
            reduction="sum",
        )
        ce = global_mean(ce, (labels != IGNORE).sum())
        dices = dice_losses(logits, labels)
        dice = global_mean(dices.sum(), 0 if empty else dices.numel())
        return {"loss": ce + dice, "loss_ce": ce, "loss_dice": dice}

    def outputs(self, features: list[Tensor], size: tuple[int, int]) -> Tensor:
        """Logits (L, classes, H, W)."""
        return self.logits(features, self.backbone.img_size, size)

    def answer(self, outputs: Tensor) -> Tensor:
        """Class (B, H, W) uint8 of each pixel."""
        return outputs.argmax(dim=1).to(torch.uint8)

    def logits(self, features: list[Tensor], img_size: tuple[int, int], size: Sequence[int]) -> Tensor:
        """Logits (L, classes, H, W) of features (L, C, h, w).

        Args:
            features: of the four stages.
            img_size: (H, W) in px of the padded input they were made from.
            size: (H, W) in px of the input without its padding.
        """
        logits = self.head(features).float()
        logits = interpolate(logits, size=img_size, mode="bilinear", align_corners=False)
        return crop(logits, (size[0], size[1]))


States = tuple[BackboneState | None, ...]


class Views(NamedTuple):
    """Scales at which an image is seen, and whether it is also mirrored at each."""

    scales: tuple[float, ...]
    flip: bool


VIEWS: Mapping[str, Views | None] = {
    "none": None,
    "flip": Views((1.0,), True),
    "ecddp": Views((1.0, 1.5, 2.0), True),  # Yan98/ECDDP, eval_seg.py
}


class Variants:
    """A segmentation network that is asked once for each view; logits are averaged.

    Histograms are scaled bilinearly. Each view plays the recording with a state, and a backbone, of its own: the same
    weights built for the scaled size.

    Args:
        model: the trained network.
        views: how images are seen.
        size: (H, W) of the histograms in px.
    """

    def __init__(self, model: SegmentationModel, views: Views, size: tuple[int, int]) -> None:
        self._model = model
        self._seen = [
            ((round(scale * size[0]), round(scale * size[1])), mirrored)
            for scale in views.scales
            for mirrored in ((False, True) if views.flip else (False,))
        ]
        built = {seen: resized(model.backbone, padded_size(*seen)) for seen, _ in self._seen}
        self._backbones = [built[seen] for seen, _ in self._seen]

    def advance(self, histograms: Tensor, state: States | None = None) -> States:
        """The states of the views after segments (B, T, 2 * bins, H, W) that nothing is predicted for."""
        return self._play(histograms, state)[1]

    def predict(self, histograms: Tensor, state: States | None, label_place: Tensor) -> tuple[Tensor, States]:
        """Mean logits (L, classes, H, W) of the segments at label_place (L, 2) lane and segment, and the states."""
        features, states = self._play(histograms, state)
        logits = []
        for (size, mirrored), backbone, maps in zip(self._seen, self._backbones, features, strict=True):
            seen = self._model.logits(pick(maps, label_place), backbone.img_size, size)
            whole = interpolate(seen, size=histograms.shape[-2:], mode="bilinear", align_corners=False)
            logits.append(whole.flip(-1) if mirrored else whole)
        return torch.stack(logits).mean(dim=0), states

    def _play(self, histograms: Tensor, state: States | None) -> tuple[list[list[Tensor]], States]:
        states = (None,) * len(self._seen) if state is None else state
        played = [
            backbone(_view(histograms, *seen), before)
            for seen, backbone, before in zip(self._seen, self._backbones, states, strict=True)
        ]
        return [features for features, _ in played], tuple(after for _, after in played)


def _view(histograms: Tensor, size: tuple[int, int], mirrored: bool) -> Tensor:
    frames = histograms.flip(-1) if mirrored else histograms
    if frames.shape[-2:] == size:
        return frames
    scaled = interpolate(frames.flatten(0, 1).float(), size=size, mode="bilinear", align_corners=False)
    return scaled.unflatten(0, histograms.shape[:2])


def confusions(predicted: Tensor, labels: Tensor, classes: int) -> NDArray[np.int64]:
    """The `tespec.metrics.segmentation.confusion` of each image, counted on the device of the predictions.

    Args:
        predicted: (L, H, W) classes 0 to `classes` - 1, of any type of whole numbers.
        labels: (L, H, W) uint8, 255 where there is none.
        classes: number of classes.

    Returns:
        (L, classes, classes) int64 number of pixels by label (row) and prediction (column).

    Raises:
        ValueError: there are other labels than 255 and the classes.
    """
    images, cells = len(labels), classes * classes
    # Pixels without a label, and with one that is no class, have a cell each: dropping them would wait for the device.
    other = torch.where(labels == IGNORE, cells, cells + 1)
    cell = torch.where(labels < classes, labels.long() * classes + predicted, other)
    cell += (cells + 2) * torch.arange(images, device=cell.device)[:, None, None]
    counted = torch.bincount(cell.flatten(), minlength=images * (cells + 2)).view(images, cells + 2).cpu().numpy()
    if counted[:, cells + 1].any():
        raise ValueError(f"labels that are neither {IGNORE} nor one of {classes} classes")
    return counted[:, :cells].reshape(images, classes, classes)


@pydantic.dataclasses.dataclass(frozen=True)
class SegmentationHead:
    """Width and dropout of UperNet."""

    channels: Width
    dropout: Share


@TASKS.register_module(name="segmentation")
class SegmentationTask(Task):
    """A data set with masks; see `Task`."""

    collate = stack_masks
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
        build(SegmentationHead, settings.head, "head")
        super().__init__(settings, root, split)

    @classmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> SegmentationModel:
        """`backbone` with a fresh UperNet."""
        head = build(SegmentationHead, settings.head, "head")
        return SegmentationModel(backbone, len(settings.classes), head.channels, head.dropout)

    def player(self, model: SegmentationModel) -> SegmentationModel | Variants:
        """The model, or its test-time augmentation."""
        views = VIEWS[self.settings.test_time_augmentation]
        return model if views is None else Variants(model, views, self.size)

    @classmethod
    def blank_labels(cls, settings: Finetuning, size: Size, count: int, device: torch.device) -> dict[str, Tensor]:
        """Masks of the first class."""
        return {"labels": torch.zeros(count, *size, dtype=torch.uint8, device=device)}

    def scorer(self) -> SegmentationScorer:
        """A scorer that has seen nothing."""
        return SegmentationScorer(self.settings.classes)

    @staticmethod
    def read(predictions: Tensor) -> Sequence[NDArray[np.uint8]]:
        """Class of each pixel, from logits (L, classes, H, W)."""
        classes: NDArray[np.uint8] = predictions.argmax(dim=1).to(torch.uint8).cpu().numpy()
        return list(classes)

    def outcomes(self, predictions: Tensor, labels: Sequence[NDArray[np.uint8]]) -> Sequence[NDArray[np.int64]]:
        """The confusion matrix of each label, counted on the device."""
        truth = torch.from_numpy(np.stack(labels)).to(predictions.device, non_blocking=True)
        return list(confusions(predictions.argmax(dim=1), truth, predictions.shape[1]))

    def score(
        self, scorer: Any, outcome: NDArray[np.int64], truth: Any, recording: LabelledRecording, label: int
    ) -> None:
        """Tell the scorer of one confusion matrix."""
        scorer.add(outcome, recording.name, groups_of(recording, label))

    def of_classes(self, overall: Any) -> dict[str, float]:
        """Intersection over union of each class."""
        return dict(zip(self.settings.classes, overall.iou, strict=True))

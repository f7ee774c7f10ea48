"""Semantic segmentation: an event backbone with an UperNet head."""

from __future__ import annotations

from collections.abc import Sequence

import tespec.core.compat  # noqa: F401  # before mmseg

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, interpolate, one_hot

from tespec.core.distributed import global_mean, rank_without_labels
from tespec.core.registry import MODELS
from tespec.models.backbone import Backbone, BackboneState, detach, reset
from tespec.models.labelled import pick, stand_in
from tespec.models.layers import crop, in_fp32

IGNORE = 255
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
    labels = labels.long()
    valid = (labels != IGNORE).unsqueeze(1)
    target = one_hot(labels.masked_fill(labels == IGNORE, 0), classes).permute(0, 3, 1, 2) * valid
    share = logits.float().softmax(dim=1) * valid
    overlap = (share * target).sum(dim=(2, 3))
    total = (share.square() + target).sum(dim=(2, 3))
    return 1 - (2 * overlap + SMOOTH) / (total + SMOOTH)


@MODELS.register_module()
class SegmentationModel(nn.Module):
    """Backbone and `mmseg.UPerHead`; trained with the unweighted sum of cross-entropy and Dice.

    Args:
        backbone: gives the four features.
        classes: number of classes; label 255 is ignored.
        channels: width of the head. 288 gives it 11.29 M parameters; the paper's 11.2 M is not identifiable.
        dropout: rate before the classifier.
    """

    def __init__(self, backbone: Backbone, classes: int, channels: int = 288, dropout: float = 0.1) -> None:
        super().__init__()
        self.backbone = backbone
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

    def loss(
        self, batch: dict[str, Tensor], state: BackboneState | None
    ) -> tuple[dict[str, Tensor], BackboneState | None]:
        """Losses of a step; the head sees the labelled segments alone, all at once.

        Args:
            batch: histograms (B, T, 2 * bins, H, W), fresh (B,) bool, label_place (L, 2) int64 lane and segment of
                each label, labels (L, H, W) uint8 with 255 where there is none.
            state: what the step before returned, None at the start.

        Returns:
            "loss" and its summands "loss_ce" and "loss_dice", and the detached state. A step without a labelled pixel
            costs nothing.
        """
        features, state = self.backbone(batch["histograms"], reset(state, batch["fresh"]))
        place, labels, empty = stand_in(batch["label_place"], batch["labels"], IGNORE)
        with rank_without_labels(empty):
            logits = self.logits(pick(features, place), self.backbone.img_size, labels.shape[-2:])
        return self._losses(logits, labels, empty), detach(state)

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

    def predict(
        self, histograms: Tensor, state: BackboneState | None = None, label_place: Tensor | None = None
    ) -> tuple[Tensor, BackboneState | None]:
        """Logits of segments of histograms (B, T, 2 * bins, H, W), and the state.

        Args:
            histograms: of all segments.
            state: what the call before returned, None at the start.
            label_place: (L, 2) int64 lane and segment of those that reach the head; None: all of them.

        Returns:
            (L, classes, H, W), or (B, T, classes, H, W) of all segments; and the state.
        """
        features, state = self.backbone(histograms, state)
        if label_place is not None:
            return self.logits(pick(features, label_place), self.backbone.img_size, histograms.shape[-2:]), state
        every = [feature.flatten(0, 1) for feature in features]
        logits = self.logits(every, self.backbone.img_size, histograms.shape[-2:])
        return logits.unflatten(0, histograms.shape[:2]), state

    def advance(self, histograms: Tensor, state: BackboneState | None = None) -> BackboneState | None:
        """The state after segments (B, T, 2 * bins, H, W) that nothing is predicted for."""
        return self.backbone(histograms, state)[1]

    def step(self, histogram: Tensor, state: BackboneState | None = None) -> tuple[Tensor, BackboneState | None]:
        """Class (B, H, W) uint8 of each pixel of one segment (B, 2 * bins, H, W), and the state."""
        logits, state = self.predict(histogram.unsqueeze(1), state)
        return logits.squeeze(1).argmax(dim=1).to(torch.uint8), state

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

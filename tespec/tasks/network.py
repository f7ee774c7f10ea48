"""A backbone with a task's head: trained on the labelled segments of a batch, run over recordings."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from tespec.core.distributed import ranks_per_batch
from tespec.models.backbone import Backbone, BackboneState, detach, reset

State = BackboneState | None


class Network(nn.Module, ABC):
    """A backbone; subclasses add a head, its losses and what it predicts.

    Args:
        backbone: gives the four features.

    Attributes:
        recipe: settings of the training, where the network was loaded from a file that names them.
        frozen: whether the head alone is trained.
    """

    recipe: Mapping[str, Any] | None = None
    frozen: bool = False

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def freeze_backbone(self) -> None:
        """Train the head alone: the backbone has no gradients, and stays in evaluation mode."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the network; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    @abstractmethod
    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses of a step by name; "loss" is minimised.

        Args:
            features: of the four stages, (B, T, C, h, w) of all segments; the head sees the labelled ones alone.
            batch: as of `loss`.
        """

    @abstractmethod
    def outputs(self, features: list[Tensor], size: Sequence[int]) -> Any:
        """Predictions of segments with features (L, C, h, w), for histograms of `size` (H, W) in px."""

    def answer(self, outputs: Any) -> Any:
        """What `step` makes of the outputs: by default the outputs."""
        return outputs

    def loss(self, batch: dict[str, Tensor], state: State) -> tuple[dict[str, Tensor], State]:
        """Losses of a step, and the detached state.

        Args:
            batch: histograms (B, T, 2 * bins, H, W), fresh (B,) bool, label_place (L, 2) int64 lane and segment of
                each label, and the labels as the task collates them.
            state: what the step before returned, None at the start.
        """
        features, state = self.backbone(batch["histograms"], reset(state, batch["fresh"]))
        return self.losses(features, batch), detach(state)

    def predict(self, histograms: Tensor, state: State, label_place: Tensor) -> tuple[Any, State]:
        """Outputs of some segments of histograms (B, T, 2 * bins, H, W), None where there are none, and the state.

        Args:
            histograms: of all segments.
            state: what the call before returned, None at the start.
            label_place: (L, 2) int64 lane and segment of those that reach the head.
        """
        features, state = self.backbone(histograms, state)
        if not len(label_place):
            return None, state
        return self.outputs(select_labelled(features, label_place), histograms.shape[-2:]), state

    @torch.no_grad()
    def step(self, histogram: Tensor, state: State = None) -> tuple[Any, State]:
        """The answer for one segment (B, 2 * bins, H, W) of each lane, and the state, without gradients."""
        features, state = self.backbone.step(histogram, state)
        return self.answer(self.outputs(features, histogram.shape[-2:])), state


def select_labelled(features: Sequence[Tensor], place: Tensor) -> list[Tensor]:
    """Features (L, C, h, w) of the segments at place (L, 2), lane and segment, from those (B, T, C, h, w) of all."""
    return [feature[place[:, 0], place[:, 1]] for feature in features]


def dummy_labels(place: Tensor, labels: Tensor, no_label: float) -> tuple[Tensor, Tensor, bool]:
    """Places and labels for the head, and whether they are a dummy for none at all.

    A rank without labels must go through the head as well where the others exchange something inside it.

    Args:
        place: (L, 2) int64 lane and segment of each label.
        labels: (L, ...).
        no_label: the value of a pixel, or of the numbers of a box, without a label.
    """
    if len(place) or ranks_per_batch() == 1:
        return place, labels, False
    return place.new_zeros(1, 2), labels.new_full((1, *labels.shape[1:]), no_label), True

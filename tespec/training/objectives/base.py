"""What a way to pre-train is to the harness: its data, its network, and what is measured on data held out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from tespec.datasets.parts import WHOLE, Part
from tespec.errors import UserError
from tespec.evaluation.features import spread
from tespec.evaluation.places import PLACES, Places
from tespec.models import Backbone, EventSwin, build_backbone
from tespec.models.padding import padded_size
from tespec.settings import Pretraining
from tespec.training.progress import progress
from tespec.typed import build

SHOWN = 8  # names in a line
SEED = 0  # of what objectives draw on data held out, the same for every run
Batch = dict[str, Tensor]


class PretrainingTask(ABC):
    """Data, network and scores of one objective; registered in `OBJECTIVES`, built with (settings, root).

    Args:
        settings: of the pre-training.
        root: the data.

    Attributes:
        own: the objective's own settings, of type `settings_type`.
        notes: lines for the user about the data.

    Raises:
        UserError: data that cannot be read, or settings that do not fit.
    """

    settings_type: ClassVar[type[Any]]
    loss_is: ClassVar[str]
    notes: tuple[str, ...] = ()

    def __init__(self, settings: Pretraining, root: Path) -> None:
        self.settings, self.root = settings, root
        own = {key: value for key, value in settings.objective.items() if key not in ("type", "deviations")}
        self.own = build(type(self).settings_type, own, "objective")

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """(H, W) in px of what the backbone sees."""

    @property
    def channels(self) -> int | None:
        """Input channels of the backbone where they are not those of histograms."""
        return None

    def backbone(self) -> Backbone:
        """A fresh backbone."""
        settings = self.settings
        return build_backbone(
            settings.width,
            settings.recurrent,
            settings.bins,
            padded_size(*self.size),
            self.channels,
            settings.drop_path,
        )

    def swin(self) -> EventSwin:
        """A fresh backbone for objectives that hide patches.

        Raises:
            UserError: the architecture has none.
        """
        backbone = self.backbone()
        if not isinstance(backbone, EventSwin):
            what = f"{self.settings.width} has no patches to hide"
            raise UserError(f"objective {self.settings.objective['type']}", what, "choose a Swin")
        return backbone

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the data."""

    @abstractmethod
    def recordings(self) -> dict[str, dict[str, float]]:
        """How many windows, pairs or images of each recording, or folder, are trained on ("train") or "held_out"."""

    @abstractmethod
    def network(self) -> Any:
        """The objective with a fresh backbone."""

    @abstractmethod
    def steps(self, seed: int, part: Part = WHOLE) -> Any:
        """Batches of the training by step, or a part of each: see `tespec.datasets.steps.Steps`."""

    @abstractmethod
    def small_batch(self) -> Batch:
        """The smallest batch that can be trained on, for measuring what a step costs."""

    @abstractmethod
    def counts(self) -> dict[str, str]:
        """How much data there is, in words."""

    @abstractmethod
    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Batches of data held out, in order, the same for every run."""

    def protocol(self) -> dict[str, str]:
        """What the numbers mean, in words."""
        return {
            "loss": type(self).loss_is,
            "feature_std": "deviation of unit-length features of all stages on data held out, times root(channels)",
            "feature_rank": "exponential of the entropy of their singular values",
            "feature_places": f"{PLACES:,} places of all frames held out, drawn alike for every run; all where fewer",
            "last_stage_std, last_stage_rank": "the same of the last stage alone",
            **self.counts(),
        }

    @torch.no_grad()
    def evaluate(self, model: Any, device: torch.device) -> dict[str, float]:
        """Mean loss on data held out, and how its features spread; memory does not grow with the data."""
        model.eval()
        total, count = 0.0, 0
        whole, last = Places(PLACES), Places(PLACES)
        state = seen = None
        with progress("data held out", "batches") as advance:
            for batch in self.held_out(device):
                torch.manual_seed(SEED + count)
                losses, state = model.loss(batch, state)
                total += losses["loss"].item()
                features, seen = self.features(model, batch, seen)
                whole.add(features, features[1].shape[-2:])
                last.add(features[-1:], features[-1].shape[-2:])
                count += 1
                advance(count, count, "")
        found, deepest = spread(whole.features()), spread(last.features())
        return {
            "loss": total / max(count, 1),
            "feature_std": found.std,
            "feature_rank": found.rank,
            "last_stage_std": deepest.std,
            "last_stage_rank": deepest.rank,
        }

    @abstractmethod
    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features (B, T, C, h, w) of the backbone's stages, and its state."""

    def draw(self, model: Any, device: torch.device, path: Path) -> bool:
        """Draw what the model does on data held out, where there is something to see; whether it did."""
        return False


def left_alone(names: Sequence[str]) -> tuple[str, ...]:
    """A line for the user about recordings of test splits; none where there are none."""
    more = "" if len(names) <= SHOWN else f" and {len(names) - SHOWN} more"
    return (f"of a test split, so left alone: {', '.join(names[:SHOWN])}{more}",) if names else ()

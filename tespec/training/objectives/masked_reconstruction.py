"""Masked reconstruction as a way to pre-train: what its memory is worth, and pictures of what it rebuilds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tespec.datasets.description import read_description
from tespec.discovery import find_registered
from tespec.errors import UserError
from tespec.pretraining.objectives.masked_reconstruction import MaskedReconstruction
from tespec.registry import MODELS, OBJECTIVES
from tespec.settings import Mask, Target
from tespec.training.objectives.events import EventObjective
from tespec.training.objectives.held_out import held_out_losses
from tespec.training.objectives.moments import draw_held_out


@dataclass(frozen=True)
class MaskedSettings:
    """See `MaskedReconstruction`; `patch_eps` is in units of C squared."""

    mask: Mask
    target: Target
    decoder: dict[str, Any]
    patch_norm: bool
    patch_eps: float
    visible_weight: float


@OBJECTIVES.register_module(name="masked_reconstruction")
class MaskedReconstructionTask(EventObjective):
    """TESPEC's objective."""

    settings_type = MaskedSettings
    loss_is = "mean squared error of the rebuilt target"

    def masks(self) -> Mask:
        """How masks are drawn."""
        mask: Mask = self.own.mask
        return mask

    def network(self) -> MaskedReconstruction:
        """The objective with a fresh backbone."""
        own, settings = self.own, self.settings
        find_registered(MODELS, str(own.decoder.get("type", "")), "objective.decoder.type")
        network = MaskedReconstruction(
            self.swin(),
            own.decoder,
            target=own.target.kind,
            mask_unit=own.mask.unit,
            alpha=own.target.alpha,
            norm_events=own.target.norm_events,
            contrast=own.target.contrast,
            bin_seconds=settings.window_ms / 1000 / settings.bins,
            patch_norm=own.patch_norm,
            eps=own.patch_eps,
            visible_weight=own.visible_weight,
            autoencoding=self._autoencoding,
        )
        units = math.prod(-(-side // own.mask.unit) for side in self.size)
        if not self._autoencoding and round(own.mask.ratio * units) == 0:
            what = f"{own.mask.ratio:g} of {units} patches is none"
            raise UserError("objective.mask.ratio", what, f"give {1 / units:.3g} or more, or 0 for an autoencoder")
        return network

    @property
    def _autoencoding(self) -> bool:
        return bool(self.own.mask.ratio == 0)

    @property
    def _scored(self) -> str:
        return "loss_all" if self._autoencoding else "loss_masked"

    def protocol(self) -> dict[str, str]:
        """What the numbers mean, in words."""
        own = self.own
        rebuilt = f"{own.target.kind} target{', normalised patch by patch' if own.patch_norm else ''}"
        where = "all patches: nothing is hidden" if self._autoencoding else "the hidden patches"
        if own.visible_weight and not self._autoencoding:
            where += f", plus {own.visible_weight:g} times that on the visible ones"
        return super().protocol() | {
            "loss": f"mean squared error of the {rebuilt}, on {where}",
            f"{self._scored}_carried": "backbone state carried from chunk to chunk",
            f"{self._scored}_zeroed": "backbone state zeroed at each chunk, the target's state carried",
            "loss_zero": "zero predicted everywhere",
        }

    def evaluate(self, model: Any, device: torch.device) -> dict[str, float]:
        """What the state is worth, and how features spread."""
        spread = super().evaluate(model, device)
        return held_out_losses(model, self.chunks(device), self._scored) | {
            name: value for name, value in spread.items() if name != "loss"
        }

    def draw(self, model: Any, device: torch.device, path: Path) -> bool:
        """Two moments of the recordings held out."""
        sample = self.root.is_dir() and read_description(self.root).data == "sample"
        titles = ("moving", "standing") if sample else ("busy", "quiet")
        draw_held_out(model, self.chunks(device), path, self.own.target, titles)
        return True

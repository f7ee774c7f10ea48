"""Objectives on events: recordings of any kind, a part of them held out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tespec.datasets.fingerprint import fingerprint
from tespec.datasets.parts import WHOLE, Part
from tespec.datasets.steps import PretrainSteps, Steps
from tespec.datasets.unlabelled import divide, lengths_by_split
from tespec.errors import UserError
from tespec.models.state import reset
from tespec.settings import Mask, Pretraining
from tespec.training.objectives.base import Batch, PretrainingTask, left_alone
from tespec.training.objectives.held_out import HeldOut


class EventObjective(PretrainingTask):
    """An objective whose batches are histograms of lanes."""

    @property
    def fewest_segments(self) -> int:
        """Segments of a step that the objective cannot do without."""
        return 1

    def __init__(self, settings: Pretraining, root: Path) -> None:
        super().__init__(settings, root)
        self._division = divide(root, settings.window_ms, settings.downsample, settings.sensor)
        stepped = (
            f"{path}: {count:,} event times stepped back and were raised to the latest time before them"
            for path, count in self._division.clamped.items()
        )
        self.notes = (*left_alone(self._division.tested_on), *stepped)
        if max(map(len, self._division.held_out)) < settings.segments:
            raise UserError(root, f"nothing held out has {settings.segments} windows", "set fewer segments")

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the histograms in px."""
        return self._division.size

    def fingerprint(self) -> str:
        """Hash of the recordings."""
        return fingerprint(self._division.train, self._division.held_out)

    def recordings(self) -> dict[str, dict[str, float]]:
        """Windows of each recording."""
        return lengths_by_split(self._division.train, self._division.held_out)

    def counts(self) -> dict[str, str]:
        """Recordings, in words."""
        train, held_out = len(self._division.train), len(self._division.held_out)
        return {
            "recordings": f"{train} to train on, {held_out} held out",
            "split": "held-out recordings, or the last quarter of the time where there are fewer than five",
        }

    def masks(self) -> Mask | None:
        """How masks are drawn, for objectives that take some."""
        return None

    def steps(self, seed: int, part: Part = WHOLE) -> Steps:
        """Batches of the training by step."""
        return PretrainSteps(self._division.train, self.settings, seed, part, self.masks())

    def small_batch(self) -> Batch:
        """A batch of one lane and as few segments as the objective needs."""
        small = replace(self.settings, batch_size=1, segments=self.fewest_segments)
        return PretrainSteps(self._division.train, small, seed=0, mask=self.masks())[0]

    def chunks(self, device: torch.device) -> HeldOut:
        """The recordings held out, chunk by chunk."""
        return HeldOut(self._division.held_out, self.settings, device, self.masks())

    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Their batches."""
        return (chunk.batch for chunk in self.chunks(device))

    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features of events, the state carried along each recording."""
        features: list[Tensor]
        features, state = model.backbone(batch["histograms"], reset(state, batch["fresh"]))
        return features, state

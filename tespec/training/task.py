"""What a task is to the harness."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from tespec.datasets.base import LabelledDataset
from tespec.datasets.parts import WHOLE, Part
from tespec.datasets.recording import Recording
from tespec.datasets.steps import Steps


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on a test set.

    Attributes:
        metrics: overall, by name.
        groups: of named groups of frames.
        recordings: of each recording.
        classes: the score of each class.
        definition: what the scores mean, and how many labels they stand on.
        seconds: time it took.
    """

    metrics: dict[str, float]
    groups: dict[str, dict[str, float]]
    recordings: dict[str, dict[str, float]]
    classes: dict[str, float]
    definition: str
    seconds: float


class Task(Protocol):
    """Data, model and scores of one kind of task; registered in `TASKS` and built with (settings, root)."""

    @property
    def dataset(self) -> LabelledDataset:
        """The data set."""
        ...

    @property
    def splits(self) -> Sequence[Sequence[Recording]]:
        """Recordings of each split, those trained on first."""
        ...

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the histograms in px."""
        ...

    def model(self) -> Any:
        """A fresh network: an `nn.Module` with `.backbone`, `.loss` and `.predict`."""
        ...

    def steps(self, seed: int, part: Part = WHOLE) -> Steps:
        """Batches of the training by step, or a part of each."""
        ...

    def small_batch(self) -> dict[str, Tensor]:
        """The smallest batch that can be trained on, for measuring what a step costs."""
        ...

    def protocol(self) -> dict[str, str]:
        """What the scores mean, in words."""
        ...

    def evaluate(self, model: Any, device: torch.device) -> Evaluation:
        """Score a model on the test split."""
        ...

"""What a pre-trained model does on recordings it has not seen."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tespec.datasets.recording import Recording
from tespec.pretraining.masking import draw_mask
from tespec.settings import Mask, Pretraining
from tespec.training.progress import progress

RECORDINGS = 8
CHUNKS = 60  # of each recording
PREDICT_ZERO = "loss_zero"


class Chunk(NamedTuple):
    """A training step's worth of one recording: its first window, and a batch of one lane."""

    recording: Recording
    first: int
    batch: dict[str, Tensor]


@dataclass(frozen=True)
class HeldOut:
    """The held-out recordings one after the other, from their first window on, without augmentation.

    Masks are the same for every run, so that losses of different seeds and methods compare.

    Attributes:
        recordings: the first `RECORDINGS` that hold a chunk are played, at most `CHUNKS` chunks each.
        settings: of the pre-training.
        device: where the batches go.
        mask: how masks are drawn; None: none are.
    """

    recordings: Sequence[Recording]
    settings: Pretraining
    device: torch.device
    mask: Mask | None = None

    def __len__(self) -> int:
        return sum(self._chunks(recording) for recording in self._played)

    @property
    def _played(self) -> list[Recording]:
        return [recording for recording in self.recordings if self._chunks(recording)][:RECORDINGS]

    def _chunks(self, recording: Recording) -> int:
        return min(CHUNKS, len(recording) // self.settings.segments)

    def __iter__(self) -> Iterator[Chunk]:
        settings = self.settings
        for number, recording in enumerate(self._played):
            for index in range(self._chunks(recording)):
                first = index * settings.segments
                histograms = recording.histograms(first, settings.segments, settings.bins, settings.rule)
                batch = {
                    "histograms": torch.from_numpy(histograms).unsqueeze(0),
                    "fresh": torch.tensor([index == 0]),
                } | self._mask(recording, number, index)
                yield Chunk(recording, first, {name: value.to(self.device) for name, value in batch.items()})

    def _mask(self, recording: Recording, *numbers: int) -> dict[str, Tensor]:
        if self.mask is None:
            return {}
        region, unit = recording.region, self.mask.unit
        rows, columns = -(-region.height // unit), -(-region.width // unit)
        return {"mask": draw_mask(np.random.default_rng(numbers), rows, columns, self.mask.ratio).unsqueeze(0)}


@torch.no_grad()
def held_out_losses(model: Any, held_out: HeldOut, scored: str = "loss_masked") -> dict[str, float]:
    """Mean loss with the backbone's state carried along a recording, and with it zeroed at each chunk.

    The target's state is carried in both, so that the targets are the same. The gap between the two is what the model
    gets from its memory.

    Args:
        model: an objective whose state is (backbone state, target's state).
        held_out: recordings with at least one chunk.
        scored: which of the model's losses.

    Returns:
        `<scored>_carried`, `<scored>_zeroed`, and `loss_zero`, the loss of predicting zero everywhere.
    """
    model.eval()
    carried_name, zeroed_name = f"{scored}_carried", f"{scored}_zeroed"
    sums = dict.fromkeys((carried_name, zeroed_name, PREDICT_ZERO), 0.0)
    state: Any = None
    with progress("held-out recordings", "chunks") as advance:
        for done, chunk in enumerate(held_out, start=1):
            zeroed, _ = model.loss(chunk.batch, None if state is None else (None, state[1]))
            carried, state = model.loss(chunk.batch, state)
            sums[carried_name] += carried[scored].item()
            sums[zeroed_name] += zeroed[scored].item()
            sums[PREDICT_ZERO] += carried["loss_zero"].item()
            advance(done, len(held_out), "")
    return {name: total / len(held_out) for name, total in sums.items()}

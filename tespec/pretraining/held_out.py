"""Recordings held out, played chunk by chunk: what a model's memory is worth there, and two moments of them drawn."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tespec.core.progress import progress
from tespec.core.settings import Mask, Pretraining
from tespec.datasets.batches import draw_mask
from tespec.datasets.recording import Recording
from tespec.events.intensity import estimate_high_pass
from tespec.models.backbone import reset

if TYPE_CHECKING:
    from tespec.pictures.panels import ReconstructedSegment

RECORDINGS = 8
WINDOWS = 900  # of each recording
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
        recordings: the first that hold a chunk are played.
        settings: of the pre-training.
        device: where the batches go.
        mask: how masks are drawn; None: none are.
        most: recordings, and windows of each, that are played at most.
    """

    recordings: Sequence[Recording]
    settings: Pretraining
    device: torch.device
    mask: Mask | None = None
    most: tuple[int, int] = (RECORDINGS, WINDOWS)

    def __len__(self) -> int:
        return sum(self._chunks(recording) for recording in self._played)

    @property
    def _played(self) -> list[Recording]:
        return [recording for recording in self.recordings if self._chunks(recording)][: self.most[0]]

    def glimpse(self, frames: int) -> HeldOut:
        """About so many frames of it, from the first chunks of up to four recordings."""
        recordings = min(4, len(self._played))
        return replace(self, most=(recordings, max(self.settings.segments, frames // recordings)))

    def _chunks(self, recording: Recording) -> int:
        return max(0, min(self.most[1], len(recording)) // self.settings.segments)

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


MOVING, QUIET = 0.8, 0.1  # quantiles of the number of events in a segment


class _Place(NamedTuple):
    """A segment of the chunks played, its number of events, and how much the target shows there."""

    chunk: int
    segment: int
    events: int
    contrast: float


def draw_held_out(
    model: Any,
    held_out: HeldOut,
    path: Path,
    titles: tuple[str, str] = ("busy", "quiet"),
) -> None:
    """Draw a busy moment and a quiet one, the model's state carried from the start of their recordings.

    The busy one is the segment at the 80th percentile of events. The quiet one is, of the tenth of the segments with
    the fewest events, the one at which most was seen before.

    Args:
        model: TESPEC's `Tespec`.
        held_out: recordings with at least one chunk.
        path: the PNG to write.
        titles: what the two rows are called.
    """
    from tespec.pictures.panels import ReconstructedSegment, draw_segments  # matplotlib takes half a second

    model.eval()
    target = model.own.target
    chosen = _choose(model, held_out)
    rows: dict[_Place, ReconstructedSegment] = {}
    state: Any = None
    filtered: torch.Tensor | None = None
    seconds = held_out.settings.window_ms / 1000 / held_out.settings.bins
    for number, chunk in enumerate(held_out):
        reconstruction, state = model.reconstruct(chunk.batch, state)
        high_pass, filtered = estimate_high_pass(
            chunk.batch["histograms"],
            reset(filtered, chunk.batch["fresh"]),
            alpha=target.alpha,
            contrast=target.contrast,
            bin_seconds=seconds,
        )
        for title, place in zip(titles, chosen, strict=True):
            if place.chunk == number:
                rows[place] = ReconstructedSegment(
                    title=f"{title}, {place.events:,} events",
                    histogram=chunk.batch["histograms"][0, place.segment].cpu().numpy(),
                    high_pass=_image_moments(high_pass[0, place.segment]),
                    target=_image_moments(reconstruction.video[0, place.segment]),
                    mask=reconstruction.mask[0].cpu().numpy(),
                    reconstruction=_image_moments(reconstruction.prediction[0, place.segment]),
                )
    draw_segments([rows[place] for place in chosen], path, target.kind)


def _choose(model: Any, held_out: HeldOut) -> tuple[_Place, _Place]:
    places = []
    state: Any = None
    for number, chunk in enumerate(held_out):
        reconstruction, state = model.reconstruct(chunk.batch, state)
        events = chunk.batch["histograms"][0].flatten(1).sum(-1, dtype=torch.int64).tolist()
        contrast = reconstruction.video[0].flatten(1).std(dim=1).tolist()
        places += [_Place(number, segment, *pair) for segment, pair in enumerate(zip(events, contrast, strict=True))]
    by_events = sorted(places, key=lambda place: place.events)
    quiet = by_events[: max(1, int(QUIET * len(by_events)))]
    return by_events[int(MOVING * (len(by_events) - 1))], max(quiet, key=lambda place: place.contrast)


def _image_moments(frame: torch.Tensor) -> NDArray[np.float32]:
    return frame.float().cpu().numpy()

"""The moments of held-out recordings that show what a pre-training learned: the car moving, and standing."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from tespec.evaluation.pictures import Moment, draw_moments
from tespec.events.intensity import estimate_high_pass
from tespec.models.state import reset
from tespec.settings import Target
from tespec.training.objectives.held_out import HeldOut

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
    target: Target,
    titles: tuple[str, str] = ("busy", "quiet"),
) -> None:
    """Draw a busy moment and a quiet one, the model's state carried from the start of their recordings.

    The busy one is the segment at the 80th percentile of events. The quiet one is, of the tenth of the segments with
    the fewest events, the one at which most was seen before.

    Args:
        model: an objective with `reconstruct`.
        held_out: recordings with at least one chunk.
        path: the PNG to write.
        target: what is rebuilt, and the constants of the intensity.
        titles: what the two rows are called.
    """
    model.eval()
    chosen = _choose(model, held_out)
    moments: dict[_Place, Moment] = {}
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
                moments[place] = Moment(
                    title=f"{title}, {place.events:,} events",
                    histogram=chunk.batch["histograms"][0, place.segment].cpu().numpy(),
                    high_pass=_image(high_pass[0, place.segment]),
                    target=_image(reconstruction.video[0, place.segment]),
                    mask=reconstruction.mask[0].cpu().numpy(),
                    reconstruction=_image(reconstruction.prediction[0, place.segment]),
                )
    draw_moments([moments[place] for place in chosen], path, target.kind)


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


def _image(frame: torch.Tensor) -> NDArray[np.float32]:
    return frame.float().cpu().numpy()

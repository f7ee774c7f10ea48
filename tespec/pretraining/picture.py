"""Pictures of reconstructions: two moments of the validation recordings as TESPEC sees and reconstructs them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tespec.events.intensity import estimate_high_pass
from tespec.models.backbone import reset
from tespec.pictures import POLARITIES, Image, event_image, make_panels, reach_of, save_figure, show_events, show_grey

if TYPE_CHECKING:
    from tespec.pretraining.tespec import Tespec

BUSY, QUIET = 0.8, 0.1  # quantiles of the number of events in a segment
MASKED = (0.62, 0.62, 0.62)
WIDTH = 16.0  # inches
TARGETS = {
    "intensity": "intensity, Eq. 7",
    "high_pass": "intensity, Eq. 6",
    "histograms": "positive minus negative events",
}


class _Moment(NamedTuple):
    """A segment of a batch's only lane, its number of events, and how much the target shows there."""

    batch: int
    segment: int
    events: int
    contrast: float


class ReconstructedSegment(NamedTuple):
    """One segment of a recording and a network's reconstruction of it."""

    title: str  # of the row
    histogram: NDArray[np.uint8]  # (2*bins, H, W), negative polarity first
    high_pass: Image  # (H, W) intensity of Eq. 6 at the end of the segment
    target: Image  # (H, W) the target of the reconstruction there
    mask: NDArray[np.bool_]  # (H, W) the masked pixels; none of an autoencoder
    reconstruction: Image  # (H, W) the network's prediction


@torch.no_grad()
def draw_moments(model: Tespec, batches: Callable[[], Iterable[dict[str, Tensor]]], path: Path) -> None:
    """Draw a busy moment and a quiet one, the network's state carried from the start of their recordings.

    The busy one is the segment at the 80th percentile of events. The quiet one is, of the tenth of the segments with
    the fewest events, the one at which most was seen before.

    Args:
        model: the network.
        batches: gives the validation batches, of one lane each, as often as it is asked.
        path: the PNG to write.
    """
    model.eval()
    own, chosen = model.own.target, _choose(model, batches())
    rows: dict[_Moment, ReconstructedSegment] = {}
    state: Any = None
    filtered: Tensor | None = None
    for number, batch in enumerate(batches()):
        drawn, state = model.reconstruct(batch, state)
        filtered = reset(filtered, batch["fresh"])
        high_pass, filtered = estimate_high_pass(
            batch["histograms"], filtered, alpha=own.alpha, contrast=own.contrast, bin_seconds=model.bin_seconds
        )
        for title, moment in zip(("busy", "quiet"), chosen, strict=True):
            if moment.batch == number:
                prediction = drawn.prediction * drawn.deviation + drawn.mean
                images = (_image(each[0, moment.segment]) for each in (drawn.video, prediction, high_pass.unsqueeze(2)))
                target, reconstruction, filtered_image = (each.cpu().numpy() for each in images)
                rows[moment] = ReconstructedSegment(
                    title=f"{title}, {moment.events:,} events",
                    histogram=batch["histograms"][0, moment.segment].cpu().numpy(),
                    high_pass=filtered_image,
                    target=target,
                    mask=drawn.masked[0, 0, 0].cpu().numpy(),
                    reconstruction=reconstruction,
                )
    draw_segments([rows[moment] for moment in chosen], path, own.kind)


def _image(planes: Tensor) -> Tensor:
    """(H, W) of planes (planes, H, W): the only one, or positive minus negative counts."""
    bins = len(planes) // 2
    return planes[bins:].sum(0) - planes[:bins].sum(0)


def _choose(model: Tespec, batches: Iterable[dict[str, Tensor]]) -> tuple[_Moment, _Moment]:
    moments = []
    state: Tensor | None = None
    for number, batch in enumerate(batches):
        video, state = model.target(batch["histograms"], reset(state, batch["fresh"]))
        events = batch["histograms"][0].flatten(1).sum(-1, dtype=torch.int64).tolist()
        contrast = torch.stack([_image(segment).std() for segment in video[0]]).tolist()
        moments += [_Moment(number, segment, *each) for segment, each in enumerate(zip(events, contrast, strict=True))]
    by_events = sorted(moments, key=lambda moment: moment.events)
    quiet = by_events[: max(1, int(QUIET * len(by_events)))]
    return by_events[int(BUSY * (len(by_events) - 1))], max(quiet, key=lambda moment: moment.contrast)


def draw_segments(segments: Sequence[ReconstructedSegment], path: Path, target: str = "intensity") -> None:
    """Write one row of five pictures per segment as a PNG; target and reconstruction share a scale.

    Args:
        segments: at least one.
        path: of the PNG.
        target: what the network reconstructs, a key of `TARGETS`.
    """
    is_masked = bool(segments[0].mask.any())
    colours = POLARITIES | ({"masked": MASKED} if is_masked else {})
    columns = (
        "events of the segment",
        "masked input" if is_masked else "input",
        f"target: {TARGETS[target]}",
        "reconstruction of what is masked" if is_masked else "reconstruction",
        "for comparison: intensity, Eq. 6",
    )
    unit = "events" if target == "histograms" else "log intensity"
    figure, panels = make_panels(len(segments), columns, segments[0].mask.shape, WIDTH, 3, colours)
    for axes, segment in zip(panels, segments, strict=True):
        axes[0].set_ylabel(segment.title, fontsize=10)
        seen, reach = event_image(segment.histogram), reach_of(segment.target)
        seen[segment.mask] = MASKED
        # Visible pixels show the target, so that the reconstruction can be judged beside it.
        replaced = segment.mask if is_masked else np.ones_like(segment.mask)
        show_events(axes[0], segment.histogram)
        axes[1].imshow(seen, interpolation="nearest")
        show_grey(axes[2], segment.target, unit, reach)
        show_grey(axes[3], np.where(replaced, segment.reconstruction, segment.target), unit, reach)
        show_grey(axes[4], segment.high_pass)
    save_figure(figure, path, dpi=100)

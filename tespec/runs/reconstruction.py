"""The figure of a TESPEC pre-training: a busy and a quiet moment of the validation recordings."""

from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tespec.models.backbone import reset
from tespec.pretraining.data import PretrainData
from tespec.pretraining.tespec import Tespec
from tespec.runs.validation import SEED

BUSY = 0.8  # quantile of events per segment
QUIET = 0.1  # fraction of the segments with the fewest events


class Moment(NamedTuple):
    """A segment of the validation recordings."""

    events: int  # number of events
    contrast: float  # standard deviation of the target
    batch: int  # index of its batch
    segment: int  # index in the batch


@torch.no_grad()
def draw_reconstructions(
    model: Tespec, data: PretrainData, device: torch.device, path: Path
) -> None:
    """Save a figure of events, masked input, target and reconstruction at two moments.

    The state is carried from the start of each recording.

    Args:
        model: pre-trained network.
        data: opened data with a validation split.
        device: device of the network.
        path: PNG file to write.
    """
    # importing matplotlib takes half a second
    from tespec.pictures import ReconstructedSegment, draw_segments

    model.eval()
    moments = find_moments(model, data, device)
    rows: dict[str, ReconstructedSegment] = {}
    state: Any = None
    high_pass_state: Tensor | None = None
    for number, batch in enumerate(data.val_batches(device)):
        torch.manual_seed(SEED + number)  # the same mask as in the validation
        histograms = batch["histograms"]  # (1, T, 2 * bins, H, W)
        step, state = model.reconstruct(batch, state, model.draw_mask(histograms))
        high_pass_state = reset(high_pass_state, batch["is_first"])
        high_pass, high_pass_state = model.target(histograms, high_pass_state, "high_pass")
        reconstruction = step.prediction * step.deviation + step.mean
        for title, moment in moments.items():
            if moment.batch != number:
                continue
            position = (0, moment.segment)
            rows[title] = ReconstructedSegment(
                title=f"{title}, {moment.events:,} events",
                histogram=histograms[position].cpu().numpy(),
                high_pass=grey_image(high_pass[position]).cpu().numpy(),
                target=grey_image(step.video[position]).cpu().numpy(),
                mask=step.masked[0, 0, 0].cpu().numpy(),
                reconstruction=grey_image(reconstruction[position]).cpu().numpy(),
            )
    draw_segments([rows[title] for title in moments], path, model.cfg.target.kind)


def find_moments(model: Tespec, data: PretrainData, device: torch.device) -> dict[str, Moment]:
    """Find a "busy" and a "quiet" moment of the validation recordings.

    Returns:
        The busy moment is at the 80th percentile of events. The quiet one has the highest contrast
        of the target among the tenth of the segments with the fewest events, where the network
        must rely on its memory.
    """
    moments: list[Moment] = []
    state: Tensor | None = None
    for number, batch in enumerate(data.val_batches(device)):
        video, state = model.target(batch["histograms"], reset(state, batch["is_first"]))
        segments = zip(batch["histograms"][0], video[0], strict=True)
        for segment, (histogram, planes) in enumerate(segments):
            contrast = float(grey_image(planes).std())
            moments.append(Moment(int(histogram.sum()), contrast, number, segment))
    moments.sort(key=itemgetter(0))
    quiet = moments[: max(1, int(QUIET * len(moments)))]
    return {"busy": moments[int(BUSY * (len(moments) - 1))], "quiet": max(quiet, key=itemgetter(1))}


def grey_image(planes: Tensor) -> Tensor:
    """Convert planes (planes, H, W) to a grey image (H, W).

    That is the only plane, or positive minus negative counts.
    """
    bins = len(planes) // 2
    return planes[bins:].sum(0) - planes[:bins].sum(0)

"""Validation of a pre-trained network: mean losses, spread of features, and TESPEC's figure."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tespec.core.progress import progress
from tespec.metrics.features import SAMPLED_POSITIONS, FeatureReservoir, feature_std_and_rank
from tespec.models import Backbone
from tespec.models.backbone import reset
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import PretrainMethod
from tespec.pretraining.tespec import Tespec

SEED = 0  # of random draws in validation, the same for every run
FRAMES = 64  # validation frames from which the features of each stage are measured
BUSY = 0.8  # quantile of events per segment
QUIET = 0.1  # fraction of the segments with the fewest events


@torch.no_grad()
def validate(model: PretrainMethod, data: PretrainData, device: torch.device) -> dict[str, float]:
    """Average the validation losses of a network over all samples, in constant memory.

    Args:
        model: network, which is set to evaluation mode.
        data: opened data with a validation split.
        device: device of the network.

    Returns:
        The method's metrics and, if it has a backbone, the mean standard deviation
        ("last_stage_std") and the rank ("last_stage_rank") of its last features.
    """
    model.eval()
    sums: dict[str, Tensor | float] = {}
    samples = 0
    losses_state: Any = None
    features_state: Any = None
    last_stage = FeatureReservoir(SAMPLED_POSITIONS)
    has_backbone = isinstance(model.backbone, Backbone)
    with progress("validation", "batches") as advance:
        for number, batch in enumerate(data.val_batches(device)):
            torch.manual_seed(SEED + number)
            losses, losses_state = model.val_losses(batch, losses_state)
            count = len(next(iter(batch.values())))
            for name, loss in losses.items():
                sums[name] = sums.get(name, 0.0) + loss.double().cpu() * count
            samples += count
            if has_backbone:
                features, features_state = data.features(model.backbone, batch, features_state)
                last_stage.add(features[-1])
            advance(number + 1, None, "")
    metrics = model.val_metrics({name: torch.as_tensor(sums[name] / samples) for name in sums})
    if has_backbone:
        std, rank = feature_std_and_rank(last_stage.features)
        metrics |= {"last_stage_std": std, "last_stage_rank": rank}
    return metrics


@torch.no_grad()
def stage_statistics(
    backbone: Backbone, data: PretrainData, device: torch.device
) -> dict[str, dict[str, float]]:
    """Measure the spread of the features of each stage on about `FRAMES` validation frames.

    Returns:
        "std" and "rank" for each of "stage 1" to "stage 4".
    """
    stages = [FeatureReservoir(SAMPLED_POSITIONS) for _ in range(4)]
    state: Any = None
    for batch in data.val_batches(device, FRAMES):
        features, state = data.features(backbone, batch, state)
        for stage, maps in zip(stages, features, strict=True):
            stage.add(maps)
    return {
        f"stage {number}": feature_std_and_rank(stage.features)._asdict()
        for number, stage in enumerate(stages, 1)
    }


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
        for title, index in moments.items():
            if index // histograms.shape[1] != number:
                continue
            position = (0, index % histograms.shape[1])
            rows[title] = ReconstructedSegment(
                title=f"{title}, {histograms[position].sum():,} events",
                histogram=histograms[position].cpu().numpy(),
                high_pass=grey_image(high_pass[position]),
                target=grey_image(step.video[position]),
                mask=step.masked[0, 0, 0].cpu().numpy(),
                reconstruction=grey_image(reconstruction[position]),
            )
    draw_segments([rows[title] for title in moments], path, model.cfg.target.kind)


def find_moments(model: Tespec, data: PretrainData, device: torch.device) -> dict[str, int]:
    """Find a "busy" and a "quiet" moment of the validation recordings.

    Returns:
        Their segments, counted over all batches. The busy one is at the 80th percentile of events.
        The quiet one has the highest contrast of the target among the tenth of the segments with
        the fewest events, where the network must rely on its memory.
    """
    counts: list[int] = []
    contrasts: list[float] = []
    state: Tensor | None = None
    for batch in data.val_batches(device):
        video, state = model.target(batch["histograms"], reset(state, batch["is_first"]))
        counts += batch["histograms"][0].sum((1, 2, 3)).tolist()
        contrasts += [float(grey_image(planes).std()) for planes in video[0]]
    order = sorted(range(len(counts)), key=counts.__getitem__)
    quiet = order[: max(1, int(QUIET * len(order)))]
    busy = order[int(BUSY * (len(order) - 1))]
    return {"busy": busy, "quiet": max(quiet, key=contrasts.__getitem__)}


def grey_image(planes: Tensor) -> NDArray[np.float32]:
    """Convert planes (planes, H, W) to a grey image (H, W).

    That is the only plane, or positive minus negative counts.
    """
    bins = len(planes) // 2
    return (planes[bins:].sum(0) - planes[:bins].sum(0)).cpu().numpy()

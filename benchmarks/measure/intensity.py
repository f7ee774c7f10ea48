"""The target of a pre-training step, against one pass over the image per bin."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.networks import histograms
from benchmarks.measure.row import Row
from tespec.events.intensity import estimate_intensity

SHAPE = (8, 15, 20, 360, 640)  # of a step of the paper's pre-training
ALPHA, BIN_SECONDS, NORM_EVENTS = 5.0, 0.005, 5000.0


def per_bin(counts: Tensor) -> Tensor:
    """Video (B, T, H, W) by Eq. 7 as it is written, bin after bin."""
    lanes, segments, channels, height, width = counts.shape
    image, video = torch.zeros(lanes, height, width, device=counts.device), []
    for segment in range(segments):
        for k in range(channels // 2):
            negative = counts[:, segment, k].float()
            positive = counts[:, segment, channels // 2 + k].float()
            events = (negative + positive).sum((1, 2), keepdim=True)
            image = torch.exp(-ALPHA * BIN_SECONDS * events / NORM_EVENTS) * image + positive - negative
        video.append(image)
    return torch.stack(video, dim=1)


def intensity(conditions: Conditions) -> Iterator[Row]:
    """A whole step at the paper's size."""
    shape = conditions.size(SHAPE, (2, 3, 20, 12, 16))
    for device in conditions.devices:
        counts = histograms(*shape, device=device)
        frames = shape[0] * shape[1]
        row = Row(
            "intensity", "step", device.type, " x ".join(map(str, shape)), "one pass per bin", work=frames,
            unit="frames", moved=counts.nbytes + 4 * frames * shape[-2] * shape[-1],
        )  # fmt: skip
        yield conditions.compare(
            row,
            lambda counts=counts: estimate_intensity(counts)[0],  # type: ignore[misc]
            lambda counts=counts: per_bin(counts),  # type: ignore[misc]
            lambda ours, peers: torch.allclose(ours, peers, atol=1e-4),
        )
    yield from conditions.without_gpu("intensity", "step")

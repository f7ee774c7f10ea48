"""Forward and backward pass of the recurrent backbone over a sequence, stage by stage against frame by frame.

The least computation is that of the harness's own way, counted by torch; both ways multiply the same matrices.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.networks import histograms
from benchmarks.measure.plain_network import PlainNetwork
from benchmarks.measure.row import Row
from tespec.models import EventSwin
from tespec.models.layers import pad_to, padded_size


class Case(NamedTuple):
    """Backbone and batch of one row."""

    name: str
    arch: str
    lanes: int
    segments: int
    size: tuple[int, int]


# The sample profile's pre-training batch, and of the paper's (8 x 15 frames) what a CPU does in seconds.
SAMPLE = Case("sample profile", "micro", 4, 6, (96, 160))
PAPER = {
    "cpu": Case("paper profile", "tiny", 1, 3, (360, 640)),
    "cuda": Case("paper profile", "tiny", 8, 15, (360, 640)),
}
QUICK = Case("sample profile", "micro", 1, 2, (32, 32))


def recurrent(conditions: Conditions) -> Iterator[Row]:
    """Both profiles, as far as the device can take them."""
    for device in conditions.devices:
        for case in conditions.size((SAMPLE, PAPER[device.type]), (QUICK,)):
            yield _measured(conditions, case, device)
    yield from conditions.without_gpu("recurrent", SAMPLE.name, PAPER["cuda"].name)


def _measured(conditions: Conditions, case: Case, device: torch.device) -> Row:
    torch.manual_seed(0)
    backbone = EventSwin(arch=case.arch, img_size=padded_size(*case.size)).to(device)
    counts = histograms(case.lanes, case.segments, 20, *case.size, device=device)
    plain = PlainNetwork(backbone).to(device)
    padded = pad_to(counts, backbone.img_size)
    # What training uses there.
    precision = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")

    def step(features: list[Tensor]) -> Any:
        backbone.zero_grad()
        plain.zero_grad()
        sum((feature.float().square().mean() for feature in features), torch.zeros((), device=device)).backward()
        return features[-1].detach().float()

    def stage_major() -> Any:
        with precision:
            features = backbone(counts)[0]
        return step(features)

    def frame_by_frame() -> Any:
        with precision:
            features = plain(padded)
        return step(features)

    with FlopCounterMode(display=False) as flops:
        stage_major()
    frames, size = case.lanes * case.segments, case.size
    row = Row(
        "recurrent", case.name, device.type,
        f"{case.lanes} x {case.segments} frames of {size[0]}x{size[1]} px, Swin {case.arch}, forward and backward",
        "frame by frame", work=frames, unit="frames", computed=flops.get_total_flops(),
    )  # fmt: skip
    # bf16 keeps 8 bits; sums in another order differ by what rounding leaves.
    tolerance = 1e-5 if device.type == "cpu" else 5e-2
    return conditions.compare(
        row, stage_major, frame_by_frame, lambda a, b: torch.allclose(a, b, atol=tolerance), budget=30.0
    )

"""One step of Adam over the paper's network: the fused one, against the one that torch takes by default."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.networks import objective_network
from benchmarks.measure.row import Row
from tespec.training.optimizer import OPTIMIZERS

PASSES = 7 * 4  # bytes of a weight: weight and both moments read and written, gradient read


def optimizer(conditions: Conditions) -> Iterator[Row]:
    """The optimizer that the recipes name."""
    profile, size = conditions.size(("paper", (360, 640)), ("sample", (32, 32)))
    for device in conditions.devices:
        torch.manual_seed(0)
        network, settings = objective_network(profile, size)
        shapes = [each.shape for each in network.parameters() if each.requires_grad]
        kind = OPTIMIZERS[settings.optimisation.optimizer]
        ways: list[Any] = []
        for fused in (True, False):
            torch.manual_seed(0)
            weights = [torch.nn.Parameter(torch.randn(shape, device=device)) for shape in shapes]
            for weight in weights:
                weight.grad = torch.randn_like(weight)
            ways.append((weights, kind(weights, lr=1e-4, fused=fused, foreach=None if fused else True)))
        count = sum(shape.numel() for shape in shapes)

        def step(way: int, ways: list[Any] = ways) -> torch.Tensor:
            weights, chosen = ways[way]
            chosen.step()
            return torch.cat([weight.detach().flatten()[:16] for weight in weights])

        row = Row(
            "optimizer", "Adam", device.type, f"{count:,} weights in {len(shapes)} tensors", "foreach Adam",
            work=count, unit="weights", moved=PASSES * count,
        )  # fmt: skip
        yield conditions.compare(
            row, lambda: step(0), lambda: step(1), lambda a, b: torch.allclose(a, b, rtol=1e-4, atol=1e-6)
        )
    yield from conditions.without_gpu("optimizer", "Adam")

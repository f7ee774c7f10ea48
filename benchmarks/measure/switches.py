"""Training steps of the backbone with each way of computing it switched on, against the same with all of them off."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.networks import histograms
from benchmarks.measure.recurrent import PAPER, QUICK, SAMPLE, Case
from benchmarks.measure.row import Row
from tespec.models import EventSwin
from tespec.models.execution import Execution, execute
from tespec.models.layers import padded_size
from tespec.runs.cost import bytes_saved_for_backward

SWITCHES = {
    "recompute": Execution(recompute=True),
    "fused attention": Execution(fused_attention=True),
    "compiled": Execution(compiled=True),
}


def switches(conditions: Conditions) -> Iterator[Row]:
    """Each of them, on the sample profile's network on a CPU and on the paper's on a GPU."""
    for device in conditions.devices:
        case = conditions.size(SAMPLE if device.type == "cpu" else PAPER["cuda"], QUICK)
        for name, execution in SWITCHES.items():
            if conditions.quick and execution.compiled:
                yield Row("switches", name, device.type, note="not measured: compiling takes longer than --quick has")
            else:
                yield _with_switches(conditions, case, device, name, execution)
    yield from conditions.without_gpu("switches", *SWITCHES)


def _with_switches(conditions: Conditions, case: Case, device: torch.device, name: str, execution: Execution) -> Row:
    counts = histograms(case.lanes, case.segments, 20, *case.size, device=device)
    precision = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    networks = []
    for chosen in (execution, Execution()):
        torch.manual_seed(0)
        networks.append(EventSwin(arch=case.arch, img_size=padded_size(*case.size)).to(device))
        execute(networks[-1], chosen)

    def step(backbone: EventSwin) -> Any:
        backbone.zero_grad()
        with precision:
            features = backbone(counts)[0]
        sum((feature.float().square().mean() for feature in features), torch.zeros((), device=device)).backward()
        return features[-1].detach().float()

    frames = case.lanes * case.segments
    row = Row(
        "switches", name, device.type,
        f"{case.lanes} x {case.segments} frames of {case.size[0]}x{case.size[1]} px, Swin {case.arch}, "
        "forward and backward",
        "switched off", work=frames, unit="frames",
    )  # fmt: skip
    tolerance = 1e-4 if device.type == "cpu" else 5e-2
    on, off = networks
    try:
        row = conditions.compare(
            row, lambda: step(on), lambda: step(off), lambda a, b: torch.allclose(a, b, atol=tolerance), budget=30.0
        )
    except RuntimeError as error:
        if not execution.compiled:
            raise
        return replace(row, note=f"not measured: no compiler works here ({type(error).__name__})")
    kept = {
        figure: float(bytes_saved_for_backward(lambda network=network: step(network)))  # type: ignore[misc]
        for figure, network in (("kept_bytes", on), ("kept_bytes_off", off))
        if not execution.compiled
    }
    return replace(row, figures=kept)

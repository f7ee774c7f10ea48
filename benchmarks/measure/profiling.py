"""Where the time of a training step and of a streaming step goes, by torch.profiler."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from benchmarks.measure import parts
from benchmarks.measure.conditions import Conditions
from benchmarks.measure.networks import SIZES, histograms, objective_batch, objective_network, task_network
from benchmarks.measure.training import Nothing
from tespec.training.loop import Loop

TOP = 12  # operators shown
PAPER, SAMPLE = SIZES["1mpx"], (96, 160)


def profile(conditions: Conditions) -> Iterator[str]:
    """Text, block by block: parts and operators of a training step and of an inference step, in both profiles."""
    lanes, segments = conditions.size((1, 3), (1, 2))
    device = conditions.gpu or conditions.devices[0]
    for name, size in conditions.size((("paper", PAPER), ("sample", SAMPLE)), (("sample", SAMPLE),)):
        network, settings = objective_network(name, size)
        loop = Loop(network, Nothing(), settings.optimisation, seed=0, device=device)
        loop.model.train()
        batch = objective_batch(network, lanes, segments, size, device)
        what = f"training step, {name} profile, {lanes} x {segments} frames of {size[0]}x{size[1]} px"
        yield _profiled(what, network, lambda loop=loop, batch=batch: loop.train_step(batch), device)  # type: ignore[misc]
        del loop, network, batch
        detector, _ = task_network("1mpx", name)
        detector.to(device)
        frame = histograms(1, 20, *SIZES["1mpx"], device=device)
        with torch.no_grad():
            state = detector.step(frame)[1]
            what = f"inference step, {name} profile with detection head, one frame of 360x640 px"
            yield _profiled(what, detector, lambda d=detector, f=frame, s=state: d.step(f, s), device)  # type: ignore[misc]


def _profiled(what: str, network: Any, step: Callable[[], Any], device: torch.device) -> str:
    step()
    activities = [torch.profiler.ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    with parts.marked(network), torch.profiler.profile(activities=activities) as seen:
        step()
    events = [event for event in seen.events() or [] if event.device_type == torch.autograd.DeviceType.CPU]
    total = sum(event.self_cpu_time_total for event in events) / 1e3
    lines = [f"{what}: {total:.0f} ms of operators"]
    lines += [f"  {share:6.1%}  {part}" for part, share in parts.shares(events).items() if share >= 0.001]
    averages = [each for each in seen.key_averages() if not each.key.startswith((parts.MARK, parts.BACKWARD))]
    for each in sorted(averages, key=lambda each: -each.self_cpu_time_total)[:TOP]:
        share = each.self_cpu_time_total / 1e3 / total
        lines.append(f"  {share:6.1%}  {each.key} ({each.count} calls, {each.self_cpu_time_total / 1e3:.1f} ms)")
    return "\n".join(lines)

"""Streaming latency of one segment at batch 1: backbone alone and with its head, eager and compiled."""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.networks import SIZES, histograms, task_network
from benchmarks.measure.row import Row
from benchmarks.measure.timing import seconds_of
from tespec.core.errors import one_line

# Of the recurrent model on an RTX 6000, with its head (paper, appendix table "Training and inference time").
PAPER_SECONDS = {"dsec": 14.6e-3, "ddd17": 14.0e-3, "mvsec": 13.8e-3, "gen1": 20.4e-3, "1mpx": 20.9e-3}
PROFILES = ("paper", "sample")
THREADS = {"cpu": (1, 2), "cuda": (1,)}
COMPILED = ("paper", "gen1")  # what is compiled on a CPU, where each network takes the compiler a minute or more
BUDGET = 4.0  # s of the runs of one row
FEWEST = 5  # runs
WARM = 2  # steps before
QUICK_TASKS = ("mvsec",)


def inference(conditions: Conditions) -> Iterator[Row]:
    """Every task's network in both profiles."""
    for device in conditions.devices:
        for profile in conditions.size(PROFILES, PROFILES[1:]):
            for task in conditions.size(tuple(SIZES), QUICK_TASKS):
                yield from _task(conditions, device, profile, task)
    yield from conditions.without_gpu("inference", *(f"{profile}, {task}" for profile in PROFILES for task in SIZES))


def _task(conditions: Conditions, device: torch.device, profile: str, task: str) -> Iterator[Row]:
    network, settings = task_network(task, profile)
    network.to(device)
    frame = histograms(1, 2 * settings.bins, *SIZES[task], device=device)
    precision = torch.autocast(device.type, dtype=torch.bfloat16, enabled=device.type == "cuda")
    steps: dict[str, Callable[[Tensor, Any], Any]] = {"backbone": network.backbone.step, "with head": network.step}
    height, width = SIZES[task]
    with torch.no_grad(), precision:
        for threads in THREADS[device.type]:
            for name, step in steps.items():
                case = f"{profile}, {task}, {name}, {threads} thread{'s' * (threads > 1)}"
                row = Row("inference", case, device.type, f"one segment of {height}x{width} px, eager")
                yield _streamed(conditions, row, step, frame, threads, task)
        if device.type == "cuda" or (profile, task) in conditions.size((COMPILED,), ()):
            row = Row("inference", f"{profile}, {task}, backbone, compiled", device.type, f"{height}x{width} px")
            yield _compiled(conditions, row, network.backbone.step, frame, task)


def _streamed(
    conditions: Conditions, row: Row, step: Callable[[Tensor, Any], Any], frame: Tensor, threads: int, task: str
) -> Row:
    """Median and 95th percentile of steps one after the other, the state carried."""
    state: Any = None

    def stream() -> None:
        nonlocal state
        state = step(frame, state)[1]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for _ in range(WARM):
            stream()
        times: list[float] = []
        fewest, most = conditions.size((FEWEST, 20 * conditions.runs), (2, 2))
        began = time.perf_counter()
        while len(times) < fewest or (len(times) < most and time.perf_counter() - began < BUDGET):
            times.append(seconds_of(stream, frame.device))
    finally:
        torch.set_num_threads(before)
    figures = {"p95_seconds": statistics.quantiles(times, n=20, method="inclusive")[-1]}
    if row.case.startswith("paper") and "with head" in row.case:
        figures["paper_seconds"] = PAPER_SECONDS[task]
    return replace(
        row, seconds=statistics.median(times), runs=len(times), work=1, unit="frames", figures=row.figures | figures
    )


def _compiled(conditions: Conditions, row: Row, step: Callable[[Tensor, Any], Any], frame: Tensor, task: str) -> Row:
    """The same compiled by torch, which needs a C++ compiler on a CPU; the row says why where it fails."""
    compiled = torch.compile(step, dynamic=False)
    began = time.perf_counter()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the compiler, about code that is not the harness's
            state = step(frame, None)[1]  # with a state from the start: without one is another function to compile
            eager, outputs = step(frame, state)[0], compiled(frame, state)[0]
    # Whatever goes wrong in the compiler is what the row has to say.
    except Exception as error:
        return replace(row, note=f"not measured: torch.compile fails ({one_line(str(error))[:160]})")
    took = time.perf_counter() - began
    if not all(torch.allclose(a.float(), b.float(), atol=1e-3) for a, b in zip(eager, outputs, strict=True)):
        return replace(row, failed=True, note="compiled and eager give different features")
    timed = replace(row, figures={"compile_seconds": took})
    return _streamed(conditions, timed, lambda given, before: compiled(given, before or state), frame, 1, task)

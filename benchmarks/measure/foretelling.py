"""The forecast of a dry run, beside the steps it forecasts."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.measure.conditions import Conditions
from benchmarks.measure.row import Row
from benchmarks.measure.scene import make_store
from benchmarks.measure.timing import synchronise
from tespec.core.config import pretraining_settings
from tespec.pretraining.objective import build_objective
from tespec.runs.cost import BYTES_PER_PARAMETER, bytes_saved_for_backward, forecast
from tespec.training.loop import Loop

RATE, SECONDS, SENSOR = 1_000_000, 4.0, (360, 640)
TIMED_STEPS = 8  # after one to warm up


def foretelling(conditions: Conditions) -> Iterator[Row]:
    """A pre-training of the sample profile, its batches built by the training process."""
    rate = conditions.size(RATE, 20_000)
    with TemporaryDirectory() as folder:
        root = make_store(Path(folder) / "recording", rate, SECONDS, SENSOR)
        settings = pretraining_settings("tespec", "sample", conditions.size((), ("segments=2", "batch_size=1")))
        frames = settings.batch_size * settings.segments
        for device in conditions.devices:
            task = build_objective(settings, root)
            steps = task.steps(0)
            told = forecast(task.network(), task.small_batch(), steps, settings.optimisation, device, frames)
            loop = Loop(task.network(), steps, settings.optimisation, seed=0, device=device)
            loop.model.train()
            taken = []
            batch = {name: value.to(device) for name, value in steps[0].items()}
            saved = bytes_saved_for_backward(lambda: loop.train_step(batch))  # noqa: B023  # called at once
            for step in range(1, 1 + conditions.size(TIMED_STEPS, 1)):
                began = time.perf_counter()
                loop.train_step({name: value.to(device) for name, value in steps[step].items()})
                synchronise(device)
                taken.append(time.perf_counter() - began)
            seconds = statistics.median(taken)
            count = sum(told.parameters.values())
            figures = {
                "forecast_seconds": told.seconds_per_step,
                "time_error": told.seconds_per_step / seconds - 1,
                "memory_error": (told.memory - BYTES_PER_PARAMETER * count) / saved - 1,
            }
            yield Row(
                "forecast", "sample profile", device.type, f"steps of {frames} segments, measured on "
                f"{' and '.join(map(str, told.frames_measured))}", seconds=seconds, runs=len(taken), work=frames,
                unit="frames", figures=figures,
            )  # fmt: skip
    yield from conditions.without_gpu("forecast", "sample profile")

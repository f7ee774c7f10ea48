"""What dry runs print."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    import torch

    from tespec.runs.cost import Forecast
    from tespec.runs.data import Data


@contextmanager
def scratch_world(dataset: str) -> Iterator[Path | None]:
    """Folder for a sample world that a dry run must not leave behind; None where the cache holds the data set."""
    from tespec.world import world_folder

    if (world_folder() / dataset).is_dir():
        yield None
        return
    with TemporaryDirectory() as folder:
        yield Path(folder)


def print_cost(
    facts: dict[str, Any], protocol: dict[str, str], data: Data, forecast: Forecast, frames: int, device: torch.device
) -> None:
    """Print resolved settings and protocol, and what a run would cost: parameters, memory, steps and time."""
    from tespec.training.checkpoint import KEEP
    from tespec.training.device import describe

    for title, shown in (("settings", facts), ("protocol", protocol)):
        print(yaml.safe_dump({title: shown}, sort_keys=False, width=100))
    print(f"data        {data.root} ({data.label})")
    for part, count in forecast.parameters.items():
        print(f"{part:11} {count:,} parameters")
    print(f"memory      {forecast.memory / 2**30:.1f} GiB for a batch of {frames} segments")
    saved = forecast.checkpoint_bytes / 2**30
    print(f"disk        {KEEP * saved:.2f} GiB: {KEEP} checkpoints of {saved:.2f} GiB")
    print(
        f"a step      {forecast.compute_seconds:.3f} s of computing: {forecast.fixed_seconds:.3f} s "
        f"and {forecast.frame_seconds:.4f} s for each segment"
    )
    who = f"{forecast.workers} workers" if forecast.workers else "no workers"
    print(
        f"data        {1e3 * forecast.data_seconds / frames:.2f} ms for each segment, {forecast.data_seconds:.3f} s "
        f"for a step by one process; {who}"
    )
    print(f"steps       {forecast.steps:,} of {forecast.seconds_per_step:.2f} s")
    print(f"time        {forecast.hours:.2f} h of training on {describe(device)}")
    small, large = forecast.frames_measured
    print(f"Memory and time are scaled from {small} and {large} segments measured here; nothing was written.")

"""How and where runs are carried out."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

import torch

from tespec.comparison.records import require_results_folder
from tespec.core.distributed import world_size
from tespec.core.errors import UserError
from tespec.models.execution import Execution
from tespec.training.device import be_deterministic, choose_device, is_fast
from tespec.training.hooks import check_tracker


@dataclass(frozen=True)
class Setup:
    """How and where runs are carried out; on a CPU only `threads`, `accumulate` and `enlarge_batch` change a result.

    Attributes:
        results: folder of records, tables and pictures.
        runs: folder of checkpoints and weights.
        device: "cpu", "cuda" or "cuda:N"; None for a GPU where there is one.
        workers: processes that build batches beside the training process; 0: it builds them itself; None: chosen.
        overwrite: start again although a complete record or a checkpoint exists.
        command: the command line, for records.
        track: name of a tracker, None for the record alone.
        deterministic: deterministic algorithms on a GPU as well.
        accumulate: gradient accumulation steps of each process.
        enlarge_batch: where the batch does not divide evenly among the processes, take the next larger one that does.
        threads: CPU threads, which sums are split among and rounded by; None: torch's choice.
        execution: how networks are computed.
        count_on_device: histograms of a training are counted on the device, of packed events.
        variant: name of the ablation's row that the run belongs to, for its record.
        skip_damaged: leave recordings that cannot be read out of a pre-training.
    """

    results: Path
    runs: Path
    device: str | None
    workers: int | None
    overwrite: bool
    command: str
    track: str | None = None
    deterministic: bool = False
    accumulate: int = 1
    enlarge_batch: bool = False
    threads: int | None = None
    execution: Execution = field(default_factory=Execution)
    count_on_device: bool = False
    variant: str = ""
    skip_damaged: bool = False

    @property
    def fast(self) -> bool:
        """Whether what changes results by rounding alone is on where nothing is said."""
        return is_fast(choose_device(self.device), self.deterministic)

    def picture(self, run: str) -> Path:
        """Where the picture of a run belongs."""
        return self.results / "pictures" / f"{run}.png"

    def facts(self) -> dict[str, Any]:
        """What a record's environment says of how the run was carried out."""
        return {
            "deterministic": self.deterministic,
            "processes": world_size(),
            "accumulate": self.accumulate,
            "threads": torch.get_num_threads(),
            **self.execution.facts(self.fast),
            **({"count_on_device": True} if self.count_on_device else {}),
        }


def check_places(setup: Setup) -> None:
    """Make sure of folders and tracker, so that a mistake comes to light before hours of training.

    Raises:
        UserError: one of them cannot be written to, or the tracker is not installed.
    """
    check_tracker(setup.track)
    be_deterministic(setup.deterministic, choose_device(setup.device))
    if setup.threads:
        torch.set_num_threads(setup.threads)
    if setup.results.is_dir():
        require_results_folder(setup.results)
    for option, folder in (("--results", setup.results), ("--runs", setup.runs)):
        try:
            there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
            with TemporaryFile(dir=there):  # a run that is refused leaves no empty folder
                pass
        except OSError as error:
            raise UserError(f"{option} {folder}", f"cannot be written to ({error.strerror})", "name another") from error

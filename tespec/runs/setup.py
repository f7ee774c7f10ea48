"""Options of how and where to run, shared by `run` and `pretrain`; imported before torch."""

import os
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter
from cyclopts.validators import Number

from tespec.comparison.records import PER_MICRO_BATCH, require_results_folder
from tespec.core.errors import UserError, require
from tespec.core.files import existing_parent
from tespec.core.paths import RESULTS, RUNS

PER_CORE = 8  # workers or threads; with more, they take most of the time and memory
Advanced = partial(Parameter, group=Group("Advanced", sort_key=2))


def _integer(kind: type, tokens: Any) -> int:
    return int(tokens[0].value)  # cyclopts would round 1.5 instead of refusing it


NonNegativeInt = Annotated[int, Parameter(converter=_integer, validator=Number(gte=0))]
PositiveInt = Annotated[int, Parameter(converter=_integer, validator=Number(gt=0))]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Setup:
    """Options of how and where to run; `command` is the command line, for records."""

    device: Annotated[
        str | None, Parameter(help="cpu, cuda or cuda:N (default: a GPU if available)")
    ] = None
    results: Annotated[
        Path,
        Parameter(
            help="folder of records, tables and pictures (default: results)", show_default=False
        ),
    ] = RESULTS
    runs: Annotated[
        Path,
        Parameter(help="folder of checkpoints and weights (default: runs)", show_default=False),
    ] = RUNS
    overwrite: Annotated[
        bool, Parameter(help="start again, even if a result or checkpoint exists")
    ] = False
    check_data: Annotated[
        bool, Advanced(help="read all data again, even files with the same size and time as before")
    ] = False
    workers: Annotated[
        NonNegativeInt | None, Advanced(help="data loading workers (default: automatic; CPU: 0)")
    ] = None
    threads: Annotated[
        PositiveInt | None, Advanced(help="CPU threads (default: the profile's, else torch's)")
    ] = None
    accumulate: Annotated[
        PositiveInt,
        Advanced(help="gradient accumulation steps: less memory; batch statistics of one part"),
    ] = 1
    recompute: Annotated[
        bool, Advanced(help="activation checkpointing: less memory, a third more time")
    ] = False
    deterministic: Annotated[
        bool, Advanced(help="use deterministic algorithms on a GPU as well; slower")
    ] = False
    compiled: Annotated[
        bool, Advanced(help="compile the backbone; needs a C++ compiler", name="--compile")
    ] = False
    launcher: Annotated[
        Literal["none", "pytorch", "slurm"], Advanced(help="launcher of this run's processes")
    ] = "none"
    track: Annotated[
        Literal["files", "tensorboard", "wandb", "mlflow"] | None,
        Advanced(help="also log to this tracker (default: none)"),
    ] = None
    command: Annotated[str, Parameter(parse=False)] = ""

    @property
    def fast(self) -> bool:
        """Whether optimisations are on that change results by rounding: on a GPU by default."""
        from tespec.training.device import choose_device

        return choose_device(self.device).type == "cuda" and not self.deterministic

    @property
    def facts(self) -> dict[str, Any]:
        """Facts about the execution, for the record's environment."""
        import torch

        from tespec.core.distributed import world_size

        return {
            "recompute": self.recompute,
            "fused_attention": self.fast,
            "compiled": self.compiled,
            "channels_last": self.fast,
            "per_micro_batch": PER_MICRO_BATCH if self.accumulate > 1 else "",
            "deterministic": self.deterministic,
            "processes": world_size(),
            "accumulate": self.accumulate,
            "threads": torch.get_num_threads(),
            "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        }

    def prepare(self) -> None:
        """Check device, tracker and folders, and set threads and determinism."""
        import torch

        from tespec.training.device import choose_device, use_deterministic_algorithms

        require(
            self.track in (None, "files") or find_spec(self.track),
            f"--track {self.track}",
            f"the package {self.track} is not installed",
            f"pip install {self.track}",
        )
        cores = os.cpu_count() or 1
        for option, number in (("--workers", self.workers), ("--threads", self.threads)):
            require(
                (number or 0) <= PER_CORE * cores,
                f"{option} {number}",
                f"is more than {PER_CORE} for each of this machine's {cores} cores",
                f"use at most {PER_CORE * cores}",
            )
        use_deterministic_algorithms(self.deterministic, choose_device(self.device))
        if self.threads:
            torch.set_num_threads(self.threads)
        if self.results.is_dir():
            require_results_folder(self.results)
        for option, folder in (("--results", self.results), ("--runs", self.runs)):
            if not folder.is_dir():  # a complete result in it may be read
                require_writable(folder, f"{option} {folder}")


def require_writable(folder: Path, where: object, name: str = "") -> None:
    """Refuse a folder in which no file could be written; it need not exist, and is not created.

    Args:
        folder: folder of files, or of folders with files.
        where: what the error names.
        name: start of the files' names.
    """
    try:
        with NamedTemporaryFile(dir=existing_parent(folder), prefix=f".{name}"):
            pass
    except OSError as error:
        what = f"cannot be written to ({error.strerror})"
        raise UserError(where, what, "choose another folder or a shorter name") from error

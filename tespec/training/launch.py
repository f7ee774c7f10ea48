"""Several processes of one run: started by torchrun, SLURM or MPI, met here. Imports torch only when a run begins."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from tespec.core.errors import UserError


@dataclass(frozen=True)
class Launcher:
    """What starts the processes of a run.

    Attributes:
        sign: what it puts into the environment of each of them.
        how: how a user starts them with it.
        command: a command line that starts them, with names of the environment in braces.
        defaults: of those names.
    """

    sign: str
    how: str
    command: tuple[str, ...]
    defaults: Mapping[str, str]


LAUNCHERS = {
    "pytorch": Launcher(
        "LOCAL_RANK",
        "start with torchrun --nproc-per-node N",
        ("torchrun", "--nnodes", "{GROUP_WORLD_SIZE}", "--nproc-per-node", "{LOCAL_WORLD_SIZE}"),
        {"GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    ),
    "slurm": Launcher(
        "SLURM_PROCID",
        "start with srun",
        ("srun", "--ntasks", "{SLURM_NTASKS}", "python"),
        {"SLURM_NTASKS": "1"},
    ),
    "mpi": Launcher(
        "OMPI_COMM_WORLD_RANK",
        "start with mpirun",
        ("mpirun", "-n", "{OMPI_COMM_WORLD_SIZE}", "python"),
        {"OMPI_COMM_WORLD_SIZE": "1"},
    ),
}


def starting(launcher: str, environment: Mapping[str, str]) -> list[str]:
    """How a command line begins that starts as many processes as there are; one machine is not named."""
    chosen = LAUNCHERS[launcher]
    words = [word.format_map({**chosen.defaults, **environment}) for word in chosen.command]
    return words[:1] + words[3:] if words[1:3] == ["--nnodes", "1"] else words


@contextmanager
def launched(launcher: str, device: str | None) -> Iterator[None]:
    """Inside, all processes that `launcher` started have met; each of them has a GPU of its own, or all use the CPU.

    Args:
        launcher: "none", "pytorch" (torchrun), "slurm" or "mpi".
        device: as of `choose_device`; "cpu" for no GPU.

    Raises:
        UserError: nothing was launched, there is no GPU for a process, or a GPU was named.
    """
    check_launch(launcher, device, os.environ)
    if launcher == "none":
        yield
        return
    import torch
    from torch import distributed

    from tespec.core.distributed import close_group, open_group

    # mmengine would take "spawn", with which every worker reads all indices again.
    if multiprocessing.get_start_method(allow_none=True) is None:
        multiprocessing.set_start_method("fork")
    if device == "cpu" or not torch.cuda.is_available():
        # mmengine's launcher wants GPUs.
        distributed.init_process_group("gloo")
    else:
        import tespec.core.compat  # noqa: F401  # before mmengine

        from mmengine.dist import init_dist

        init_dist(launcher, backend="nccl")
    open_group()
    try:
        yield
    finally:
        close_group()
        distributed.destroy_process_group()


def check_launch(launcher: str, device: str | None, environment: Mapping[str, str]) -> None:
    """Make sure that a launcher did what is asked.

    Raises:
        UserError: see `launched`.
    """
    if launcher == "none":
        if environment.get("WORLD_SIZE", "1") != "1" and "RANK" in environment:
            what = "torchrun started several processes, and each would compute the whole run"
            raise UserError("--launcher none", what, "give --launcher pytorch")
        return
    import torch

    if LAUNCHERS[launcher].sign not in environment:
        raise UserError(f"--launcher {launcher}", "did not start this process", LAUNCHERS[launcher].how)
    if device not in (None, "cpu", "cuda"):
        raise UserError(f"--device {device}", "each process takes a GPU of its own", "leave --device out")
    if launcher != "pytorch" and (device == "cpu" or not torch.cuda.is_available()):
        raise UserError(f"--launcher {launcher}", "there is no GPU here", "on CPUs use torchrun, --launcher pytorch")
    local = int(environment.get("LOCAL_RANK", environment.get("SLURM_LOCALID", "0")))
    if device != "cpu" and torch.cuda.is_available() and local >= torch.cuda.device_count():
        what = f"process {local} of this machine has no GPU, there are {torch.cuda.device_count()}"
        raise UserError(f"--launcher {launcher}", what, "start as many processes as GPUs")

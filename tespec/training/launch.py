"""Several processes of one run: started by torchrun, SLURM or MPI, met here. Imports torch only when a run begins."""

from __future__ import annotations

import multiprocessing
import os
import re
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from tespec.core.errors import UserError

PORT = "29500"  # torch's default


@dataclass(frozen=True)
class Launcher:
    """What starts the processes of a run.

    Attributes:
        variables: what it calls torch's RANK, WORLD_SIZE and LOCAL_RANK in the environment of each process; the first
            that is there of several names.
        how: how a user starts them with it.
        command: a command line that starts them, with names of the environment in braces.
        defaults: of those names.
    """

    variables: Mapping[str, tuple[str, ...]]
    how: str
    command: tuple[str, ...]
    defaults: Mapping[str, str]


LAUNCHERS = {
    "pytorch": Launcher(
        {"RANK": ("RANK",), "WORLD_SIZE": ("WORLD_SIZE",), "LOCAL_RANK": ("LOCAL_RANK",)},
        "start with torchrun --nproc-per-node N",
        ("torchrun", "--nnodes", "{GROUP_WORLD_SIZE}", "--nproc-per-node", "{LOCAL_WORLD_SIZE}"),
        {"GROUP_WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1"},
    ),
    "slurm": Launcher(
        {
            "RANK": ("SLURM_PROCID",),
            "WORLD_SIZE": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
            "LOCAL_RANK": ("SLURM_LOCALID",),
        },
        "start with srun",
        ("srun", "--ntasks", "{SLURM_NTASKS}", "python"),
        {"SLURM_NTASKS": "1"},
    ),
    "mpi": Launcher(
        {
            "RANK": ("OMPI_COMM_WORLD_RANK",),
            "WORLD_SIZE": ("OMPI_COMM_WORLD_SIZE",),
            "LOCAL_RANK": ("OMPI_COMM_WORLD_LOCAL_RANK",),
        },
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
        UserError: nothing was launched, processes cannot meet, two of them share a GPU, or a GPU was named.
    """
    check_launch(launcher, device, os.environ)
    if launcher == "none":
        yield
        return
    import torch
    from torch import distributed

    from tespec.core.distributed import all_gather, close_group, open_group

    os.environ.update(torch_environment(launcher, os.environ))
    # With "spawn" every worker would read all indices again.
    if multiprocessing.get_start_method(allow_none=True) is None:
        multiprocessing.set_start_method("fork")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        torch.cuda.set_device(gpu_of(int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()))
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    open_group()
    try:
        if on_gpu:
            gpu = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
            require_own_gpus(launcher, all_gather((socket.gethostname(), gpu)))
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

    (rank,) = LAUNCHERS[launcher].variables["RANK"]
    if rank not in environment:
        raise UserError(f"--launcher {launcher}", "did not start this process", LAUNCHERS[launcher].how)
    if device not in (None, "cpu", "cuda"):
        raise UserError(f"--device {device}", "each process takes a GPU of its own", "leave --device out")
    if launcher != "pytorch" and device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--launcher {launcher}", "there is no GPU here", "ask for GPUs, or give --device cpu")


def torch_environment(launcher: str, environment: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, by which torch's processes meet.

    An address and a port that the environment names stand. Else, processes of SLURM meet on the first machine of their
    step, at a port that follows from the job; those of MPI on this machine, if it is the only one.

    Raises:
        UserError: something is missing.
    """
    found = {}
    for name, others in LAUNCHERS[launcher].variables.items():
        there = [environment[other] for other in others if other in environment]
        if not there:
            raise UserError(f"--launcher {launcher}", f"{others[0]} is not set", LAUNCHERS[launcher].how)
        found[name] = there[0]
    for name, usual in (("MASTER_ADDR", _address(launcher, environment)), ("MASTER_PORT", _port(environment))):
        value = environment.get(name, usual)
        if value is None:
            what = f"{name} is not set, so processes on several machines cannot meet"
            raise UserError(f"--launcher {launcher}", what, f"set it to the host of process 0: export {name}=HOST")
        found[name] = value
    return found


def _address(launcher: str, environment: Mapping[str, str]) -> str | None:
    if launcher == "slurm":
        listed = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST"))
        return first_host(listed) if listed else None
    if launcher == "mpi" and environment.get("OMPI_COMM_WORLD_LOCAL_SIZE") == environment.get("OMPI_COMM_WORLD_SIZE"):
        return "127.0.0.1"
    return None


def _port(environment: Mapping[str, str]) -> str:
    job = environment.get("SLURM_JOB_ID", "")
    # Jobs that share a machine must not meet each other.
    return str(15_000 + int(job) % 10_000) if job.isdigit() else PORT


def first_host(listed: str) -> str:
    """The first of SLURM's hosts: node003 of "node[003-006,9],gpu1"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", listed)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0] if first else listed)


def gpu_of(local_rank: int, visible: int) -> int:
    """Number of a process's GPU among those it sees: all of its machine, or its own alone (--gpus-per-task)."""
    # mmengine's launcher takes number `local_rank`, which a process that sees its own GPU alone has not got.
    return local_rank % visible


def require_own_gpus(launcher: str, found: Sequence[tuple[str, str]]) -> None:
    """Refuse processes that share a GPU.

    Args:
        launcher: for messages.
        found: machine and GPU of each process.

    Raises:
        UserError: two of them do.
    """
    first: dict[tuple[str, str], int] = {}
    for process, place in enumerate(found):
        other = first.setdefault(place, process)
        if other != process:
            what = f"processes {other} and {process} share a GPU of {place[0]}"
            raise UserError(f"--launcher {launcher}", what, "start as many processes on each machine as it has GPUs")

"""Several processes of one run: started by torchrun or SLURM, met here. Imports torch only when a run begins."""

from __future__ import annotations

import multiprocessing
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from tespec.core.errors import UserError

PORT = "29500"  # torch's default
# By launcher: where the environment of each process tells rank, number of processes and rank on its machine; the first
# that is there of several.
LAUNCHERS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "pytorch": (("RANK",), ("WORLD_SIZE",), ("LOCAL_RANK",)),
    "slurm": (("SLURM_PROCID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"), ("SLURM_LOCALID",)),
}
HOW = {"pytorch": "start with torchrun --nproc-per-node N", "slurm": "start with srun"}


def starting(launcher: str, environment: Mapping[str, str]) -> list[str]:
    """The beginning of a command line that starts as many processes as there are."""
    if launcher == "slurm":
        return ["srun", "--ntasks", environment.get("SLURM_NTASKS", "1"), "python"]
    machines = environment.get("GROUP_WORLD_SIZE", "1")
    nodes = [] if machines == "1" else ["--nnodes", machines]
    return ["torchrun", *nodes, "--nproc-per-node", environment.get("LOCAL_WORLD_SIZE", "1")]


@contextmanager
def launched(launcher: str, device: str | None) -> Iterator[None]:
    """Inside, all processes that `launcher` started have met; each of them takes a GPU, or all use the CPU.

    Where two of them take the same GPU, NCCL refuses to start.

    Args:
        launcher: "none", "pytorch" (torchrun) or "slurm".
        device: as of `choose_device`; "cpu" for no GPU.

    Raises:
        UserError: nothing was launched, processes cannot meet, or a GPU was named.
    """
    check_launch(launcher, device, os.environ)
    if launcher == "none":
        yield
        return
    import torch
    from torch import distributed

    from tespec.core.distributed import close_group, open_group

    os.environ.update(torch_environment(launcher, os.environ))
    # With "spawn" every worker would read all indices again.
    if multiprocessing.get_start_method(allow_none=True) is None:
        multiprocessing.set_start_method("fork")
    on_gpu = device != "cpu" and torch.cuda.is_available()
    if on_gpu:
        # A process sees all GPUs of its machine, or its own alone (--gpus-per-task).
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    distributed.init_process_group("nccl" if on_gpu else "gloo")
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

    if LAUNCHERS[launcher][0][0] not in environment:
        raise UserError(f"--launcher {launcher}", "did not start this process", HOW[launcher])
    if device not in (None, "cpu", "cuda"):
        raise UserError(f"--device {device}", "each process takes a GPU of its own", "leave --device out")
    if launcher == "slurm" and device != "cpu" and not torch.cuda.is_available():
        raise UserError(f"--launcher {launcher}", "there is no GPU here", "ask for GPUs, or give --device cpu")


def torch_environment(launcher: str, environment: Mapping[str, str]) -> dict[str, str]:
    """RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT, by which torch's processes meet.

    An address and a port that the environment names stand. Else, processes of SLURM meet on the first machine of their
    step, at a port that follows from the job: jobs that share a machine must not meet each other.

    Raises:
        UserError: something is missing.
    """
    found = {}
    for name, others in zip(("RANK", "WORLD_SIZE", "LOCAL_RANK"), LAUNCHERS[launcher], strict=True):
        there = [environment[other] for other in others if other in environment]
        if not there:
            raise UserError(f"--launcher {launcher}", f"{others[0]} is not set", HOW[launcher])
        found[name] = there[0]
    hosts = environment.get("SLURM_STEP_NODELIST", environment.get("SLURM_NODELIST")) if launcher == "slurm" else None
    address = environment.get("MASTER_ADDR", first_host(hosts) if hosts else None)
    if address is None:
        what = "MASTER_ADDR is not set, so processes on several machines cannot meet"
        remedy = "set it to the host of process 0: export MASTER_ADDR=HOST"
        raise UserError(f"--launcher {launcher}", what, remedy)
    job = environment.get("SLURM_JOB_ID", "")
    port = str(15_000 + int(job) % 10_000) if job.isdigit() else PORT
    return {**found, "MASTER_ADDR": address, "MASTER_PORT": environment.get("MASTER_PORT", port)}


def first_host(listed: str) -> str:
    """The first of SLURM's hosts: node003 of "node[003-006,9],gpu1"."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", listed)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0] if first else listed)

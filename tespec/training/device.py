"""Processes of a run, started by torchrun or SLURM, and the device, precision and seeds of each."""

import hashlib
import multiprocessing
import os
import random
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import distributed

from tespec.core.distributed import object_group
from tespec.core.errors import UserError, require
from tespec.core.settings import Optimisation
from tespec.models.layers import allow_tf32

OptimisationT = TypeVar("OptimisationT", bound=Optimisation)
PORT = "29500"  # torch's default
# Variables of torch.distributed, and those of each launcher that set them: the first one that is
# defined counts.
LAUNCHERS: dict[str, dict[str, tuple[str, ...]]] = {
    "pytorch": {
        "RANK": ("RANK",),
        "WORLD_SIZE": ("WORLD_SIZE",),
        "LOCAL_RANK": ("LOCAL_RANK",),
        "MASTER_ADDR": ("MASTER_ADDR",),
    },
    "slurm": {
        "RANK": ("SLURM_PROCID",),
        "WORLD_SIZE": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        "LOCAL_RANK": ("SLURM_LOCALID",),
        "MASTER_ADDR": ("MASTER_ADDR", "SLURM_STEP_NODELIST", "SLURM_NODELIST"),
    },
}

# Title, memory in 10^9 bytes, peak dense throughput of tensor cores in bf16 and TF32, in 10^12
# operations per second without sparsity, from NVIDIA's datasheets and the white papers of Ada and
# H100, and torch's name of the device.
GPUS = (
    # the datasheet's 1,457 is FP8 with sparsity
    ("RTX 6000 Ada", 48, 364.25, 182.1, "NVIDIA RTX 6000 Ada Generation"),
    ("A100 80GB SXM", 80, 312, 156, "NVIDIA A100-SXM4-80GB"),
    # the datasheet's 1,979 and 989 are with sparsity
    ("H100 SXM", 80, 989.4, 494.7, "NVIDIA H100 80GB HBM3"),
    ("H200 SXM", 141, 989.4, 494.7, "NVIDIA H200"),
)


def use_deterministic_algorithms(enabled: bool, device: torch.device) -> None:
    """Restrict torch to deterministic algorithms, or lift the restriction.

    Call this before any work on a GPU, since cuBLAS reads its environment variable on first use.

    Args:
        enabled: operations without a deterministic algorithm raise. If False, a GPU is as fast as
            possible: float32 matrix products and convolutions use TF32, except in losses, and each
            convolution uses the algorithm that benchmarked fastest.
        device: device of the run.
    """
    if enabled:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(enabled)
    torch.backends.cudnn.benchmark = device.type == "cuda" and not enabled
    if device.type == "cuda":
        allow_tf32(not enabled)


@contextmanager
def flush_denormals() -> Iterator[None]:
    """Flush denormal floats to 0 on the CPU inside the block.

    Numbers below 1.2e-38 take a processor a hundred times as long as others, and shifted-window
    attention has many of them: it adds -100 between windows that must not attend to each other, and
    exp(-100) is 3.7e-44. Added to any other number they change no digit. Threads that torch starts
    inside the block inherit the mode and keep it, so enter the block before torch starts any.
    """
    for kind in (np.float16, np.float32, np.float64):
        # cached here: a first call inside the block would warn about missing denormals
        np.finfo(kind)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(False)


@contextmanager
def report_out_of_memory() -> Iterator[None]:
    """Report a GPU that runs out of memory inside the block as a user error with a remedy."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        remedy = "use --accumulate 2 or more, --recompute, or a smaller batch (--set batch_size=N)"
        raise UserError("GPU", "out of memory", remedy) from error


def derive_seed(seed: int, *names: int | str) -> int:
    """Derive the seed of one purpose from the run's seed.

    Args:
        seed: seed of the run.
        names: words and numbers that name the purpose, such as "step", 3.

    Returns:
        63 bits of a hash of the arguments.
    """
    text = "/".join(str(part) for part in (seed, *names))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, NumPy and torch (all devices)."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002  # timm and mmseg draw from the global generator
    torch.manual_seed(seed)


def choose_device(name: str | None) -> torch.device:
    """Return the named device, or by default a GPU if one is available, else the CPU."""
    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    where = f"--device {name}"
    is_known = re.fullmatch(r"cpu(:0)?|cuda(:0|:[1-9]\d*)?", name)
    require(is_known, where, "unknown device", "use cpu, cuda or cuda:N")
    kind, _, index = name.partition(":")
    if kind == "cuda":
        count = torch.cuda.device_count()
        what = f"this machine has {f'{count} GPUs' if count else 'no GPU that torch can use'}"
        require(int(index or 0) < count, where, what, "omit --device or use cpu")
    return torch.device(name)


def describe(device: torch.device) -> str:
    """Name of the device for records."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def peak_throughput(gpu: str, precision: str) -> float:
    """Look up the peak dense throughput of a GPU's tensor cores.

    Args:
        gpu: its title in `GPUS`, or torch's name of it.
        precision: "fp32", which counts as TF32, or a half precision.

    Returns:
        FLOP/s; 0 for other devices.
    """
    for title, _, bf16, tf32, device in GPUS:
        if gpu in (title, device):
            return 1e12 * (tf32 if precision == "fp32" else bf16)
    return 0.0


def available_memory(device: torch.device, root: Path = Path("/")) -> float:
    """Memory that this process can still allocate on a device.

    On a GPU, this is free memory and what torch's allocator holds unused. On a CPU, it is the
    smallest of the memory that Linux counts as available and the rest of each cgroup limit (v1 and
    v2), where the cache of files counts as free.

    Args:
        device: CPU or GPU.
        root: folder that contains `proc` and `sys`.

    Returns:
        Bytes; infinity if the system does not report them, as on macOS.
    """
    if device.type == "cuda":
        unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + unused
    available = [float("inf")]
    with suppress(OSError):
        fields = dict(line.split()[:2] for line in (root / "proc/meminfo").read_text().splitlines())
        available.append(1024 * int(fields["MemAvailable:"]))
        groups = (root / "proc/self/cgroup").read_text()
        for controller, path in re.findall(r"^\d+:(memory|):/(.*)$", groups, re.MULTILINE):
            # In a container the path may be the host's, of which only the top folder exists.
            folder = root / "sys/fs/cgroup" / controller / path
            available += map(_rest_of_cgroup, [folder, *folder.parents])
    return min(available)


def _rest_of_cgroup(folder: Path) -> float:
    for limit, usage, cache in (
        ("memory.max", "memory.current", "inactive_file"),  # v2
        ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),  # v1
    ):
        with suppress(OSError, KeyError, ValueError):  # "max": no limit
            lines = (folder / "memory.stat").read_text().splitlines()
            cached = int(dict(line.split() for line in lines)[cache])
            used = int((folder / usage).read_text()) - cached
            return int((folder / limit).read_text()) - used
    return float("inf")


def with_precision(settings: OptimisationT, device: torch.device) -> OptimisationT:
    """Resolve the precision `auto` in the settings: bf16 on a GPU and fp32 on a CPU.

    Returns:
        Settings with `precision` "fp32", "bf16" or "fp16".

    Raises:
        UserError: the settings ask for half precision on a CPU.
    """
    precision = settings.precision
    if precision == "auto":
        precision = "bf16" if device.type == "cuda" else "fp32"
    if precision != "fp32" and device.type == "cpu":
        what = f"{precision} is not available on a CPU"
        raise UserError("optimisation.precision", what, "use fp32 or auto")
    return replace(settings, precision=precision)


def starting(launcher: str, environment: Mapping[str, str]) -> list[str]:
    """Return the start of a command that launches as many processes as this run has.

    Args:
        launcher: "pytorch" or "slurm".
        environment: environment variables of this run.

    Returns:
        For example `["torchrun", "--nproc-per-node", "4"]`.
    """
    if launcher == "slurm":
        return ["srun", "-K", "--ntasks", environment.get("SLURM_NTASKS", "1"), "python"]
    machines = environment.get("GROUP_WORLD_SIZE", "1")
    nodes = [] if machines == "1" else ["--nnodes", machines]
    return ["torchrun", *nodes, "--nproc-per-node", environment.get("LOCAL_WORLD_SIZE", "1")]


@contextmanager
def launched(launcher: str, device: str | None) -> Iterator[None]:
    """Join the processes that a launcher started into one group inside the block.

    Each process takes one GPU, since NCCL refuses two processes on the same GPU.

    Args:
        launcher: "none" or one of `LAUNCHERS`.
        device: "cpu", "cuda" or None for GPUs if they are available.

    Raises:
        UserError: the environment lacks the launcher's variables, or the device is not usable.
    """
    option = f"--launcher {launcher}"
    if launcher == "none":
        if os.environ.get("WORLD_SIZE", "1") != "1" and "RANK" in os.environ:
            what = "torchrun started multiple processes, and each would compute the complete run"
            raise UserError(option, what, "use --launcher pytorch")
        yield
        return
    variables = torch_environment(launcher, os.environ)
    on_gpu = device != "cpu" and torch.cuda.is_available()
    is_shared = device in (None, "cpu", "cuda")
    require(is_shared, f"--device {device}", "each process uses its own GPU", "omit --device")
    has_device = launcher != "slurm" or device == "cpu" or on_gpu
    require(has_device, option, "no GPU is available", "request GPUs, or use --device cpu")
    os.environ.update(variables)
    # With "spawn", every worker would load all indices again.
    if multiprocessing.get_start_method(allow_none=True) is None:
        multiprocessing.set_start_method("fork")
    if on_gpu:
        # A process sees all GPUs of its machine, or only its own (SLURM's --gpus-per-task).
        local_rank = int(variables["LOCAL_RANK"])
        count = torch.cuda.device_count()
        require(
            local_rank < count or (launcher == "slurm" and count == 1),
            option,
            f"process {local_rank} of this machine (from 0) has no GPU of its own",
            f"start at most {count} processes per machine",
        )
        torch.cuda.set_device(local_rank % count)
    distributed.init_process_group("nccl" if on_gpu else "gloo")
    try:
        with object_group():
            yield
    finally:
        distributed.destroy_process_group()


def torch_environment(launcher: str, environment: Mapping[str, str]) -> dict[str, str]:
    """Collect the variables by which `torch.distributed` joins the processes.

    Address and port stay if the environment sets them. Otherwise SLURM processes meet on the first
    machine of their step, at a port derived from the job id so that jobs on the same machine do not
    collide.

    Args:
        launcher: one of `LAUNCHERS`.
        environment: environment variables of this process.

    Returns:
        RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT.

    Raises:
        UserError: a variable is not set.
    """
    option = f"--launcher {launcher}"
    command = "srun" if launcher == "slurm" else "torchrun --nproc-per-node N"
    variables: dict[str, str] = {}
    for name, sources in LAUNCHERS[launcher].items():
        defined = [environment[source] for source in sources if source in environment]
        require(defined, option, f"{sources[0]} is not set", f"start with {command}")
        variables[name] = defined[0]
    variables["MASTER_ADDR"] = first_host(variables["MASTER_ADDR"])
    job = environment.get("SLURM_JOB_ID", "")
    port = str(15_000 + int(job) % 10_000) if job.isdigit() else PORT
    return {**variables, "MASTER_PORT": environment.get("MASTER_PORT", port)}


def first_host(node_list: str) -> str:
    """First host of a SLURM node list, as node003 of "node[003-006,9],gpu1", or of one host."""
    first = re.match(r"(?:[^,\[]|\[[^\]]*\])+", node_list)
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first[0] if first else node_list)

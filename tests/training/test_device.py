import dataclasses
import os
import subprocess
import sys

import pytest
import torch
from torch import distributed

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.models.layers import without_tf32
from tespec.training import device
from tespec.training.device import (
    choose_device,
    derive_seed,
    first_host,
    launched,
    use_deterministic_algorithms,
    with_precision,
)

SETTINGS = finetuning_settings("ddd17", "recurrent", "sample").optimisation


@pytest.mark.parametrize("name", ["cuda:99", f"cuda:{10**20}", "cuda:01", "quantum", "meta"])
def test_a_device_that_is_not_there_is_named(name):
    with pytest.raises(UserError, match=f"--device {name}: "):
        choose_device(name)


def test_auto_is_what_the_device_computes_in():
    def precision(name, device):
        return with_precision(
            dataclasses.replace(SETTINGS, precision=name), torch.device(device)
        ).precision

    assert (precision("auto", "cpu"), precision("auto", "cuda")) == ("fp32", "bf16")
    assert (precision("fp32", "cuda"), precision("fp16", "cuda")) == ("fp32", "fp16")
    with pytest.raises(UserError, match="bf16 is not available on a CPU"):
        precision("bf16", "cpu")


def test_derived_seeds_are_stable_and_differ_by_purpose():
    assert derive_seed(0, "step", 3) == 8082029764619972999
    seeds = {
        derive_seed(seed, name, step)
        for seed in range(5)
        for name in ("step", "model")
        for step in range(5)
    }
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize("fast", [True, False])
def test_a_gpu_computes_as_fast_as_it_can_unless_it_must_repeat_to_the_bit(fast):
    cudnn, before = torch.backends.cudnn, torch.get_float32_matmul_precision()
    switches = cudnn.allow_tf32, cudnn.benchmark
    try:
        use_deterministic_algorithms(not fast, torch.device("cuda"))
        assert cudnn.benchmark == cudnn.allow_tf32 == fast
        assert torch.get_float32_matmul_precision() == ("high" if fast else "highest")
        with without_tf32():
            assert torch.get_float32_matmul_precision() == "highest"
            assert not cudnn.allow_tf32
        assert cudnn.allow_tf32 == fast
    finally:
        torch.use_deterministic_algorithms(False)
        torch.set_float32_matmul_precision(before)
        cudnn.allow_tf32, cudnn.benchmark = switches


@pytest.mark.skipif(
    not torch.set_flush_denormal(False), reason="the processor cannot flush denormals"
)
def test_denormals_are_zero_in_a_training_alone_on_every_thread_and_without_a_warning():
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "import torch\nfrom tespec.training.device import flush_denormals\nimport numpy as np\n"
        "torch.set_num_threads(2)\ndenormal = torch.tensor([2.0**-130]).expand(2**22)\n"
        "with flush_denormals():\n    twice = denormal * 2\n    np.finfo(np.float32)\n"
        "assert not twice.any()\n"
        "assert float(torch.tensor([2.0**-130]) * 2)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60, check=True)


MET = {"MASTER_ADDR": "head", "MASTER_PORT": "1234"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **MET}
SRUN = {
    "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "1234567",
    "SLURM_NODELIST": "gpu[07-08]",
}  # fmt: skip


def test_a_command_starts_as_many_processes_as_there_were():
    by_torchrun = device.starting("pytorch", {"GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"})
    assert by_torchrun == ["torchrun", "--nnodes", "2", "--nproc-per-node", "4"]
    assert device.starting("slurm", {"SLURM_NTASKS": "8"}) == [
        "srun",
        "-K",
        "--ntasks",
        "8",
        "python",
    ]


@pytest.mark.parametrize(
    ("launcher", "environment", "address", "port"),
    [
        ("pytorch", TORCHRUN, "head", "1234"),
        ("slurm", SRUN, "gpu07", "19567"),
        ("slurm", SRUN | {"SLURM_STEP_NODELIST": "gpu08"}, "gpu08", "19567"),
        ("slurm", SRUN | {"SLURM_NTASKS": "16", "SLURM_STEP_NUM_TASKS": "4"}, "gpu07", "19567"),
        ("slurm", SRUN | MET, "head", "1234"),
    ],
)
def test_processes_meet_by_what_their_launcher_says(launcher, environment, address, port):
    same = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1"}
    assert device.torch_environment(launcher, environment) == same | {
        "MASTER_ADDR": address,
        "MASTER_PORT": port,
    }


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("node1,node2", "node1"), ("gpu[9,12-14]", "gpu9"), ("r[1-2]n[03,05],x", "r1n03"),
        ("a-[1-2]-ib.cluster", "a-1-ib.cluster"), ("n[003-006,9],gpu1", "n003"),
    ],
)  # fmt: skip
def test_the_first_host_of_a_list(listed, first):
    assert first_host(listed) == first


# With --gpus-per-task 1, each process only sees its own GPU; with --gpus-per-node, all of the
# node's.
@pytest.mark.parametrize(("visible", "chosen"), [(1, 0), (2, 1)])
def test_the_second_task_of_a_machine_takes_the_gpu_it_sees(monkeypatch, visible, chosen):
    one = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    monkeypatch.setattr(os, "environ", dict(os.environ) | SRUN | one)
    devices, backends, begin = [], [], distributed.init_process_group
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: visible)
    monkeypatch.setattr(torch.cuda, "set_device", devices.append)
    monkeypatch.setattr(
        distributed, "init_process_group", lambda name: [backends.append(name), begin("gloo")]
    )
    with launched("slurm", None):
        assert (distributed.get_rank(), distributed.get_world_size()) == (0, 1)
    assert (devices, backends) == ([chosen], ["nccl"])
    assert not distributed.is_initialized()
    assert os.environ["LOCAL_RANK"] == "1"


def test_more_processes_than_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(os, "environ", dict(TORCHRUN))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    refused = pytest.raises(UserError, match=r"process 1 .* has no GPU of its own; start at most 1")
    with refused, launched("pytorch", None):
        pass


def without(environment, name):
    return {key: value for key, value in environment.items() if key != name}


REFUSED = [
    ("none", None, TORCHRUN, "torchrun started multiple processes"),
    ("slurm", None, {}, "SLURM_PROCID is not set; start with srun"),
    ("slurm", "cuda:1", SRUN, "each process uses its own GPU; omit --device"),
    ("slurm", None, SRUN, "no GPU is available; request GPUs, or use --device cpu"),
    (
        "pytorch",
        "cpu",
        without(TORCHRUN, "WORLD_SIZE"),
        "WORLD_SIZE is not set; start with torchrun",
    ),
    (
        "pytorch",
        "cpu",
        without(TORCHRUN, "MASTER_ADDR"),
        "MASTER_ADDR is not set; start with torchrun",
    ),
    ("slurm", "cpu", without(SRUN, "SLURM_LOCALID"), "SLURM_LOCALID is not set; start with srun"),
    (
        "slurm",
        "cpu",
        without(SRUN, "SLURM_NTASKS"),
        "SLURM_STEP_NUM_TASKS is not set; start with srun",
    ),
    (
        "slurm",
        "cpu",
        without(SRUN, "SLURM_NODELIST"),
        "MASTER_ADDR is not set; start with srun",
    ),
]


@pytest.mark.parametrize(("launcher", "device", "environment", "message"), REFUSED)
def test_launches_that_cannot_be_are_refused(monkeypatch, launcher, device, environment, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(os, "environ", environment)
    refused = pytest.raises(
        UserError, match=rf"^--(launcher {launcher}|device {device}): {message}"
    )
    with refused, launched(launcher, device):
        pass

"""How processes of torchrun and SLURM meet, which GPU each takes, and what a record says of their start."""

import os

import pytest
import torch
from torch import distributed

from tespec.core.errors import UserError
from tespec.training.launch import (
    check_launch,
    first_host,
    launched,
    require_own_gpus,
    starting,
    torch_environment,
)


@pytest.mark.parametrize(
    ("launcher", "environment", "begins"),
    [
        ("pytorch", {"LOCAL_WORLD_SIZE": "4"}, "torchrun --nproc-per-node 4"),
        ("pytorch", {"GROUP_WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "4"}, "torchrun --nnodes 2 --nproc-per-node 4"),
        ("slurm", {"SLURM_NTASKS": "8"}, "srun --ntasks 8 python"),
    ],
)
def test_a_command_starts_as_many_processes_as_there_were(launcher, environment, begins):
    assert starting(launcher, environment) == begins.split()


MET = {"MASTER_ADDR": "head", "MASTER_PORT": "1234"}
TORCHRUN = {"RANK": "3", "WORLD_SIZE": "4", "LOCAL_RANK": "1", **MET}
SRUN = {
    "SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_LOCALID": "1", "SLURM_JOB_ID": "1234567",
    "SLURM_NODELIST": "gpu[07-08]",
}  # fmt: skip


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
    assert torch_environment(launcher, environment) == same | {"MASTER_ADDR": address, "MASTER_PORT": port}


@pytest.mark.parametrize(
    ("launcher", "environment", "lacks", "message"),
    [
        ("pytorch", TORCHRUN, "WORLD_SIZE", "WORLD_SIZE is not set; start with torchrun"),
        ("pytorch", TORCHRUN, "MASTER_ADDR", "MASTER_ADDR is not set, so processes on several machines cannot meet"),
        ("slurm", SRUN, "SLURM_LOCALID", "SLURM_LOCALID is not set; start with srun"),
        ("slurm", SRUN, "SLURM_NTASKS", "SLURM_STEP_NUM_TASKS is not set; start with srun"),
        ("slurm", SRUN, "SLURM_NODELIST", "MASTER_ADDR is not set, .*; set it to the host of process 0"),
    ],
)
def test_what_is_missing_is_named(launcher, environment, lacks, message):
    there = {name: value for name, value in environment.items() if name != lacks}
    with pytest.raises(UserError, match=f"^--launcher {launcher}: {message}"):
        torch_environment(launcher, there)


@pytest.mark.parametrize(
    ("listed", "first"),
    [
        ("node1", "node1"), ("node1,node2", "node1"), ("gpu[07-08]", "gpu07"), ("gpu[9,12-14]", "gpu9"),
        ("r[1-2]n[03,05],x", "r1n03"), ("a-[1-2]-ib.cluster", "a-1-ib.cluster"), ("n[003-006,9],gpu1", "n003"),
    ],
)  # fmt: skip
def test_the_first_host_of_a_list(listed, first):
    assert first_host(listed) == first


def test_no_two_processes_share_a_gpu():
    require_own_gpus("slurm", [("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-1")])
    message = "--launcher slurm: processes 1 and 2 share a GPU of a; start as many processes on each machine as it has"
    with pytest.raises(UserError, match=message):
        require_own_gpus("slurm", [("b", "GPU-1"), ("a", "GPU-1"), ("a", "GPU-1")])


class Gpu:
    """Stands for torch.cuda, which sees so many GPUs, and notes which one is chosen."""

    def __init__(self, patch, visible):
        self.chosen, self.backends = [], []
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "device_count", lambda: visible)
        patch.setattr(torch.cuda, "set_device", self.chosen.append)
        patch.setattr(torch.cuda, "current_device", lambda: self.chosen[-1])
        patch.setattr(torch.cuda, "get_device_properties", lambda index: self)
        begin = distributed.init_process_group
        patch.setattr(distributed, "init_process_group", lambda name: [self.backends.append(name), begin("gloo")])

    uuid = "GPU-1"


# --gpus-per-task 1: each process sees its own GPU alone; --gpus-per-node: all of them.
@pytest.mark.parametrize(("visible", "chosen"), [(1, 0), (2, 1)])
def test_the_second_task_of_a_machine_takes_the_gpu_it_sees(monkeypatch, visible, chosen):
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.setenv(name, "")  # so that they are as before afterwards
        monkeypatch.delenv(name)
    one = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}
    for name, value in (SRUN | one).items():
        monkeypatch.setenv(name, value)
    gpu = Gpu(monkeypatch, visible)
    with launched("slurm", None):
        assert (distributed.get_rank(), distributed.get_world_size()) == (0, 1)
    assert (gpu.chosen, gpu.backends) == ([chosen], ["nccl"])
    assert not distributed.is_initialized()
    assert os.environ["LOCAL_RANK"] == "1"


@pytest.mark.parametrize(
    ("launcher", "device", "environment", "message"),
    [
        ("none", None, TORCHRUN, "--launcher none: torchrun started several processes"),
        ("slurm", None, {}, "--launcher slurm: did not start this process; start with srun"),
        ("slurm", "cuda:1", SRUN, "--device cuda:1: each process takes a GPU of its own; leave --device out"),
        ("slurm", None, SRUN, "--launcher slurm: there is no GPU here; ask for GPUs, or give --device cpu"),
    ],
)
def test_launches_that_cannot_be_are_refused(monkeypatch, launcher, device, environment, message):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UserError, match=message):
        check_launch(launcher, device, environment)
    if launcher != "none" and environment:
        check_launch(launcher, "cpu", environment)

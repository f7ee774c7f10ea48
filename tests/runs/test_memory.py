"""Trainings that need more memory than there is are refused before the first step."""

import math
import os
import re
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from short_runs import cell_spec, setup_in

from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.registry import register_methods
from tespec.runs import cost
from tespec.runs.cost import LEAST_MEMORY, estimate_training, require_memory
from tespec.runs.finetune import finetune
from tespec.training.device import available_memory
from tespec.training.trainer import Trainer

CPU, SIZE = torch.device("cpu"), (64, 96)
FP32 = "optimisation.precision=fp32"
SETUP = setup_in(Path(), deterministic=True)
MEMINFO = {"proc/meminfo": "MemTotal: 9 kB\nMemAvailable: 9000 kB\n"}
NO_LIMIT = {"memory.max": "max", "memory.current": "7", "memory.stat": "inactive_file 3"}


@pytest.fixture(autouse=True)
def checked_memory(monkeypatch):
    """Check the memory before a training, which the other tests skip."""
    monkeypatch.setattr("tespec.runs.train.require_memory", require_memory)


def v2(limit, used, cache):
    return {
        "memory.max": limit,
        "memory.current": used,
        "memory.stat": f"anon 1\ninactive_file {cache}\n",
    }


def v1(limit, used, cache):
    names = ("memory.limit_in_bytes", "memory.usage_in_bytes")
    return dict(zip(names, (limit, used), strict=True)) | {
        "memory.stat": f"total_inactive_file {cache}\n"
    }


def under(folder, files):
    return {f"sys/fs/cgroup/{folder}/{name}": str(text) for name, text in files.items()}


@pytest.mark.parametrize(
    ("files", "available"),
    [
        ({}, math.inf),
        (MEMINFO, 9_216_000),
        (MEMINFO | {"proc/self/cgroup": "0::/\n"}, 9_216_000),
        (MEMINFO | {"proc/self/cgroup": "0::/job\n"} | under("job", v2(5000, 3000, 400)), 2400),
        (
            MEMINFO | {"proc/self/cgroup": "0::/job/step\n"} | under("job", v2(5000, 3000, 400)),
            2400,
        ),
        (MEMINFO | {"proc/self/cgroup": "0::/job\n"} | under("job", NO_LIMIT), 9_216_000),
        (
            MEMINFO | {"proc/self/cgroup": "0::/job\n"} | under("job", v2(10**12, 3000, 0)),
            9_216_000,
        ),
        # in a container
        (MEMINFO | {"proc/self/cgroup": "0::/\n"} | under(".", v2(5000, 3000, 0)), 2000),
        (
            MEMINFO
            | {"proc/self/cgroup": "7:memory:/docker/1\n"}
            | under("memory", v1(5000, 3000, 400)),
            2400,
        ),
        (
            MEMINFO
            | {"proc/self/cgroup": "7:cpu:/j\n9:memory:/j\n"}
            | under("memory/j", v1(5000, 3000, 0)),
            2000,
        ),
    ],
)
def test_memory_is_the_least_that_the_system_and_its_limits_leave(tmp_path, files, available):
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    assert available_memory(CPU, tmp_path) == available


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_of_this_machine_is_less_than_it_has():
    assert 0 < available_memory(CPU) < os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.fixture
def with_memory(monkeypatch):
    """Return a function that sets the available memory in bytes."""
    return lambda memory: monkeypatch.setattr(cost, "available_memory", lambda device: memory)


def settings_of(name, profile="sample", *changes, **more):
    if name == "ddd17":
        return finetuning_settings(name, "feedforward", profile, [FP32, *changes], **more)
    return pretraining_settings(name, profile, [FP32, *changes])


def refusal(settings, setup=SETUP, **more):
    with pytest.raises(UserError) as caught:
        require_memory(settings, SIZE, setup, CPU, **more)
    return str(caught.value)


def test_the_need_is_that_of_a_dry_run_and_only_what_does_not_fit_is_refused(with_memory):
    settings = settings_of("ddd17", "sample", "batch_size=2")
    need = estimate_training(settings, SIZE).cost(SETUP).memory
    with_memory(LEAST_MEMORY * need)
    require_memory(settings, SIZE, setup_in(Path()), CPU)
    with_memory(LEAST_MEMORY * need - 1)
    assert (
        f"training of ddd17: needs about {need / 1e9:.3g} GB of memory, but the CPU has"
        in refusal(settings)
    )


@pytest.fixture
def costing_a_gigabyte(monkeypatch):
    """Let a step take 1 TFLOP, and 1 GB over `--accumulate`, half of it with `--recompute`."""

    def cost_of(setup, gpus):
        memory = 1e9 / gpus / setup.accumulate / (1 + setup.recompute)
        return SimpleNamespace(memory=memory, flops=1e12)

    monkeypatch.setattr(
        cost,
        "estimate_training",
        lambda settings, size: SimpleNamespace(cost=cost_of, settings=settings),
    )


@pytest.mark.parametrize(
    ("name", "peak"), [("NVIDIA H200", 494.7e12), ("NVIDIA H100 PCIe", None), ("cpu", None)]
)
def test_a_step_on_a_known_gpu_has_a_least_duration(
    monkeypatch, with_memory, costing_a_gigabyte, name, peak
):
    with_memory(math.inf)
    monkeypatch.setattr(cost, "describe", lambda device: name)
    seconds = require_memory(settings_of("ddd17"), SIZE, SETUP, CPU)
    assert seconds == (1e12 / peak if peak else 0)


LESS = "a smaller batch (--set batch_size=N)"
SEGMENTS = "a smaller batch (--set batch_size=N, segments=N)"
MESSAGES = [
    ("ddd17", "sample", 0.2, f"--accumulate 8 --recompute (0.062 GB), or {LESS}"),
    (
        "ddd17",
        "paper",
        0.2,
        f"--profile sample, or --accumulate 8 --recompute (0.062 GB), or {LESS}",
    ),
    ("ddd17", "sample", 0.06, LESS),
    ("tespec", "sample", 0.2, f"--accumulate 4 --recompute (0.12 GB), or {SEGMENTS}"),
    # two images at least
    ("moby", "sample", 0.2, f"--accumulate 8 --recompute (0.062 GB), or {LESS}"),
]


@pytest.mark.parametrize(("name", "profile", "gigabytes", "remedies"), MESSAGES)
def test_the_message_names_the_options_that_help(
    with_memory, costing_a_gigabyte, name, profile, gigabytes, remedies
):
    register_methods()
    settings = replace(settings_of(name), profile=profile)
    with_memory(gigabytes * 1e9)
    problem = f"needs about 1 GB of memory, but the CPU has {gigabytes:.3g} GB"
    assert refusal(settings) == f"training of {name}: {problem}; use {remedies}"


def test_batch_normalisation_is_not_recomputed(with_memory):
    resnet = finetuning_settings("ddd17", "feedforward", "sample", [FP32], network="resnet")
    least = estimate_training(resnet, SIZE).cost(replace(SETUP, accumulate=8)).memory
    with_memory(least)
    assert f"; use --accumulate 8 ({least / 1e9:.2g} GB), or a smaller" in refusal(resnet)


@pytest.mark.parametrize(("machines", "least"), [("ab", 0.425), ("aa", 0.85)])
def test_processes_of_one_machine_share_its_memory_and_decide_alike(
    monkeypatch, costing_a_gigabyte, machines, least
):
    monkeypatch.setattr(cost, "world_size", lambda: 2)

    def check(gigabytes):  # of this process; the other one has more
        ranks = [(machines[0], 9e9), (machines[1], gigabytes * 1e9)]
        monkeypatch.setattr(cost, "all_gather", lambda value: ranks)
        require_memory(settings_of("ddd17"), SIZE, SETUP, CPU)

    check(least + 1e-6)
    with pytest.raises(UserError, match=r"needs about 0\.5 GB"):
        check(least - 1e-6)


def test_a_network_that_needs_numbers_is_trained_unchecked(monkeypatch, with_memory, capsys):
    with_memory(0)
    monkeypatch.setattr(
        cost,
        "estimate_training",
        lambda settings, size: torch.zeros(1, device="meta").item(),
    )
    assert require_memory(settings_of("ddd17"), SIZE, SETUP, CPU) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("memory is not checked before the training: ")


def files_in(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_refused_run_writes_nothing_and_a_complete_one_with_its_share_of_peak_is_loaded(
    tiny_world, tmp_path, monkeypatch, with_memory, costing_a_gigabyte
):
    notes = []

    @contextmanager
    def progress(*_):
        yield lambda done, total, note: notes.append(note)

    monkeypatch.setattr("tespec.training.trainer.progress", progress)
    monkeypatch.setattr(cost, "describe", lambda device: "NVIDIA H200")
    spec = cell_spec(tiny_world, tmp_path, arch="feedforward", profile="smoke")
    with_memory(1e6)
    with pytest.raises(UserError, match="needs about"):
        finetune(spec)
    assert not list(tmp_path.iterdir())
    with_memory(math.inf)
    record = finetune(spec)
    assert re.fullmatch(r"\d+ frames/s, \d+ % of peak, loss \d+\.\d{4}", notes[-1])
    before = files_in(tmp_path)
    with_memory(1e6)
    assert finetune(spec) == record
    with pytest.raises(UserError, match="needs about"):
        finetune(replace(spec, setup=replace(spec.setup, overwrite=True)))
    assert files_in(tmp_path) == before


def peak_of(name):
    """Train three steps; return peak memory and estimate in bytes."""
    settings = settings_of(name, "sample", "optimisation.steps=3", "optimisation.warmup_steps=1")
    need = estimate_training(settings, (96, 160)).cost(SETUP).memory
    estimate = estimate_training(settings, (96, 160))
    empty = estimate.batch(settings.batch_size)
    batch = {name: torch.zeros(part.shape, dtype=part.dtype) for name, part in empty.items()}

    class Steps(torch.utils.data.Dataset):
        def __getitem__(self, index):
            return batch

    def resident(field):
        lines = Path("/proc/self/status").read_text().splitlines()
        return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(field))

    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    model = estimate.model.to_empty(device=CPU)
    for tensor in (*model.parameters(), *model.buffers()):
        tensor.detach().zero_()
    Trainer(model, Steps(), settings.optimisation, seed=0, device=CPU).run()
    return resident("VmHWM") - before, need


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["ddd17", "tespec", "moby"])
def test_the_estimate_is_at_most_what_a_training_takes_and_at_least_half_of_it(name):
    program = f"import test_memory; print(*test_memory.peak_of({name!r}))"
    path = os.pathsep.join(map(str, [REPOSITORY, REPOSITORY / "tests", Path(__file__).parent]))
    printed = subprocess.check_output(
        [sys.executable, "-W", "ignore", "-c", program], env=os.environ | {"PYTHONPATH": path}
    )
    peak, need = map(int, printed.split())
    assert LEAST_MEMORY * need < peak < 2.2 * need

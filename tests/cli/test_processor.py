"""What makes trainings on a CPU faster changes none of their numbers, and ends with them."""

import ctypes
import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from benchmarks import gpu
from tespec.cli import processor
from tespec.cli.processor import keep_freed_memory, tuned
from tespec.core.paths import REPOSITORY

DENORMAL = 2.0**-130  # in float32
CAN_FLUSH = torch.set_flush_denormal(False)
STEPS = 3
ROUNDS = """
import resource
from tespec.cli.processor import keep_freed_memory
{keep}
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    b"x" * (64 * 2**20)  # more than glibc ever keeps by itself, freed at once
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults()
print(sum(faults() for _ in range(10)))
"""


def faults(keep: str) -> int:
    command = [sys.executable, "-c", ROUNDS.format(keep=keep)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, timeout=60, check=True)
    return int(done.stdout)


def doubled() -> float:
    """Twice a denormal number, as the processor computes it now."""
    return float(torch.tensor([DENORMAL]) * 2)


@pytest.mark.parametrize("name", gpu.TRAININGS)
def test_a_training_ends_with_the_same_weights_to_the_bit(name, tiny_world, monkeypatch):
    monkeypatch.setattr(gpu, "make_world", lambda *_, **__: tiny_world)
    weights = []
    for way in (nullcontext, tuned):
        loop, batch = gpu.training(name, "fp32", torch.device("cpu"))
        with way():
            for _ in range(STEPS):
                loop.train_step(batch)
                loop.step += 1
        weights.append(loop.model.state_dict())
    plain, fast = weights
    assert all(torch.equal(plain[key], fast[key]) for key in plain)


@pytest.mark.skipif(not CAN_FLUSH, reason="the processor cannot do without denormals")
def test_denormal_numbers_are_zero_in_the_block_alone():
    with tuned():
        inside = doubled()
    assert (inside, doubled()) == (0.0, 2 * DENORMAL)


def test_denormal_numbers_are_back_after_an_error():
    with pytest.raises(KeyError), tuned():
        raise KeyError
    assert doubled() == 2 * DENORMAL


@pytest.mark.skipif(not CAN_FLUSH, reason="the processor cannot do without denormals")
def test_threads_of_a_command_take_denormal_numbers_for_zero_too():
    code = (
        "import torch\nfrom tespec.cli.processor import tuned\nfrom tespec.training.launch import launched\n"
        f"torch.set_num_threads(2)\ndenormal = torch.tensor([{DENORMAL!r}]).expand(2**22)\n"
        "with launched('none', 'cpu'), tuned():\n    twice = denormal * 2\nassert not twice.any()"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60, check=True)


def test_numpy_does_not_warn_of_missing_denormals():
    code = (
        "import warnings; warnings.simplefilter('error')\nfrom tespec.cli.processor import tuned\n"
        "with tuned():\n    import numpy as np; np.finfo(np.float32), np.finfo(np.float64), np.finfo(np.float16)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60, check=True)


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="the C library has no mallopt")
def test_freed_memory_is_there_again_without_page_faults():
    assert 10 * faults("assert keep_freed_memory()") < faults("")


def test_another_c_library_is_left_alone(monkeypatch):
    monkeypatch.setattr(processor.ctypes, "CDLL", lambda name: object())
    assert not keep_freed_memory()

"""A training flushes denormal numbers, which changes none of its own, and ends with that."""

import subprocess
import sys
from contextlib import nullcontext

import pytest
import torch

from benchmarks import gpu
from tespec.core.paths import REPOSITORY
from tespec.training.device import denormals_flushed

DENORMAL = 2.0**-130  # in float32
CAN_FLUSH = torch.set_flush_denormal(False)


@pytest.mark.parametrize("name", gpu.TRAININGS)
def test_a_training_ends_with_the_same_weights_to_the_bit(name, tiny_world, monkeypatch):
    monkeypatch.setattr(gpu, "make_world", lambda *_, **__: tiny_world)
    weights = []
    for way in (nullcontext, denormals_flushed):
        loop, batch = gpu.training(name, "fp32", torch.device("cpu"))
        with way():
            for _ in range(3):
                loop.train_step(batch)
                loop.step += 1
        weights.append(loop.model.state_dict())
    plain, fast = weights
    assert all(torch.equal(plain[key], fast[key]) for key in plain)


@pytest.mark.skipif(not CAN_FLUSH, reason="the processor cannot flush denormals")
def test_they_are_zero_in_the_block_alone_on_every_thread_and_without_a_warning():
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "import torch\nfrom tespec.training.device import denormals_flushed\nimport numpy as np\n"
        f"torch.set_num_threads(2)\ndenormal = torch.tensor([{DENORMAL!r}]).expand(2**22)\n"
        "with denormals_flushed():\n    twice = denormal * 2\n    np.finfo(np.float32)\nassert not twice.any()\n"
        f"assert float(torch.tensor([{DENORMAL!r}]) * 2)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60, check=True)

import dataclasses
import subprocess
import sys

import pytest
import torch

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.models.layers import without_tf32
from tespec.training.device import be_deterministic, choose_device, derive, with_precision

SETTINGS = finetuning_settings("ddd17", "recurrent", "sample").optimisation


@pytest.mark.parametrize("name", ["cuda:99", "quantum"])
def test_a_device_that_is_not_there_is_named(name):
    with pytest.raises(UserError, match=f"--device {name}: "):
        choose_device(name)


def test_auto_is_what_the_device_computes_in():
    def precision(name, device):
        return with_precision(dataclasses.replace(SETTINGS, precision=name), torch.device(device)).precision

    assert (precision("auto", "cpu"), precision("auto", "cuda")) == ("fp32", "bf16")
    assert (precision("fp32", "cuda"), precision("fp16", "cuda")) == ("fp32", "fp16")
    with pytest.raises(UserError, match="bf16 is not available on a CPU"):
        precision("bf16", "cpu")


def test_derived_seeds_are_stable_and_differ_by_purpose():
    assert derive(0, "step", 3) == 8082029764619972999
    seeds = {derive(seed, name, step) for seed in range(5) for name in ("step", "model") for step in range(5)}
    assert len(seeds) == 50
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.fixture
def switches():
    """Restore torch's precision and cuDNN settings after the test."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark
    yield
    torch.use_deterministic_algorithms(False)
    torch.set_float32_matmul_precision(before[0])
    torch.backends.cudnn.allow_tf32, torch.backends.cudnn.benchmark = before[1:]


@pytest.mark.parametrize("fast", [True, False])
def test_a_gpu_computes_as_fast_as_it_can_unless_it_must_repeat_to_the_bit(switches, fast):
    be_deterministic(not fast, torch.device("cuda"))
    assert torch.backends.cudnn.benchmark == torch.backends.cudnn.allow_tf32 == fast
    assert torch.get_float32_matmul_precision() == ("high" if fast else "highest")
    with without_tf32():
        assert torch.get_float32_matmul_precision() == "highest"
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == fast


@pytest.mark.skipif(not torch.set_flush_denormal(False), reason="the processor cannot flush denormals")
def test_denormals_are_zero_in_a_training_alone_on_every_thread_and_without_a_warning():
    code = (
        "import warnings; warnings.simplefilter('error')\n"
        "import torch\nfrom tespec.training.device import denormals_flushed\nimport numpy as np\n"
        "torch.set_num_threads(2)\ndenormal = torch.tensor([2.0**-130]).expand(2**22)\n"
        "with denormals_flushed():\n    twice = denormal * 2\n    np.finfo(np.float32)\nassert not twice.any()\n"
        "assert float(torch.tensor([2.0**-130]) * 2)"
    )
    subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, timeout=60, check=True)

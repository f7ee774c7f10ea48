import dataclasses

import pytest
import torch

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.training.device import choose_device, describe, with_precision

SETTINGS = finetuning_settings("ddd17", "recurrent", "sample").optimisation


def test_chooses_the_named_device_or_the_best():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert describe(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "quantum"])
def test_a_device_that_is_not_there_is_named(name):
    with pytest.raises(UserError, match=f"--device {name}: "):
        choose_device(name)


def test_auto_is_what_the_device_computes_in():
    def precision(name, device):
        return with_precision(dataclasses.replace(SETTINGS, precision=name), torch.device(device)).precision

    assert (precision("auto", "cpu"), precision("auto", "cuda")) == ("fp32", "bf16")
    assert (precision("fp32", "cuda"), precision("fp16", "cuda")) == ("fp32", "fp16")
    with pytest.raises(UserError, match=r"optimisation\.precision: unknown value 'fp8'; choose from auto, fp32"):
        precision("fp8", "cpu")
    with pytest.raises(UserError, match="bf16 is not available on a CPU"):
        precision("bf16", "cpu")

import pytest
import torch

from tespec.errors import UserError
from tespec.training.device import autocast_dtype, choose_device, describe


def test_chooses_the_named_device_or_the_best():
    assert choose_device("cpu") == torch.device("cpu")
    assert choose_device(None).type == ("cuda" if torch.cuda.is_available() else "cpu")
    assert describe(torch.device("cpu")) == "cpu"


@pytest.mark.parametrize("name", ["cuda:99", "quantum"])
def test_a_device_that_is_not_there_is_named(name):
    with pytest.raises(UserError, match=f"--device {name}: "):
        choose_device(name)


def test_precision():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert autocast_dtype("auto", cpu) is None
    assert autocast_dtype("auto", gpu) is torch.bfloat16
    assert autocast_dtype("fp32", gpu) is None
    assert autocast_dtype("fp16", gpu) is torch.float16
    with pytest.raises(UserError, match=r"optimisation\.precision: unknown value 'fp8'; choose from auto, fp32"):
        autocast_dtype("fp8", cpu)

"""Training steps never synchronise with the device: forward, backward and optimizer of every objective and task.

Steps run on the meta device, which holds no values, so an operation that reads one raises; blocking copies between it
and the CPU are recorded.
"""

from dataclasses import replace

import pytest
import torch
from loss_cases import CASES
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from tespec.core.config import pretraining_settings
from tespec.training.trainer import Trainer

META = torch.device("meta")
SETTINGS = replace(pretraining_settings("tespec", "sample").optimisation, steps=10)


class Waits(TorchDispatchMode):
    """Record the names of blocking copies between devices."""

    def __init__(self):
        super().__init__()
        self.found = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = operation(*args, **kwargs)
        name = operation.overloadpacket.__name__
        devices = {each.device.type for each in (out, *args) if isinstance(each, torch.Tensor)}
        goes_on = kwargs.get("non_blocking", False) or (name == "copy_" and len(args) > 2 and args[2])
        if name in {"_to_copy", "copy_"} and len(devices) > 1 and not goes_on:
            self.found.append(name)
        return out


SEEN = ("tespec", "ecddp", "ecdp", "mem-tokenizer", "detection")
MARKED = [pytest.param(case, marks=() if case in SEEN else pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize("case", MARKED)
def test_a_step_reads_nothing_from_its_device(case):
    model, batch = CASES[case]()
    loop = Trainer(model, [batch], SETTINGS, seed=0, device=META)
    loop.model.train()
    batch = {name: value.to(META) for name, value in batch.items()}
    with Waits() as waits:
        for loop.step in range(2):
            losses = loop.train_step(batch)
    assert waits.found == []
    assert losses["loss"].device == META
    tensors = [*loop.model.state_dict().values(), *tree_leaves(loop.states)]
    assert all(each.device == META for each in tensors if isinstance(each, torch.Tensor))
    assert len(loop.optimizer.state) == sum(each.requires_grad for each in loop.model.parameters())


def test_what_waits_is_seen():
    with Waits() as waits:
        torch.zeros(3, device=META).copy_(torch.zeros(3))
        torch.zeros(3).to(META, non_blocking=True)
        torch.zeros(3).to(META)
    assert waits.found == ["copy_", "_to_copy"]

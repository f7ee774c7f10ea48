"""Training steps of every task and objective: float32 losses, no waiting for the device.

Gradients are the same under bf16 autocast as in float32: in both cases, networks (backbones, and
modules of other packages) compute in float32 and round their outputs to bf16. What remains is the
arithmetic of the losses, and the rounding of gradients where they enter a network, by 1/256 at
most, which changes a cosine by some millionths. Steps on the meta device, which holds no values,
raise where an operation reads one; blocking copies are recorded.
"""

from dataclasses import replace

import pytest
import torch
from loss_cases import CASES
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only

from tespec.core.config import pretraining_settings
from tespec.models.backbone import Backbone
from tespec.registry import TASKS, import_modules, pretrained_methods
from tespec.training.trainer import Trainer

OURS = ("tespec.", "baselines.")
META = torch.device("meta")
SETTINGS = replace(pretraining_settings("tespec", "sample").optimisation, steps=10)


def test_none_is_forgotten():
    import_modules("tespec.tasks")
    tasks = {name for name, kind in TASKS.module_dict.items() if kind.__module__.startswith(OURS)}
    assert set(CASES) == tasks | set(pretrained_methods())


def rounded(tensor):
    """Round to bf16, as a network does under autocast; outside of it, return float32."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.bfloat16() if torch.is_autocast_enabled("cpu") else tensor.bfloat16().float()


def let_round(module, name):
    original = getattr(module, name)

    def computed(*args, **kwargs):
        args = tree_map_only(
            torch.Tensor, lambda x: x.float() if x.dtype == torch.bfloat16 else x, args
        )
        with torch.autocast("cpu", enabled=False):
            out = original(*args, **kwargs)
        if isinstance(module, Backbone) and isinstance(out, tuple):  # whose state is not rounded
            return tree_map_only(torch.Tensor, rounded, out[0]), out[1]
        return tree_map_only(torch.Tensor, rounded, out)

    setattr(module, name, computed)


def let_networks_round(module):
    """Round the outputs of all networks in the module: not of the project's losses and heads."""
    for child in module.children():
        if isinstance(child, Backbone):
            for name in ("forward", "embed", "embed_patches", "encode"):
                let_round(child, name)
        elif isinstance(child, nn.ModuleList | nn.ModuleDict) or type(child).__module__.startswith(
            OURS
        ):
            let_networks_round(child)
        else:
            let_round(child, "forward")


def gradient(case, autocast):
    model, batch = CASES[case]()
    let_networks_round(model.train())
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        losses, _ = model.loss(batch, None)
    assert losses["loss"].dtype == torch.float32
    losses["loss"].backward()
    gradients = [p.grad.flatten().double() for p in model.parameters() if p.grad is not None]
    return losses["loss"].item(), torch.cat(gradients)


@pytest.mark.parametrize("case", CASES)
def test_autocast_leaves_gradients_as_they_are(case):
    exact, expected = gradient(case, autocast=False)
    loss, gradients = gradient(case, autocast=True)
    assert expected.norm() > 0
    assert torch.cosine_similarity(gradients, expected, dim=0) > 0.9999
    assert loss == pytest.approx(exact, rel=1e-4)


class Waits(TorchDispatchMode):
    """Record the names of blocking copies between devices."""

    def __init__(self):
        super().__init__()
        self.copies = []

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        out = operation(*args, **kwargs)
        name = operation.overloadpacket.__name__
        devices = {x.device.type for x in (out, *args) if isinstance(x, torch.Tensor)}
        goes_on = kwargs.get("non_blocking", False) or (
            name == "copy_" and len(args) > 2 and args[2]
        )
        if name in {"_to_copy", "copy_"} and len(devices) > 1 and not goes_on:
            self.copies.append(name)
        return out


QUICK = ("tespec", "ecdp", "mem-tokenizer", "detection")
MARKED = [pytest.param(case, marks=() if case in QUICK else pytest.mark.slow) for case in CASES]


@pytest.mark.parametrize("case", MARKED)
def test_a_step_reads_nothing_from_its_device(case):
    model, batch = CASES[case]()
    loop = Trainer(model, [batch], SETTINGS, seed=0, device=META)
    loop.model.train()
    batch = {name: value.to(META) for name, value in batch.items()}
    with Waits() as waits:
        for loop.step in range(2):
            losses = loop.train_step(batch)
    assert waits.copies == []
    assert losses["loss"].device == META
    tensors = [*loop.model.state_dict().values(), *tree_leaves(loop.states)]
    assert all(tensor.device == META for tensor in tensors if isinstance(tensor, torch.Tensor))
    assert len(loop.optimizer.state) == sum(each.requires_grad for each in loop.model.parameters())


def test_what_waits_is_seen():
    with Waits() as waits:
        torch.zeros(3, device=META).copy_(torch.zeros(3))
        torch.zeros(3).to(META, non_blocking=True)
        torch.zeros(3).to(META)
    assert waits.copies == ["copy_", "_to_copy"]

"""Losses have the same gradients under bf16 autocast as in float32, for every task and objective.

Networks (backbones, and modules of other packages) compute in float32 and round their outputs to bf16 in both cases.
The remaining differences are the arithmetic of the losses and the rounding of gradients where they enter a network, by
1/256 at most, which changes a cosine by some millionths.
"""

import pytest
import torch
from loss_cases import CASES
from torch import nn
from torch.utils._pytree import tree_map_only

from tespec.models.backbone import Backbone
from tespec.registry import TASKS, import_modules, pretrained_methods

OURS = ("tespec.", "baselines.")


def test_none_is_forgotten():
    import_modules("tespec.tasks")
    tasks = {name for name, kind in TASKS.module_dict.items() if kind.__module__.startswith(OURS)}
    assert set(CASES) == tasks | set(pretrained_methods())


def rounded(tensor):
    """Round to bf16, as a network does under autocast; outside of autocast, return the rounded numbers in float32."""
    if not tensor.is_floating_point():
        return tensor
    return tensor.bfloat16() if torch.is_autocast_enabled("cpu") else tensor.bfloat16().float()


def let_round(module, name):
    original = getattr(module, name)

    def computed(*args, **kwargs):
        args = tree_map_only(torch.Tensor, lambda each: each.float() if each.dtype == torch.bfloat16 else each, args)
        with torch.autocast("cpu", enabled=False):
            out = original(*args, **kwargs)
        if isinstance(module, Backbone) and isinstance(out, tuple):  # whose state is not rounded
            return tree_map_only(torch.Tensor, rounded, out[0]), out[1]
        return tree_map_only(torch.Tensor, rounded, out)

    setattr(module, name, computed)


def let_networks_round(module):
    """Round the outputs of all networks in the module, i.e. of all but this project's losses and heads."""
    for child in module.children():
        if isinstance(child, Backbone):
            for name in ("forward", "embed", "embed_patches", "encode"):
                let_round(child, name)
        elif isinstance(child, nn.ModuleList | nn.ModuleDict) or type(child).__module__.startswith(OURS):
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
    found = [each.grad.flatten().double() for each in model.parameters() if each.grad is not None]
    return losses["loss"].item(), torch.cat(found)


@pytest.mark.parametrize("case", CASES)
def test_autocast_leaves_gradients_as_they_are(case):
    (exact, there), (loss, here) = gradient(case, autocast=False), gradient(case, autocast=True)
    assert there.norm() > 0
    assert torch.cosine_similarity(here, there, dim=0) > 0.9999
    assert loss == pytest.approx(exact, rel=1e-4)

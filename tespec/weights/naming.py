"""Our tensors in timm's naming, for programs that know nothing of this harness."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

NETWORKS = ("swin.", "resnet.")


def timm_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The Swin Transformer, or ResNet, alone, in the naming of timm since 0.8; ConvLSTMs are left out.

    It lacks the classifier and the final norm of a Swin. `load_state_dict` is the way to load it: timm's own filter of
    checkpoints takes, in some versions, any Swin without a classifier for one of the old naming.
    """
    return {
        name.removeprefix(network): tensor
        for name, tensor in tensors.items()
        for network in NETWORKS
        if name.startswith(network)
    }

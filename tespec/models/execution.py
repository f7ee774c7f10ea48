"""How a network is computed: what costs memory or time, and changes results by rounding at most."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tespec.core.errors import UserError
from tespec.models.backbone import Backbone, ConvLstm


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a batch's samples see each other's statistics."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


FUSED = "fused_attn"  # what timm calls it


@dataclass(frozen=True)
class Execution:
    """Choices of the user.

    Attributes:
        recompute: in the backward pass compute a stage again instead of keeping what is inside it: the same gradients
            to the bit, less memory, a third more time.
        compiled: stages, and the cells of ConvLSTMs, compiled for their shapes, by a compiler that must be there; sums
            in another order.
    """

    recompute: bool = False
    compiled: bool = False

    def facts(self, fast: bool) -> dict[str, bool]:
        """Whatever is on, for records; `fast` as of `execute`."""
        on = {"recompute": self.recompute, "fused_attention": fast, "compiled": self.compiled, "channels_last": fast}
        return {name: True for name, chosen in on.items() if chosen}


def execute(model: nn.Module, execution: Execution, fast: bool = False) -> None:
    """Let `model`, and every backbone within it, be computed so.

    Args:
        model: changed in place.
        execution: the choices.
        fast: whether to sum in another order where a GPU is faster so: torch's fused attention, and weights of
            convolutions with their channels last; see `tespec.training.device.is_fast`.

    Raises:
        UserError: a choice that the backbone does not go with.
    """
    for backbone in [module for module in model.modules() if isinstance(module, Backbone)]:
        if execution.recompute and has_batch_norm(backbone):
            what = "the backbone's batch normalisation would see every batch twice"
            raise UserError("--recompute", what, "leave it out")
        backbone.recompute = execution.recompute
        for module in backbone.modules():
            if hasattr(module, FUSED):
                setattr(module, FUSED, fast)
        if execution.compiled:
            for stage in backbone.stage_modules():
                stage.compile(dynamic=False)
            for lstm in backbone.lstms:
                cast("ConvLstm", lstm).compile_cell()
    if fast:
        # mypy does not know this form of `to`.
        cast("Any", model).to(memory_format=torch.channels_last)

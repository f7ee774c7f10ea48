"""How a network is computed: what costs memory or time, and changes results by rounding at most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
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
    """Choices; those left at None are on where a run is to be fast on a GPU, and off elsewhere.

    Attributes:
        recompute: in the backward pass compute a stage again instead of keeping what is inside it: the same gradients
            to the bit, less memory, a third more time.
        fused_attention: torch's fused attention in the backbone; sums in another order.
        compiled: stages, and the cells of ConvLSTMs, compiled for their shapes, by a compiler that must be there; sums
            in another order.
        channels_last: weights of convolutions with their channels last, as GPUs take them; sums in another order.
    """

    recompute: bool = False
    fused_attention: bool | None = None
    compiled: bool = False
    channels_last: bool | None = None

    def facts(self, fast: bool = False) -> dict[str, bool]:
        """Those that are on, for records; `fast` as of `execute`."""
        choices = {name: fast if chosen is None else chosen for name, chosen in asdict(self).items()}
        return {name: chosen for name, chosen in choices.items() if chosen}


def execute(model: nn.Module, execution: Execution, fast: bool = False) -> None:
    """Let `model`, and every backbone within it, be computed so.

    Args:
        model: changed in place.
        execution: the choices.
        fast: what those are that were left open: see `tespec.training.device.is_fast`.

    Raises:
        UserError: a choice that the backbone does not go with.
    """
    for backbone in [module for module in model.modules() if isinstance(module, Backbone)]:
        if execution.recompute and has_batch_norm(backbone):
            what = "the backbone's batch normalisation would see every batch twice"
            raise UserError("--recompute", what, "leave it out")
        backbone.recompute = execution.recompute
        attentions = [module for module in backbone.modules() if hasattr(module, FUSED)]
        if execution.fused_attention and not attentions:
            raise UserError("--fused-attention", f"{backbone.arch} has no attention of this kind", "leave it out")
        for attention in attentions:
            setattr(attention, FUSED, fast if execution.fused_attention is None else execution.fused_attention)
        if execution.compiled:
            for stage in backbone.stage_modules():
                stage.compile(dynamic=False)
            for lstm in backbone.lstms:
                cast("ConvLstm", lstm).compile_cell()
    if fast if execution.channels_last is None else execution.channels_last:
        # mypy does not know this form of `to`.
        cast("Any", model).to(memory_format=torch.channels_last)

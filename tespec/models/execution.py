"""How a network is computed: what costs memory or time, and changes results by rounding at most."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from tespec.core.errors import UserError
from tespec.models.backbone import Backbone


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a batch's samples see each other's statistics."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


FUSED = "fused_attn"  # what timm calls it


@dataclass(frozen=True)
class Execution:
    """Choices, each of them off where nothing is said.

    Attributes:
        recompute: in the backward pass compute a stage again instead of keeping what is inside it: the same gradients
            to the bit, less memory, a third more time.
        fused_attention: torch's fused attention in the backbone; sums in another order.
        compiled: stages compiled for their shapes, by a compiler that must be there; sums in another order.
    """

    recompute: bool = False
    fused_attention: bool = False
    compiled: bool = False

    def facts(self) -> dict[str, bool]:
        """Those that are on, for records."""
        choices = {
            "recompute": self.recompute,
            "fused_attention": self.fused_attention,
            "compiled": self.compiled,
        }
        return {name: chosen for name, chosen in choices.items() if chosen}


def execute(model: nn.Module, execution: Execution) -> None:
    """Let every backbone within `model` be computed so.

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
            setattr(attention, FUSED, execution.fused_attention)
        if execution.compiled:
            for stage in backbone.stage_modules():
                stage.compile(dynamic=False)

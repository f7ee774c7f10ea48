"""How a network is computed: what costs memory or time, and changes results by rounding at most."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm
from torch.nn.modules.batchnorm import _BatchNorm

from tespec.core.distributed import all_reduce_sum, has_no_labels, ranks_per_batch
from tespec.core.errors import UserError
from tespec.models.backbone import Backbone, ConvLstm


class SyncedBatchNorm(_BatchNorm):
    """As `nn.BatchNorm`, with mean and variance over all processes; torch's own needs GPUs.

    A rank without labels (`tespec.core.distributed.rank_without_labels`) adds nothing to them.
    """

    def _check_input_dim(self, input: Tensor) -> None:
        if input.dim() < 2:
            raise ValueError(f"(N, C, ...) expected, got {input.dim()} axes")

    def forward(self, values: Tensor) -> Tensor:
        """Normalise (N, C, ...)."""
        self._check_input_dim(values)
        if not self.training or ranks_per_batch() == 1:
            return batch_norm(
                values,
                self.running_mean,
                self.running_var,
                self.weight,
                self.bias,
                self.training or self.running_mean is None,
                self.momentum if self.momentum is not None else 0.1,
                self.eps,
            )
        axes = [0, *range(2, values.dim())]
        shape = (1, -1, *[1] * (values.dim() - 2))
        exact = values.float()
        weight = 0.0 if has_no_labels() else 1.0
        here = values.new_full((1,), weight * values.numel() / values.shape[1], dtype=torch.float32)
        sums = all_reduce_sum(torch.cat([weight * exact.sum(axes), here]))
        elements = sums[-1].detach().clamp(min=1)
        mean = sums[:-1] / elements
        centred = exact - mean.view(shape)
        variance = all_reduce_sum(weight * centred.square().sum(axes)) / elements
        normal = centred * torch.rsqrt(variance + self.eps).view(shape)
        self._remember(mean, variance * elements / (elements - 1).clamp(min=1), (sums[-1] > 0).float())
        if has_no_labels():
            # What stands in for a sample may lie far from the others; nothing must overflow on its way.
            normal = normal * 0.0
        if self.affine:
            normal = normal * self.weight.view(shape) + self.bias.view(shape)
        return normal.to(values.dtype)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, seen: Tensor) -> None:
        """Follow the batch's statistics; `seen` is 0 where no process had a sample, else 1."""
        if self.running_mean is None:
            return
        batches = cast("Tensor", self.num_batches_tracked)
        batches.add_(seen.long())
        share = seen * self.momentum if self.momentum is not None else seen / batches.clamp(min=1)
        self.running_mean.lerp_(mean, share)
        cast("Tensor", self.running_var).lerp_(variance, share)


def synced(model: nn.Module) -> nn.Module:
    """`model` with every batch normalisation over all processes; parameters and their names stay."""
    for name, child in model.named_children():
        if isinstance(child, _BatchNorm) and not isinstance(child, SyncedBatchNorm):
            setattr(model, name, _replaced(child))
        else:
            synced(child)
    return model


def has_batch_norm(model: nn.Module) -> bool:
    """Whether a batch's samples see each other's statistics."""
    return any(isinstance(module, _BatchNorm) for module in model.modules())


def _replaced(norm: _BatchNorm) -> SyncedBatchNorm:
    other = SyncedBatchNorm(norm.num_features, norm.eps, norm.momentum, norm.affine, norm.track_running_stats)
    # The very same tensors: an optimizer, or a teacher's copy, may hold them already.
    other._parameters, other._buffers = norm._parameters, norm._buffers
    other.train(norm.training)
    return other


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

"""Networks of several ranks: batch statistics of the global batch, and a gradient for every parameter."""

from typing import cast

import torch
from torch import Tensor, nn

from tespec.core.distributed import (
    all_gather_rows,
    has_no_labels,
    rank,
    ranks_per_batch,
    world_size,
)
from tespec.core.errors import UserError

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def require_gradients(network: nn.Module) -> None:
    """Check that every trained parameter has a gradient, for which the other ranks would otherwise wait."""
    if world_size() == 1 or getattr(network, "unused_parameters", False):
        return
    without = [
        name
        for name, each in network.named_parameters()
        if each.requires_grad and each.grad is None
    ]
    if without:
        what = f"{', '.join(without)} got no gradient in a step of rank {rank()}"
        raise UserError(
            type(network).__name__,
            what,
            "set unused_parameters = True in its class, or freeze them",
        )


def synced(model: nn.Module) -> nn.Module:
    """Turn torch's batch normalisations in `model` into `SyncedBatchNorm`, in place; optimizers stay valid."""
    for each in model.modules():
        trained = any(parameter.requires_grad for parameter in each.parameters(recurse=False))
        if type(each) in BATCH_NORMS:  # subclasses, such as timm's with an activation, do more
            each.__class__ = SyncedBatchNorm
        elif (
            isinstance(each, BATCH_NORMS)
            and type(each) is not SyncedBatchNorm
            and trained
            and world_size() > 1
        ):
            raise UserError(
                type(each).__name__, "is not synchronised between ranks", "use torch's BatchNorm"
            )
    return model


class SyncedBatchNorm(nn.BatchNorm1d):
    """Batch normalisation with mean and variance over all ranks; unlike torch's, it also runs on CPUs.

    One value per channel is accepted and has variance 0. A single rank with more values computes
    what torch computes. A rank without labels (`tespec.core.distributed.rank_computes`) contributes
    nothing. Each rank sends its mean, its sum of squared deviations and its number of elements,
    which are combined as in Chan et al. (1979): plain sums of squares would lose precision where
    the mean is large.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, C, ...), with one collective in the forward and one in the backward pass."""
        count = input.numel() // input.shape[1]
        if not self.training or (ranks_per_batch() == 1 and count != 1 and not has_no_labels()):
            return super().forward(input)
        values = input.to(torch.promote_types(input.dtype, torch.float32))
        if has_no_labels():
            # The dummy sample may be an outlier. Masking leaves the parameters before this layer
            # zero gradients.
            values, count = values.masked_fill(values.new_ones((), dtype=torch.bool), 0.0), 0
        variance, mean = torch.var_mean(values, [0, *range(2, values.dim())], correction=0)
        gathered = all_gather_rows(
            torch.stack([mean, variance * count, torch.full_like(mean, count)])[None]
        )
        means, squares, counts = gathered.unbind(1)
        elements = counts.sum(0).clamp(min=1)
        mean = (means * counts).sum(0) / elements
        variance = (squares + counts * (means - mean).square()).sum(0) / elements
        if self.running_mean is not None:
            with torch.no_grad():
                seen = (counts.sum() > 0).float()  # 0 if no rank had a sample
                batches = cast("Tensor", self.num_batches_tracked).add_(seen.long())
                share = (
                    seen * self.momentum
                    if self.momentum is not None
                    else seen / batches.clamp(min=1)
                )
                self.running_mean.lerp_(mean, share)
                cast("Tensor", self.running_var).lerp_(
                    variance * elements / (elements - 1).clamp(min=1), share
                )
        factor = torch.rsqrt(variance + self.eps) * (1 if self.weight is None else self.weight)
        shift = (0 if self.bias is None else self.bias) - mean * factor
        along = (1, -1, *[1] * (values.dim() - 2))
        return torch.addcmul(shift.view(along), values, factor.view(along)).to(input.dtype)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept feature maps of any rank."""

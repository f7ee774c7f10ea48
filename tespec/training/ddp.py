"""Networks on several ranks: global batch statistics, and a gradient for every parameter."""

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
from tespec.models import Backbone

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def may_lack_gradients(network: nn.Module) -> bool:
    """Whether a step may leave a trained parameter of the network without gradient.

    It sets `unused_parameters`, or has a backbone whose last feature does not depend on the others.
    """
    if getattr(network, "unused_parameters", False):
        return True
    return any(isinstance(part, Backbone) and not part.hierarchical for part in network.modules())


def require_gradients(network: nn.Module) -> None:
    """Check that every trained parameter has a gradient; other ranks would wait for it forever."""
    if world_size() == 1 or may_lack_gradients(network):
        return
    missing = [
        name
        for name, parameter in network.named_parameters()
        if parameter.requires_grad and parameter.grad is None
    ]
    if missing:
        raise UserError(
            type(network).__name__,
            f"{', '.join(missing)} got no gradient in a step of rank {rank()}",
            "set unused_parameters = True in its class, or freeze them",
        )


def convert_sync_batchnorm(model: nn.Module) -> nn.Module:
    """Turn torch's batch normalisations into `SyncedBatchNorm`, in place; optimizers stay valid."""
    for module in model.modules():
        if type(module) in BATCH_NORMS:  # subclasses, such as timm's with an activation, do more
            module.__class__ = SyncedBatchNorm
        elif isinstance(module, BATCH_NORMS) and not isinstance(module, SyncedBatchNorm):
            trained = any(weight.requires_grad for weight in module.parameters(recurse=False))
            if trained and world_size() > 1:
                name = type(module).__name__
                raise UserError(name, "is not synchronised between ranks", "use torch's BatchNorm")
    return model


class SyncedBatchNorm(nn.BatchNorm1d):
    """Batch normalisation with mean and variance over all ranks; unlike torch's, also on CPUs.

    One value per channel is accepted and has variance 0. A single rank with more values computes
    what torch computes. A rank without labels (`tespec.core.distributed.rank_computes`) contributes
    nothing. Each rank sends its mean, its sum of squared deviations and its number of elements,
    which are combined as in Chan et al. (1979): plain sums of squares would lose precision where
    the mean is large.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, C, ...) with one collective in the forward and one in the backward pass."""
        count = input.numel() // input.shape[1]
        if not self.training or (ranks_per_batch() == 1 and count != 1 and not has_no_labels()):
            return super().forward(input)
        values = input.to(torch.promote_types(input.dtype, torch.float32))
        if has_no_labels():
            # The dummy sample may be an outlier. Masking leaves the parameters before this layer
            # zero gradients.
            values = values.masked_fill(values.new_ones((), dtype=torch.bool), 0.0)
            count = 0
        variance, mean = torch.var_mean(values, [0, *range(2, values.dim())], correction=0)
        statistics = torch.stack([mean, variance * count, torch.full_like(mean, count)])  # (3, C)
        means, squares, counts = all_gather_rows(statistics[None]).unbind(1)  # (ranks, C)
        elements = counts.sum(0).clamp(min=1)
        mean = (means * counts).sum(0) / elements
        variance = (squares + counts * (means - mean).square()).sum(0) / elements
        if self.running_mean is not None:
            self._update_running_statistics(mean, variance, elements, counts)
        factor = torch.rsqrt(variance + self.eps) * (1 if self.weight is None else self.weight)
        shift = (0 if self.bias is None else self.bias) - mean * factor
        shape = (1, -1, *[1] * (values.dim() - 2))
        return torch.addcmul(shift.view(shape), values, factor.view(shape)).to(input.dtype)

    @torch.no_grad()
    def _update_running_statistics(
        self, mean: Tensor, variance: Tensor, elements: Tensor, counts: Tensor
    ) -> None:
        has_samples = (counts.sum() > 0).float()  # 0 if no rank had a sample
        batches = cast("Tensor", self.num_batches_tracked).add_(has_samples.long())
        if self.momentum is None:
            momentum = has_samples / batches.clamp(min=1)
        else:
            momentum = has_samples * self.momentum
        unbiased = variance * elements / (elements - 1).clamp(min=1)
        cast("Tensor", self.running_mean).lerp_(mean, momentum)
        cast("Tensor", self.running_var).lerp_(unbiased, momentum)

    def _check_input_dim(self, input: Tensor) -> None:
        """Accept feature maps of any rank."""

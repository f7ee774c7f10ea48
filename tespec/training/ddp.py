"""A network on several ranks: a replica on each, whose gradients and batch statistics are those of the whole batch."""

from __future__ import annotations

import warnings
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.distributed import all_gather, all_reduce
from torch.nn.functional import batch_norm
from torch.nn.parallel import DistributedDataParallel

from tespec.core.distributed import has_no_labels, rank, ranks_per_batch, world_size
from tespec.core.errors import UserError

BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


class LossModule(nn.Module):
    """A network's loss as a module, which is what DDP wraps."""

    def __init__(self, network: Any) -> None:
        super().__init__()
        self.network = network

    def forward(self, batch: dict[str, Tensor], state: Any) -> tuple[dict[str, Tensor], Any]:
        """Losses of a micro-batch by name, and the state after it."""
        losses: tuple[dict[str, Tensor], Any] = self.network.loss(batch, state)
        return losses


def wrap_ddp(network: nn.Module) -> nn.Module:
    """The loss of a network; with several ranks its gradients are averaged over them during the backward pass.

    The network's own batch normalisations become synchronised ones then; its parameters, buffers and their names stay.
    Each trained parameter has to get a gradient in every step of every rank. Where that is not so, the network says
    `unused_parameters = True`: what only other ranks have a gradient for counts as zero then, and finding out which
    those are waits for the device in each step.
    """
    if world_size() == 1:
        return LossModule(network)
    with warnings.catch_warnings():
        # torch 2.13 renames `broadcast_buffers`.
        warnings.simplefilter("ignore", FutureWarning)
        return DistributedDataParallel(
            LossModule(synced(network)),
            broadcast_buffers=False,  # batch statistics are those of the whole batch on every rank
            gradient_as_bucket_view=True,
            find_unused_parameters=allows_unused(network),
        )


def allows_unused(network: nn.Module) -> bool:
    """Whether a step may leave trained parameters of the network without a gradient."""
    return bool(getattr(network, "unused_parameters", False))


def require_gradients(network: nn.Module) -> None:
    """Make sure that the other ranks do not wait for a gradient of this one.

    Raises:
        UserError: a trained parameter has none.
    """
    if world_size() == 1 or allows_unused(network):
        return
    without = [name for name, each in network.named_parameters() if each.requires_grad and each.grad is None]
    if without:
        what = f"a step of rank {rank()} gave no gradient to {', '.join(without)}"
        raise UserError(type(network).__name__, what, "set unused_parameters = True in its class, or freeze them")


def synced(model: nn.Module) -> nn.Module:
    """`model` with every batch normalisation over all ranks; parameters and their names stay."""
    for name, child in model.named_children():
        if isinstance(child, BATCH_NORMS) and not isinstance(child, SyncedBatchNorm):
            norm = SyncedBatchNorm(
                child.num_features, child.eps, child.momentum, child.affine, child.track_running_stats
            )
            # The very same tensors: an optimizer, or a momentum copy, may hold them already.
            norm.weight, norm.bias = child.weight, child.bias
            norm.running_mean, norm.running_var = child.running_mean, child.running_var
            norm.num_batches_tracked = child.num_batches_tracked
            setattr(model, name, norm.train(child.training))
        else:
            synced(child)
    return model


class SyncedBatchNorm(nn.BatchNorm1d):
    """As `nn.BatchNorm`, with mean and variance over all ranks; torch's own needs GPUs.

    A rank without labels (`tespec.core.distributed.rank_without_labels`) adds nothing to them.
    """

    def forward(self, input: Tensor) -> Tensor:
        """Normalise (N, C, ...)."""
        if not self.training or ranks_per_batch() == 1:
            batches = self.training or self.running_mean is None
            share = 0.1 if self.momentum is None else self.momentum
            return batch_norm(
                input, self.running_mean, self.running_var, self.weight, self.bias, batches, share, self.eps
            )
        normal, mean, variance, elements = _Normal.apply(input, self.weight, self.bias, self.eps, not has_no_labels())
        self._remember(mean, variance * elements / (elements - 1).clamp(min=1), (elements > 0).float())
        return cast("Tensor", normal)

    @torch.no_grad()
    def _remember(self, mean: Tensor, variance: Tensor, seen: Tensor) -> None:
        """Follow the batch's statistics; `seen` is 0 where no rank had a sample, else 1."""
        if self.running_mean is None:
            return
        batches = cast("Tensor", self.num_batches_tracked)
        batches.add_(seen.long())
        share = seen * self.momentum if self.momentum is not None else seen / batches.clamp(min=1)
        self.running_mean.lerp_(mean, share)
        cast("Tensor", self.running_var).lerp_(variance, share)


class _Normal(torch.autograd.Function):
    """Batch normalisation over all ranks, with one exchange forward and one backward.

    Each rank tells its mean, its squared distance from that, and its number of elements, which are put together as by
    Chan et al. (1979): sums of squares of all would cancel where the mean is large. Saved for the backward pass is the
    input alone.
    """

    @staticmethod
    def forward(
        ctx: Any, values: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float, counts: bool
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        axes = [0, *range(2, values.dim())]
        exact = values.to(torch.promote_types(values.dtype, torch.float32))
        here = exact.new_zeros(3, values.shape[1])
        if counts:
            variance, mean = torch.var_mean(exact, axes, correction=0)
            number = values.numel() // values.shape[1]
            here[0], here[1], here[2] = mean, variance * number, number
        told = [torch.empty_like(here) for _ in range(world_size())]
        all_gather(told, here)
        means, squares, numbers = torch.stack(told, 1)
        elements = numbers[:, 0].sum()
        mean = (means * numbers).sum(0) / elements.clamp(min=1)
        variance = (squares + numbers * (means - mean).square()).sum(0) / elements.clamp(min=1)
        if counts:
            normal = batch_norm(values, mean, variance, weight, bias, False, 0.0, eps)
        else:
            # What stands in for a sample may lie far from the others; nothing must overflow on its way.
            normal = torch.zeros_like(values) + (0 if bias is None else bias.view(_along(values)).to(values.dtype))
        ctx.save_for_backward(values, weight, mean, torch.rsqrt(variance + eps), elements)
        ctx.counts = counts
        ctx.mark_non_differentiable(mean, variance, elements)
        return normal, mean, variance, elements

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        values, weight, mean, scale, elements = ctx.saved_tensors
        axes, along = [0, *range(2, values.dim())], _along(values)
        given = gradients[0].to(mean.dtype)
        here, to_values = mean.new_zeros(2, len(mean)), torch.zeros_like(values)
        if ctx.counts:
            normal = (values.to(mean.dtype) - mean.view(along)) * scale.view(along)
            here = torch.stack([given.sum(axes), (given * normal).sum(axes)])
        whole = here.clone()
        all_reduce(whole)
        if ctx.counts:
            shift, slope = (each.view(along) for each in whole / elements.clamp(min=1))
            factor = scale if weight is None else scale * weight
            to_values = ((given - shift - normal * slope) * factor.view(along)).to(values.dtype)
        return to_values, None if weight is None else here[1], None if weight is None else here[0], None, None


def _along(values: Tensor) -> tuple[int, ...]:
    """The shape in which numbers for each channel go with (N, C, ...)."""
    return (1, -1, *[1] * (values.dim() - 2))

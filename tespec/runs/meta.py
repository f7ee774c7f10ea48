"""A step on torch's `meta` device, where tensors have shapes but no content: its operations and the memory it takes."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import pad, scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from tespec.models.layers import AUTOCAST_ON_META
from tespec.training.loading import Batch

META = torch.device("meta")


class Counter(TorchDispatchMode):
    """`FlopCounterMode` without its table, and the bytes of all storages; backward passes and recomputing included.

    Attributes:
        flops: of matrix products and convolutions by torch's formulas; a multiplication and its addition are two.
        alive: bytes of all storages in use, those of `before` included.
        peak: the most that were in use at once.

    Args:
        before: tensors made earlier that stay in use.
    """

    def __init__(self, before: Iterable[Tensor] = ()) -> None:
        super().__init__()
        self.flops = self.alive = self.peak = 0
        # A storage's address is zero on `meta`, so that objects tell storages apart.
        self._storages: dict[int, weakref.ref[Any]] = {}
        for tensor in before:
            self._see(tensor)

    def _see(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._storages:
            self.alive += size
            self.peak = max(self.peak, self.alive)
            self._storages[key] = weakref.ref(storage, lambda _: self._gone(key, size))

    def _gone(self, key: int, size: int) -> None:
        self.alive -= size
        del self._storages[key]

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        for each in tree_leaves(out):
            if isinstance(each, Tensor):
                self._see(each)
        return out


# What autocast computes in half precision on CUDA, and what in fp32, by the names of torch's functions and methods
# (https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior).
IN_HALF = frozenset(
    {
        *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "linear", "prelu"),
        *("matmul", "__matmul__", "__rmatmul__", "mm", "mv", "bmm", "addmm", "addmv", "addbmm", "baddbmm", "einsum"),
        "scaled_dot_product_attention",
    }
)
IN_FP32 = frozenset(
    {
        *("layer_norm", "group_norm", "norm", "normalize", "cosine_similarity", "cdist"),
        *("exp", "expm1", "log", "log10", "log1p", "log2", "pow", "__pow__", "__rpow__", "reciprocal", "rsqrt"),
        *("cross_entropy", "nll_loss", "kl_div", "mse_loss", "l1_loss", "smooth_l1_loss", "softplus"),
        "binary_cross_entropy_with_logits",
    }
)
RESULT_IN_FP32 = frozenset(["softmax", "log_softmax", "sum", "prod", "cumsum", "cumprod"])
ALIGNED = 8  # numbers; what the last side of a mask is a multiple of, for the fused kernel


class AsOnCuda(TorchFunctionMode):
    """Casts and fused attention on `meta` as on CUDA.

    torch's autocast does not know `meta`: casts follow `torch.autocast(AUTOCAST_ON_META)`, which leaves `meta` alone.
    Fused attention is CUDA's memory-efficient kernel, the one that takes a mask; torch itself would
    take attention apart on `meta` and keep its matrices.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[int, Tensor] = {}  # autocast, too, casts a weight once a step

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if torch.is_autocast_enabled(AUTOCAST_ON_META):
            if name in IN_HALF:
                args, kwargs = self._cast(args, torch.bfloat16), self._cast(kwargs, torch.bfloat16)
            elif name in IN_FP32:
                args, kwargs = self._cast(args, torch.float32), self._cast(kwargs, torch.float32)
            elif name in RESULT_IN_FP32 and args[0].dtype == torch.bfloat16:
                kwargs = {"dtype": torch.float32} | kwargs
        if func is scaled_dot_product_attention and args[0].device == META:
            return _attention(*args, **kwargs)
        return func(*args, **kwargs)

    def _cast(self, value: Any, dtype: torch.dtype) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(self._cast(each, dtype) for each in value)
        if isinstance(value, dict):
            return {key: self._cast(each, dtype) for key, each in value.items()}
        if not isinstance(value, Tensor) or value.dtype not in (torch.float32, torch.bfloat16) or value.dtype == dtype:
            return value
        if not isinstance(value, nn.Parameter):
            return value.to(dtype)
        if id(value) not in self._weights:
            self._weights[id(value)] = value.to(dtype)
        return self._weights[id(value)]


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    """`scaled_dot_product_attention` by the kernel's own operator."""
    if attn_mask is not None:
        keys = attn_mask.shape[-1]
        aligned = pad(attn_mask, (0, -keys % ALIGNED))[..., :keys] if keys % ALIGNED else attn_mask
        attn_mask = aligned.expand(*query.shape[:-1], keys)
    kept = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    out: Tensor = kernel(query, key, value, attn_mask, kept, **options)[0]
    return out


class StepCount(NamedTuple):
    """What one process's part of a training step takes, forward and backward.

    Attributes:
        flops: floating-point operations.
        kept: bytes that the forward pass keeps for the backward pass, beside weights and batch.
        peak: most bytes in use at once, weights, batch and gradients included.
        state: bytes of the recurrent state that is carried to the next step.
    """

    flops: int
    kept: int
    peak: int
    state: int


def count_step(model: Any, batch: Batch, half: bool) -> StepCount:
    """Count a forward and a backward pass of `model` on a batch on `meta`; `half`: under autocast to bf16."""
    with Counter([*model.parameters(), *model.buffers(), *batch.values()]) as counter, AsOnCuda():
        before = counter.alive
        with torch.autocast(AUTOCAST_ON_META, dtype=torch.bfloat16, enabled=half):
            losses, state = model.loss(batch, None)
        kept = counter.alive - before
        # As `loss.backward()`, which would leave the modes, and what is computed again needs them.
        loss = losses["loss"]
        torch.autograd.Variable._execution_engine.run_backward(
            (loss,), (torch.ones_like(loss),), False, False, (), allow_unreachable=True, accumulate_grad=True
        )
    model.zero_grad()
    carried = [each.untyped_storage().nbytes() for each in tree_leaves(state) if isinstance(each, Tensor)]
    return StepCount(counter.flops, kept, counter.peak, sum(carried))

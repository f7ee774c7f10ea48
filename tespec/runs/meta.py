"""A step on torch's `meta` device, where nothing is allocated: how much it computes, and what memory it would take.

Tensors there have shapes and types but no content, so a step of any size takes seconds on any machine.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

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
    """Counts what runs inside it, on any device; recomputed activations and backward passes included.

    Attributes:
        flops: of matrix products and convolutions, a multiplication and its addition being two, by torch's formulas.
        alive: bytes of all storages that are in use now, each counted once, and those of `before`.
        peak: the most that were ever in use at once.

    Args:
        before: tensors made earlier that are in use all the time.
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
        kwargs = kwargs or {}
        out = func(*args, **kwargs)
        formula = flop_registry.get(func._overloadpacket)
        if formula is not None:
            self.flops += formula(*args, **kwargs, out_val=out)
        for each in (out,) if isinstance(out, Tensor) else tree_leaves(out):
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


class CastAsOnCuda(TorchFunctionMode):
    """Casts tensors on `meta` as autocast to bf16 does on CUDA; torch's own autocast does not know `meta`.

    It acts where `torch.autocast(AUTOCAST_ON_META)` is on, which does nothing to tensors on `meta` itself.
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


ALIGNED = 8  # numbers; what the last side of a mask is a multiple of, for the fused kernel


class FusedAsOnCuda(TorchFunctionMode):
    """Fused attention on `meta` by CUDA's memory-efficient kernel, the one that takes a mask, and what that keeps.

    torch itself would take attention apart there and keep its matrices.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is scaled_dot_product_attention and args[0].device == META:
            return _attended(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _attended(query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any) -> Tensor:
    """What `scaled_dot_product_attention` gives, by the kernel's own operator."""
    if attn_mask is not None:
        keys = attn_mask.shape[-1]
        aligned = pad(attn_mask, (0, -keys % ALIGNED))[..., :keys] if keys % ALIGNED else attn_mask
        attn_mask = aligned.expand(*query.shape[:-1], keys)
    kept = torch.is_grad_enabled() and any(each.requires_grad for each in (query, key, value))
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    out: Tensor = kernel(query, key, value, attn_mask, kept, **options)[0]
    return out


@dataclass(frozen=True)
class StepCount:
    """What one process's part of a training step takes, from its forward to the end of its backward pass.

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
    """Count a forward and a backward pass of `model`; its gradients are dropped.

    Args:
        model: with `loss(batch, state)`, in training mode.
        batch: on the device of the model.
        half: whether autocast to bf16 is on; on `meta` alone.
    """
    with _counted(model, batch) as counter, FusedAsOnCuda(), CastAsOnCuda():
        before = counter.alive
        with torch.autocast(AUTOCAST_ON_META, dtype=torch.bfloat16, enabled=half):
            losses, state = model.loss(batch, None)
        kept = counter.alive - before
        _backward(losses["loss"])
    model.zero_grad()
    return StepCount(
        counter.flops, kept, counter.peak, sum(each.untyped_storage().nbytes() for each in _tensors(state))
    )


def _backward(loss: Tensor) -> None:
    """As `loss.backward()`, which would leave the cast, and what is computed again needs it."""
    gradient = (torch.ones_like(loss),)
    torch.autograd.Variable._execution_engine.run_backward(
        (loss,), gradient, False, False, (), allow_unreachable=True, accumulate_grad=True
    )


@contextmanager
def counting_evaluation(model: nn.Module, batch: Batch) -> Iterator[Counter]:
    """Count what is computed inside, without gradients, by `model` on `batch`; weights and batch are in use there."""
    with torch.no_grad(), _counted(model.eval(), batch) as counter, FusedAsOnCuda():
        yield counter


def _counted(model: nn.Module, batch: Batch) -> Counter:
    return Counter([*model.parameters(), *model.buffers(), *batch.values()])


def _tensors(state: Any) -> list[Tensor]:
    return [each for each in tree_leaves(state) if isinstance(each, Tensor)]


def bytes_saved_for_backward(step: Callable[[], object]) -> int:
    """Bytes of all tensors, counted once, that the forward passes of `step` hand to autograd for their backward passes.

    Weights are among them; what activation checkpointing keeps is not, since it goes past autograd.
    """
    storages: dict[int, Any] = {}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        storages[storage._cdata] = storage
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        step()
    return sum(storage.nbytes() for storage in storages.values())

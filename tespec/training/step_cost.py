"""Count the FLOPs and memory of a training step on the `meta` device, without data or a GPU."""

import weakref
from collections.abc import Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.flop_counter import flop_registry

from tespec.core.errors import UserError, one_line
from tespec.models.layers import AUTOCAST_ON_META
from tespec.training.loading import Batch

META = torch.device("meta")
# Functions that torch's autocast on CUDA computes in half precision and in float32
# (https://docs.pytorch.org/docs/stable/amp.html#cuda-op-specific-behavior).
HALF_FUNCTIONS = {
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "linear",
    "matmul",
    "__matmul__",
    "__rmatmul__",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "einsum",
    "scaled_dot_product_attention",
}
FP32_FUNCTIONS = {
    "layer_norm",
    "group_norm",
    "normalize",
    "softmax",
    "exp",
    "log",
    "pow",
    "softplus",
    "sum",
}


class StepCost(NamedTuple):
    """FLOPs and memory of one micro-batch, forward and backward, in bytes."""

    flops: int  # of matrix products and convolutions; a multiply-add counts as two
    forward: int  # those of the forward pass
    activations: int  # kept for the backward pass, without weights and batch
    peak: int  # largest memory, with weights, gradients, batch and activations
    state: int  # of the recurrent state after the step


def step_cost(model: Any, batch: Batch, *, half: bool) -> StepCost:
    """Run one step of a network on `meta`, and count its cost.

    Args:
        model: network with a `loss(batch, state)`, on `meta`.
        batch: tensors on `meta`.
        half: whether the step uses mixed precision, as on a GPU.

    Raises:
        UserError: the step depends on the values of tensors.
    """
    counter = Counter([*model.parameters(), *model.buffers(), *batch.values()])
    before = counter.in_use
    try:
        with counter, CudaSemantics():
            with torch.autocast(AUTOCAST_ON_META, torch.bfloat16, half):
                losses, state = model.loss(batch, None)
            activations = counter.in_use - before
            forward = counter.flops
            backward(losses["loss"])
    except (NotImplementedError, RuntimeError) as error:
        raise UserError(
            type(model).__name__,
            f"the cost of its step cannot be estimated without data: {one_line(str(error))[:200]}",
            "make tensor shapes independent of tensor values",
        ) from error
    model.zero_grad()
    tensors = [leaf for leaf in tree_leaves(state) if isinstance(leaf, Tensor)]
    state_bytes = sum(tensor.nbytes for tensor in tensors)
    return StepCost(counter.flops, forward, activations, counter.peak, state_bytes)


class Counter(TorchDispatchMode):
    """Count the FLOPs of operations by torch's formulas, and the memory of their tensors.

    Recomputed activations are included.

    Args:
        tensors: in use before.

    Attributes:
        flops: of matrix products and convolutions; a multiply-add counts as two.
        in_use: bytes of all storages in use, including those of `tensors`.
        peak: maximum of `in_use`.
    """

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self.flops = self.in_use = self.peak = 0
        # Keys are storage objects, since all addresses are zero on `meta`.
        self._storages: dict[int, weakref.ref[Any]] = {}
        for tensor in tensors:
            self._add(tensor)

    def _add(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        size = storage.nbytes()
        if key not in self._storages:
            self.in_use += size
            self.peak = max(self.peak, self.in_use)
            self._storages[key] = weakref.ref(storage, lambda _: self._remove(key, size))

    def _remove(self, key: int, size: int) -> None:
        self.in_use -= size
        del self._storages[key]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **(kwargs or {}), out_val=out)
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self._add(leaf)
        return out


class CudaSemantics(TorchFunctionMode):
    """Emulate CUDA's autocast and fused attention on `meta`, where torch has neither.

    Tensors are cast inside `torch.autocast(AUTOCAST_ON_META)`. Attention is CUDA's memory-efficient
    kernel.
    """

    def __init__(self) -> None:
        super().__init__()
        self._weights: dict[int, Tensor] = {}  # like autocast, cast each weight once per step

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = getattr(func, "__name__", "")
        if torch.is_autocast_enabled(AUTOCAST_ON_META) and name in HALF_FUNCTIONS | FP32_FUNCTIONS:
            dtype = torch.bfloat16 if name in HALF_FUNCTIONS else torch.float32
            args, kwargs = tree_map_only(Tensor, lambda x: self._cast(x, dtype), (args, kwargs))
        if func is scaled_dot_product_attention:
            func = _attention
        return func(*args, **kwargs)

    def _cast(self, value: Tensor, dtype: torch.dtype) -> Tensor:
        if value.dtype not in (torch.float32, torch.bfloat16):
            return value
        if not isinstance(value, nn.Parameter) or value.dtype == dtype:
            return value.to(dtype)
        if id(value) not in self._weights:
            self._weights[id(value)] = value.to(dtype)
        return self._weights[id(value)]


def _attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Tensor | None = None, **options: Any
) -> Any:
    """Compute attention by its kernel, as torch on `meta` would store the attention matrices."""
    mask = None if attn_mask is None else attn_mask.expand(*query.shape[:-1], attn_mask.shape[-1])
    kernel = torch.ops.aten._scaled_dot_product_efficient_attention
    return kernel(query, key, value, mask, torch.is_grad_enabled(), **options)[0]


def backward(loss: Tensor) -> None:
    """Run `loss.backward()` inside the active torch modes, which recomputed activations need."""
    run_backward = torch.autograd.Variable._execution_engine.run_backward
    gradients = (torch.ones_like(loss),)
    run_backward((loss,), gradients, False, False, (), allow_unreachable=True, accumulate_grad=True)

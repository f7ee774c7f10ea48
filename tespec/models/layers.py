"""Shared parts of networks: padding, losses in float32, deterministic pooling, and stochastic depth across ranks."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from timm.layers import DropPath as TimmDropPath
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool2d, pad
from torch.utils._pytree import tree_map_only

from tespec.core.distributed import shard_slice

STRIDE = 32  # px per token of the last stage, in both directions


def padded_size(height: int, width: int, multiple: int = STRIDE) -> tuple[int, int]:
    """Smallest multiples of `multiple` that hold (height, width), in px."""
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple


def pad_to(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Pad (..., H, W) with zeros at the right and the bottom to `size`; return it unchanged if it has this size."""
    height, width = maps.shape[-2:]
    if height > size[0] or width > size[1]:
        raise ValueError(
            f"{height}x{width} px do not fit the {size[0]}x{size[1]} px this network was built for"
        )
    if (height, width) == size:
        return maps
    return pad(maps, (0, size[1] - width, 0, size[0] - height))


def crop(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Crop (..., H, W) to its top-left `size`, as a view; undoes `pad_to`."""
    return maps[..., : size[0], : size[1]]


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
# torch has no autocast for `meta`; this device's settings are used instead
AUTOCAST_ON_META = "cpu"


def in_fp32(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run `function` without autocast and TF32, on float32 copies of the half-precision tensors in its arguments.

    Every loss uses it: under autocast, matrix products and convolutions round even float32 inputs
    to 8 bits, which is too coarse for cosines divided by 0.04 or for the slopes of a smooth
    residual.
    """

    def single(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

    @wraps(function)
    def computed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with (
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
            without_tf32(),
        ):
            return function(
                *tree_map_only(Tensor, single, args), **tree_map_only(Tensor, single, kwargs)
            )

    return computed


@contextmanager
def without_tf32() -> Iterator[None]:
    """Disable TF32 for float32 matrix products and convolutions on a GPU inside the block."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    allow_tf32(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def allow_tf32(allowed: bool) -> None:
    """Allow TF32, which is many times as fast, for float32 matrix products and convolutions on a GPU, or forbid it."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Dtype in which a layer with this weight computes: autocast's if it is enabled, else the weight's."""
    kind = AUTOCAST_ON_META if weight.device.type == "meta" else weight.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return weight.dtype


def sent(values: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to `device` without waiting for the copy."""
    return values.to(device, non_blocking=True)


class MatrixPool(nn.Module):
    """`nn.AdaptiveAvgPool2d(size)` that is deterministic on CUDA: (..., H, W) -> (..., size[0], size[1])."""

    def __init__(self, size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__()
        self.rows, self.columns = size if isinstance(size, tuple) else (size, size)

    def forward(self, maps: Tensor) -> Tensor:
        height, width = maps.shape[-2:]
        return (
            _pooled_identity(height, self.rows, maps)
            @ maps
            @ _pooled_identity(width, self.columns, maps).T
        )


def _pooled_identity(length: int, bins: int | None, like: Tensor) -> Tensor:
    """Weights (bins, length) of each position in each bin of torch's adaptive pooling."""
    identity = torch.eye(length, dtype=like.dtype, device=like.device)
    return adaptive_avg_pool2d(identity[None], (bins, None))[0]


class DropPath(TimmDropPath):
    """timm's stochastic depth, drawn from torch's generator for the global batch; each micro-batch uses its own rows.

    Ranks with the same seed drop the same branches as a single process if a batch has one segment:
    rows are time-first.
    """

    def forward(self, branch: Tensor) -> Tensor:
        if not self.training or not self.drop_prob:
            return branch
        whole, own = shard_slice(len(branch))
        kept = torch.rand(whole, device=branch.device)[own] >= self.drop_prob
        return branch * (kept.to(branch.dtype) / (1 - self.drop_prob)).view(
            -1, *[1] * (branch.dim() - 1)
        )


def replace_modules(
    model: nn.Module, kind: type[nn.Module], make: Callable[[Any], nn.Module]
) -> None:
    """Replace every module of a kind inside `model` by what `make` returns for it."""
    for name, child in model.named_children():
        if isinstance(child, kind):
            setattr(model, name, make(child))
        else:
            replace_modules(child, kind, make)

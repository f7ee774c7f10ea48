"""What networks share: padding, losses in float32, exact pooling, and stochastic depth that all ranks draw alike."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import tespec.core.compat  # noqa: F401  # before timm

import torch
from timm.layers import DropPath as TimmDropPath
from torch import Tensor, nn
from torch.nn.functional import pad
from torch.utils._pytree import tree_map_only

from tespec.core.distributed import shard_slice

STRIDE = 32  # px per token of the last stage, in both directions


def padded_size(height: int, width: int, multiple: int = STRIDE) -> tuple[int, int]:
    """Smallest multiples of `multiple` that hold (height, width), in px."""
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple


def pad_to(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """Zeros added at the right and the bottom of (..., H, W) until it measures `size`; itself where it does.

    Raises:
        ValueError: the maps are larger than `size`.
    """
    height, width = maps.shape[-2:]
    if height > size[0] or width > size[1]:
        raise ValueError(f"{height}x{width} px do not fit the {size[0]}x{size[1]} px this network was built for")
    if (height, width) == size:
        return maps
    return pad(maps, (0, size[1] - width, 0, size[0] - height))


def crop(maps: Tensor, size: Sequence[int]) -> Tensor:
    """The top-left `size` of (..., H, W), a view: what `pad_to` was given."""
    return maps[..., : size[0], : size[1]]


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
HALVES = (torch.float16, torch.bfloat16)
AUTOCAST_ON_META = "cpu"  # torch knows no autocast of `meta`: that of this kind of device stands for it


def in_fp32(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """`function` outside of autocast, on float32 copies of what it is given in half precision.

    Every loss goes through it: under autocast a matrix product or a convolution rounds to 8 bits even what comes in
    float32, which leaves little of cosines that are divided by 0.04, or of the slopes of a smooth residual. On a GPU
    nothing is rounded to TF32 either. Tensors are found in the arguments and in the lists, tuples and dicts among them.
    """

    def single(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in HALVES else tensor

    @wraps(function)
    def computed(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with torch.autocast("cpu", enabled=False), torch.autocast("cuda", enabled=False), without_tf32():
            return function(*tree_map_only(Tensor, single, args), **tree_map_only(Tensor, single, kwargs))

    return computed


@contextmanager
def without_tf32() -> Iterator[None]:
    """Inside, matrix products and convolutions of float32 on a GPU are not rounded to TF32."""
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    allow_tf32(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def allow_tf32(allowed: bool) -> None:
    """Let a GPU round the factors of products and convolutions of float32 to TF32, which is many times as fast."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def compute_dtype(weight: Tensor) -> torch.dtype:
    """What a layer with this weight computes in: under autocast the type of that, else the weight's own."""
    kind = AUTOCAST_ON_META if weight.device.type == "meta" else weight.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return weight.dtype


def sent(values: Tensor, device: torch.device) -> Tensor:
    """What the CPU made, on `device`, without waiting until it is there."""
    return values.to(device, non_blocking=True)


class MatrixPool(nn.Module):
    """What `nn.AdaptiveAvgPool2d(size)` computes, (..., H, W) -> (..., size[0], size[1]), deterministic on CUDA."""

    def __init__(self, size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__()
        self.size = size if isinstance(size, tuple) else (size, size)

    def forward(self, maps: Tensor) -> Tensor:
        """Pooled maps."""
        rows = pooling_matrix(maps.shape[-2], self.size[0] or maps.shape[-2], maps)
        columns = pooling_matrix(maps.shape[-1], self.size[1] or maps.shape[-1], maps)
        return rows @ maps @ columns.T


def pooling_matrix(length: int, bins: int, like: Tensor) -> Tensor:
    """(bins, length) weights of each place in each bin, where torch begins and ends its bins."""
    number = torch.arange(bins, device=like.device)
    first = number * length // bins
    end = ((number + 1) * length + bins - 1) // bins
    place = torch.arange(length, device=like.device)
    inside = (place >= first.unsqueeze(1)) & (place < end.unsqueeze(1))
    return inside.to(like.dtype) / (end - first).unsqueeze(1)


def with_exact_pools(model: nn.Module) -> None:
    """Put `MatrixPool` in the place of every adaptive average pooling."""
    _replace(model, nn.AdaptiveAvgPool2d, lambda pool: MatrixPool(pool.output_size))


class DropPath(TimmDropPath):
    """timm's stochastic depth, whose draws are those of the whole batch, of which each part takes its own.

    So several processes that draw alike drop what one process drops. Draws come from torch's generator.
    """

    def forward(self, branch: Tensor) -> Tensor:
        """The branch (N, ...) of each sample: zero, or scaled up."""
        if not self.training or not self.drop_prob:
            return branch
        whole, own = shard_slice(len(branch))
        kept = torch.rand(whole, device=branch.device)[own] >= self.drop_prob
        return branch * (kept.to(branch.dtype) / (1 - self.drop_prob)).view(-1, *[1] * (branch.dim() - 1))


def with_shared_draws(model: nn.Module) -> None:
    """Put `DropPath` in the place of timm's."""
    _replace(model, TimmDropPath, lambda drop: DropPath(drop.drop_prob))


def _replace(model: nn.Module, kind: type[nn.Module], make: Callable[[Any], nn.Module]) -> None:
    for name, child in model.named_children():
        if isinstance(child, kind):
            setattr(model, name, make(child))
        else:
            _replace(child, kind, make)

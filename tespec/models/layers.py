"""Shared parts of networks: padding, float32 losses, deterministic pooling and stochastic depth."""

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
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
# torch has no autocast for `meta`; this device's settings are used instead
AUTOCAST_ON_META = "cpu"


def padded_size(height: int, width: int, multiple: int = STRIDE) -> tuple[int, int]:
    """Round an image size up to multiples.

    Args:
        height: rows in px.
        width: columns in px.
        multiple: in px.

    Returns:
        The smallest (height, width) in px that holds the image.
    """
    return -(-height // multiple) * multiple, -(-width // multiple) * multiple


def pad_to(maps: Tensor, size: tuple[int, int], pixel: Tensor | None = None) -> Tensor:
    """Pad maps at the right and the bottom.

    Args:
        maps: (..., H, W).
        size: target (rows, columns).
        pixel: (C, 1, 1) that fills maps (..., C, H, W); None: zeros.

    Returns:
        (..., size[0], size[1]); `maps` itself if it has this size.
    """
    height, width = maps.shape[-2:]
    if height > size[0] or width > size[1]:
        raise ValueError(
            f"{height}x{width} px do not fit the {size[0]}x{size[1]} px this network was built for"
        )
    if (height, width) == size:
        return maps
    if pixel is None:
        return pad(maps, (0, size[1] - width, 0, size[0] - height))
    padded = pixel.to(maps.dtype).expand(*maps.shape[:-2], *size).clone()
    padded[..., :height, :width] = maps
    return padded


def crop(maps: Tensor, size: Sequence[int]) -> Tensor:
    """Crop maps to their top-left corner; undoes `pad_to`.

    Args:
        maps: (..., H, W).
        size: (rows, columns), at most (H, W).

    Returns:
        (..., size[0], size[1]), which shares memory with `maps`.
    """
    return maps[..., : size[0], : size[1]]


def in_fp32(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Run a loss in float32, without autocast and TF32, on float32 copies of half-precision inputs.

    Every loss uses it: under autocast, matrix products and convolutions round even float32 inputs
    to 8 bits, which is too coarse for cosines divided by 0.04 or for the slopes of a smooth
    residual.
    """

    def to_fp32(tensor: Tensor) -> Tensor:
        return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor

    @wraps(function)
    def wrapper(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        args, kwargs = tree_map_only(Tensor, to_fp32, (args, kwargs))
        with (
            torch.autocast("cpu", enabled=False),
            torch.autocast("cuda", enabled=False),
            without_tf32(),
        ):
            return function(*args, **kwargs)

    return wrapper


@contextmanager
def without_tf32() -> Iterator[None]:
    """Disable TF32 for float32 matrix products and convolutions on a GPU inside the block."""
    matmul = torch.get_float32_matmul_precision()
    cudnn = torch.backends.cudnn.allow_tf32
    allow_tf32(False)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(matmul)
        torch.backends.cudnn.allow_tf32 = cudnn


def allow_tf32(allowed: bool) -> None:
    """Allow or forbid TF32, many times as fast, in float32 products and convolutions on a GPU."""
    torch.set_float32_matmul_precision("high" if allowed else "highest")
    torch.backends.cudnn.allow_tf32 = allowed


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Dtype that a layer with this weight computes in: autocast's if enabled, else the weight's."""
    kind = AUTOCAST_ON_META if weight.device.type == "meta" else weight.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.get_autocast_dtype(kind)
    return weight.dtype


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Copy a CPU tensor to `device` without waiting for the copy.

    Returns:
        The copy, of the same shape and dtype.
    """
    return values.to(device, non_blocking=True)


class MatrixPool(nn.Module):
    """`nn.AdaptiveAvgPool2d` that is deterministic on CUDA.

    Args:
        size: (rows, columns) of the output, or one number for both; None keeps the input's.
    """

    def __init__(self, size: int | tuple[int | None, int | None] | None) -> None:
        super().__init__()
        self.rows, self.columns = size if isinstance(size, tuple) else (size, size)

    def forward(self, maps: Tensor) -> Tensor:
        """Pool maps (..., H, W) to (..., rows, columns)."""
        height, width = maps.shape[-2:]
        over_rows = _pooled_identity(height, self.rows, maps)
        over_columns = _pooled_identity(width, self.columns, maps)
        return over_rows @ maps @ over_columns.T  # (..., rows, columns)


def _pooled_identity(length: int, bins: int | None, like: Tensor) -> Tensor:
    """Weights (bins, length) of each position in each bin of torch's adaptive pooling."""
    identity = torch.eye(length, dtype=like.dtype, device=like.device)
    return adaptive_avg_pool2d(identity[None], (bins, None))[0]


class DropPath(TimmDropPath):
    """timm's stochastic depth, drawn for the global batch from torch's generator.

    Each micro-batch and each rank uses its rows of the draw. Ranks with the same seed drop the same
    branches as a single process if a batch has one segment: rows are time-first.
    """

    def forward(self, branch: Tensor) -> Tensor:
        """Zero random rows of a residual branch (N, ...) in training and scale up the others."""
        if not self.training or not self.drop_prob:
            return branch
        global_rows, local_rows = shard_slice(len(branch))
        draw = torch.rand(global_rows, device=branch.device)[local_rows]
        scale = (draw >= self.drop_prob).to(branch.dtype) / (1 - self.drop_prob)
        return branch * scale.view(-1, *[1] * (branch.dim() - 1))


def replace_modules(
    model: nn.Module, kind: type[nn.Module], make: Callable[[Any], nn.Module]
) -> None:
    """Replace all modules of a class inside a model, in place.

    Args:
        model: searched recursively.
        kind: class to replace.
        make: returns the replacement of a module.
    """
    for name, child in model.named_children():
        if isinstance(child, kind):
            setattr(model, name, make(child))
        else:
            replace_modules(child, kind, make)

"""Zero padding at the right and the bottom up to the size a backbone was built for."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

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


def crop(maps: Tensor, size: tuple[int, int]) -> Tensor:
    """The top-left `size` of (..., H, W), a view: what `pad_to` was given."""
    return maps[..., : size[0], : size[1]]

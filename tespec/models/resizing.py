"""The same backbone for another input size: windows smaller than 7 tokens have smaller tables of position biases."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn.functional import interpolate

from tespec.models.backbone import Backbone
from tespec.models.building import build_backbone
from tespec.models.event_swin import PATCH, WINDOW

BIAS_TABLE = "relative_position_bias_table"


def fit_to(tensors: Mapping[str, Tensor], built_for: tuple[int, int], img_size: tuple[int, int]) -> dict[str, Tensor]:
    """Tensors of a backbone, with the tables of position biases interpolated to the windows of another input size.

    Args:
        tensors: named as in the backbone's state dict.
        built_for: (H, W) in px of the padded input they were made for.
        img_size: (H, W) in px they are wanted for.
    """
    return {
        name: resize_table(tensor, window_of(built_for, name), window_of(img_size, name))
        if name.endswith(BIAS_TABLE)
        else tensor
        for name, tensor in tensors.items()
    }


def resize_table(table: Tensor, old: tuple[int, int], new: tuple[int, int]) -> Tensor:
    """Bias table ((2h-1)(2w-1), heads) of windows `old` (h, w), bicubic over offsets to those of `new`."""
    if old == new:
        return table
    rows, columns, wanted_rows, wanted_columns = (2 * side - 1 for side in (*old, *new))
    offsets = table.T.reshape(1, -1, rows, columns)
    resized = interpolate(offsets, size=(wanted_rows, wanted_columns), mode="bicubic", align_corners=False)
    return resized.flatten(2)[0].T.contiguous()


def resized(backbone: Backbone, img_size: tuple[int, int]) -> Backbone:
    """A copy of `backbone` for another input size (H, W) in px, in the same mode and on the same device."""
    copy = build_backbone(backbone.arch, backbone.recurrent, backbone.bins, img_size, backbone.in_channels)
    copy.load_state_dict(fit_to(backbone.state_dict(), backbone.img_size, copy.img_size))
    parameter = next(backbone.parameters())
    return copy.to(parameter.device, parameter.dtype).train(backbone.training)


def window_of(img_size: tuple[int, int], name: str) -> tuple[int, int]:
    """Window in tokens of the stage that a tensor belongs to: timm shrinks it to the map where the map is smaller."""
    stage = int(name.split("layers.")[1].split(".")[0])
    rows, columns = (min(WINDOW, side // (PATCH << stage)) for side in img_size)
    return rows, columns

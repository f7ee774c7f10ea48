"""Loads a backbone from a weights file, whole or not at all, and says what came from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor
from torch.nn.functional import interpolate

from tespec.errors import UserError
from tespec.models.event_swin import PATCH, WINDOW, EventSwin
from tespec.models.padding import padded_size
from tespec.weights.files import read_weights, sha256_of
from tespec.weights.report import WeightsReport

BIAS_TABLE = "relative_position_bias_table"


def load_backbone(backbone: EventSwin, path: Path) -> WeightsReport:
    """Load every tensor of `backbone` from `path`, in place.

    The bias tables of windows that are smaller than 7 px (small maps) are resized to the backbone's windows; tensors
    the backbone has no place for, such as the ConvLSTMs of a recurrent pre-training for a feed-forward network, are
    reported as unused.

    Raises:
        UserError: unreadable file, a tensor that is missing or has another shape. The backbone is then unchanged.
    """
    tensors, recipe = read_weights(path)
    wanted = backbone.state_dict()
    adapted = []
    for name, target in wanted.items():
        if name not in tensors:
            raise UserError(path, f"{name} is missing", _remedy(recipe, backbone))
        if tensors[name].shape != target.shape:
            if not name.endswith(BIAS_TABLE) or tensors[name].shape[1] != target.shape[1]:
                found, needed = tuple(tensors[name].shape), tuple(target.shape)
                raise UserError(path, f"{name} is {found}, this model needs {needed}", _remedy(recipe, backbone))
            tensors[name] = _resize(backbone, name, tensors[name], recipe, path)
            adapted.append(name)
    backbone.load_state_dict({name: tensors[name] for name in wanted})
    unused = tuple(sorted(name for name in tensors if name not in wanted))
    return WeightsReport(path.name, sha256_of(path), len(wanted), len(wanted), tuple(adapted), unused, recipe)


def _resize(backbone: EventSwin, name: str, table: Tensor, recipe: dict[str, Any], path: Path) -> Tensor:
    """Bias table ((2h-1)(2w-1), heads) of windows (h, w), interpolated over offsets to the backbone's windows."""
    if "sensor" not in recipe:
        raise UserError(path, f"{name} is for windows of another size, and the file does not say which", "export again")
    stage = int(name.split(".")[2])
    old, new = (
        [2 * side - 1 for side in _window(size, stage)] for size in (padded_size(*recipe["sensor"]), backbone.img_size)
    )
    offsets = table.T.reshape(1, -1, *old)
    return interpolate(offsets, size=new, mode="bicubic", align_corners=False).flatten(2)[0].T.contiguous()


def _window(img_size: tuple[int, int], stage: int) -> tuple[int, int]:
    """Window of a stage in tokens: timm shrinks it to the map where the map is smaller."""
    rows, columns = (min(WINDOW, side // (PATCH << stage)) for side in img_size)
    return rows, columns


def _remedy(recipe: dict[str, object], backbone: EventSwin) -> str:
    made_for = f"the file was written for arch {recipe['width']!r}; " if "width" in recipe else ""
    return f"{made_for}give weights of arch {backbone.arch!r}, recurrent={backbone.recurrent}"


def load(path: str | Path, *, height: int | None = None, width: int | None = None) -> EventSwin:
    """Pre-trained backbone ready for `.step(histogram, state)`, in evaluation mode.

    Args:
        path: weights written by `benchmarks/pretrain.py`; they hold the recipe the network is built from.
        height: rows of the sensor in px the network will see; default: those of the pre-training.
        width: columns, likewise.

    Raises:
        UserError: unreadable file, or one without a recipe.
    """
    path = Path(path)
    _, recipe = read_weights(path)
    if "width" not in recipe:
        raise UserError(path, "holds no recipe", "load it into a model of your own with tespec.weights.load_backbone")
    rows, columns = recipe["sensor"]
    backbone = EventSwin(
        arch=recipe["width"],
        recurrent=recipe["recurrent"],
        bins=recipe["bins"],
        img_size=padded_size(height or rows, width or columns),
    )
    load_backbone(backbone, path)
    return backbone.eval()

"""Loads a backbone from a weights file, whole or not at all, and says what came from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from tespec.errors import UserError
from tespec.models import Backbone, build_backbone
from tespec.models.padding import padded_size
from tespec.models.resizing import BIAS_TABLE, fit_to
from tespec.weights.files import read_weights, sha256_of
from tespec.weights.report import WeightsReport

MEMORY = "lstms."


def load_backbone(backbone: Backbone, path: Path) -> WeightsReport:
    """Load every tensor of `backbone` from `path`, in place.

    What fits by rule is adapted: the bias tables of windows that are smaller than 7 px (small maps) are resized, and a
    patch embedding for another number of channels is repeated, and cut, to the backbone's. ConvLSTMs that a
    feed-forward pre-training could not have keep their random start, and are reported as fresh; tensors the backbone
    has no place for, such as the ConvLSTMs of a recurrent pre-training for a feed-forward network, as unused.

    Raises:
        UserError: unreadable file, a tensor that is missing or has another shape. The backbone is then unchanged.
    """
    tensors, recipe = read_weights(path)
    wanted = backbone.state_dict()
    fresh = tuple(name for name in wanted if name.startswith(MEMORY) and not recipe.get("recurrent", True))
    adapted = []
    for name, target in wanted.items():
        if name in fresh:
            continue
        if name not in tensors:
            raise UserError(path, f"{name} is missing", _remedy(recipe, backbone))
        if tensors[name].shape != target.shape:
            tensors[name] = _adapted(backbone, name, tensors[name], target, recipe, path)
            adapted.append(name)
    backbone.load_state_dict({name: target if name in fresh else tensors[name] for name, target in wanted.items()})
    unused = tuple(sorted(name for name in tensors if name not in wanted))
    loaded = len(wanted) - len(fresh)
    return WeightsReport(path.name, sha256_of(path), loaded, loaded, tuple(adapted), unused, recipe, fresh)


def _adapted(
    backbone: Backbone, name: str, tensor: Tensor, target: Tensor, recipe: dict[str, Any], path: Path
) -> Tensor:
    if name.endswith(BIAS_TABLE) and tensor.shape[1] == target.shape[1]:
        if "sensor" not in recipe:
            what = f"{name} is for windows of another size, and the file does not say which"
            raise UserError(path, what, "export again")
        return fit_to({name: tensor}, padded_size(*recipe["sensor"]), backbone.img_size)[name]
    if name == backbone.stem and tensor.shape[0] == target.shape[0] and tensor.shape[2:] == target.shape[2:]:
        return repeat_channels(tensor, target.shape[1])
    found, needed = tuple(tensor.shape), tuple(target.shape)
    raise UserError(path, f"{name} is {found}, this model needs {needed}", _remedy(recipe, backbone))


def repeat_channels(kernel: Tensor, channels: int) -> Tensor:
    """Kernel (C, k, h, w) for `channels` input channels: repeated as often as needed, and cut (paper, Sec. 4.1).

    Nothing is rescaled; the paper does not speak of it.
    """
    return kernel.repeat(1, -(-channels // kernel.shape[1]), 1, 1)[:, :channels].contiguous()


def _remedy(recipe: dict[str, object], backbone: Backbone) -> str:
    made_for = f"the file was written for arch {recipe['width']!r}; " if "width" in recipe else ""
    return f"{made_for}give weights of arch {backbone.arch!r}, recurrent={backbone.recurrent}"


def load(path: str | Path, *, height: int | None = None, width: int | None = None) -> Backbone:
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
    size = padded_size(height or rows, width or columns)
    backbone = build_backbone(recipe["width"], recipe["recurrent"], recipe["bins"], size, recipe.get("in_channels"))
    load_backbone(backbone, path)
    return backbone.eval()

"""Loads a backbone from a weights file, whole or not at all, and says what came from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from tespec.errors import UserError
from tespec.models import Backbone, build_backbone
from tespec.models.padding import padded_size
from tespec.models.resizing import BIAS_TABLE, fit_to
from tespec.weights.files import read_weights, sha256_of
from tespec.weights.formats import Renamed, is_vision_transformer, rename
from tespec.weights.report import WeightsReport

MEMORY = "lstms."
PUBLISHED_SIZE = (224, 224)  # px


def load_backbone(backbone: Backbone, path: Path) -> WeightsReport:
    """Load every tensor of `backbone` from `path`, in place.

    What fits by rule is adapted: the bias tables of windows that are smaller than 7 px (small maps) are resized, and a
    patch embedding for another number of channels is repeated, and cut, to the backbone's. ConvLSTMs that a
    feed-forward pre-training could not have keep their random start, and are reported as fresh; tensors the backbone
    has no place for, such as the ConvLSTMs of a recurrent pre-training for a feed-forward network, as unused.

    Raises:
        UserError: unreadable file, a tensor that is missing or has another shape. The backbone is then unchanged.
    """
    source = read_backbone(path)
    tensors, wanted = dict(source.renamed.tensors), backbone.state_dict()
    fresh = () if source.has_memory else tuple(name for name in wanted if name.startswith(MEMORY))
    adapted = []
    for name, target in wanted.items():
        if name in fresh:
            continue
        if name not in tensors:
            raise UserError(path, f"{name} is missing", _remedy(source.recipe, backbone))
        if tensors[name].shape != target.shape:
            tensors[name] = _adapted(backbone, name, tensors[name], target, source, path)
            adapted.append(name)
    backbone.load_state_dict({name: target if name in fresh else tensors[name] for name, target in wanted.items()})
    unused = (*source.renamed.unused, *sorted(name for name in tensors if name not in wanted))
    loaded = len(wanted) - len(fresh)
    return WeightsReport(
        path.name,
        sha256_of(path),
        loaded,
        loaded,
        tuple(adapted),
        unused,
        source.recipe,
        fresh,
        source.renamed.format,
    )


class BackboneSource(NamedTuple):
    """A weights file with a backbone in it: tensors under our names, and the recipe that ours hold."""

    renamed: Renamed
    recipe: dict[str, Any]

    @property
    def has_memory(self) -> bool:
        """Whether it was made with ConvLSTMs."""
        return self.renamed.has_memory if self.renamed.foreign else bool(self.recipe.get("recurrent", True))


def read_backbone(path: Path) -> BackboneSource:
    """Read a weights file in any of the known namings.

    Raises:
        UserError: unreadable file, or one in a naming that is not known.
    """
    tensors, recipe = read_weights(path)
    if is_vision_transformer(tensors):
        what = "holds a ViT or DeiT, not a Swin or ResNet"
        raise UserError(path, what, "the links in MoBY's README are swapped: take the other file")
    renamed = rename(tensors)
    if renamed is None:
        first = ", ".join(sorted(tensors)[:3])
        raise UserError(path, f"its names ({first}, ...) are of no known backbone", "give a Swin or a ResNet")
    return BackboneSource(renamed, recipe)


def _adapted(
    backbone: Backbone, name: str, tensor: Tensor, target: Tensor, source: BackboneSource, path: Path
) -> Tensor:
    if name.endswith(BIAS_TABLE) and tensor.shape[1] == target.shape[1]:
        if "sensor" not in source.recipe and not source.renamed.foreign:
            what = f"{name} is for windows of another size, and the file does not say which"
            raise UserError(path, what, "export again")
        return fit_to({name: tensor}, _built_for(source), backbone.img_size)[name]
    if name == backbone.stem and tensor.shape[0] == target.shape[0] and tensor.shape[2:] == target.shape[2:]:
        return repeat_channels(tensor, target.shape[1])
    found, needed = tuple(tensor.shape), tuple(target.shape)
    raise UserError(path, f"{name} is {found}, this model needs {needed}", _remedy(source.recipe, backbone))


def _built_for(source: BackboneSource) -> tuple[int, int]:
    """Input size in px that tables of position biases are for; published networks have whole windows at every stage."""
    return padded_size(*source.recipe["sensor"]) if "sensor" in source.recipe else PUBLISHED_SIZE


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

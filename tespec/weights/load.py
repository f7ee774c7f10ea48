"""Loads a backbone from a weights file, whole or not at all, and says what came from where."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tespec.errors import UserError
from tespec.models import Backbone, build_backbone
from tespec.models.padding import padded_size
from tespec.weights.convert import convert
from tespec.weights.files import read_tensors, read_weights, require_finite, sha256_of
from tespec.weights.fit import fit
from tespec.weights.report import WeightsReport

IMAGES = (1, 3)  # channels of their pixels


def load_backbone(backbone: Backbone, path: Path, *, rescale: bool = False) -> WeightsReport:
    """Load every tensor of `backbone` from `path`, in place.

    The file may be one of this harness or of a source in `tespec.weights.convert`, which is recognised by its content.
    Input convolutions of fewer channels are repeated, and the bias tables of windows that are smaller than 7 tokens
    (small maps) resized to the backbone's windows. A recurrent backbone keeps its ConvLSTMs as they are where the
    source has none, which the report names as `fresh`; weights that this harness wrote must hold them, unless their
    recipe says that they were trained feed-forward. Tensors the backbone has no place for, such as the ConvLSTMs of a
    recurrent pre-training for a feed-forward network, are reported as unused.

    Args:
        backbone: the network.
        path: safetensors, or a torch file, which is read with `weights_only=True`.
        rescale: scale repeated input convolutions (`tespec.weights.convert.channels`).

    Raises:
        UserError: unreadable file, unknown naming, a tensor that is missing, has another shape, no place, or values
            that are not finite. The backbone is then unchanged.
    """
    tensors, recipe = read_tensors(path)
    wanted = backbone.state_dict()
    # What saw images takes histograms like a published network does; what saw histograms has to have as many bins.
    stem = backbone.stem if recipe.get("in_channels") in IMAGES else None
    converted = convert(tensors, backbone.in_channels, where=path, rescale=rescale, stem=stem)
    require_finite(path, converted.tensors)
    remedy = _remedy(recipe, converted.source.title, backbone)
    fitted = fit(converted, wanted, backbone.img_size, recipe, where=path, remedy=remedy)
    backbone.load_state_dict({**wanted, **fitted.tensors})
    return WeightsReport(
        source=path.name,
        sha256=sha256_of(path),
        loaded=len(fitted.tensors),
        total=len(wanted),
        adapted=fitted.adapted,
        unused=fitted.unused,
        recipe=recipe,
        format=converted.source.name,
        fresh=fitted.fresh,
    )


def _remedy(recipe: dict[str, Any], title: str, backbone: Backbone) -> str:
    made_for = f"the file was written for arch {recipe['width']!r}" if "width" in recipe else f"the file is {title}"
    return f"{made_for}; give weights of arch {backbone.arch!r}, recurrent={backbone.recurrent}"


def load(path: str | Path, *, height: int | None = None, width: int | None = None) -> Backbone:
    """Pre-trained backbone ready for `.step(histogram, state)`, in evaluation mode.

    Args:
        path: weights written by `benchmarks/pretrain.py` or `benchmarks/weights.py convert`; they hold the recipe the
            network is built from.
        height: rows of the sensor in px the network will see; default: those of the pre-training.
        width: columns, likewise.

    Raises:
        UserError: unreadable file, or one without a recipe.
    """
    path = Path(path)
    _, recipe = read_weights(path)
    if "width" not in recipe:
        raise UserError(path, "holds no recipe", "convert it with benchmarks/weights.py convert")
    for setting in ("sensor", "recurrent", "bins"):
        if setting not in recipe:
            raise UserError(path, f"the recipe in it does not name {setting}", "write the file again")
    rows, columns = recipe["sensor"]
    size = padded_size(height or rows, width or columns)
    backbone = build_backbone(recipe["width"], recipe["recurrent"], recipe["bins"], size, recipe.get("in_channels"))
    load_backbone(backbone, path)
    return backbone.eval()

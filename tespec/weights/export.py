"""Inspect checkpoints, write them in the naming of this harness or of timm, and fetch those of timm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tespec.core.compat  # noqa: F401  # before timm

import torch
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.paths import cache_root
from tespec.core.registry import BACKBONES
from tespec.models import Backbone, build_backbone
from tespec.models.layers import padded_size
from tespec.weights.files import read_tensors, sha256_of, write_weights
from tespec.weights.formats import IMAGENET, Converted, convert, is_own
from tespec.weights.load import MatchedState, match_state

FALLBACK = "tiny"  # what a file of unknown width is compared with
DEFAULT_BINS = 10
IN_TIMM = ("swin.", "resnet.")
PREFIX = "timm:"


@dataclass(frozen=True)
class Contents:
    """A weights file.

    Attributes:
        path: of the file.
        sha256: of its bytes.
        tensors: number of tensors in it.
        values: number of values in them.
        arch: architecture that its widths belong to; None if to none of this harness.
        converted: its tensors by the names of this harness.
        recipe: settings that it names.
        architecture: settings of the network that `rewrite` writes, as a recipe names them.
        matches: how it fills the networks of this architecture, by a name for people.
    """

    path: Path
    sha256: str
    tensors: int
    values: int
    arch: str | None
    converted: Converted
    recipe: dict[str, Any]
    architecture: dict[str, Any]
    matches: dict[str, MatchedState]


def inspect(
    path: Path, bins: int | None = None, sensor: tuple[int, int] | None = None, rescale: bool = False
) -> Contents:
    """Read a weights file and match it with the recurrent and the feed-forward network of its architecture.

    Args:
        path: the file.
        bins: of the networks; default: the recipe's, else 10.
        sensor: rows and columns in px that they are built for; default: the recipe's, else the format's.
        rescale: scale repeated input convolutions (`tespec.weights.formats.repeat_channels`).

    Raises:
        UserError: unreadable file, or a format that is not known or not supported.
    """
    tensors, recipe = read_tensors(path)
    channels = 2 * bins if bins else recipe.get("in_channels") or 2 * recipe.get("bins", DEFAULT_BINS)
    converted = convert(tensors, channels, where=path, recipe=recipe, rescale=rescale)
    holds_lstms = any(name.startswith("lstms.") for name in converted.tensors)
    has_lstms = converted.format.has_lstms
    arch = arch_of(converted.tensors, recipe)
    sensor = sensor or recipe.get("sensor") or converted.format.sensor or IMAGENET
    networks = {
        f"{arch or FALLBACK}, {name}": _empty(arch or FALLBACK, recurrent, channels, padded_size(*sensor))
        for name, recurrent in (("recurrent", True), ("feed-forward", False))
    }
    return Contents(
        path=path,
        sha256=sha256_of(path),
        tensors=len(tensors),
        values=sum(tensor.numel() for tensor in tensors.values()),
        arch=arch,
        converted=converted,
        recipe=recipe,
        architecture={
            "width": arch,
            "sensor": list(sensor),
            "recurrent": recipe.get("recurrent", holds_lstms) if has_lstms is None else has_lstms,
            "bins": bins or recipe.get("bins", DEFAULT_BINS),
            "in_channels": channels,
        },
        matches={name: match_state(converted, network, recipe) for name, network in networks.items()},
    )


def arch_of(tensors: Mapping[str, Tensor], recipe: Mapping[str, Any]) -> str | None:
    """Architecture that the recipe names, or that the width of the first convolution belongs to; None if to none."""
    if is_own(recipe):
        return str(recipe["width"])
    for kind in BACKBONES.module_dict.values():
        if kind.stem in tensors:
            width = tensors[kind.stem].shape[0]
            empty = {arch: _empty(arch, False, 2 * DEFAULT_BINS, IMAGENET) for arch in kind.architectures}
            return next((arch for arch, each in empty.items() if each.state_dict()[each.stem].shape[0] == width), None)
    return None


def _empty(arch: str, recurrent: bool, channels: int, size: tuple[int, int]) -> Backbone:
    with torch.device("meta"):  # no numbers are drawn
        return build_backbone(arch, recurrent, DEFAULT_BINS, size, channels)


def rewrite(contents: Contents) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by the names of this harness, complete, and a recipe that `tespec.load` builds the network from.

    Raises:
        UserError: the tensors do not fill a network of this harness, or hold values that are not finite.
    """
    path, recipe, arch = contents.path, contents.recipe, contents.architecture
    if contents.arch is None:
        raise UserError(path, "its first layer has the width of no architecture here", "give Swin-T or ResNet-50")
    recurrent, feedforward = contents.matches.values()
    matched = recurrent if arch["recurrent"] else feedforward
    title = contents.converted.format.title
    matched.require_complete(path, f"the file is {title}; {contents.arch} needs all of it")
    source = {"file": path.name, "format": contents.converted.format.name, "sha256": contents.sha256}
    return matched.tensors, (recipe or {"source": source}) | arch


def timm_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The Swin Transformer, or ResNet, alone, in the naming of timm since 0.8, without ConvLSTMs.

    A Swin's classifier and final norm are not among them. Load it with `load_state_dict`: timm's own filter takes, in
    some versions, any Swin without a classifier for one of the old naming.

    Raises:
        UserError: timm has no such network.
    """
    state = {name.split(".", 1)[1]: tensor for name, tensor in tensors.items() if name.startswith(IN_TIMM)}
    if not state:
        raise UserError("--to timm", "timm has no such network", "leave it out")
    return state


def fetched(given: Path | None) -> Path | None:
    """A weights file: `given` itself, or for "timm:NAME" a file in the cache, downloaded on first use.

    Raises:
        UserError: timm knows no such weights, or they cannot be downloaded.
    """
    if given is None or not str(given).startswith(PREFIX):
        return given
    name = str(given).removeprefix(PREFIX)
    path = cache_root() / "weights" / f"{name.replace('/', '_')}.safetensors"
    if path.is_file():
        return path
    import timm

    if not timm.is_model_pretrained(name):
        raise UserError(f"--checkpoint {given}", "timm knows no such weights", "give timm:NAME as timm lists it")
    try:
        network = timm.create_model(name, pretrained=True, num_classes=0)
    # The errors of a download differ between versions of the hub's client.
    except Exception as error:
        what = f"cannot be fetched ({type(error).__name__})"
        raise UserError(f"--checkpoint {given}", what, "download the file elsewhere and give its path") from error
    write_weights(path, network.state_dict(), {})
    return path

"""Inspect checkpoints, write them with the names of this harness or of timm, and fetch those of timm."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import tespec.core.compat  # noqa: F401  # before timm

import torch
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.paths import cache_root
from tespec.core.registry import BACKBONES
from tespec.models import Backbone, build_backbone
from tespec.models.layers import padded_size
from tespec.weights.files import read_tensors, sha256_of, write_weights
from tespec.weights.formats import IMAGENET, Converted, convert
from tespec.weights.load import LSTMS, MatchedState, match_state

FALLBACK = "tiny"  # what a file of unknown width is compared with
DEFAULT_BINS = 10
PREFIX = "timm:"


class Contents(NamedTuple):
    """A weights file: its hash, its tensors and recipe as read and converted, and which networks it fills."""

    path: Path
    sha256: str
    tensors: dict[str, Tensor]
    recipe: dict[str, Any]
    converted: Converted
    arch: str | None  # that its widths belong to
    settings: dict[str, Any]  # of the network that `rewrite` writes, as a recipe names them
    matches: dict[str, MatchedState]  # with the recurrent and the feed-forward network of this architecture, by name


def inspect(path: Path, bins: int | None = None, sensor: tuple[int, int] | None = None) -> Contents:
    """Read a weights file and match it with the recurrent and the feed-forward network of its architecture.

    Args:
        path: the file.
        bins: of the networks; default: the recipe's, else 10.
        sensor: rows and columns in px that they are built for; default: the recipe's, else the format's.

    Raises:
        UserError: unreadable file, or a format that is not known or not supported.
    """
    tensors, recipe = read_tensors(path)
    channels = 2 * bins if bins else recipe.get("in_channels") or 2 * recipe.get("bins", DEFAULT_BINS)
    converted = convert(tensors, channels, where=path, recipe=recipe)
    arch = recipe.get("width") or _arch_of(converted.tensors)
    sensor = sensor or recipe.get("sensor") or converted.format.sensor or IMAGENET
    recurrent = converted.format.has_lstms
    if recurrent is None:
        recurrent = recipe.get("recurrent", any(name.startswith(LSTMS) for name in converted.tensors))
    matches = {}
    for name in ("recurrent", "feed-forward"):
        network = _empty(arch or FALLBACK, name == "recurrent", channels, padded_size(*sensor))
        matches[name] = match_state(converted, network, recipe)
    settings = {"width": arch, "sensor": list(sensor), "recurrent": recurrent}
    settings |= {"bins": bins or recipe.get("bins", DEFAULT_BINS), "in_channels": channels}
    return Contents(path, sha256_of(path), tensors, recipe, converted, arch, settings, matches)


def _arch_of(tensors: Mapping[str, Tensor]) -> str | None:
    """The architecture whose first convolution has as many outputs as these; None if none has."""
    for kind in BACKBONES.module_dict.values():
        for arch in kind.architectures if kind.stem in tensors else ():
            if _empty(arch, False).state_dict()[kind.stem].shape[0] == tensors[kind.stem].shape[0]:
                return str(arch)
    return None


def _empty(arch: str, recurrent: bool, channels: int = 2 * DEFAULT_BINS, size: tuple[int, int] = IMAGENET) -> Backbone:
    with torch.device("meta"):  # no numbers are drawn
        return build_backbone(arch, recurrent, DEFAULT_BINS, size, channels)


def rewrite(contents: Contents) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors by the names of this harness, complete, and a recipe that `tespec.load` builds the network from.

    Raises:
        UserError: the tensors do not fill a network of this harness, or hold values that are not finite.
    """
    path, recipe, found = contents.path, contents.recipe, contents.converted.format
    if contents.arch is None:
        raise UserError(path, "its first layer has the width of no architecture here", "give Swin-T or ResNet-50")
    matched = contents.matches["recurrent" if contents.settings["recurrent"] else "feed-forward"]
    matched.require_complete(path, f"the file is {found.title}; {contents.arch} needs all of it")
    source = {"file": path.name, "format": found.name, "sha256": contents.sha256}
    return matched.tensors, (recipe or {"source": source}) | contents.settings


def timm_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The Swin Transformer, or ResNet, alone, in the naming of timm since 0.8, for `load_state_dict`.

    Timm's own filter takes, in some versions, any Swin without a classifier for one of the old naming.
    """
    named = ((*name.partition("."), tensor) for name, tensor in tensors.items())
    state = {name: tensor for network, _, name, tensor in named if network in ("swin", "resnet")}
    if not state:
        raise UserError("--to timm", "timm has no such network", "leave it out")
    return state


def fetch(given: Path | None) -> Path | None:
    """A weights file: `given` itself, or for "timm:NAME" a file in the cache, downloaded on first use."""
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
    except Exception as error:  # its types differ between versions of the hub's client
        what = f"cannot be fetched ({type(error).__name__})"
        raise UserError(f"--checkpoint {given}", what, "download the file elsewhere and give its path") from error
    write_weights(path, network.state_dict(), {})
    return path

"""What a weights file holds, and which of our networks it fills."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.registry import BACKBONES
from tespec.models import Backbone, build_backbone
from tespec.models.layers import padded_size
from tespec.weights.convert import Converted, Naming, convert, is_own
from tespec.weights.files import read_tensors, require_finite, sha256_of
from tespec.weights.load import Fitted, fit

FALLBACK = "tiny"  # what a file of unknown width is held against
DEFAULT_BINS = 10
DEFAULT_SENSOR = (224, 224)


@dataclass(frozen=True)
class Coverage:
    """How a file fits one of our networks.

    Attributes:
        network: for people.
        present: number of the network's tensors that the file has in the right shape.
        total: number of the network's tensors.
        fresh: number of those that would start at random.
        reason: why it cannot be loaded; empty where it can.
    """

    network: str
    present: int
    total: int
    fresh: int
    reason: str


@dataclass(frozen=True)
class Contents:
    """A weights file.

    Attributes:
        path: where it lies.
        sha256: of its bytes.
        count: number of tensors in it.
        numbers: number of values in them.
        source: whose naming it has.
        arch: key of our architectures its widths belong to; None if they belong to none.
        converted: the tensors in our naming.
        recipe: what the file says about itself.
        coverage: how it fits our networks.
    """

    path: Path
    sha256: str
    count: int
    numbers: int
    source: Naming
    arch: str | None
    converted: Converted
    recipe: dict[str, Any]
    coverage: tuple[Coverage, ...]


def inspect(
    path: Path, bins: int | None = None, sensor: tuple[int, int] | None = None, rescale: bool = False
) -> Contents:
    """Read a weights file and hold it against our networks, recurrent and feed-forward.

    Args:
        path: the file.
        bins: of the networks; default: the recipe's, else 10.
        sensor: rows and columns they are built for, in px; default: the recipe's, else the source's.
        rescale: scale repeated input convolutions (`tespec.weights.convert.repeat_channels`).

    Raises:
        UserError: unreadable file, or a naming that is not known.
    """
    tensors, recipe = read_tensors(path)
    channels = 2 * bins if bins else recipe.get("in_channels", 2 * recipe.get("bins", DEFAULT_BINS))
    converted = convert(tensors, channels, where=path, recipe=recipe, rescale=rescale)
    arch = arch_of(converted.tensors, recipe)
    size = padded_size(*(sensor or recipe.get("sensor") or converted.source.sensor or DEFAULT_SENSOR))
    fits = [
        _coverage(arch or FALLBACK, recurrent, converted, channels, size, recipe, path) for recurrent in (True, False)
    ]
    return Contents(
        path=path,
        sha256=sha256_of(path),
        count=len(tensors),
        numbers=sum(tensor.numel() for tensor in tensors.values()),
        source=converted.source,
        arch=arch,
        converted=converted,
        recipe=recipe,
        coverage=tuple(fits),
    )


def arch_of(tensors: Mapping[str, Tensor], recipe: Mapping[str, Any]) -> str | None:
    """Architecture that the recipe names, or that the stem's name and width belong to; None if to none of ours."""
    if is_own(recipe):
        return str(recipe["width"])
    for kind in BACKBONES.module_dict.values():
        if kind.stem in tensors:
            width = tensors[kind.stem].shape[0]
            return next((arch for arch in kind.architectures if stem_width(arch) == width), None)
    return None


def stem_width(arch: str) -> int:
    """Channels that the stem of an architecture gives."""
    backbone = empty_backbone(arch, False, 2 * DEFAULT_BINS, DEFAULT_SENSOR)
    return int(backbone.state_dict()[backbone.stem].shape[0])


def empty_backbone(arch: str, recurrent: bool, channels: int, size: tuple[int, int]) -> Backbone:
    """A network of ours without values, built for the padded `size`.

    Raises:
        UserError: no backbone has this architecture.
    """
    with torch.device("meta"):  # no numbers are drawn
        return build_backbone(arch, recurrent, DEFAULT_BINS, size, channels)


def fitted(contents: Contents, arch: str, recurrent: bool, channels: int, size: tuple[int, int]) -> Fitted:
    """The tensors for a network of ours.

    Raises:
        UserError: they do not fill it, or hold values that are not finite.
    """
    require_finite(contents.path, contents.converted.tensors)
    network = empty_backbone(arch, recurrent, channels, size)
    remedy = f"the file is {contents.source.title}; {arch} needs it whole"
    return fit(contents.converted, network, contents.recipe, where=contents.path, remedy=remedy)


def _coverage(
    arch: str,
    recurrent: bool,
    converted: Converted,
    channels: int,
    size: tuple[int, int],
    recipe: dict[str, Any],
    path: Path,
) -> Coverage:
    named, given = f"{arch}, {'recurrent' if recurrent else 'feed-forward'}", converted.tensors
    present = total = 0
    try:
        network = empty_backbone(arch, recurrent, channels, size)
        wanted = network.state_dict()
        present = sum(name in given and given[name].shape == target.shape for name, target in wanted.items())
        total = len(wanted)
        require_finite(path, given)
        chosen = fit(converted, network, recipe, where=named, remedy="see benchmarks/weights.py inspect")
    except UserError as error:
        return Coverage(named, present, total, 0, str(error).split("; ")[0])
    return Coverage(named, len(chosen.tensors), total, len(chosen.fresh), "")

"""Weights of any known naming, written in ours or timm's, or as a folder to pass on."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from tespec.errors import UserError
from tespec.models.padding import padded_size
from tespec.weights.files import sha256_of, write_weights
from tespec.weights.inspection import DEFAULT_BINS, DEFAULT_SENSOR, Contents, fitted
from tespec.weights.model_card import Card, render_card
from tespec.weights.naming import timm_state

WEIGHTS, PLAIN, CARD = "backbone.safetensors", "timm.safetensors", "README.md"


@dataclass(frozen=True)
class Rewritten:
    """A network in our naming.

    Attributes:
        tensors: all of the network, checked.
        recipe: what it is built from; that of the file where it has one.
        unused: what the file held beside it.
    """

    tensors: dict[str, Tensor]
    recipe: dict[str, Any]
    unused: tuple[str, ...]


def rewrite(contents: Contents, bins: int | None = None, sensor: tuple[int, int] | None = None) -> Rewritten:
    """The whole network of a file in our naming, with a recipe that `tespec.load` builds it from.

    Args:
        contents: of the file, inspected with the same `bins` and `sensor`.
        bins: time bins of the network; default: the recipe's, else 10.
        sensor: rows and columns in px whose windows the bias tables are for; default: the recipe's, else the source's.

    Raises:
        UserError: the tensors do not fill a network of ours.
    """
    path, recipe = contents.path, contents.recipe
    if contents.arch is None:
        raise UserError(path, "its first layer has the width of no architecture here", "give Swin-T or ResNet-50")
    channels = 2 * bins if bins else recipe.get("in_channels", 2 * recipe.get("bins", DEFAULT_BINS))
    sensor = sensor or recipe.get("sensor") or contents.source.sensor or DEFAULT_SENSOR
    holds_lstms = any(name.startswith("lstms.") for name in contents.converted.tensors)
    says = contents.source.has_lstms
    recurrent = recipe.get("recurrent", holds_lstms) if says is None else says
    chosen = fitted(contents, contents.arch, recurrent, channels, padded_size(*sensor))
    facts: dict[str, Any] = {
        "width": contents.arch,
        "sensor": list(sensor),
        "recurrent": recurrent,
        "bins": bins or recipe.get("bins", DEFAULT_BINS),
        "in_channels": channels,
    }
    if not recipe:
        facts["source"] = {"file": path.name, "format": contents.source.name, "sha256": contents.sha256}
    return Rewritten(chosen.tensors, recipe | facts, chosen.unused)


def write_folder(folder: Path, rewritten: Rewritten, card: Card, overwrite: bool) -> list[Path]:
    """Write our weights, timm's, and the model card, whose hashes are filled in, as one folder; gives their paths.

    The files are made beside the folder and moved, so that an interruption leaves nothing half-written.

    Raises:
        UserError: the folder holds something and `overwrite` is not given.
    """
    refuse_existing(folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        write_weights(making / WEIGHTS, rewritten.tensors, rewritten.recipe)
        write_weights(making / PLAIN, timm_state(rewritten.tensors), {})
        hashes = {name: sha256_of(making / name) for name in (WEIGHTS, PLAIN)}
        text = render_card(replace(card, files=hashes, recipe=rewritten.recipe), WEIGHTS, PLAIN)
        (making / CARD).write_text(text, encoding="utf-8")
        folder.mkdir(exist_ok=True)
        for name in (WEIGHTS, PLAIN, CARD):
            os.replace(making / name, folder / name)
    finally:
        shutil.rmtree(making)
    return [folder / name for name in (WEIGHTS, PLAIN, CARD)]


def write_file(path: Path, tensors: Mapping[str, Tensor], recipe: dict[str, Any], overwrite: bool) -> str:
    """Write one safetensors file and give its SHA-256.

    Raises:
        UserError: it exists and `overwrite` is not given, or it is not named `.safetensors`.
    """
    if path.suffix != ".safetensors":
        raise UserError(path, "is not named .safetensors, which is what is written", "name it so")
    refuse_existing(path, overwrite)
    return write_weights(path, tensors, recipe)


def refuse_existing(path: Path, overwrite: bool) -> None:
    """Check that nothing is lost.

    Raises:
        UserError: there is a file, or a folder with something in it, and `overwrite` is not given.
    """
    if path.is_dir() and path.suffix == ".safetensors":
        raise UserError(path, "is a folder", "name a file")
    there = any(path.iterdir()) if path.is_dir() else path.exists()
    if there and not overwrite:
        raise UserError(path, "exists already", "name another place, or give --overwrite")

"""Weights of any known naming, written in ours or timm's, or as a folder to pass on."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import tespec.core.compat  # noqa: F401  # before timm

from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.paths import cache_root
from tespec.models.layers import padded_size
from tespec.weights.files import sha256_of, write_weights
from tespec.weights.inspection import DEFAULT_BINS, DEFAULT_SENSOR, Contents, fitted

NETWORKS = ("swin.", "resnet.")  # of ours that timm has as well
TIMM_NAMES = {"tiny": "swin_tiny_patch4_window7_224", "resnet50": "resnet50"}


def timm_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The Swin Transformer, or ResNet, alone, in the naming of timm since 0.8; ConvLSTMs are left out.

    It lacks the classifier and the final norm of a Swin. `load_state_dict` is the way to load it: timm's own filter of
    checkpoints takes, in some versions, any Swin without a classifier for one of the old naming.

    Raises:
        UserError: it is a network that timm has not got.
    """
    if not is_in_timm(tensors):
        raise UserError("--to timm", "timm has no such network", "leave it out")
    return {name.split(".", 1)[1]: tensor for name, tensor in tensors.items() if name.startswith(NETWORKS)}


def is_in_timm(tensors: Mapping[str, Tensor]) -> bool:
    """Whether timm has the network whose tensors these are, in our naming."""
    return any(name.startswith(NETWORKS) for name in tensors)


NOT_STATED = "not stated"


@dataclass(frozen=True)
class Card:
    """What a model card says.

    Attributes:
        title: heading.
        method: how the weights were made.
        data: what they were trained on.
        licence: under which they are passed on.
        files: SHA-256 of each file, by name.
        origin: file and naming they were converted from.
        recipe: settings, as stored in the weights.
    """

    title: str
    method: str
    data: str
    licence: str
    files: dict[str, str]
    origin: str
    recipe: dict[str, Any]


def render_card(card: Card, weights: str, plain: str | None) -> str:
    """Markdown with the header that model hubs read; names in `card.files`: ours, and timm's where there is one."""
    licence = "" if card.licence == NOT_STATED else f"license: {json.dumps(card.licence)}\n"
    hashes = "\n".join(f"| `{name}` | `{sha256}` |" for name, sha256 in card.files.items())
    return f"""---
{licence}library_name: tespec
tags: [event-camera, self-supervised]
---

# {card.title}

- Method: {card.method}
- Data: {card.data}
- Licence: {card.licence}
- Converted from: {card.origin}

## Files

| file | SHA-256 |
|---|---|
{hashes}

## Loading

```python
import tespec

backbone = tespec.load("{weights}")
features, state = backbone.step(histogram)  # (1, {2 * card.recipe["bins"]}, H, W) counts of events
features, state = backbone.step(next_histogram, state)
```
{_loading_in_timm(card.recipe, plain) if plain else ""}
## Recipe

```json
{json.dumps(card.recipe, indent=2, sort_keys=True)}
```
"""


def _loading_in_timm(recipe: dict[str, Any], plain: str) -> str:
    made = f"in_chans={2 * recipe['bins']}, num_classes=0"
    if recipe["width"] == "tiny":
        made += f", img_size={padded_size(*recipe['sensor'])}"
    lines = [f'tensors = load_file("{plain}")']
    if recipe["width"] in TIMM_NAMES:
        lines.append(f'model = timm.create_model("{TIMM_NAMES[recipe["width"]]}", {made})')
        lines += ["model.norm = torch.nn.Identity()"] if recipe["width"] == "tiny" else []
        lines.append("model.load_state_dict(tensors)")
    code = "\n".join(lines)
    return f"""
`{plain}` is the network in timm's naming (0.8 and later), without ConvLSTMs, classifier and final norm:

```python
import timm
import torch
from safetensors.torch import load_file

{code}
```
"""


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
    """Write a folder: our weights, timm's where it has the network, and the model card with hashes; gives their paths.

    The files are made beside the folder and moved, so that an interruption leaves nothing half-written.

    Raises:
        UserError: the folder holds something and `overwrite` is not given.
    """
    refuse_existing(folder, overwrite)
    folder.parent.mkdir(parents=True, exist_ok=True)
    making = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}."))
    try:
        write_weights(making / WEIGHTS, rewritten.tensors, rewritten.recipe)
        plain = PLAIN if is_in_timm(rewritten.tensors) else None
        if plain:
            write_weights(making / plain, timm_state(rewritten.tensors), {})
        hashes = {name: sha256_of(making / name) for name in (WEIGHTS, plain) if name}
        text = render_card(replace(card, files=hashes, recipe=rewritten.recipe), WEIGHTS, plain)
        (making / CARD).write_text(text, encoding="utf-8")
        folder.mkdir(exist_ok=True)
        written = [folder / name for name in (*hashes, CARD)]
        for path in written:
            os.replace(making / path.name, path)
    finally:
        shutil.rmtree(making)
    return written


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


PREFIX = "timm:"


def fetched(given: Path | None) -> Path | None:
    """A weights file: `given` itself, or for "timm:NAME" a file in the cache, downloaded where it is not there yet.

    Raises:
        UserError: timm knows no such weights, or they cannot be reached.
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
    # What goes wrong on the way differs from version to version of the hub's client.
    except Exception as error:
        what = f"cannot be fetched ({type(error).__name__})"
        raise UserError(f"--checkpoint {given}", what, "download the file elsewhere and give its path") from error
    write_weights(path, network.state_dict(), {})
    return path

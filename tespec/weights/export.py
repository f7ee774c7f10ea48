"""Weights for others: a file of ours, a plain state dict under timm's names, and a model card."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tespec.errors import UserError
from tespec.models import Backbone, build_backbone
from tespec.registry import BACKBONES
from tespec.weights.files import sha256_of, write_weights
from tespec.weights.load import PUBLISHED_SIZE, BackboneSource, load_backbone, read_backbone

OURS, TIMM = "backbone.safetensors", "backbone.timm.pth"


class Coverage(NamedTuple):
    """How a file fits one of our backbones: share of the backbone's tensors it has, and the first it lacks."""

    arch: str
    recurrent: bool
    share: float
    lacks: str


def coverage(source: BackboneSource) -> list[Coverage]:
    """How a file fits the backbones it could be of, the best first."""
    names = [arch for kind in BACKBONES.module_dict.values() for arch in kind.architectures]
    found = []
    for arch in names:
        for recurrent in (True, False):
            backbone = build_backbone(arch, recurrent, 10, PUBLISHED_SIZE)
            found.append(_fits(source, backbone))
    return sorted((each for each in found if each.share > 0), key=lambda each: (-each.share, not each.recurrent))


def _fits(source: BackboneSource, backbone: Backbone) -> Coverage:
    tensors, wanted = source.renamed.tensors, backbone.state_dict()
    lacks = [name for name, target in wanted.items() if not _same(tensors.get(name), target, name, backbone)]
    if tensors.get(backbone.stem) is None or tensors[backbone.stem].shape[0] != wanted[backbone.stem].shape[0]:
        return Coverage(backbone.arch, backbone.recurrent, 0.0, backbone.stem)
    return Coverage(backbone.arch, backbone.recurrent, 1 - len(lacks) / len(wanted), lacks[0] if lacks else "")


def _same(tensor: Tensor | None, target: Tensor, name: str, backbone: Backbone) -> bool:
    if tensor is None:
        return False
    if name == backbone.stem or name.endswith("relative_position_bias_table"):
        return tensor.ndim == target.ndim
    return tensor.shape == target.shape


def converted(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors of the backbone that a file holds whole, under our names, and a recipe that `tespec.load` can build from.

    Raises:
        UserError: the file covers none of our backbones.
    """
    source = read_backbone(path)
    best = [each for each in coverage(source) if each.share == 1]
    if not best:
        fits = coverage(source)
        lacks = f"{fits[0].arch} lacks {fits[0].lacks}" if fits else "no backbone has this width"
        raise UserError(path, f"covers no backbone whole: {lacks}", "give another file")
    arch, recurrent = best[0].arch, best[0].recurrent
    channels = int(source.renamed.tensors[_stem(arch)].shape[1])
    size = tuple(source.recipe.get("sensor", PUBLISHED_SIZE))
    recipe = {
        **source.recipe,
        "width": arch,
        "recurrent": recurrent,
        "bins": int(source.recipe.get("bins", 10)),
        "in_channels": channels,
        "sensor": list(size),
        "converted_from": {"file": path.name, "sha256": sha256_of(path), "format": source.renamed.format},
    }
    return dict(source.renamed.tensors), recipe


def _stem(arch: str) -> str:
    for kind in BACKBONES.module_dict.values():
        if arch in kind.architectures:
            return str(kind.stem)
    raise AssertionError(arch)


def timm_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Tensors of the Swin or ResNet alone, under the names of timm's networks without classifier."""
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith(("swin.", "resnet."))}
    return {name.partition(".")[2]: tensor for name, tensor in kept.items()}


def write_timm(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Write a plain state dict that `torch.load(weights_only=True)` reads, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            torch.save({name: tensor.contiguous().clone() for name, tensor in timm_names(tensors).items()}, file)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)


def export(path: Path, out: Path, title: str, licence: str) -> list[Path]:
    """Write both forms and a model card into a folder.

    Raises:
        UserError: the file covers no backbone whole.
    """
    tensors, recipe = converted(path)
    sha256 = write_weights(out / OURS, tensors, recipe)
    write_timm(out / TIMM, tensors)
    backbone = build_backbone(
        recipe["width"], recipe["recurrent"], recipe["bins"], PUBLISHED_SIZE, recipe["in_channels"]
    )
    load_backbone(backbone, out / OURS)
    card = out / "README.md"
    card.write_text(_card(title, licence, recipe, sha256, backbone), encoding="utf-8")
    return [out / OURS, out / TIMM, card]


def _card(title: str, licence: str, recipe: Mapping[str, Any], sha256: str, backbone: Backbone) -> str:
    count = sum(parameter.numel() for parameter in backbone.parameters())
    memory = "ConvLSTM after each stage" if recipe["recurrent"] else "feed-forward"
    facts = [
        ("network", f"{recipe['width']}, {memory}, {count:,} parameters"),
        ("input", f"{recipe['in_channels']} channels; built for {recipe['sensor'][0]}x{recipe['sensor'][1]} px"),
        ("method", recipe.get("method", "see the file it was made from")),
        ("objective", (recipe.get("objective") or {}).get("type", "-")),
        ("data", f"{recipe.get('data', '-')} (fingerprint {recipe.get('data_fingerprint', '-')})"),
        ("seed", recipe.get("seed", "-")),
        ("made from", f"{recipe['converted_from']['file']}, SHA-256 {recipe['converted_from']['sha256']}"),
        ("SHA-256", sha256),
        ("licence", licence),
    ]
    rows = "\n".join(f"| {name} | {value} |" for name, value in facts)
    return f"""# {title}

| | |
|---|---|
{rows}

`{OURS}` holds the whole backbone and its recipe:

    import tespec
    backbone = tespec.load("{OURS}")
    features, state = backbone.step(histogram, None)

`{TIMM}` holds the Swin or ResNet alone under timm's names, without ConvLSTMs and classifier.
"""

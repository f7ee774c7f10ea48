"""Published weights in their authors' naming, recognised by what they hold and renamed to ours."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

Tensors = dict[str, Tensor]

TESPEC_SWIN, TESPEC_LSTM = "model.encoder.pure_backbone.", "model.encoder.lstm_blocks."
BUFFERS = ("relative_position_index", "attn_mask")
TOP = re.compile(r"(norm\d?|head)\.")  # of Swin: final norms and classifier, which no feature passes


class Renamed(NamedTuple):
    """Tensors named as in our backbones.

    Attributes:
        format: which naming was found, in words.
        tensors: of the backbone.
        unused: names in the file that are of no use to a backbone.
        has_memory: whether ConvLSTMs are among them.
        foreign: whether the naming is not ours.
    """

    format: str
    tensors: Tensors
    unused: tuple[str, ...]
    has_memory: bool
    foreign: bool


@dataclass(frozen=True)
class _Wrapping:
    """Where a publication keeps the backbone: names begin with `prefix`, others that begin with `beside` prove it."""

    title: str
    prefix: str
    beside: str


WRAPPINGS = (
    _Wrapping("ECDDP", "teacher.backbone.", "student.backbone."),
    _Wrapping("MoBY", "encoder.", "encoder_k."),
)


def rename(tensors: Mapping[str, Tensor]) -> Renamed | None:
    """Tensors under our names; None where no known naming fits.

    Known are our own; TESPEC's released checkpoint; Microsoft's and timm's Swin (whose downsampling stands at the end
    of a stage in the one and in older versions of the other, at the start of the next in newer ones; with dots or
    underscores); torchvision's and timm's ResNet; and each of these inside MoBY's or ECDDP's checkpoints. Of ECDDP's
    two networks the teacher is taken.
    """
    tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    if any(name.startswith(("swin.", "resnet.")) for name in tensors):
        return Renamed("tespec", dict(tensors), (), any(name.startswith("lstms.") for name in tensors), foreign=False)
    if any(name.startswith(TESPEC_SWIN) for name in tensors):
        return _released(tensors)
    for wrapping in WRAPPINGS:
        inside = [name for name in tensors if name.startswith(wrapping.prefix)]
        if inside and any(name.startswith(wrapping.beside) for name in tensors):
            plain = _plain({name.removeprefix(wrapping.prefix): tensors[name] for name in inside})
            if plain is None:
                return None
            outside = tuple(sorted(set(tensors) - set(inside)))
            unused = tuple(wrapping.prefix + name for name in plain.unused) + outside
            return plain._replace(format=f"{wrapping.title}: {plain.format}", unused=unused)
    return _plain(dict(tensors))


def is_vision_transformer(tensors: Mapping[str, Tensor]) -> bool:
    """Whether the tensors are of a ViT or DeiT, which has no stages."""
    return any(name.endswith(("cls_token", "pos_embed")) for name in tensors)


def _released(tensors: Tensors) -> Renamed | None:
    plain = _plain(
        {name.removeprefix(TESPEC_SWIN): each for name, each in tensors.items() if name.startswith(TESPEC_SWIN)}
    )
    if plain is None:
        return None
    memory = {
        "lstms." + name.removeprefix(TESPEC_LSTM).replace(".conv1x1.", ".gates."): tensor
        for name, tensor in tensors.items()
        if name.startswith(TESPEC_LSTM)
    }
    unused = tuple(sorted(name for name in tensors if not name.startswith((TESPEC_SWIN, TESPEC_LSTM))))
    return Renamed("TESPEC's release", plain.tensors | memory, unused, bool(memory), foreign=True)


def _plain(tensors: Tensors) -> Renamed | None:
    """A bare Swin or ResNet."""
    if "patch_embed.proj.weight" in tensors:
        names, naming = _swin_names(tensors)
        title = f"Swin, {naming}"
    elif "conv1.weight" in tensors and "layer1.0.conv1.weight" in tensors:
        names = {name: None if name.startswith("fc.") else f"resnet.{name}" for name in tensors}
        title = "ResNet, torchvision's and timm's naming"
    else:
        return None
    kept = {new: tensors[old] for old, new in names.items() if new is not None}
    unused = tuple(sorted(old for old, new in names.items() if new is None))
    return Renamed(title, kept, unused, has_memory=False, foreign=True)


def _swin_names(tensors: Tensors) -> tuple[dict[str, str | None], str]:
    dotted = {name: re.sub(r"^layers_(\d)\.", r"layers.\1.", name) for name in tensors}
    # A classifier's name tells nothing: files without one exist in either naming. Where the downsampling of the first
    # stage, or of the last one, stands does tell.
    at_end = any(name.startswith("layers.0.downsample.") for name in dotted.values())
    names: dict[str, str | None] = {}
    for old, name in dotted.items():
        if name.endswith(BUFFERS) or TOP.match(name):
            names[old] = None
            continue
        stage = re.match(r"layers\.(\d)\.downsample\.(.*)", name)
        if at_end and stage:
            name = f"layers.{int(stage[1]) + 1}.downsample.{stage[2]}"
        names[old] = f"swin.{name}"
    return names, "downsampling at the end of stages" if at_end else "downsampling at the start of stages"

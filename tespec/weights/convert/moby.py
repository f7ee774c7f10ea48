"""MoBY: the online encoder of a contrastive pre-training (SwinTransformer/Transformer-SSL, models/moby.py)."""

from __future__ import annotations

from tespec.weights.convert.source import SWIN_STEM, Renamed, Source, Tensors, grouped
from tespec.weights.convert.swin import IMAGENET, has_swin, rename_swin

ENCODER = "encoder."


def rename_moby(tensors: Tensors, where: object) -> Renamed:
    """Names that start with `encoder.`: neither the momentum encoder `encoder_k.` nor heads and queues."""
    online = {name.removeprefix(ENCODER): tensor for name, tensor in tensors.items() if name.startswith(ENCODER)}
    kept, unused = rename_swin(online, where)
    rest = grouped(name for name in tensors if not name.startswith(ENCODER))
    return kept, (*(f"{ENCODER}{name}" for name in unused), *rest)


def _fits(tensors: Tensors) -> bool:
    return has_swin(tensors, ENCODER)


MOBY = Source(
    "moby",
    "MoBY's online encoder, a Swin Transformer",
    _fits,
    rename_moby,
    SWIN_STEM,
    IMAGENET,
    has_lstms=False,
    data="ImageNet-1k",
)

"""Swin Transformers that other networks hold as their encoder: MoBY's online one, and SimMIM's.

SwinTransformer/Transformer-SSL, models/moby.py: a momentum encoder `encoder_k.`, heads and queues stand beside it.
microsoft/SimMIM, models/simmim.py: it has a mask token, and a decoder stands beside it.
"""

from __future__ import annotations

from tespec.weights.convert.source import SWIN_STEM, Renamed, Source, Tensors, grouped
from tespec.weights.convert.swin import IMAGENET, has_swin, rename_swin

ENCODER = "encoder."
IMAGES = "ImageNet-1k"
OF_MOBY = ("encoder_k.", "projector.", "projector_k.", "predictor.", "queue")
OF_SIMMIM = ("encoder.mask_token", "decoder.")


def rename_encoder(tensors: Tensors, where: object) -> Renamed:
    """Names that start with `encoder.`: no momentum encoder, heads, queues or decoder."""
    encoder = {name.removeprefix(ENCODER): tensor for name, tensor in tensors.items() if name.startswith(ENCODER)}
    kept, unused = rename_swin(encoder, where)
    rest = grouped(name for name in tensors if not name.startswith(ENCODER))
    return kept, (*(f"{ENCODER}{name}" for name in unused), *rest)


def _is_moby(tensors: Tensors) -> bool:
    return has_swin(tensors, ENCODER) and any(name.startswith(OF_MOBY) for name in tensors)


def _is_simmim(tensors: Tensors) -> bool:
    return has_swin(tensors, ENCODER) and any(name.startswith(OF_SIMMIM) for name in tensors)


MOBY = Source(
    "moby",
    "MoBY's online encoder, a Swin Transformer",
    _is_moby,
    rename_encoder,
    SWIN_STEM,
    IMAGENET,
    has_lstms=False,
    data=IMAGES,
)
SIMMIM = Source(
    "simmim",
    "SimMIM's encoder, a Swin Transformer",
    _is_simmim,
    rename_encoder,
    SWIN_STEM,
    (192, 192),  # configs/swin_base__100ep/simmim_pretrain__swin_base__img192_window6__100ep.yaml
    has_lstms=False,
    data=IMAGES,
)

"""Networks that are mistaken for ours; a sentence for each."""

from __future__ import annotations

import re
from collections.abc import Iterable

from tespec.core.errors import UserError

# (what one of its names looks like, what it is, what to do)
STRANGERS = (
    (r"encoder\.layers[._]\d+\.blocks\.\d+\.attn\.qkv\.weight",
     "holds a Swin Transformer as its encoder, and nothing that tells whose: neither MoBY's momentum encoder and heads "
     "nor SimMIM's mask token and decoder", "give the file as it was published, or its encoder alone"),
    (r"(.*\.)?event_head\.weight", "is ECDP's ViT-S", "give its ResNet-50, which the paper's tables compare"),
    (r"encoder\.blocks\.\d+\.attn\.qkv\.weight", "is MoBY's DeiT-S",
     "take the other file: the links of DeiT-S and Swin-T in MoBY's README are swapped"),
    (r"(.*\.)?blocks\.\d+\.attn\.qkv\.weight", "is a vision transformer without stages (ViT, DeiT)",
     "give a Swin Transformer; the links of DeiT-S and Swin-T in MoBY's README are swapped"),
    (r".*\.attn\.w_msa\..*", "is a Swin Transformer in the naming of OpenMMLab, whose order of channels differs",
     "give the file that it was made from"),
    (r"(swin\.)?encoder\.layers\..*", "is a Swin Transformer in the naming of transformers",
     "give the file of Microsoft or timm"),
)  # fmt: skip
# Their names lead to our network, which would compute something else with them.
VARIANTS = (
    (r"swin\..*\.(cpb_mlp\..*|logit_scale)", "is a Swin Transformer V2", "give weights of V1"),
    (r"swin\..*\.norm2\.running_mean", "has batch normalisation before its MLPs (a variant of MoBY)",
     "give the variant with layer normalisation"),
    (r"swin\.absolute_pos_embed", "adds absolute positions to its patches", "give weights made without them"),
)  # fmt: skip


def refuse_strangers(names: Iterable[str], where: object) -> None:
    """Say which other network it is whose names no source has.

    Raises:
        UserError: one of those that are known.
    """
    _refuse(STRANGERS, names, where)


def refuse_variants(names: Iterable[str], where: object) -> None:
    """Say which variant of Swin it is, by its names in our naming.

    Raises:
        UserError: one that computes something else than ours.
    """
    _refuse(VARIANTS, names, where)


def _refuse(known: tuple[tuple[str, str, str], ...], names: Iterable[str], where: object) -> None:
    listed = list(names)
    for pattern, what, remedy in known:
        if any(re.fullmatch(pattern, name) for name in listed):
            raise UserError(where, what, remedy)

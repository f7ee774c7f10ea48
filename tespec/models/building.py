"""Backbones by the name of their architecture."""

from __future__ import annotations

import inspect

import tespec.models.event_maxvit
import tespec.models.event_resnet
import tespec.models.event_swin  # noqa: F401  # they register their backbones
from tespec.core.errors import UserError
from tespec.core.registry import BACKBONES
from tespec.models.backbone import Backbone
from tespec.models.layers import with_shared_draws


def build_backbone(
    arch: str,
    recurrent: bool,
    bins: int,
    img_size: tuple[int, int],
    in_channels: int | None = None,
    drop_path: float = 0.0,
) -> Backbone:
    """A fresh backbone.

    Args:
        arch: among the `architectures` of a registered backbone.
        recurrent: whether it has memory.
        bins: time bins per segment.
        img_size: (H, W) in px of the padded input.
        in_channels: of the input, where it is no histogram.
        drop_path: rate of stochastic depth in the last block; it rises from 0 block by block.

    Raises:
        UserError: no backbone has this architecture, or the one that has it knows no stochastic depth.
    """
    known: list[str] = []
    for kind in BACKBONES.module_dict.values():
        if arch in kind.architectures:
            if drop_path and "drop_path" not in inspect.signature(kind).parameters:
                raise UserError("drop_path", f"{arch} has no stochastic depth", "set it to 0")
            depth = {"drop_path": drop_path} if drop_path else {}
            backbone: Backbone = kind(
                arch=arch, recurrent=recurrent, bins=bins, img_size=img_size, in_channels=in_channels, **depth
            )
            with_shared_draws(backbone)
            return backbone
        known += kind.architectures
    raise UserError("arch", f"unknown value {arch!r}", f"choose from {', '.join(sorted(known))}")

"""Backbones by the name of their architecture."""

from __future__ import annotations

import tespec.models.event_maxvit
import tespec.models.event_resnet
import tespec.models.event_swin  # noqa: F401  # they register their backbones
from tespec.errors import UserError
from tespec.models.backbone import Backbone
from tespec.registry import BACKBONES


def build_backbone(
    arch: str, recurrent: bool, bins: int, img_size: tuple[int, int], in_channels: int | None = None
) -> Backbone:
    """A fresh backbone.

    Args:
        arch: among the `architectures` of a registered backbone.
        recurrent: whether it has memory.
        bins: time bins per segment.
        img_size: (H, W) in px of the padded input.
        in_channels: of the input, where it is no histogram.

    Raises:
        UserError: no backbone has this architecture.
    """
    known: list[str] = []
    for kind in BACKBONES.module_dict.values():
        if arch in kind.architectures:
            backbone: Backbone = kind(
                arch=arch, recurrent=recurrent, bins=bins, img_size=img_size, in_channels=in_channels
            )
            return backbone
        known += kind.architectures
    raise UserError("arch", f"unknown value {arch!r}", f"choose from {', '.join(sorted(known))}")

"""What this harness writes: the names of the networks themselves."""

from __future__ import annotations

from tespec.weights.convert.source import Renamed, Source, Tensors, grouped

BEGINNINGS = ("swin.layers.", "swin.patch_embed.", "resnet.", "stages.0.reduce.")
OURS = ("swin.", "lstms.", "resnet.", "stages.")


def rename_own(tensors: Tensors, where: object) -> Renamed:
    """Tensors as they are."""
    kept = {name: tensor for name, tensor in tensors.items() if name.startswith(OURS)}
    return kept, grouped(name for name in tensors if name not in kept)


def _fits(tensors: Tensors) -> bool:
    return any(name.startswith(BEGINNINGS) for name in tensors)


OWN = Source("tespec", "weights written by this harness", _fits, rename_own, stem=None, sensor=None, has_lstms=None)

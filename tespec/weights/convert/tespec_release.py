"""TESPEC's released file: a timm Swin made with features_only, and a ConvLSTM of one 1x1 convolution per stage.

Layout as pabloseijo/event-penguins-optimization, src/tespec_encoder.py, loads it: gates in the order forget, input,
output, cell input over (map, hidden), which is the order of `tespec.models.convlstm`, so nothing is permuted.
"""

from __future__ import annotations

import re

from tespec.weights.convert.source import Renamed, Source, Tensors, grouped
from tespec.weights.convert.swin import has_swin, rename_swin

# A Lightning module holds a model, which holds the encoder; a file may have been saved at any of these levels.
LEVELS = ("model.encoder.", "encoder.", "")
SWIN, LSTMS = "pure_backbone.", "lstm_blocks."


def rename_release(tensors: Tensors, where: object) -> Renamed:
    """The encoder; decoder and training state are left out."""
    level = next(level for level in LEVELS if has_swin(tensors, f"{level}{SWIN}"))
    inside = {name.removeprefix(level): tensor for name, tensor in tensors.items() if name.startswith(level)}
    swin = {name.removeprefix(SWIN): tensor for name, tensor in inside.items() if name.startswith(SWIN)}
    kept, unused = rename_swin(swin, where)
    for name, tensor in inside.items():
        if name.startswith(LSTMS):
            kept[re.sub(r"^lstm_blocks\.(\d+)\.(conv1x1\.)?", _lstm, name)] = tensor
    rest = grouped(name for name in tensors if not name.startswith((f"{level}{SWIN}", f"{level}{LSTMS}")))
    return kept, (*(f"{level}{SWIN}{name}" for name in unused), *rest)


def _lstm(found: re.Match[str]) -> str:
    return f"lstms.{found[1]}." + ("gates." if found[2] else "")


def _fits(tensors: Tensors) -> bool:
    return any(has_swin(tensors, f"{level}{SWIN}") for level in LEVELS)


TESPEC_RELEASE = Source(
    "tespec-release",
    "TESPEC's released encoder",
    _fits,
    rename_release,
    stem=None,
    sensor=(360, 640),
    has_lstms=True,
    data="1Mpx",
)

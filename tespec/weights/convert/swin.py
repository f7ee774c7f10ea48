"""Swin Transformers: Microsoft's naming, timm's before and after 0.8, and timm's `features_only`.

Microsoft (and timm before 0.8) downsamples at the end of stages 0 to 2, timm since 0.8 at the start of stages 1 to 3;
the 2x2 neighbours are concatenated in the same order. Which of the two it is follows from where the downsampling lies,
never from the classifier: files without one exist in both namings (huggingface/pytorch-image-models,
timm/models/swin_transformer.py, checkpoint_filter_fn; microsoft/Swin-Transformer, models/swin_transformer.py).
"""

from __future__ import annotations

import re

from torch import Tensor

from tespec.core.errors import UserError
from tespec.weights.convert.source import BUFFERS, SWIN_STEM, Renamed, Source, Tensors, grouped

BLOCK = re.compile(r"layers[._]\d+\.blocks\.\d+\.attn\.qkv\.weight")
# Other names (norm, head, mask_token ...) act behind the stages or in pre-training alone.
OF_THE_BACKBONE = ("patch_embed.", "layers.", "absolute_pos_embed")
IMAGENET = (224, 224)


def rename_swin(tensors: Tensors, where: object) -> Renamed:
    """Tensors of one Swin Transformer, in any of the namings, as `swin.*`.

    Raises:
        UserError: the downsampling is neither at the ends nor at the starts of the stages.
    """
    plain = {re.sub(r"^layers_(\d+)\.", r"layers.\1.", name): name for name in tensors}
    at_end = _downsamples_at_end(plain, where)
    kept: dict[str, Tensor] = {}
    unused = []
    for name, given in plain.items():
        if name.endswith(BUFFERS) or not name.startswith(OF_THE_BACKBONE):
            unused.append(given)
        else:
            kept[f"swin.{_a_stage_later(name) if at_end else name}"] = tensors[given]
    return kept, grouped(unused)


def has_swin(tensors: Tensors, prefix: str = "") -> bool:
    """Whether blocks of a Swin Transformer stand right behind `prefix`."""
    return any(name.startswith(prefix) and BLOCK.fullmatch(name, len(prefix)) for name in tensors)


def _downsamples_at_end(names: dict[str, str], where: object) -> bool:
    first, last = (any(name.startswith(f"layers.{stage}.downsample.") for name in names) for stage in (0, 3))
    if first == last:
        found = "both" if first else "neither"
        raise UserError(
            where,
            f"holds {found} of layers.0.downsample and layers.3.downsample, so its naming cannot be told",
            "take the file as it was published",
        )
    return first


def _a_stage_later(name: str) -> str:
    return re.sub(r"^layers\.(\d+)\.downsample\.", lambda found: f"layers.{int(found[1]) + 1}.downsample.", name)


def _of_features(tensors: Tensors) -> bool:
    return has_swin(tensors) and any(name.startswith("layers_") for name in tensors)


def _at_end(tensors: Tensors) -> bool:
    return has_swin(tensors) and any(name.startswith("layers.0.downsample.") for name in tensors)


MICROSOFT = Source(
    "swin-microsoft",
    "Swin Transformer in the naming of Microsoft, and of timm before 0.8",
    _at_end,
    rename_swin,
    SWIN_STEM,
    IMAGENET,
    False,
)
TIMM_FEATURES = Source(
    "swin-timm-features",
    "Swin Transformer of timm, made with features_only",
    _of_features,
    rename_swin,
    SWIN_STEM,
    IMAGENET,
    False,
)
TIMM = Source(
    "swin-timm",
    "Swin Transformer in the naming of timm since 0.8",
    has_swin,
    rename_swin,
    SWIN_STEM,
    IMAGENET,
    False,
)

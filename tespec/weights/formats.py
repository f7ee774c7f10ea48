"""Formats of published checkpoints: how to recognise them and to rename their tensors.

Layouts: microsoft/Swin-Transformer, SwinTransformer/Transformer-SSL,
Yan98/Event-Camera-Data-Pre-training and -Dense-, huggingface/pytorch-image-models; TESPEC's as
pabloseijo/event-penguins-optimization loads it; unsupported: Lqm26/STP, BIT-Vision/EventPretrain.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tespec.core.errors import UserError
from tespec.models.backbone import backbones

Rename = tuple[str, str]  # pattern of a full tensor name, and its replacement

QKV = r"layers[._]\d+\.blocks\.\d+\.attn\.qkv\.weight"  # in every Swin Transformer
# A Lightning module holds a model, which holds the encoder; the file may have been saved at any of
# these levels.
LEVEL = r"(?:(?:model\.)?encoder\.)?"
SWIN_STEM = "swin.patch_embed.proj.weight"
RESNET_STEM = "resnet.conv1.weight"
IMAGENET_SIZE = (224, 224)  # px
IMAGE_CHANNELS = (1, 3)


def swin_names(prefix: str = "") -> tuple[Rename, ...]:
    """Renames of a Swin Transformer under a prefix, without buffers, final norm and classifier."""
    return (
        (
            rf"{prefix}layers[._](\d+)\.(?!.*(?:relative_position_index|attn_mask)$)(.*)",
            r"swin.layers.\1.\2",
        ),
        (rf"{prefix}(patch_embed\..*|absolute_pos_embed)", r"swin.\1"),
    )


@dataclass(frozen=True)
class CheckpointFormat:
    """Format of a published checkpoint."""

    name: str  # in reports and records
    title: str  # in messages
    marks: tuple[str, ...]  # patterns that recognise it: each must match a full tensor name
    # the first match applies; names without a match are dropped
    renames: tuple[Rename, ...] = swin_names()
    # convolution to repeat over more input channels; None: channels must match
    stem: str | None = SWIN_STEM
    sensor: tuple[int, int] | None = IMAGENET_SIZE  # training resolution (rows, columns) in px
    has_lstms: bool | None = False  # None: the recipe in the file tells
    data: str = ""  # pre-training data set, as named in tables; "" if unknown


TESPEC = CheckpointFormat(
    "tespec",
    "weights written by this harness",
    marks=(r"(swin\.layers\.|swin\.patch_embed\.|resnet\.|stages\.0\.reduce\.).*",),
    renames=((r"((swin|lstms|resnet|stages)\..*)", r"\1"),),
    stem=None,
    sensor=None,
    has_lstms=None,
)
# The first match applies, so Swins under a prefix come before bare ones.
FORMATS = (
    TESPEC,
    CheckpointFormat(
        "tespec-release",
        "TESPEC's released encoder",
        marks=(rf"{LEVEL}pure_backbone\.{QKV}",),
        renames=(
            *swin_names(rf"{LEVEL}pure_backbone\."),
            # The order of the gates is that of `tespec.models.backbone.ConvLstm`.
            (rf"{LEVEL}lstm_blocks\.(\d+)\.conv1x1\.(.*)", r"lstms.\1.gates.\2"),
            (rf"{LEVEL}lstm_blocks\.(.*)", r"lstms.\1"),
        ),
        stem=None,
        sensor=(360, 640),
        has_lstms=True,
        data="1Mpx",
    ),
    CheckpointFormat(
        "moby",
        "MoBY's online encoder, a Swin Transformer",
        marks=(
            rf"encoder\.{QKV}",
            r"(encoder_k\.|projector\.|projector_k\.|predictor\.|queue).*",
        ),
        renames=swin_names(r"encoder\."),
        data="ImageNet-1k",
    ),
    # The authors fine-tune the student (load_teacher: false) without its patch embedding of 6
    # channels. Here it is repeated over more channels, as in TESPEC's comparison. The size is
    # img_size in config/pretrain/swin_small.yml.
    CheckpointFormat(
        "ecddp",
        "ECDDP's student, a Swin Transformer",
        marks=(rf"student\.backbone\.{QKV}",),
        renames=swin_names(r"student\.backbone\."),
        sensor=(192, 192),
        data="E-TartanAir",
    ),
    CheckpointFormat(
        "swin-microsoft",
        "Swin Transformer with tensor names of Microsoft or timm before 0.8",
        marks=(QKV, r"layers\.0\.downsample\..*"),
    ),
    CheckpointFormat(
        "swin-timm", "Swin Transformer with tensor names of timm since 0.8", marks=(QKV,)
    ),
    CheckpointFormat(
        "resnet50",
        "ResNet-50 with tensor names of torchvision",
        # the last bottleneck's third convolution, which ResNet-18 and -34 lack
        marks=("conv1.weight", r"layer4\.2\.conv3\.weight"),
        renames=((r"(?!fc\.)(.*)", r"resnet.\1"),),
        stem=RESNET_STEM,
    ),
)

# Unsupported networks: a pattern of a tensor name, and a description of the file.
VIT_QKV = r"blocks\.\d+\.attn\.qkv\.weight"
SWAPPED = "; the links of DeiT-S and Swin-T in MoBY's README are swapped"
UNSUPPORTED = (
    (
        r"(.*\.)?swin_block\.\d+\..*",
        "is EventPretrain's Swin Transformer, whose blocks have a different layout",
    ),
    (r"(.*\.)?temporal_block\d\..*", "is STP's stem for a frozen image network, not a backbone"),
    (
        rf"encoder\.{QKV}",
        "holds a Swin Transformer as its encoder, but no key that identifies the method",
    ),
    (r"(.*\.)?event_head\.weight", "is ECDP's ViT-S, not its ResNet-50"),
    (rf"encoder\.{VIT_QKV}", f"is MoBY's DeiT-S{SWAPPED}"),
    (
        r"rel_pos_bias\.relative_position_bias_table|blocks\.\d+\.attn\.q_bias",
        "is the ViT of MEM or BEiT",
    ),
    (r"codebook\.weight", "is MEM's tokenizer, an autoencoder, not a backbone"),
    (rf"(.*\.)?(event|rgb)_{VIT_QKV}", "is CM3AE's pair of ViTs for events and frames"),
    (
        rf"(?!.*layers[._]\d)(.*\.)?{VIT_QKV}",
        f"is a vision transformer without stages (ViT, DeiT){SWAPPED}",
    ),
    (r".*\.attn\.w_msa\..*", "is OpenMMLab's Swin Transformer, whose channel order differs"),
    (r"(swin\.)?encoder\.layers\..*", "is a Swin Transformer of Hugging Face's transformers"),
)


class Converted(NamedTuple):
    """Checkpoint whose tensors are renamed to those of a backbone's `state_dict()`."""

    format: CheckpointFormat
    tensors: dict[str, Tensor]
    # other names in the file; more than four with the same first part are one entry
    unused: tuple[str, ...] = ()
    repeated: tuple[str, ...] = ()  # tensors that were repeated to more input channels


def convert(
    tensors: Mapping[str, Tensor], channels: int, *, where: object, recipe: Mapping[str, Any] = {}
) -> Converted:
    """Rename the tensors of a checkpoint to those of a backbone.

    The first convolution is repeated over more input channels if it was trained on images. If the
    recipe names a backbone of this harness, tensor names stay as they are.

    Args:
        tensors: tensors of the file.
        channels: inputs of the target network, 2 * bins.
        where: file that errors name.
        recipe: recipe of the file.

    Raises:
        UserError: the format is unknown or unsupported, the naming is ambiguous, or the file is a
            fine-tuned network.
    """
    if "kind" in recipe:
        what = f"holds a fine-tuned network with a {str(recipe['kind'])[:40]} head"
        raise UserError(where, what, "give the backbone.safetensors of a pre-training")
    if "backbone" in recipe:
        converted = Converted(TESPEC, dict(tensors))
        kind = backbones().get(recipe["backbone"])
        stem = kind.stem if kind and recipe.get("in_channels") in IMAGE_CHANNELS else None
    else:
        tensors, checkpoint_format = recognise(tensors)
        if checkpoint_format is None:
            unknown = f"has an unknown format (the first tensor is {next(iter(tensors))!r})"
            what = next((what for pattern, what in UNSUPPORTED if _has(tensors, pattern)), unknown)
            raise UserError(where, what, "use a checkpoint in a format listed in docs/weights.md")
        converted = _rename(tensors, checkpoint_format, where)
        stem = checkpoint_format.stem
    kernel = converted.tensors.get(stem or "")  # (out_channels, in_channels, h, w)
    if stem is None or kernel is None or kernel.ndim != 4 or kernel.shape[1] >= channels:
        return converted
    # Not scaled down: the paper does not mention a scale (appendix C, "Recurrent Backbone").
    kernel = kernel.repeat(1, -(-channels // kernel.shape[1]), 1, 1)[:, :channels].contiguous()
    return converted._replace(tensors=converted.tensors | {stem: kernel}, repeated=(stem,))


def recognise(
    tensors: Mapping[str, Tensor],
) -> tuple[Mapping[str, Tensor], CheckpointFormat | None]:
    """Recognise the format of a checkpoint by the names of its tensors.

    Returns:
        the tensors without the prefix of torch's data parallelism, and the format, None if unknown.
    """
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    matching = (known for known in FORMATS if all(_has(tensors, mark) for mark in known.marks))
    return tensors, next(matching, None)


def _has(names: Iterable[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, name, re.DOTALL) for name in names)


def _rename(
    tensors: Mapping[str, Tensor], checkpoint_format: CheckpointFormat, where: object
) -> Converted:
    converted: dict[str, Tensor] = {}
    unused = []
    for name, tensor in tensors.items():
        matches = (
            (re.fullmatch(pattern, name, re.DOTALL), new)
            for pattern, new in checkpoint_format.renames
        )
        new_name = next((match.expand(new) for match, new in matches if match), None)
        if new_name is None:
            unused.append(name)
        elif new_name in converted:
            what = f"holds {new_name} twice, under two names"
            raise UserError(where, what, "use the file as published")
        else:
            converted[new_name] = tensor
    if checkpoint_format.stem == RESNET_STEM:
        # Files from before torch 0.4.1 lack these counters; torch sets them to 0.
        for name in [name for name in converted if name.endswith("running_mean")]:
            counter = name.replace("running_mean", "num_batches_tracked")
            converted.setdefault(counter, torch.zeros((), dtype=torch.int64))
    elif checkpoint_format is not TESPEC:
        converted = _downsample_at_start(converted, where)
    parts = [name.partition(".")[0] for name in sorted(unused)]
    counts = Counter(parts)
    entries = [
        name if counts[part] <= 4 else f"{part}.* ({counts[part]})"
        for name, part in zip(sorted(unused), parts, strict=True)
    ]
    return Converted(checkpoint_format, converted, tuple(dict.fromkeys(entries)))


def _downsample_at_start(tensors: dict[str, Tensor], where: object) -> dict[str, Tensor]:
    """Rename downsampling at the end of a stage (Microsoft) to the start of the next (timm 0.8).

    The classifier does not identify the naming, because files of both may lack it.
    """
    pattern = re.compile(r"(?<=^swin\.layers\.)\d+(?=\.downsample\.)")
    stages = {match[0] for match in map(pattern.search, tensors) if match}
    if ("0" in stages) == ("3" in stages):
        count = "both" if "0" in stages else "neither"
        what = f"holds {count} of layers.0.downsample and layers.3.downsample"
        raise UserError(where, f"{what}, so its naming is ambiguous", "use the file as published")
    if "3" in stages:
        return tensors
    return {
        pattern.sub(lambda match: str(int(match[0]) + 1), name): tensor
        for name, tensor in tensors.items()
    }

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

BLOCK = r"layers[._]\d+\.blocks\.\d+\.attn\.qkv\.weight"  # in every Swin Transformer
# A Lightning module holds a model, which holds the encoder; the file may have been saved at any of
# these levels.
LEVEL = r"(?:(?:model\.)?encoder\.)?"
SWIN_STEM, RESNET_STEM = "swin.patch_embed.proj.weight", "resnet.conv1.weight"
IMAGENET = (224, 224)
IMAGES = (1, 3)  # channels of an image


def swin_names(prefix: str = "") -> tuple[Rename, ...]:
    """Renames of a Swin Transformer under a prefix, without its buffers, final norm and classifier."""
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
    sensor: tuple[int, int] | None = IMAGENET  # training resolution (rows, columns) in px
    has_lstms: bool | None = False  # None: the recipe in the file tells
    data: str = ""  # pre-training data set, as named in tables; "" if unknown


OWN = CheckpointFormat(
    "tespec", "weights written by this harness",
    (r"(swin\.layers\.|swin\.patch_embed\.|resnet\.|stages\.0\.reduce\.).*",),
    ((r"((swin|lstms|resnet|stages)\..*)", r"\1"),),
    stem=None, sensor=None, has_lstms=None,
)  # fmt: skip
RELEASE_NAMES = (
    *swin_names(rf"{LEVEL}pure_backbone\."),
    # The gates are in the order of `tespec.models.backbone.ConvLstm`: forget, input, output, cell
    # input.
    (rf"{LEVEL}lstm_blocks\.(\d+)\.conv1x1\.(.*)", r"lstms.\1.gates.\2"),
    (rf"{LEVEL}lstm_blocks\.(.*)", r"lstms.\1"),
)
ENCODER = swin_names(r"encoder\.")
# The first match applies, so Swins under a prefix come before bare ones.
FORMATS = (
    OWN,
    CheckpointFormat("tespec-release", "TESPEC's released encoder", (rf"{LEVEL}pure_backbone\.{BLOCK}",), RELEASE_NAMES,
                     stem=None, sensor=(360, 640), has_lstms=True, data="1Mpx"),
    CheckpointFormat("moby", "MoBY's online encoder, a Swin Transformer",
                     (rf"encoder\.{BLOCK}", r"(encoder_k\.|projector\.|projector_k\.|predictor\.|queue).*"), ENCODER,
                     data="ImageNet-1k"),
    # The authors fine-tune the student (load_teacher: false) without its patch embedding of 6
    # channels. Here it is repeated over more channels, as in TESPEC's comparison. The size is
    # img_size in config/pretrain/swin_small.yml.
    CheckpointFormat("ecddp", "ECDDP's student, a Swin Transformer", (rf"student\.backbone\.{BLOCK}",),
                     swin_names(r"student\.backbone\."), sensor=(192, 192), data="E-TartanAir"),
    CheckpointFormat("swin-microsoft", "Swin Transformer with tensor names of Microsoft or timm before 0.8",
                     (BLOCK, r"layers\.0\.downsample\..*")),
    CheckpointFormat("swin-timm", "Swin Transformer with tensor names of timm since 0.8", (BLOCK,)),
    # The last bottleneck's third convolution, which ResNet-18 and -34 lack.
    CheckpointFormat("resnet50", "ResNet-50 with tensor names of torchvision",
                     ("conv1.weight", r"layer4\.2\.conv3\.weight"),
                     ((r"(?!fc\.)(.*)", r"resnet.\1"),), stem=RESNET_STEM),
)  # fmt: skip

# Unsupported networks: a pattern of a tensor name, and a description of the file.
VIT = r"blocks\.\d+\.attn\.qkv\.weight"
SWAPPED = "; the links of DeiT-S and Swin-T in MoBY's README are swapped"
UNSUPPORTED = (
    (
        r"(.*\.)?swin_block\.\d+\..*",
        "is EventPretrain's Swin Transformer, whose blocks have a different layout",
    ),
    (r"(.*\.)?temporal_block\d\..*", "is STP's stem for a frozen image network, not a backbone"),
    (
        rf"encoder\.{BLOCK}",
        "holds a Swin Transformer as its encoder, but no key that identifies the method",
    ),
    (r"(.*\.)?event_head\.weight", "is ECDP's ViT-S, not its ResNet-50"),
    (rf"encoder\.{VIT}", f"is MoBY's DeiT-S{SWAPPED}"),
    (
        r"rel_pos_bias\.relative_position_bias_table|blocks\.\d+\.attn\.q_bias",
        "is the ViT of MEM or BEiT",
    ),
    (r"codebook\.weight", "is MEM's tokenizer, an autoencoder, not a backbone"),
    (rf"(.*\.)?(event|rgb)_{VIT}", "is CM3AE's pair of ViTs for events and frames"),
    (
        rf"(?!.*layers[._]\d)(.*\.)?{VIT}",
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
    """Rename the tensors of a checkpoint, and repeat its first convolution if it was trained on images.

    `channels` are the inputs of the target network, 2 * bins. If the file's `recipe` names a
    backbone of this harness, tensor names are kept. `where` is the file, for errors.
    """
    if "kind" in recipe:
        what = f"holds a fine-tuned network with a {str(recipe['kind'])[:40]} head"
        raise UserError(where, what, "give the backbone.safetensors of a pre-training")
    if "backbone" in recipe:
        converted, kind = Converted(OWN, dict(tensors)), backbones().get(recipe["backbone"])
        stem = kind.stem if kind and recipe.get("in_channels") in IMAGES else None
    else:
        tensors, found = recognise(tensors)
        if found is None:
            unknown = f"has an unknown format (the first tensor is {next(iter(tensors))!r})"
            what = next((what for pattern, what in UNSUPPORTED if _has(tensors, pattern)), unknown)
            raise UserError(where, what, "use a checkpoint in a format listed in docs/weights.md")
        converted, stem = _rename(tensors, found, where), found.stem
    kernel = converted.tensors.get(stem or "")
    if stem is None or kernel is None or kernel.ndim != 4 or kernel.shape[1] >= channels:
        return converted
    # Not scaled down: the paper does not mention a scale (appendix C, "Recurrent Backbone").
    kernel = kernel.repeat(1, -(-channels // kernel.shape[1]), 1, 1)[:, :channels].contiguous()
    return converted._replace(tensors=converted.tensors | {stem: kernel}, repeated=(stem,))


def recognise(
    tensors: Mapping[str, Tensor],
) -> tuple[Mapping[str, Tensor], CheckpointFormat | None]:
    """Strip the prefix of torch's data parallelism from tensor names; return tensors and format, None if unknown."""
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}
    return tensors, next(
        (each for each in FORMATS if all(_has(tensors, mark) for mark in each.marks)), None
    )


def _has(names: Iterable[str], pattern: str) -> bool:
    return any(re.fullmatch(pattern, name, re.DOTALL) for name in names)


def _rename(tensors: Mapping[str, Tensor], found: CheckpointFormat, where: object) -> Converted:
    kept: dict[str, Tensor] = {}
    unused = []
    for name, tensor in tensors.items():
        matches = ((re.fullmatch(pattern, name, re.DOTALL), new) for pattern, new in found.renames)
        own = next((match.expand(new) for match, new in matches if match), None)
        if own is None:
            unused.append(name)
        elif own in kept:
            raise UserError(
                where, f"holds {own} twice, under two names", "use the file as published"
            )
        else:
            kept[own] = tensor
    if found.stem == RESNET_STEM:
        # Files from before torch 0.4.1 lack these counters; torch sets them to 0.
        for name in [name for name in kept if name.endswith("running_mean")]:
            kept.setdefault(
                name.replace("running_mean", "num_batches_tracked"),
                torch.zeros((), dtype=torch.int64),
            )
    elif found is not OWN:
        kept = _downsample_at_start(kept, where)
    starts = Counter(name.partition(".")[0] for name in unused)
    shown = (name if starts[start] <= 4 else f"{start}.* ({starts[start]})"
             for name in sorted(unused) for start in [name.partition(".")[0]])  # fmt: skip
    return Converted(found, kept, tuple(dict.fromkeys(shown)))


def _downsample_at_start(tensors: dict[str, Tensor], where: object) -> dict[str, Tensor]:
    """Rename downsampling at the end of stages 0 to 2 (Microsoft) to the start of stages 1 to 3 (timm since 0.8).

    The classifier does not identify the naming, because files of both may lack it.
    """
    pattern = re.compile(r"(?<=^swin\.layers\.)\d+(?=\.downsample\.)")
    stages = {found[0] for name in tensors if (found := pattern.search(name))}
    if ("0" in stages) == ("3" in stages):
        what = f"holds {'both' if '0' in stages else 'neither'} of layers.0.downsample and layers.3.downsample"
        raise UserError(where, f"{what}, so its naming is ambiguous", "use the file as published")
    if "3" in stages:
        return tensors
    return {
        pattern.sub(lambda found: str(int(found[0]) + 1), name): each
        for name, each in tensors.items()
    }

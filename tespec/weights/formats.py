"""Formats of published checkpoints: how each is recognised, and what its names are here.

Layouts: microsoft/Swin-Transformer, models/swin_transformer.py; huggingface/pytorch-image-models,
timm/models/swin_transformer.py; SwinTransformer/Transformer-SSL, models/moby.py; microsoft/SimMIM, models/simmim.py;
Yan98/Event-Camera-Data-Dense-Pre-training and Yan98/Event-Camera-Data-Pre-training; TESPEC's release, as
pabloseijo/event-penguins-optimization, src/tespec_encoder.py, loads it; of what is not supported, Lqm26/STP,
model/STP.py, and BIT-Vision/EventPretrain, model/backbone/swin.py.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tespec.core.errors import UserError

Tensors = Mapping[str, Tensor]
Rename = tuple[str, str | None]  # pattern of a whole name, and its name here; None: left out

BLOCK = r"layers[._]\d+\.blocks\.\d+\.attn\.qkv\.weight"  # in every Swin Transformer
BUFFERS = ("relative_position_index", "attn_mask")
# A Lightning module holds a model, which holds the encoder; the file may have been saved at any of these levels.
LEVEL = r"(?:(?:model\.)?encoder\.)?"
SWIN_STEM, RESNET_STEM = "swin.patch_embed.proj.weight", "resnet.conv1.weight"
IMAGENET = (224, 224)


def swin_names(prefix: str = "") -> tuple[Rename, ...]:
    """Names of a Swin Transformer under a prefix; without its buffers, final norm and classifier."""
    return (
        (rf"{prefix}.*({'|'.join(BUFFERS)})", None),
        (rf"{prefix}layers[._](\d+)\.(.*)", r"swin.layers.\1.\2"),
        (rf"{prefix}(patch_embed\..*|absolute_pos_embed)", r"swin.\1"),
    )


@dataclass(frozen=True)
class CheckpointFormat:
    """A format in which weights are published.

    Attributes:
        name: in reports and records.
        title: what it is, in words.
        marks: patterns; a file has this format if each of them matches a whole name.
        renames: names here of its names; the first pattern that matches counts, and a name without one is left out.
        stem: the convolution over the input channels (by its name here) if it may be repeated to more of them; None
            for weights that were trained on histograms, whose channels must agree.
        sensor: rows and columns in px that the weights were trained at.
        has_lstms: whether ConvLSTMs belong to it; None: the recipe in the file says so.
        data: data set of its pre-training, as tables call it; empty if the format does not say.
    """

    name: str
    title: str
    marks: tuple[str, ...]
    renames: tuple[Rename, ...] = swin_names()
    stem: str | None = SWIN_STEM
    sensor: tuple[int, int] | None = IMAGENET
    has_lstms: bool | None = False
    data: str = ""


OWN = CheckpointFormat(
    "tespec",
    "weights written by this harness",
    (r"(swin\.layers\.|swin\.patch_embed\.|resnet\.|stages\.0\.reduce\.).*",),
    ((r"((swin|lstms|resnet|stages)\..*)", r"\1"),),
    stem=None,
    sensor=None,
    has_lstms=None,
)
# The first that matches is taken: a Swin under a prefix comes before the bare ones.
FORMATS = (
    OWN,
    CheckpointFormat(
        "tespec-release",
        "TESPEC's released encoder",
        (rf"{LEVEL}pure_backbone\.{BLOCK}",),
        (
            *swin_names(rf"{LEVEL}pure_backbone\."),
            # The gates are in the order of `tespec.models.backbone.ConvLstm`: forget, input, output, cell input.
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
        (rf"encoder\.{BLOCK}", r"(encoder_k\.|projector\.|projector_k\.|predictor\.|queue).*"),
        swin_names(r"encoder\."),
        data="ImageNet-1k",
    ),
    CheckpointFormat(
        "simmim",
        "SimMIM's encoder, a Swin Transformer",
        (rf"encoder\.{BLOCK}", r"(encoder\.mask_token|decoder\.).*"),
        swin_names(r"encoder\."),
        sensor=(192, 192),  # configs/swin_base__100ep/simmim_pretrain__swin_base__img192_window6__100ep.yaml
        data="ImageNet-1k",
    ),
    # Self-distillation evaluates the teacher. ECDDP's own fine-tuning drops its patch embedding of 6 channels; TESPEC's
    # comparison repeats it, and so does this.
    *(
        CheckpointFormat(
            name,
            title,
            (rf"{branch}\.backbone\.{BLOCK}",),
            swin_names(rf"{branch}\.backbone\."),
            sensor=(192, 192),  # config/pretrain/swin_small.yml, img_size
            data="E-TartanAir",
        )
        for name, branch, title in (
            ("ecddp", "teacher", "ECDDP's teacher, a Swin Transformer"),
            ("ecddp-student", "student", "ECDDP's student, a Swin Transformer; the file holds no teacher"),
        )
    ),
    CheckpointFormat(
        "swin-microsoft",
        "Swin Transformer in the naming of Microsoft, and of timm before 0.8",
        (BLOCK, r"layers\.0\.downsample\..*"),
    ),
    CheckpointFormat("swin-timm-features", "Swin Transformer of timm, made with features_only", (BLOCK, "layers_.*")),
    CheckpointFormat("swin-timm", "Swin Transformer in the naming of timm since 0.8", (BLOCK,)),
    CheckpointFormat(
        "resnet50",
        "ResNet-50 in the naming of torchvision",
        ("conv1.weight", r"layer4\.2\.conv3\.weight"),  # the deepest convolution; ResNet-18 and -34 have none
        ((r"fc\..*", None), (r"(.*)", r"resnet.\1")),
        stem=RESNET_STEM,
    ),
)

# Networks that are mistaken for these: a pattern of one of their names, what it is, what to do.
UNSUPPORTED = (
    (r"(.*\.)?swin_block\.\d+\..*", "is EventPretrain's Swin Transformer, which takes a voxel grid of five channels "
     "and whose blocks are laid out differently", "give a checkpoint of a format in docs/weights.md"),
    (r"(.*\.)?temporal_block\d\..*", "is STP's: a stem before an image network that stayed frozen, no backbone",
     "give a checkpoint of a format in docs/weights.md"),
    (r"encoder\.layers[._]\d+\.blocks\.\d+\.attn\.qkv\.weight",
     "holds a Swin Transformer as its encoder, and nothing that tells whose: neither MoBY's momentum encoder and heads "
     "nor SimMIM's mask token and decoder", "give the file as it was published, or its encoder alone"),
    (r"(.*\.)?event_head\.weight", "is ECDP's ViT-S", "give its ResNet-50, which the paper's tables compare"),
    (r"encoder\.blocks\.\d+\.attn\.qkv\.weight", "is MoBY's DeiT-S",
     "take the other file: the links of DeiT-S and Swin-T in MoBY's README are swapped"),
    (r"rel_pos_bias\.relative_position_bias_table|blocks\.\d+\.attn\.q_bias",
     "is a ViT as MEM and BEiT have it, no Swin: it cannot start this backbone", "give a Swin Transformer"),
    (r"codebook\.weight", "is MEM's tokenizer, an autoencoder and no backbone", "give a Swin Transformer"),
    (r"(.*\.)?(event|rgb)_blocks\.\d+\.attn\.qkv\.weight",
     "is CM3AE's pair of ViTs for events and frames, no Swin: it cannot start this backbone",
     "give a Swin Transformer"),
    (r"(?!.*layers[._]\d)(.*\.)?blocks\.\d+\.attn\.qkv\.weight",
     "is a vision transformer without stages (ViT, DeiT), no Swin: it cannot start this backbone",
     "give a Swin Transformer; the links of DeiT-S and Swin-T in MoBY's README are swapped"),
    (r".*\.attn\.w_msa\..*", "is a Swin Transformer in the naming of OpenMMLab, whose order of channels differs",
     "give the file that it was made from"),
    (r"(swin\.)?encoder\.layers\..*", "is a Swin Transformer in the naming of transformers",
     "give the file of Microsoft or timm"),
)  # fmt: skip
# Variants that would fill the network here and compute something else; by the names here.
VARIANTS = (
    (r"swin\..*\.(cpb_mlp\..*|logit_scale)", "is a Swin Transformer V2", "give weights of V1"),
    (r"swin\..*\.norm2\.running_mean", "has batch normalisation before its MLPs (a variant of MoBY)",
     "give the variant with layer normalisation"),
    (r"swin\.absolute_pos_embed", "adds absolute positions to its patches", "give weights made without them"),
)  # fmt: skip


@dataclass(frozen=True)
class Converted:
    """A checkpoint with the names of this harness.

    Attributes:
        format: of the file.
        tensors: by the names of a backbone's `state_dict()`.
        unused: what else the file holds; many names with one beginning are one entry with their number.
        repeated: names of tensors that were repeated to more input channels.
    """

    format: CheckpointFormat
    tensors: dict[str, Tensor]
    unused: tuple[str, ...]
    repeated: tuple[str, ...] = ()


def convert(
    tensors: Tensors,
    channels: int,
    *,
    where: object,
    recipe: Mapping[str, Any] | None = None,
    rescale: bool = False,
    stem: str | None = None,
) -> Converted:
    """Rename the tensors of a checkpoint, and repeat its first convolution if the format allows it.

    Args:
        tensors: by the names of the file, unwrapped.
        channels: input channels of the network they are for, 2 * bins.
        where: the file, for errors.
        recipe: the file's; if it names a backbone of this harness, names are taken as they are.
        rescale: see `repeat_channels`.
        stem: name of the convolution that may be repeated if the format names none.

    Raises:
        UserError: no known format, or one that is not supported.
    """
    recipe = recipe or {}
    if "kind" in recipe:
        what = f"holds a network with the head of {str(recipe['kind'])[:40]}"
        raise UserError(where, what, "give backbone.safetensors of a pre-training")
    if is_own(recipe):
        converted = Converted(OWN, dict(tensors), ())
    else:
        tensors, found = recognise(tensors)
        if found is None:
            _refuse(UNSUPPORTED, tensors, where)
            what = f"its format is not known (the first name is {next(iter(tensors))!r})"
            raise UserError(where, what, "give a checkpoint of a format in docs/weights.md")
        converted = _rename(tensors, found, where)
        _refuse(VARIANTS, converted.tensors, where)
    name = converted.format.stem or stem
    kernel = converted.tensors.get(name) if name else None
    if name is None or kernel is None or kernel.ndim != 4 or kernel.shape[1] >= channels:
        return converted
    repeated = converted.tensors | {name: repeat_channels(kernel, channels, rescale)}
    return Converted(converted.format, repeated, converted.unused, (name,))


def is_own(recipe: Mapping[str, Any]) -> bool:
    """Whether a recipe is that of a backbone that this harness wrote, without a task's head."""
    return "width" in recipe and "kind" not in recipe


def recognise(tensors: Tensors) -> tuple[Tensors, CheckpointFormat | None]:
    """Tensors without the prefix of torch's data parallelism, and their format, None if it is not known."""
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}

    def has(pattern: str) -> bool:
        return any(re.fullmatch(pattern, name, re.DOTALL) for name in tensors)

    return tensors, next((each for each in FORMATS if all(map(has, each.marks))), None)


def repeat_channels(weight: Tensor, channels: int, rescale: bool = False) -> Tensor:
    """Repeat a weight (out, k, h, w), k <= channels, along its input and cut it to `channels`.

    `rescale` multiplies by k / channels, so that a repeated image gives what the image gave. The paper repeats and does
    not mention a scale (appendix C, "Recurrent Backbone").
    """
    given = weight.shape[1]
    repeated = weight.repeat(1, -(-channels // given), 1, 1)[:, :channels]
    return (repeated * (given / channels) if rescale else repeated).contiguous()


def _rename(tensors: Tensors, found: CheckpointFormat, where: object) -> Converted:
    kept: dict[str, Tensor] = {}
    unused = []
    for name, tensor in tensors.items():
        match, new = next(
            ((match, new) for pattern, new in found.renames if (match := re.fullmatch(pattern, name, re.DOTALL))),
            (None, None),
        )
        if match is None or new is None:
            unused.append(name)
        elif (new := match.expand(new)) in kept:
            raise UserError(where, f"holds {new} twice, under two names", "take the file as it was published")
        else:
            kept[new] = tensor
    if any(name.startswith("swin.") for name in kept) and found is not OWN:
        kept = _downsample_at_start(kept, where)
    if found.stem == RESNET_STEM:
        # Files from before torch 0.4.1 hold no counters of batches; torch takes them as 0.
        for name in [name for name in kept if name.endswith("running_mean")]:
            kept.setdefault(name.replace("running_mean", "num_batches_tracked"), torch.zeros((), dtype=torch.int64))
    return Converted(found, kept, grouped(unused))


def _downsample_at_start(tensors: dict[str, Tensor], where: object) -> dict[str, Tensor]:
    """A Swin that downsamples at the start of stages 1 to 3 (timm since 0.8), not at the end of 0 to 2 (Microsoft).

    Never told by the classifier, which files of both namings may lack.
    """
    pattern = re.compile(r"(?<=^swin\.layers\.)\d+(?=\.downsample\.)")
    stages = {found[0] for name in tensors if (found := pattern.search(name))}
    if ("0" in stages) == ("3" in stages):
        what = f"holds {'both' if '0' in stages else 'neither'} of layers.0.downsample and layers.3.downsample"
        raise UserError(where, f"{what}, so its naming is ambiguous", "take the file as it was published")
    if "3" in stages:
        return tensors
    return {pattern.sub(lambda found: str(int(found[0]) + 1), name): each for name, each in tensors.items()}


def _refuse(known: Iterable[tuple[str, str, str]], names: Iterable[str], where: object) -> None:
    listed = list(names)
    for pattern, what, remedy in known:
        if any(re.fullmatch(pattern, name) for name in listed):
            raise UserError(where, what, remedy)


def grouped(names: Iterable[str], most: int = 4) -> tuple[str, ...]:
    """Names, sorted; more than `most` with one beginning, or of one kind of buffer, become one entry."""
    groups = {}
    for name in sorted(names):
        first, _, rest = name.partition(".")
        groups[name] = f"{first}.*" + next((f".{each}" for each in BUFFERS if rest.endswith(each)), "")
    sizes = Counter(groups.values())
    return tuple(dict.fromkeys(n if sizes[g] <= most else f"{g} ({sizes[g]})" for n, g in groups.items()))

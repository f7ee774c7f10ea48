"""Weights of every known source in the naming of our networks: one table of names.

Sources and their layouts: microsoft/Swin-Transformer, models/swin_transformer.py; huggingface/pytorch-image-models,
timm/models/swin_transformer.py; SwinTransformer/Transformer-SSL, models/moby.py; microsoft/SimMIM, models/simmim.py;
Yan98/Event-Camera-Data-Dense-Pre-training and Yan98/Event-Camera-Data-Pre-training; TESPEC's release, as
pabloseijo/event-penguins-optimization, src/tespec_encoder.py, loads it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from tespec.core.errors import UserError

Tensors = Mapping[str, Tensor]
# Of a pattern that a whole name matches: what the name becomes, None where the tensor is left out.
Rename = tuple[str, str | Callable[[re.Match[str]], str] | None]

BLOCK = r"layers[._]\d+\.blocks\.\d+\.attn\.qkv\.weight"  # stands in every Swin Transformer
BUFFERS = ("relative_position_index", "attn_mask")
SWIN: tuple[Rename, ...] = (
    (rf".*({'|'.join(BUFFERS)})", None),
    (r"layers[._](\d+)\.(.*)", r"swin.layers.\1.\2"),
    (r"(patch_embed\.|absolute_pos_embed).*", r"swin.\g<0>"),
)
# Microsoft, and timm before 0.8, downsample at the end of stages 0 to 2; timm since 0.8 at the start of stages 1 to 3.
A_STAGE_LATER: Rename = (
    r"layers[._](\d+)\.(downsample\..*)",
    lambda found: f"swin.layers.{int(found[1]) + 1}.{found[2]}",
)
RESNET: tuple[Rename, ...] = ((r"fc\..*", None), (r".*", r"resnet.\g<0>"))
# A Lightning module holds a model, which holds the encoder; the file may have been saved at any of these levels.
LEVEL = r"(?:(?:model\.)?encoder\.)?"
# The gates lie in the order forget, input, output, cell input over (map, hidden), as in `tespec.models.backbone`.
RELEASED_LSTMS: tuple[Rename, ...] = (
    (rf"{LEVEL}lstm_blocks\.(\d+)\.conv1x1\.(.*)", r"lstms.\1.gates.\2"),
    (rf"{LEVEL}lstm_blocks\.(.*)", r"lstms.\1"),
)
OURS: tuple[Rename, ...] = ((r"(swin|lstms|resnet|stages)\..*", r"\g<0>"),)

SWIN_STEM, RESNET_STEM = "swin.patch_embed.proj.weight", "resnet.conv1.weight"
IMAGENET = (224, 224)


@dataclass(frozen=True)
class Naming:
    """A naming in which weights are published.

    Attributes:
        name: word for it in reports and records.
        title: what it is, for people.
        marks: patterns; a file is of this source where each of them matches a whole name.
        renames: our names of those that begin with `prefix`, without it; the first pattern that matches counts, and
            what none matches is left out.
        prefix: pattern of what stands before the names of the network.
        beside: our names of the others.
        stem: our name of the convolution that sees the input channels where it may be repeated to more of them; None
            for weights that were trained on our histograms, whose channels must agree.
        sensor: rows and columns, in px, that the weights were trained at.
        has_lstms: whether ConvLSTMs belong to it; None: the recipe in the file says so.
        data: data set that its publisher trained it on, as tables call it; empty where the naming does not say.
    """

    name: str
    title: str
    marks: tuple[str, ...]
    renames: tuple[Rename, ...] = SWIN
    prefix: str = ""
    beside: tuple[Rename, ...] = ()
    stem: str | None = SWIN_STEM
    sensor: tuple[int, int] | None = IMAGENET
    has_lstms: bool | None = False
    data: str = ""


OWN = Naming(
    "tespec",
    "weights written by this harness",
    (r"(swin\.layers\.|swin\.patch_embed\.|resnet\.|stages\.0\.reduce\.).*",),
    OURS,
    stem=None,
    sensor=None,
    has_lstms=None,
)
# The first that fits is taken: those that hold a Swin under a prefix come before the bare ones.
SOURCES = (
    OWN,
    Naming(
        "tespec-release",
        "TESPEC's released encoder",
        (rf"{LEVEL}pure_backbone\.{BLOCK}",),
        prefix=rf"{LEVEL}pure_backbone\.",
        beside=RELEASED_LSTMS,
        stem=None,
        sensor=(360, 640),
        has_lstms=True,
        data="1Mpx",
    ),
    Naming(
        "moby",
        "MoBY's online encoder, a Swin Transformer",
        (rf"encoder\.{BLOCK}", r"(encoder_k\.|projector\.|projector_k\.|predictor\.|queue).*"),
        prefix=r"encoder\.",
        data="ImageNet-1k",
    ),
    Naming(
        "simmim",
        "SimMIM's encoder, a Swin Transformer",
        (rf"encoder\.{BLOCK}", r"(encoder\.mask_token|decoder\.).*"),
        prefix=r"encoder\.",
        sensor=(192, 192),  # configs/swin_base__100ep/simmim_pretrain__swin_base__img192_window6__100ep.yaml
        data="ImageNet-1k",
    ),
    # Self-distillation evaluates the teacher. Its publishers' own fine-tuning leaves the patch embedding of 6 channels
    # out; TESPEC's comparison repeats it, and so does this.
    Naming(
        "ecddp",
        "ECDDP's teacher, a Swin Transformer",
        (rf"teacher\.backbone\.{BLOCK}",),
        prefix=r"teacher\.backbone\.",
        sensor=(192, 192),  # config/pretrain/swin_small.yml, img_size
        data="E-TartanAir",
    ),
    Naming(
        "ecddp-student",
        "ECDDP's student, a Swin Transformer; the file holds no teacher",
        (rf"student\.backbone\.{BLOCK}",),
        prefix=r"student\.backbone\.",
        sensor=(192, 192),
        data="E-TartanAir",
    ),
    Naming(
        "swin-microsoft",
        "Swin Transformer in the naming of Microsoft, and of timm before 0.8",
        (BLOCK, r"layers\.0\.downsample\..*"),
    ),
    Naming("swin-timm-features", "Swin Transformer of timm, made with features_only", (BLOCK, "layers_.*")),
    Naming("swin-timm", "Swin Transformer in the naming of timm since 0.8", (BLOCK,)),
    Naming(
        "resnet50",
        "ResNet-50 in the naming of torchvision",
        ("conv1.weight", r"layer4\.2\.conv3\.weight"),  # the deepest convolution; ResNet-18 and -34 have none
        RESNET,
        stem=RESNET_STEM,
    ),
)

# Networks that are mistaken for ours: what one of their names looks like, what it is, what to do.
STRANGERS = (
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
    (r"(.*\.)?blocks\.\d+\.attn\.qkv\.weight",
     "is a vision transformer without stages (ViT, DeiT), no Swin: it cannot start this backbone",
     "give a Swin Transformer; the links of DeiT-S and Swin-T in MoBY's README are swapped"),
    (r".*\.attn\.w_msa\..*", "is a Swin Transformer in the naming of OpenMMLab, whose order of channels differs",
     "give the file that it was made from"),
    (r"(swin\.)?encoder\.layers\..*", "is a Swin Transformer in the naming of transformers",
     "give the file of Microsoft or timm"),
)  # fmt: skip
# Their names lead to our network, which would compute something else with them; in our naming.
VARIANTS = (
    (r"swin\..*\.(cpb_mlp\..*|logit_scale)", "is a Swin Transformer V2", "give weights of V1"),
    (r"swin\..*\.norm2\.running_mean", "has batch normalisation before its MLPs (a variant of MoBY)",
     "give the variant with layer normalisation"),
    (r"swin\.absolute_pos_embed", "adds absolute positions to its patches", "give weights made without them"),
)  # fmt: skip


@dataclass(frozen=True)
class Converted:
    """Weights in our naming.

    Attributes:
        source: where they are from.
        tensors: by the names of our backbone's `state_dict()`.
        unused: what the file holds beside them; many names with one beginning are one entry with their number.
        repeated: names of tensors that were repeated to more input channels.
    """

    source: Naming
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
    """Tensors of a file in our naming; a pure function.

    Args:
        tensors: by the names of the file, unwrapped.
        channels: input channels of the network they are for, 2 * bins.
        where: the file, for errors.
        recipe: what the file says of itself; one that names a backbone of ours has its names as they are.
        rescale: scale repeated input convolutions by the share of the channels they were trained on.
        stem: our name of the convolution that may be repeated where the source does not say.

    Raises:
        UserError: the names belong to no known source, or to one that cannot be used.
    """
    recipe = recipe or {}
    if "kind" in recipe:
        what = f"holds a network with the head of {str(recipe['kind'])[:40]}"
        raise UserError(where, what, "give backbone.safetensors of a pre-training")
    unused: tuple[str, ...] = ()
    if is_own(recipe):
        source, renamed = OWN, dict(tensors)
    else:
        tensors, found = recognised(tensors)
        if found is None:
            _refuse(STRANGERS, tensors, where)
            raise UserError(
                where,
                f"its names are those of no known source (the first is {next(iter(tensors))!r})",
                "give weights of a source that docs/weights.md lists",
            )
        source = found
        renamed, unused = _rename(tensors, source, where)
        _refuse(VARIANTS, renamed, where)
    name = source.stem or stem
    kernel = renamed.get(name) if name else None
    if name is None or kernel is None or kernel.ndim != 4 or kernel.shape[1] >= channels:
        return Converted(source, renamed, unused)
    return Converted(source, renamed | {name: repeat_channels(kernel, channels, rescale)}, unused, (name,))


def is_own(recipe: Mapping[str, Any]) -> bool:
    """Whether a recipe is that of a backbone which this harness wrote, alone: without a task's head."""
    return "width" in recipe and "kind" not in recipe


def recognised(tensors: Tensors) -> tuple[Tensors, Naming | None]:
    """Tensors without the prefix of torch's data parallelism, and the source whose naming they have, None for none."""
    if all(name.startswith("module.") for name in tensors):
        tensors = {name.removeprefix("module."): tensor for name, tensor in tensors.items()}

    def has(pattern: str) -> bool:
        return any(re.fullmatch(pattern, name, re.DOTALL) for name in tensors)

    return tensors, next((source for source in SOURCES if all(map(has, source.marks))), None)


def repeat_channels(weight: Tensor, channels: int, rescale: bool = False) -> Tensor:
    """Weight (out, k, h, w) repeated ceil(channels / k) times along its input and cut to `channels`.

    An image of k channels that is repeated and cut in the same way then gives the sum over all repetitions; `rescale`
    multiplies by k / channels, so that it gives what it gave before where `channels` is a multiple of k. The paper
    repeats and does not say that it rescales (appendix C, "Recurrent Backbone"), so False is its way.

    Raises:
        ValueError: the weight takes more than `channels` already.
    """
    given = weight.shape[1]
    if given > channels:
        raise ValueError(f"{given} input channels do not fit {channels}")
    if given == channels:
        return weight
    repeated = weight.repeat(1, -(-channels // given), 1, 1)[:, :channels]
    return (repeated * (given / channels) if rescale else repeated).contiguous()


def _rename(tensors: Tensors, source: Naming, where: object) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """Tensors by our names, and what was left out: first of the network, then of what stands beside it."""
    prefix = re.compile(source.prefix)
    ends = {name: found.end() for name in tensors if (found := prefix.match(name))}
    inside = [name[end:] for name, end in ends.items()]
    renames = (
        (A_STAGE_LATER, *SWIN) if source.renames is SWIN and _downsamples_at_end(inside, where) else source.renames
    )
    kept: dict[str, Tensor] = {}
    unused: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        end = ends.get(name, 0)
        ours = _renamed(name[end:], renames if name in ends else source.beside)
        if ours is None:
            unused.setdefault(name[:end], []).append(name[end:])
        elif ours in kept:
            raise UserError(where, f"holds {ours} twice, under two names", "take the file as it was published")
        else:
            kept[ours] = tensor
    if source.renames is RESNET:
        # Files from before torch 0.4.1 hold no counters of batches; torch takes them as 0.
        for name in [name for name in kept if name.endswith("running_mean")]:
            counter = name.replace("running_mean", "num_batches_tracked")
            kept.setdefault(counter, torch.zeros((), dtype=torch.int64))
    left = sorted(unused.items(), reverse=True)  # what has no prefix comes last
    return kept, tuple(f"{prefix}{entry}" for prefix, names in left for entry in grouped(names))


def _renamed(name: str, renames: Iterable[Rename]) -> str | None:
    for pattern, ours in renames:
        if found := re.fullmatch(pattern, name, re.DOTALL):
            return ours if ours is None else ours(found) if callable(ours) else found.expand(ours)
    return None


def _downsamples_at_end(names: Iterable[str], where: object) -> bool:
    """Which of the namings of a Swin it is; never told by the classifier, which files of both may lack."""
    listed = list(names)
    first, last = (any(re.match(rf"layers[._]{stage}\.downsample\.", name) for name in listed) for stage in (0, 3))
    if first == last:
        found = "both" if first else "neither"
        raise UserError(
            where,
            f"holds {found} of layers.0.downsample and layers.3.downsample, so its naming cannot be told",
            "take the file as it was published",
        )
    return first


def _refuse(known: Iterable[tuple[str, str, str]], names: Iterable[str], where: object) -> None:
    listed = list(names)
    for pattern, what, remedy in known:
        if any(re.fullmatch(pattern, name) for name in listed):
            raise UserError(where, what, remedy)


FEW = 4


def grouped(names: Iterable[str]) -> tuple[str, ...]:
    """Names, sorted; more than four of one beginning, or of one kind of buffer, become one entry."""
    listed = sorted(names)
    groups = {name: _group(name) for name in listed}
    sizes = Counter(groups.values())
    entries = [name if sizes[group] <= FEW else f"{group} ({sizes[group]})" for name, group in groups.items()]
    return tuple(dict.fromkeys(entries))


def _group(name: str) -> str:
    first, _, rest = name.partition(".")
    buffer = next((f".{buffer}" for buffer in BUFFERS if rest.endswith(buffer)), "")
    return f"{first}.*{buffer}"

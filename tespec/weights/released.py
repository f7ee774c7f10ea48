"""Specifications of published checkpoints: names, networks, inputs, and what they have seen.

Read in the publishers' code, at the given commits: microsoft/Swin-Transformer,
SwinTransformer/Transformer-SSL, Yan98/Event-Camera-Data-Pre-training @0b71793,
Yan98/Event-Camera-Data-Dense-Pre-training @fedd0a8, tum-vision/mem @c60c930, uzh-rpg/RVT @b80f568,
uzh-rpg/generative_event_pretraining @b07c78c, BIT-Vision/EventPretrain @86ce263,
zhiwen-xdu/ScaleEvent @e3d2083; TESPEC's as pabloseijo/event-penguins-optimization loads it.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from tespec.core.settings import Size, input_settings

Tensors = dict[str, Tensor]
Rename = tuple[str, str]  # pattern of a full tensor name, and its replacement; "" drops it

# Parts of a backbone that published networks may lack; they are then randomly initialised.
LSTMS = "lstms."
NECKS = "necks."  # from the output of a stage to its feature
PARTS = {LSTMS: "the ConvLSTMs", NECKS: "the necks"}

AUTHORS = "read in the authors' code"
UNCONFIRMED = "file not confirmed: read in the authors' code, which does not name the file"
SECOND_HAND = "layout second-hand: read in the code of others"

IMAGENET_SIZE = (224, 224)  # px
IMAGE = "RGB image, normalised"
QKV = r"layers[._]\d+\.blocks\.\d+\.attn\.qkv\.weight"  # in every Swin Transformer
VIT_QKV = r"blocks\.\d+\.attn\.qkv\.weight"
# A Lightning module holds a model, which holds the encoder; the file may have been saved at any of
# these levels.
LEVEL = r"(?:(?:model\.)?encoder\.)?"
EVENTPRETRAIN = r"(?:pretrain_encoder|backbone)\."
RVT = r"(?:mdl\.)?(?:backbone\.)?stages\.(\d)\."


def downsample_at_start(tensors: Tensors) -> Tensors:
    """Rename downsampling at the end of a stage (Microsoft) to the start of the next (timm 0.8).

    The classifier does not identify the naming, because files of both may lack it.
    """
    pattern = re.compile(r"(?<=^swin\.layers\.)\d+(?=\.downsample\.)")
    stages = {match[0] for match in map(pattern.search, tensors) if match}
    if ("0" in stages) == ("3" in stages):
        count = "both" if "0" in stages else "neither"
        raise ValueError(f"it holds {count} of layers.0.downsample and layers.3.downsample")
    if "3" in stages:
        return tensors
    return {
        pattern.sub(lambda match: str(int(match[0]) + 1), name): tensor
        for name, tensor in tensors.items()
    }


def add_counters(tensors: Tensors) -> Tensors:
    """Add the counters of batch normalisation, 0, which files from before torch 0.4.1 lack."""
    means = [name for name in tensors if name.endswith("running_mean")]
    counters = [name.replace("running_mean", "num_batches_tracked") for name in means]
    return dict.fromkeys(counters, torch.zeros((), dtype=torch.int64)) | tensors


def split_tokens(tensors: Tensors) -> Tensors:
    """Split ECDP's tokens (1, 2, C) into a class token of events and a register of images."""
    cls_token, reg_token = tensors.pop("vit.tokens").split(1, dim=1)
    return tensors | {"vit.cls_token": cls_token, "vit.reg_token": reg_token}


def merge_class_position(tensors: Tensors) -> Tensors:
    """Add the position of DINOv2's class token, the first one, to the token itself."""
    first, others = tensors["vit.pos_embed"].tensor_split([1], dim=1)
    cls_token = tensors["vit.cls_token"] + first
    return tensors | {"vit.cls_token": cls_token, "vit.pos_embed": others}


def copy_bias_table(tensors: Tensors) -> Tensors:
    """Copy the bias table that MEM's blocks share to each block, as its fine-tuning does."""
    table = tensors.pop("vit.rel_pos_bias.relative_position_bias_table")
    blocks = [name for name in tensors if re.fullmatch(rf"vit\.{VIT_QKV}", name)]
    new_name = "relative_position_bias_table"
    return tensors | {name.replace("qkv.weight", new_name): table for name in blocks}


def split_qkv_bias(tensors: Tensors) -> Tensors:
    """Split the biases of DINOv3's attention; that of the keys is masked."""
    biases = {name: tensors.pop(name) for name in list(tensors) if name.endswith("attn.qkv.bias")}
    for name, bias in biases.items():
        query, _, value = bias.chunk(3)
        tensors[name.replace("qkv.bias", "q_bias")] = query
        tensors[name.replace("qkv.bias", "v_bias")] = value
    return tensors


def swin_names(prefix: str = "") -> tuple[Rename, ...]:
    """Renames of a Swin Transformer under a prefix, without buffers, final norm and classifier."""
    return (
        (
            rf"{prefix}layers[._](\d+)\.(?!.*(?:relative_position_index|attn_mask)$)(.*)",
            r"swin.layers.\1.\2",
        ),
        (rf"{prefix}(patch_embed\..*|absolute_pos_embed)", r"swin.\1"),
    )


def vit_names(prefix: str = "", dropped: str = "mask_token") -> tuple[Rename, ...]:
    """Renames of all tensors of a ViT under a prefix.

    Args:
        prefix: pattern.
        dropped: pattern of the names without prefix that are dropped.
    """
    return ((rf"{prefix}(?:{dropped})", ""), (rf"{prefix}(.*)", r"vit.\1"))


@dataclass(frozen=True, kw_only=True)
class CheckpointFormat:
    """Specification of a published checkpoint."""

    name: str  # in reports and records
    title: str  # in messages
    marks: tuple[str, ...]  # patterns that recognise it: each must match a full tensor name
    # the first match applies; names without a match are dropped
    renames: tuple[Rename, ...]
    # backbones that it may hold, distinguished by the shape of the first convolution; (): any
    networks: tuple[str, ...] = ()
    adapt: Callable[[Tensors], Tensors] = dict  # changes the renamed tensors; dict: not at all
    lacks: tuple[str, ...] = (LSTMS, NECKS)  # parts that it cannot hold
    # whether its first convolution is repeated over more input channels, as in the paper's
    # comparison; otherwise the channels must match
    repeats: bool = False
    sensor: Size | None = IMAGENET_SIZE  # training resolution (rows, columns) in px
    data: str = ""  # pre-training data set, as named in tables; "" if unknown
    input: str = ""  # of its pre-training: channels in their order, events, scaling
    # the same as a representation of `tespec.core.settings.Binning`; "": none of them
    representation: str = "histogram"
    # what its tensors do not show, as this harness assumes it
    assumed: str = ""
    # what its training has seen of labels, images and the data of evaluations
    seen: Mapping[Literal["labels", "images", "evaluation set"], str] = field(default_factory=dict)
    licence: str = "none"
    source: str = AUTHORS

    def facts(self) -> dict[str, str]:
        """What users should know besides the tensors, by title; without what is not known."""
        facts = {
            "input": self.input,
            "settings": input_settings(next(iter(self.networks), "")),
            "assumed": self.assumed,
            "seen": ", ".join(f"{kind} ({which})" for kind, which in self.seen.items()),
            "licence": self.licence,
            "source": self.source,
        }
        return {title: text for title, text in facts.items() if text}

    @property
    def doubt(self) -> str:
        """Doubt about the layout: "file not confirmed", "layout second-hand", or "" for none."""
        return "" if self.source in ("", AUTHORS) else self.source.partition(":")[0]


TESPEC = CheckpointFormat(
    name="tespec",
    title="weights written by this harness",
    marks=(
        r"(swin\.layers|swin\.patch_embed|resnet\.conv1|stages\.0\.reduce|vit\.patch_embed)\..*",
    ),
    renames=((r"((swin|lstms|resnet|stages|vit|necks)\..*)", r"\1"),),
    lacks=(NECKS,),  # if it was converted from a published file
    sensor=None,
    licence="",
    source="",
)
SWIN = ("swin_tiny", "swin_micro")
# The first match applies, so Swins under a prefix come before bare ones.
FORMATS = (
    TESPEC,
    CheckpointFormat(
        name="tespec-release",
        title="TESPEC's released encoder",
        marks=(rf"{LEVEL}pure_backbone\.{QKV}",),
        renames=(
            *swin_names(rf"{LEVEL}pure_backbone\."),
            # The order of the gates is that of `tespec.models.backbone.ConvLstm`.
            (rf"{LEVEL}lstm_blocks\.(\d+)\.conv1x1\.(.*)", r"lstms.\1.gates.\2"),
            (rf"{LEVEL}lstm_blocks\.(.*)", r"lstms.\1"),
        ),
        networks=SWIN,
        adapt=downsample_at_start,
        lacks=(),
        sensor=(360, 640),
        data="1Mpx",
        input="10 bins of negative, then of positive counts, at most 10; 50 ms",
        assumed="norm epsilon 1e-5",
        licence="unknown",
        source=SECOND_HAND,
    ),
    CheckpointFormat(
        name="moby",
        title="MoBY's online encoder, a Swin Transformer",
        marks=(
            rf"encoder\.{QKV}",
            r"(encoder_k\.|projector\.|projector_k\.|predictor\.|queue).*",
        ),
        renames=swin_names(r"encoder\."),
        networks=SWIN,
        adapt=downsample_at_start,
        repeats=True,
        data="ImageNet-1k",
        input=IMAGE,
        seen={"images": "ImageNet"},
        licence="MIT",
    ),
    # The authors fine-tune the student (load_teacher: false) without its patch embedding of 6
    # channels. Here it is repeated over more channels, as in TESPEC's comparison. The size is
    # img_size in config/pretrain/swin_small.yml.
    CheckpointFormat(
        name="ecddp",
        title="ECDDP's student, a Swin Transformer",
        marks=(rf"student\.backbone\.{QKV}",),
        renames=(
            *swin_names(r"student\.backbone\."),
            (r"student\.backbone\.norm([0-3])\.(.*)", r"necks.\1.\2"),
        ),
        networks=("swin_tiny_ecddp", "swin_micro"),
        adapt=downsample_at_start,
        lacks=(LSTMS,),
        repeats=True,
        sensor=(192, 192),
        data="E-TartanAir",
        input="6 bins, signed and bilinear in time",
        representation="voxels",
        assumed="the student, norm epsilon 1e-6",
    ),
    CheckpointFormat(
        name="ecdp-vit",
        title="ECDP's ViT-S/16",
        marks=(r"encoder_q\.(tokens|event_head\..*)", rf"encoder_q\.{VIT_QKV}"),
        renames=vit_names(r"encoder_q\.", r"(event|image)_head\..*|head\..*"),
        networks=("vit_small_ecdp",),
        adapt=split_tokens,
        data="N-ImageNet",
        input="2 channels, counts of positive and negative events of at most 30,000 in sequence, "
        "each / (maximum + 1) * 2 - 1, at 224 px",
        representation="ecdp",
        assumed="12 heads, norm epsilon 1e-6, event token before image token, features of blocks "
        "2, 5, 8, 11 after the final norm (its dense network is not published)",
        seen={"images": "CLIP"},
    ),
    CheckpointFormat(
        name="mem",
        title="MEM's ViT-B/16",
        marks=(r"rel_pos_bias\.relative_position_bias_table", r"blocks\.0\.attn\.q_bias"),
        renames=vit_names(
            dropped=r"mask_token|lm_head\..*|norm\..*|rel_pos_bias\.relative_position_index"
        ),
        networks=("vit_base_mem",),
        adapt=copy_bias_table,
        data="N-ImageNet",
        input="3 channels, counts of positive events, 0, counts of negative ones, of 30,000 "
        "events, without hot pixels (mean + 10 standard deviations), / joint maximum",
        representation="mem",
        assumed="norm epsilon 1e-6, features of blocks 8 to 11 without the final norm; BEiT's "
        "files have the same names",
        licence="Apache-2.0 / MIT",
    ),
    CheckpointFormat(
        name="gep",
        title="GEP's ViT/14",
        marks=("register_tokens", r"blocks\.0\.ls1\.gamma", r"patch_embed\.proj\.weight"),
        renames=(("register_tokens", "vit.reg_token"), *vit_names()),
        networks=("vit_small_gep", "vit_base_gep"),
        adapt=merge_class_position,
        sensor=(518, 518),
        input="picture of 50 ms around a frame, rectified after it is drawn: dominant polarity in "
        "red or blue on white, counts clipped at their 90th percentile, channels in cv2's order",
        representation="gep",
        assumed="6 (ViT-S) or 12 heads, norm epsilon 1e-6, features of blocks 2, 5, 8, 11 after "
        "the final norm; runs draw the 50 ms before a label, after rectification, and normalise by "
        "DSEC's mean and deviation; DINOv2's files have the same names",
        seen={"images": "DINOv2", "evaluation set": "DSEC's training set"},
        licence="GPL-3.0",
        source=UNCONFIRMED,
    ),
    CheckpointFormat(
        name="depthanyevent",
        title="DepthAnyEvent's encoder, a ViT-S/14",
        marks=(rf"pretrained\.{VIT_QKV}", r"pretrained\.blocks\.0\.ls1\.gamma"),
        renames=vit_names(r"pretrained\."),
        networks=("vit_small_depthanyevent",),
        adapt=merge_class_position,
        sensor=(518, 518),
        input="3 channels made from events",
        representation="",
        assumed="6 heads, norm epsilon 1e-6, features of blocks 2, 5, 8, 11 after the final norm; "
        "Depth Anything's files have the same names",
        seen={"labels": "depth", "images": "DINOv2"},
        licence="unknown",
        source=SECOND_HAND,
    ),
    CheckpointFormat(
        name="eventpretrain",
        title="EventPretrain's ViT-S/16",
        marks=(rf"{EVENTPRETRAIN}vit_block\.\d+\.attn\.qkv\.weight",),
        renames=(
            (rf"{EVENTPRETRAIN}norm_layer\..*", ""),
            (rf"{EVENTPRETRAIN}vit_block\.(.*)", r"vit.blocks.\1"),
            (rf"{EVENTPRETRAIN}patch_embed\.norm\.(.*)", r"vit.patch_embed.norm.0.\1"),
            *vit_names(EVENTPRETRAIN),
        ),
        networks=("vit_small_eventpretrain",),
        input="5 bins, signed and bilinear in time",
        representation="voxels",
        assumed="12 heads, norm epsilon 1e-6 (1e-5 after the patches), GELU after the patches' "
        "norm, features of blocks 3, 5, 7, 11 without the final norm",
        seen={"images": "CLIP, frames"},
        source=UNCONFIRMED,
    ),
    CheckpointFormat(
        name="scaleevent",
        title="ScaleEvent's ViT/16",
        marks=(r"event_encoder\.storage_tokens",),
        renames=(
            (r"event_encoder\.storage_tokens", "vit.reg_token"),
            (r"event_encoder\.(blocks\.\d+)\.ls([12])\.gamma", r"vit.\1.gamma_\2"),
            *vit_names(r"event_encoder\.", r"mask_token|rope_embed\.periods|.*\.bias_mask"),
        ),
        networks=("vit_small_scaleevent", "vit_base_scaleevent", "vit_large_scaleevent"),
        adapt=split_qkv_bias,
        input="pictures of events, normalised as images",
        representation="",
        assumed="6, 12 or 16 heads, norm epsilon 1e-5, features of blocks 2, 5, 8, 11 (ViT-L: 4, "
        "11, 17, 23) after the final norm",
        seen={
            "images": "DINOv3",
            "evaluation set": "DSEC's and DDD17's test sets, MVSEC's outdoor day 1",
        },
        source=UNCONFIRMED,
    ),
    CheckpointFormat(
        name="rvt",
        title="RVT's recurrent MaxViT (RVT, LEOD)",
        marks=(rf"{RVT}att_blocks\.0\.att_window\.self_attn\.qkv\.weight",),
        renames=(
            (rf"{RVT}downsample_cf2cl\.conv\.weight", r"stages.\1.reduce.weight"),
            (rf"{RVT}downsample_cf2cl\.norm\.(.*)", r"stages.\1.norm.\2"),
            (rf"{RVT}att_blocks\.0\.att_(\w+)\.self_attn\.(.*)", r"stages.\1.\2.attn.\3"),
            (rf"{RVT}att_blocks\.0\.att_(\w+)\.mlp\.net\.0\.0\.(.*)", r"stages.\1.\2.mlp.fc1.\3"),
            (rf"{RVT}att_blocks\.0\.att_(\w+)\.mlp\.net\.2\.(.*)", r"stages.\1.\2.mlp.fc2.\3"),
            (rf"{RVT}att_blocks\.0\.att_(window|grid)\.(.*)", r"stages.\1.\2.\3"),
            (rf"{RVT}lstm\.conv1x1\.(.*)", r"lstms.\1.gates.\2"),
            (rf"{RVT}(.*)", r"stages.\1.\2"),
        ),
        networks=("maxvit_tiny", "maxvit_small", "maxvit_base"),
        lacks=(),
        sensor=(240, 304),
        input="10 bins of negative, then of positive counts (rule rvt); 50 ms",
        assumed="windows of 1/32 of the padded image along each side: 8 x 10 tokens on Gen1, 6 x "
        "10 on 1Mpx (halved), so give the size of its training; 32 (T, B) or 24 channels a head",
        seen={
            "labels": "it is supervised; LEOD: by a fraction of the labels",
            "evaluation set": "training set of Gen1 or 1Mpx",
        },
        licence="MIT",
    ),
    CheckpointFormat(
        name="swin-microsoft",
        title="Swin Transformer with tensor names of Microsoft or timm before 0.8",
        marks=(QKV, r"layers\.0\.downsample\..*"),
        renames=swin_names(),
        networks=SWIN,
        adapt=downsample_at_start,
        repeats=True,
        input=IMAGE,
        seen={"labels": "ImageNet's, if supervised", "images": "ImageNet"},
        licence="MIT",
    ),
    CheckpointFormat(
        name="swin-timm",
        title="Swin Transformer with tensor names of timm since 0.8",
        marks=(QKV,),
        renames=swin_names(),
        networks=SWIN,
        adapt=downsample_at_start,
        repeats=True,
        input=IMAGE,
        seen={"labels": "ImageNet's, if supervised", "images": "ImageNet"},
        licence="that of the weights",
    ),
    CheckpointFormat(
        name="resnet50",
        title="ResNet-50 with tensor names of torchvision",
        # the last bottleneck's third convolution, which ResNet-18 and -34 lack
        marks=("conv1.weight", r"layer4\.2\.conv3\.weight"),
        renames=((r"(?!fc\.)(.*)", r"resnet.\1"),),
        networks=("resnet50",),
        adapt=add_counters,
        repeats=True,
        input="images; ECDP and ECDDP: 2 channels of counts, 6 bins",
        assumed="torchvision's layout, as ECDP's and ECDDP's fine-tuning describes it",
        seen={
            "labels": "ImageNet's, if supervised",
            "images": "ImageNet; ECDP: CLIP; ECDDP: none",
        },
        licence="that of the weights",
        source=UNCONFIRMED,
    ),
)

SWAPPED = "; the links of DeiT-S and Swin-T in MoBY's README are swapped"
# Reasons why known networks are refused, by a pattern of a tensor name; the first match applies.
REFUSED = {
    r"(.*\.)?(swin_block|conv_block\w*)\.\d+\..*": "is EventPretrain's Swin or ConvViT, whose "
    "blocks have a different layout",
    r"(.*\.)?temporal_block\d\..*": "is STP's stem for a frozen image network, not a backbone",
    r"student\.backbone\.blocks\..*": "is ECDDP's ViT-S, whose code was not released",
    rf"encoder\.{QKV}": "holds a Swin Transformer as its encoder, but no key that identifies the "
    "method",
    rf"encoder\.{VIT_QKV}": f"is MoBY's DeiT-S{SWAPPED}",
    r"codebook\.weight": "is MEM's tokenizer, an autoencoder, not a backbone",
    rf"(.*\.)?(event|rgb)_{VIT_QKV}": "is CM3AE's pair of ViTs for events and frames",
    r"(.*\.)?(win_attn|grid_attn)\.qkv\.weight": "is SAST's detector, whose sparse attention has "
    "operators of its own",
    r"(.*\.)?stages\.\d\.downsample_cf2cl\..*": "has RVT's stem, but other blocks, such as those "
    "of SMamba",
    r"(.*\.)?unetrecurrent\..*": "is E2VID's network, as in OpenESS, not a backbone",
    r"(.*\.)?visual\.transformer\.resblocks\..*": "is CLIP's image encoder, as in EventCLIP and "
    "EventBind",
    rf"(?!.*layers[._]\d)(.*\.)?{VIT_QKV}": "is a vision transformer without stages (ViT, DeiT) of "
    f"no known publication{SWAPPED}",
    r".*\.attn\.w_msa\..*": "is OpenMMLab's Swin Transformer, whose channel order differs",
    r"(swin\.)?encoder\.layers\..*": "is a Swin Transformer of Hugging Face's transformers",
}
# No file of these is recognised.
UNAVAILABLE = {
    "Hyper-RED": "no public weights or code",
    "EvRT-DETR": "a detector whose layout is not known here",
    "GET": "a detector with operators of its own",
}

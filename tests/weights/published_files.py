"""Stand-ins with the names, shapes and wrapping of published checkpoints, with random numbers.

Names and shapes come from timm's own Swin Transformer; the changes of other publishers follow their
code: microsoft/Swin-Transformer and SwinTransformer/Transformer-SSL (models/swin_transformer.py,
models/moby.py), Yan98/Event-Camera-Data-Dense-Pre-training (model/pretrain_model.py,
model/network/) and pabloseijo/event-penguins-optimization (src/tespec_encoder.py).
"""

import re
from collections import OrderedDict

import tespec.core.compat  # noqa: F401  # before timm

import torch
from timm.models.swin_transformer import SwinTransformer

from tespec.models.event_swin import SIZES

TOKENS = 49  # per window


def numbers(seed, **shapes):
    draw = torch.Generator().manual_seed(seed)
    return {
        name.replace("__", "."): torch.randn(shape, generator=draw) * 0.1
        for name, shape in shapes.items()
    }


def timm_new(arch="swin_micro", chans=3, head=True, seed=0):
    """timm since 0.8: downsampling at the start of stages 1 to 3, classifier `head.fc`."""
    width, depths, heads = SIZES[arch]
    with torch.device("meta"):
        model = SwinTransformer(in_chans=chans, embed_dim=width, depths=depths, num_heads=heads)
    draw = torch.Generator().manual_seed(seed)
    state = {
        name: torch.randn(tensor.shape, generator=draw) * 0.1
        for name, tensor in model.state_dict().items()
    }
    return {
        name: tensor
        for name, tensor in state.items()
        if head or not name.startswith(("norm.", "head."))
    }


def timm_features(arch="swin_micro", chans=3):
    """timm with features_only: `layers_i`, neither final norm nor classifier."""
    return {
        name.replace("layers.", "layers_", 1): tensor
        for name, tensor in timm_new(arch, chans, head=False).items()
    }


def microsoft(arch="swin_micro", chans=3, seed=0, head=True):
    """`model` of the official file: downsampling ends stages 0 to 2, buffers, classifier `head`."""
    state = {}
    for name, tensor in timm_new(arch, chans, head, seed).items():
        name = re.sub(
            r"layers\.(\d)\.downsample",
            lambda match: f"layers.{int(match[1]) - 1}.downsample",
            name,
        )
        state[name.replace("head.fc.", "head.")] = tensor
        if name.endswith("relative_position_bias_table"):
            state[name.replace("bias_table", "index")] = torch.zeros(
                TOKENS, TOKENS, dtype=torch.int64
            )
            if ".blocks.1." in name and not name.startswith("layers.3."):
                state[name.replace("attn.relative_position_bias_table", "attn_mask")] = torch.zeros(
                    4, TOKENS, TOKENS
                )
    return state


def under(prefix, state):
    return {prefix + name: tensor for name, tensor in state.items()}


def moby(arch="swin_micro"):
    """Online and momentum encoder (unequal), heads and queues under `model`, and other entries."""
    model = under("encoder.", microsoft(arch, seed=0, head=False) | numbers(7, norm__weight=(8,)))
    model |= under("encoder_k.", microsoft(arch, seed=1, head=False))
    for name in ("projector", "projector_k", "predictor"):
        model |= under(
            f"{name}.", numbers(9, linear_hidden__1__weight=(64, 8), linear_out__weight=(256, 64))
        )
    model |= numbers(9, queue1=(256, 64), queue2=(256, 64)) | {
        "queue_ptr": torch.zeros(1, dtype=torch.int64)
    }
    return {"model": model, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}, "epoch": 299}


def ecddp(arch="swin_micro"):
    """Student and teacher (unequal), 6 input channels, norms, mask token, pyramid and heads."""
    model = {"aug.grid": torch.zeros(1, 2, 8, 8)}
    for seed, branch in enumerate(("student", "teacher")):
        extra = numbers(
            seed,
            mask_token=(1, 24),
            norm0__weight=(24,),
            norm3__bias=(192,),
            fpns__0__1__weight=(9,),
        )
        model |= under(
            f"{branch}.backbone.", microsoft(arch, chans=6, seed=seed, head=False) | extra
        )
        model |= under(
            f"{branch}.dino_head.",
            numbers(seed, mlp__0__weight=(16, 16), att__blocks__0__attn__q=(16, 16)),
        )
    return {"model": model, "optimizer": {}, "current_epoch": 300}


def tespec_release(arch="swin_micro"):
    """TESPEC's file: timm's features_only at 20 channels, 1x1 convolutions, and a decoder."""
    state = under("model.encoder.pure_backbone.", timm_features(arch, chans=20))
    for stage in range(4):
        size = SIZES[arch][0] << stage
        gates = numbers(stage, weight=(4 * size, 2 * size, 1, 1), bias=(4 * size,))
        state |= under(f"model.encoder.lstm_blocks.{stage}.conv1x1.", gates)
    state["model.decoder.proj.weight"] = torch.zeros(8, 8)
    return {
        "epoch": 7,
        "global_step": 400_000,
        "state_dict": OrderedDict(state),
        "hyper_parameters": {"lr": 2e-4},
    }


def saved(folder, content):
    path = folder / "weights.pth"
    torch.save(content, path)
    return path

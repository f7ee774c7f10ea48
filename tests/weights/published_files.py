"""Stand-ins with the names, shapes and wrapping of published weights files, filled with random numbers.

The names are those of the sources' code: microsoft/Swin-Transformer and SwinTransformer/Transformer-SSL
(models/swin_transformer.py, models/moby.py), Yan98/Event-Camera-Data-Dense-Pre-training (model/pretrain_model.py,
model/network/), pabloseijo/event-penguins-optimization (src/tespec_encoder.py) and timm.
"""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tespec.models.event_swin import ARCHITECTURES, WINDOW

State = OrderedDict[str, Tensor]


def numbers(generator: torch.Generator, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=generator) * 0.1


def microsoft(arch: str = "micro", chans: int = 3, seed: int = 0, buffers: bool = True, head: bool = True) -> State:
    """`model` of the official file: downsampling at the end of a stage, buffers, final norm, classifier."""
    width, depths, heads = ARCHITECTURES[arch]
    draw = torch.Generator().manual_seed(seed)
    state: State = OrderedDict()

    def linear(name: str, rows: int, columns: int, bias: bool = True) -> None:
        state[f"{name}.weight"] = numbers(draw, rows, columns)
        if bias:
            state[f"{name}.bias"] = numbers(draw, rows)

    def norm(name: str, size: int) -> None:
        state[f"{name}.weight"] = 1 + numbers(draw, size)
        state[f"{name}.bias"] = numbers(draw, size)

    state["patch_embed.proj.weight"] = numbers(draw, width, chans, 4, 4)
    state["patch_embed.proj.bias"] = numbers(draw, width)
    norm("patch_embed.norm", width)
    tokens = WINDOW * WINDOW
    for stage, depth in enumerate(depths):
        size = width << stage
        for index in range(depth):
            block = f"layers.{stage}.blocks.{index}"
            if buffers and index % 2 and stage < 3:
                windows = ((56 >> stage) // WINDOW) ** 2
                state[f"{block}.attn_mask"] = torch.zeros(windows, tokens, tokens)
            norm(f"{block}.norm1", size)
            state[f"{block}.attn.relative_position_bias_table"] = numbers(draw, (2 * WINDOW - 1) ** 2, heads[stage])
            if buffers:
                state[f"{block}.attn.relative_position_index"] = torch.zeros(tokens, tokens, dtype=torch.int64)
            linear(f"{block}.attn.qkv", 3 * size, size)
            linear(f"{block}.attn.proj", size, size)
            norm(f"{block}.norm2", size)
            linear(f"{block}.mlp.fc1", 4 * size, size)
            linear(f"{block}.mlp.fc2", size, 4 * size)
        if stage < 3:
            linear(f"layers.{stage}.downsample.reduction", 2 * size, 4 * size, bias=False)
            norm(f"layers.{stage}.downsample.norm", 4 * size)
    if head:
        norm("norm", 8 * width)
        linear("head", 1000, 8 * width)
    return state


def timm_new(arch: str = "micro", chans: int = 3, head: bool = True) -> State:
    """timm since 0.8: no buffers, downsampling at the start of the next stage, classifier `head.fc`."""
    state: State = OrderedDict()
    for name, tensor in microsoft(arch, chans, buffers=False, head=head).items():
        first, _, rest = name.partition(".downsample.")
        if rest:
            name = f"layers.{int(first[-1]) + 1}.downsample.{rest}"
        state[name.replace("head.", "head.fc.")] = tensor
    return state


def timm_features(arch: str = "micro", chans: int = 3) -> State:
    """timm with features_only: `layers_i`, neither final norm nor classifier."""
    return OrderedDict(
        (name.replace("layers.", "layers_", 1), tensor) for name, tensor in timm_new(arch, chans, head=False).items()
    )


def under(prefix: str, state: State) -> State:
    return OrderedDict((prefix + name, tensor) for name, tensor in state.items())


def moby(arch: str = "micro") -> dict[str, Any]:
    """Online and momentum encoder (unequal), heads and queues, under `model`, with what its script saves beside."""
    width = 8 * ARCHITECTURES[arch].width
    draw = torch.Generator().manual_seed(9)

    def bare(seed: int) -> State:
        state = microsoft(arch, seed=seed, head=False)
        state["norm.weight"], state["norm.bias"] = numbers(draw, width), numbers(draw, width)
        return state

    model = under("encoder.", bare(0))
    model.update(under("encoder_k.", bare(1)))
    for name, size in (("projector", width), ("projector_k", width), ("predictor", 256)):
        hidden = f"{name}.linear_hidden"
        model[f"{hidden}.1.weight"], model[f"{hidden}.1.bias"] = numbers(draw, 64, size), numbers(draw, 64)
        for part in ("weight", "bias", "running_mean", "running_var"):
            model[f"{hidden}.2.{part}"] = numbers(draw, 64)
        model[f"{hidden}.2.num_batches_tracked"] = torch.tensor(1)
        model[f"{name}.linear_out.weight"] = numbers(draw, 256, 64)
        model[f"{name}.linear_out.bias"] = numbers(draw, 256)
    model["queue1"], model["queue2"] = numbers(draw, 256, 64), numbers(draw, 256, 64)
    model["queue_ptr"] = torch.zeros(1, dtype=torch.int64)
    return {"model": model, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}, "epoch": 299}


def simmim(arch: str = "micro") -> dict[str, Any]:
    """Encoder with a mask token, and a decoder of one convolution; microsoft/SimMIM, models/simmim.py."""
    width = ARCHITECTURES[arch].width
    draw = torch.Generator().manual_seed(5)
    encoder = microsoft(arch, seed=3, head=False)
    encoder["norm.weight"], encoder["norm.bias"] = numbers(draw, 8 * width), numbers(draw, 8 * width)
    encoder["mask_token"] = numbers(draw, 1, 1, width)
    model = under("encoder.", encoder)
    model["decoder.0.weight"], model["decoder.0.bias"] = numbers(draw, 3072, 8 * width, 1, 1), numbers(draw, 3072)
    return {"model": model, "optimizer": {"state": {0: {"exp_avg": torch.zeros(3)}}}, "epoch": 99}


def ecddp(arch: str = "micro", branches: tuple[str, ...] = ("student", "teacher")) -> dict[str, Any]:
    """Student and teacher (unequal), 6 input channels, a norm per output, mask token, pyramid and heads."""
    width = ARCHITECTURES[arch].width
    model: State = OrderedDict()
    for seed, branch in enumerate(branches):
        draw = torch.Generator().manual_seed(seed + 20)
        backbone = microsoft(arch, chans=6, seed=seed, buffers=False, head=False)
        for name in [name for name in backbone if name.endswith("bias_table")]:
            index = name.replace("bias_table", "index")
            backbone[index] = torch.zeros(WINDOW**2, WINDOW**2, dtype=torch.int64)
        backbone["mask_token"] = numbers(draw, 1, width)
        for stage in range(4):
            backbone[f"norm{stage}.weight"] = numbers(draw, width << stage)
            backbone[f"norm{stage}.bias"] = numbers(draw, width << stage)
        for stage, module in ((0, 1), (1, 1), (2, 0)):
            backbone[f"fpns.{stage}.{module}.weight"] = numbers(draw, 8 * width, width << stage, 1, 1)
        backbone["fpns.3.0.weight"] = numbers(draw, 8 * width, 8 * width, 2, 2)
        model.update(under(f"{branch}.backbone.", backbone))
        for head in ("dino_head", "ibot_head", "cluster_head"):
            for layer in (0, 2, 4):
                model[f"{branch}.{head}.mlp.{layer}.weight"] = numbers(draw, 16, 16)
            model[f"{branch}.{head}.last_layer.weight_g"] = numbers(draw, 32, 1)
            model[f"{branch}.{head}.att.blocks.0.attn.q.weight"] = numbers(draw, 16, 16)
    model["aug.grid"] = torch.zeros(1, 2, 8, 8)
    return {"model": model, "optimizer": {}, "current_epoch": 300}


def tespec_release(arch: str = "micro") -> dict[str, Any]:
    """TESPEC's file: timm's features_only at 20 channels, a 1x1 convolution per ConvLSTM, and a decoder."""
    state = under("model.encoder.pure_backbone.", timm_features(arch, chans=20))
    draw = torch.Generator().manual_seed(5)
    for stage in range(4):
        size = ARCHITECTURES[arch].width << stage
        state[f"model.encoder.lstm_blocks.{stage}.conv1x1.weight"] = numbers(draw, 4 * size, 2 * size, 1, 1)
        state[f"model.encoder.lstm_blocks.{stage}.conv1x1.bias"] = numbers(draw, 4 * size)
    state["model.decoder.proj.weight"] = numbers(draw, 8, 8)
    return {"epoch": 7, "global_step": 400_000, "state_dict": state, "hyper_parameters": {"lr": 2e-4}}


def saved(folder: Path, content: Any, name: str = "weights.pth") -> Path:
    """A torch file of this content."""
    path = folder / name
    torch.save(content, path)
    return path

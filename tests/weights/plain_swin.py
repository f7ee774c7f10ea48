"""Swin Transformer written out from the paper, on tensors in Microsoft's naming; no module, no padding.

Maps have to be multiples of the window in every stage that has more tokens than one window.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.nn.functional import conv2d, gelu, layer_norm, linear

WINDOW = 7


def plain_features(state: Mapping[str, Tensor], image: Tensor, heads: tuple[int, ...]) -> list[Tensor]:
    """Features (B, C, h, w) at the end of each stage, before its downsampling, of an image (B, chans, H, W)."""
    weights = dict(state)
    maps = conv2d(image, weights["patch_embed.proj.weight"], weights["patch_embed.proj.bias"], stride=4)
    maps = norm(weights, "patch_embed.norm", maps.permute(0, 2, 3, 1))
    features = []
    for stage, count in enumerate(heads):
        index = 0
        while f"layers.{stage}.blocks.{index}.norm1.weight" in weights:
            shift = WINDOW // 2 if index % 2 and maps.shape[1] > WINDOW else 0
            maps = block(weights, f"layers.{stage}.blocks.{index}", maps, count, shift)
            index += 1
        features.append(maps.permute(0, 3, 1, 2))
        if stage < 3:
            maps = merge(weights, f"layers.{stage}.downsample", maps)
    return features


def norm(weights: dict[str, Tensor], name: str, maps: Tensor) -> Tensor:
    return layer_norm(maps, maps.shape[-1:], weights[f"{name}.weight"], weights[f"{name}.bias"], eps=1e-5)


def merge(weights: dict[str, Tensor], name: str, maps: Tensor) -> Tensor:
    """Top-left, bottom-left, top-right and bottom-right of each 2x2, side by side."""
    corners = [maps[:, row::2, column::2] for column in (0, 1) for row in (0, 1)]
    return linear(norm(weights, f"{name}.norm", torch.cat(corners, -1)), weights[f"{name}.reduction.weight"])


def block(weights: dict[str, Tensor], name: str, maps: Tensor, heads: int, shift: int) -> Tensor:
    maps = maps + attention(weights, f"{name}.attn", norm(weights, f"{name}.norm1", maps), heads, shift)
    hidden = linear(norm(weights, f"{name}.norm2", maps), *pair(weights, f"{name}.mlp.fc1"))
    return maps + linear(gelu(hidden), *pair(weights, f"{name}.mlp.fc2"))


def pair(weights: dict[str, Tensor], name: str) -> tuple[Tensor, Tensor]:
    return weights[f"{name}.weight"], weights[f"{name}.bias"]


def attention(weights: dict[str, Tensor], name: str, maps: Tensor, heads: int, shift: int) -> Tensor:
    """Each token attends to those that are in its window of the shifted grid and lie beside it in the image."""
    rows, columns, size = maps.shape[1:]
    table = weights[f"{name}.relative_position_bias_table"]
    queries, keys, values = linear(maps, *pair(weights, f"{name}.qkv")).split(size, dim=-1)
    result = torch.empty_like(maps)
    for at_rows, at_columns in windows(rows, columns, shift):  # each (windows, tokens)
        offset = (at_rows[:, :, None] - at_rows[:, None] + WINDOW - 1) * (2 * WINDOW - 1)
        bias = table[
            offset + at_columns[:, :, None] - at_columns[:, None] + WINDOW - 1
        ]  # (windows, tokens, tokens, heads)
        for head in range(heads):
            part = slice(head * size // heads, (head + 1) * size // heads)
            query, key, value = (each[..., part][:, at_rows, at_columns] for each in (queries, keys, values))
            score = query @ key.transpose(-2, -1) * (size // heads) ** -0.5 + bias[..., head]
            result[..., part][:, at_rows, at_columns] = score.softmax(-1) @ value
    return linear(result, *pair(weights, f"{name}.proj"))


def windows(rows: int, columns: int, shift: int) -> list[tuple[Tensor, Tensor]]:
    """Rows and columns of each window's tokens, windows of equally many tokens together.

    A shifted grid cuts windows off at the image's borders, as the masks of the original do.
    """
    groups: dict[tuple[int, int], list[tuple[int, int]]] = {}
    start = (WINDOW - shift) % WINDOW
    for row in range(rows):
        for column in range(columns):
            groups.setdefault(((row + start) // WINDOW, (column + start) // WINDOW), []).append((row, column))
    lengths = sorted({len(group) for group in groups.values()})
    alike = [torch.tensor([group for group in groups.values() if len(group) == length]) for length in lengths]
    return [(places[..., 0], places[..., 1]) for places in alike]

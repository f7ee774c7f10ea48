"""K-means over the tokens of an image, and pooling by attention to some of them."""

from __future__ import annotations

import tespec.core.compat  # noqa: F401  # before timm

import torch
from timm.layers import Mlp
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize, scaled_dot_product_attention

from tespec.models.layers import in_fp32

ROUNDS = 10
LAYERS = 2
HEAD = 32  # channels of an attention head
SIDE = 6  # tokens; of the learned positions


@torch.no_grad()
@in_fp32
def cluster(tokens: Tensor, starts: Tensor) -> Tensor:
    """Members (N, K, P) bool of each of K clusters of P tokens (N, P, C), by K-means over unit-length tokens.

    Args:
        tokens: (N, P, C).
        starts: (N, K) int64, the tokens that it starts from. A cluster that loses all its tokens stays empty.
    """
    tokens = normalize(tokens, dim=-1)
    centres = tokens.gather(1, starts.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
    for _ in range(ROUNDS):
        nearest = (normalize(centres, dim=-1) @ tokens.transpose(1, 2)).argmax(1, keepdim=True)
        # Torch's `one_hot` would look at the numbers and wait.
        members = nearest == torch.arange(starts.shape[1], device=tokens.device).view(-1, 1)
        centres = members.to(tokens.dtype) @ tokens
    return members


class AttentionPool(nn.Module):
    """Vectors that gather what an image's tokens say, each from all tokens or from some.

    As Yan98/Event-Camera-Data-Dense-Pre-training, model/network/layers.py, AttPool.

    Args:
        channels: width of tokens and vectors.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, channels), std=0.02))
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, channels, SIDE, SIDE), std=0.02))
        self.layers = nn.ModuleList(_Gather(channels) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    @in_fp32
    def forward(self, maps: Tensor, members: Tensor | None = None) -> Tensor:
        """Vectors (N, K, C) of maps (N, C, h, w) of tokens.

        Args:
            maps: the tokens in their places.
            members: (N, K, h * w) bool, the tokens that each vector sees besides itself; None: one vector, all tokens.
        """
        positions = interpolate(self.positions, size=maps.shape[-2:], mode="bicubic")
        tokens = (maps + positions).flatten(2).transpose(1, 2)
        count, seen = 1, None
        if members is not None:
            count = members.shape[1]
            itself = torch.eye(count, dtype=torch.bool, device=maps.device).expand(len(maps), -1, -1)
            seen = torch.cat([itself, members], dim=2).unsqueeze(1)
        vectors = self.vector.expand(len(maps), count, -1)
        for layer in self.layers:
            vectors = layer(vectors, tokens, seen)
        return self.norm(vectors)


class _Gather(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(channels, eps=1e-6) for _ in range(2))
        self.query, self.key, self.value = (nn.Linear(channels, channels, bias=False) for _ in range(3))
        self.project = nn.Linear(channels, channels)
        self.mlp = Mlp(channels, 4 * channels)
        self.heads = max(1, channels // HEAD)

    def forward(self, vectors: Tensor, tokens: Tensor, seen: Tensor | None) -> Tensor:
        every = self.norm1(torch.cat([vectors, tokens], dim=1))
        queries, keys, values = (
            layer(each).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for layer, each in ((self.query, every[:, : vectors.shape[1]]), (self.key, every), (self.value, every))
        )
        found = scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
        vectors = vectors + self.project(found.transpose(1, 2).flatten(2))
        gathered: Tensor = vectors + self.mlp(self.norm2(vectors))
        return gathered

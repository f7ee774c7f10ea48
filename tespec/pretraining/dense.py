"""Parts of dense self-distillation: feature pyramid, attention pooling, clusters of tokens.

Files in parentheses are those of Yan98/Event-Camera-Data-Dense-Pre-training, whose ECDDP uses them.
"""

from collections.abc import Sequence

import tespec.core.compat  # noqa: F401  # before timm

import torch
from timm.layers import LayerNorm2d, Mlp
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize, scaled_dot_product_attention

from tespec.core.distributed import shard_slice
from tespec.models.event_swin import PATCH_SIZE, EventSwin
from tespec.models.layers import in_fp32, to_device
from tespec.pretraining.contrast import PrototypeHead, init_linear
from tespec.pretraining.masking import replace_masked
from tespec.pretraining.views import crop_and_resize

TOKEN_SIZE = 16  # px; side of a token of the feature pyramid, the unit of masks
KMEANS_ROUNDS = 10  # model/pretrain_model.py, batch_cosine_KMeans
MIN_CLUSTER_FRACTION = 0.25  # of a token that a cluster fills (model/pretrain_model.py)
# of the pooling: layers, channels of a head, side of the position embedding in tokens
POOLING_LAYERS = 2
HEAD_CHANNELS = 32
POSITION_GRID = 6


@torch.no_grad()
@in_fp32
def cluster(tokens: Tensor, initial_centres: Tensor) -> Tensor:
    """Cluster tokens by K-means over their directions.

    Args:
        tokens: (N, P, C).
        initial_centres: (N, K) int64, indices of the tokens that are the initial centres.

    Returns:
        Memberships (N, K, P) bool; a cluster without tokens stays empty.
    """
    tokens = normalize(tokens, dim=-1)
    centres = tokens.gather(1, initial_centres.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
    # Torch's `one_hot` reads the values, so the CPU would wait for the GPU.
    cluster_ids = torch.arange(initial_centres.shape[1], device=tokens.device).view(-1, 1)
    for _ in range(KMEANS_ROUNDS):
        nearest = (normalize(centres, dim=-1) @ tokens.mT).argmax(1, keepdim=True)
        cluster_masks = nearest == cluster_ids
        centres = cluster_masks.to(tokens.dtype) @ tokens
    return cluster_masks


def random_clusters(maps: Tensor, count: int) -> Tensor:
    """Cluster the tokens of every image, from random initial centres.

    Args:
        maps: tokens (N, C, h, w).
        count: number of clusters, K.

    Returns:
        Memberships (N, K, h, w) bool.
    """
    tokens = maps.flatten(2).mT  # (N, h * w, C)
    total, local = shard_slice(len(maps))
    initial_centres = torch.rand(total, tokens.shape[1]).argsort(1)[local, :count]
    cluster_masks = cluster(tokens, to_device(initial_centres, maps.device))
    return cluster_masks.unflatten(2, maps.shape[-2:])


def crop_clusters(clusters: Tensor, boxes: Tensor, size: Sequence[int]) -> Tensor:
    """Find the tokens of a crop that belong to each cluster.

    Args:
        clusters: memberships (N, K, h, w) bool of the tokens of the full image.
        boxes: (N, 4) of the crops, see `tespec.pretraining.views.crop_and_resize`.
        size: rows and columns of the crop's tokens.

    Returns:
        Memberships (N, K, rows * columns) bool.
    """
    return crop_and_resize(clusters, boxes, size).flatten(2) > MIN_CLUSTER_FRACTION


class AttentionPool(nn.Module):
    """Attention pooling of an image's tokens, or of subsets (model/network/layers.py, AttPool)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(torch.empty(1, 1, channels))
        self.positions = nn.Parameter(torch.empty(1, channels, POSITION_GRID, POSITION_GRID))
        nn.init.trunc_normal_(self.vector, std=0.02)
        nn.init.trunc_normal_(self.positions, std=0.02)
        self.layers = nn.ModuleList(_PoolingLayer(channels) for _ in range(POOLING_LAYERS))
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.apply(init_linear)

    @in_fp32
    def forward(self, maps: Tensor, cluster_masks: Tensor | None = None) -> Tensor:
        """Pool tokens into K vectors of an image.

        Args:
            maps: (N, C, h, w).
            cluster_masks: (N, K, h * w) bool, True at the tokens to which a vector attends besides
                itself; None: a single vector attends to all tokens.

        Returns:
            Vectors (N, K, C) float32.
        """
        positions = interpolate(self.positions, size=maps.shape[-2:], mode="bicubic")
        tokens = (maps + positions).flatten(2).mT  # (N, h * w, C)
        vectors = self.vector.expand(len(maps), -1, -1)  # (N, 1, C)
        mask = None
        if cluster_masks is not None:
            vectors = self.vector.expand(*cluster_masks.shape[:2], -1)  # (N, K, C)
            itself = torch.eye(vectors.shape[1], dtype=torch.bool, device=maps.device)
            itself = itself.expand(len(maps), -1, -1)
            mask = torch.cat([itself, cluster_masks], dim=2).unsqueeze(1)  # (N, 1, K, K + h * w)
        for layer in self.layers:
            vectors = layer(vectors, tokens, mask)
        return self.norm(vectors)


class _PoolingLayer(nn.Module):
    """Cross-attention from the vectors to themselves and the tokens, and an MLP."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(channels, eps=1e-6)
        self.norm2 = nn.LayerNorm(channels, eps=1e-6)
        self.query = nn.Linear(channels, channels, bias=False)
        self.key = nn.Linear(channels, channels, bias=False)
        self.value = nn.Linear(channels, channels, bias=False)
        self.project = nn.Linear(channels, channels)
        self.mlp = Mlp(channels, 4 * channels)
        self.heads = max(1, channels // HEAD_CHANNELS)

    def forward(self, vectors: Tensor, tokens: Tensor, mask: Tensor | None) -> Tensor:
        inputs = self.norm1(torch.cat([vectors, tokens], dim=1))
        attended = scaled_dot_product_attention(
            self._heads(self.query(inputs[:, : vectors.shape[1]])),
            self._heads(self.key(inputs)),
            self._heads(self.value(inputs)),
            attn_mask=mask,
        )
        vectors = vectors + self.project(attended.transpose(1, 2).flatten(2))
        return vectors + self.mlp(self.norm2(vectors))

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)  # (N, heads, L, channels)


class Pyramid(nn.Module):
    """Mean of the four projected stages at stride 16 (model/network/swin_pretrain.py, fpns)."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        out = channels[-1]
        self.norms = nn.ModuleList(LayerNorm2d(width) for width in channels)  # epsilon 1e-6
        projections = [nn.Conv2d(width, out, 1, bias=False) for width in channels[:3]]
        self.levels = nn.ModuleList(
            [
                nn.Sequential(nn.AvgPool2d(4), projections[0]),
                nn.Sequential(nn.AvgPool2d(2), projections[1]),
                projections[2],
                nn.ConvTranspose2d(out, out, 2, stride=2, bias=False),
            ]
        )

    def forward(self, features: list[Tensor]) -> Tensor:
        """Average features (N, C, h, w) of the four stages to maps (N, C, h, w) at stride 16."""
        stages = zip(self.levels, self.norms, features, strict=True)
        maps = torch.stack([level(norm(stage)) for level, norm, stage in stages])
        return maps.float().mean(0)  # avoids another rounding in half precision


class DenseNetwork(nn.Module):
    """Backbone, feature pyramid, pooling, and heads of prototypes for patches, contexts and images.

    Args:
        backbone: a Swin, which takes inputs of any size from then on, and whose linear layers are
            initialised anew.
        hidden: width of the heads' MLPs.
        bottleneck: dimensions of the prototypes.
        prototypes: number of prototypes.
    """

    def __init__(self, backbone: EventSwin, hidden: int, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        backbone.allow_any_size()
        # Torch's initialisation instead of timm's (model/network/swin_pretrain.py, init_all=False).
        for layer in nn.ModuleList(backbone.stage_modules()).modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        channels = backbone.channels[-1]
        self.backbone = backbone
        self.pyramid = Pyramid(backbone.channels)
        self.mask_token = nn.Parameter(torch.zeros(1, backbone.channels[0]))
        self.patches = PrototypeHead(channels, hidden, bottleneck, prototypes)
        self.contexts = PrototypeHead(channels, hidden, bottleneck, prototypes)
        self.images = PrototypeHead(channels, hidden, bottleneck, prototypes)
        self.pool_context = AttentionPool(channels)
        self.pool_image = AttentionPool(channels)

    def forward(self, frames: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode sequences of frames, with memory that starts at zero.

        Args:
            frames: (B, T, 2 * bins, 16 h, 16 w).
            mask: (B, h, w) bool, True where the tokens of all segments are masked; None: nowhere.

        Returns:
            Maps (B * T, C, h, w) of tokens.
        """
        tokens = self.backbone.embed_patches(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        if mask is not None:
            side = TOKEN_SIZE // PATCH_SIZE
            patch = self.mask_token.expand(1, side, side, -1).to(tokens.dtype)
            tokens = replace_masked(tokens, mask, patch)
        features, _ = self.backbone.encode(tokens)
        return self.pyramid([stage.flatten(0, 1) for stage in features])

    def patch(self, maps: Tensor, positions: Tensor) -> Tensor:
        """Compute logits (P, prototypes) of patches.

        Args:
            maps: (N, C, h, w).
            positions: (P,) int64, flat indices over images, rows and columns.
        """
        tokens = maps.flatten(2).mT.flatten(0, 1)  # (N * h * w, C)
        return self.patches(tokens.index_select(0, positions))

    def image(self, maps: Tensor) -> Tensor:
        """Compute logits (N, prototypes) of images from maps (N, C, h, w)."""
        return self.images(self.pool_image(maps).squeeze(1))

    def context(self, maps: Tensor, cluster_masks: Tensor) -> Tensor:
        """Compute logits (N, K, prototypes) of parts of the images.

        Args:
            maps: (N, C, h, w).
            cluster_masks: (N, K, h * w) bool, True at the tokens of a part.
        """
        return self.contexts(self.pool_context(maps, cluster_masks))

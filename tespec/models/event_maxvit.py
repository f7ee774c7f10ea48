"""RVT's recurrent MaxViT for event histograms."""

from collections.abc import Sequence
from typing import cast

from timm.models.maxxvit import MaxxVitTransformerCfg, PartitionAttentionCl
from torch import Tensor, nn

from tespec.core.settings import Size
from tespec.models.backbone import Backbone
from tespec.models.layers import STRIDE, compute_dtype
from tespec.registry import BACKBONES

LAYER_SCALE = 1e-5  # uzh-rpg/RVT, config/model/maxvit_yolox/default.yaml
EPS = 1e-5
# tokens; larger partitions are halved along both sides, as RVT does for 1Mpx
MAX_PARTITION = 100
# Width of the first stage, and of an attention head.
SIZES = {
    "maxvit_tiny": (32, 32),  # RVT-T
    "maxvit_small": (48, 24),  # RVT-S
    "maxvit_base": (64, 32),  # RVT-B
    "maxvit_micro": (24, 8),  # for CPUs
}


class MaxViTStage(nn.Module):
    """Strided overlapping convolution, then window and grid attention, channels last.

    Args:
        in_channels: channels of the input maps.
        width: channels of the output maps.
        stride: stride of the convolution.
        partition: (rows, columns) of windows and grids in tokens.
        head_width: channels of an attention head.
        rates: rates of stochastic depth in window and grid attention.
    """

    def __init__(
        self,
        in_channels: int,
        width: int,
        stride: int,
        partition: Size,
        head_width: int,
        rates: Sequence[float],
    ) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(in_channels, width, 2 * stride - 1, stride, stride - 1, bias=False)
        self.norm = nn.LayerNorm(width, eps=EPS)
        config = MaxxVitTransformerCfg(
            dim_head=head_width,
            window_size=partition,
            rel_pos_type="none",
            init_values=LAYER_SCALE,
            norm_eps=EPS,
        )
        self.window = PartitionAttentionCl(width, "block", config, rates[0])
        self.window.norm1 = nn.Identity()  # its input is normalised
        self.grid = PartitionAttentionCl(width, "grid", config, rates[1])

    def forward(self, maps: Tensor) -> Tensor:
        """Compute maps (N, h / stride, w / stride, width) from maps (N, h, w, in_channels)."""
        reduced = self.reduce(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.grid(self.window(self.norm(reduced)))


@BACKBONES.register_module()
class EventMaxViT(Backbone):
    """RVT's MaxViT: a pair of window and grid attention per stage, without position biases.

    The size of partitions depends on the input: 1/32 of the image along each side, halved for large
    images. RVT-B has 18.5 M parameters with its detector; this backbone, with 20 input channels and
    ConvLSTMs of 1x1 convolutions, has 12,784,768 of them. Source: Gehrig, Scaramuzza, "Recurrent
    Vision Transformers for Object Detection with Event Cameras" (CVPR 2023).
    """

    sizes = tuple(SIZES)
    stem = "stages.0.reduce.weight"

    def build(self, drop_path: float) -> None:
        width, head_width = SIZES[self.name]
        self.channels = (width, 2 * width, 4 * width, 8 * width)
        rows, columns = (side // STRIDE for side in self.img_size)
        if rows * columns > MAX_PARTITION:
            rows, columns = (side // 2 if side % 2 == 0 else side for side in (rows, columns))
        rates = [drop_path * branch / 7 for branch in range(8)]  # two branches per stage
        widths = (self.in_channels, *self.channels)
        self.stages = nn.ModuleList(
            MaxViTStage(
                widths[index],
                widths[index + 1],
                stride=2 if index else 4,
                partition=(rows, columns),
                head_width=head_width,
                rates=rates[2 * index : 2 * index + 2],
            )
            for index in range(4)
        )

    def embed_patches(self, frames: Tensor) -> Tensor:
        """Move channels of frames (N, in_channels, H, W) last; the first stage embeds patches."""
        weight = cast("MaxViTStage", self.stages[0]).reduce.weight
        return frames.to(compute_dtype(weight)).permute(0, 2, 3, 1)  # (N, H, W, in_channels)

    def stage_modules(self) -> list[nn.Module]:
        return list(self.stages)

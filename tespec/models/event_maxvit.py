"""RVT's recurrent MaxViT for event histograms."""

from typing import cast

from timm.models.maxxvit import MaxxVitTransformerCfg, PartitionAttentionCl
from torch import Tensor, nn

from tespec.core.settings import Size
from tespec.models.backbone import Backbone
from tespec.models.layers import STRIDE, compute_dtype
from tespec.registry import BACKBONES

LAYER_SCALE, EPS = 1e-5, 1e-5  # uzh-rpg/RVT, config/model/maxvit_yolox/default.yaml
# tokens; larger partitions are halved along both sides, as RVT does for 1Mpx
LARGEST_PARTITION = 100
# Width of the first stage, and of an attention head.
VARIANTS = {
    "maxvit_base": (64, 32),  # RVT-B
    "maxvit_micro": (24, 8),  # for CPUs
}


class Stage(nn.Module):
    """Overlapping convolution that downsamples, then window and grid attention, channels last."""

    def __init__(
        self, channels: int, width: int, stride: int, partition: Size, head: int, rates: list[float]
    ) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(channels, width, 2 * stride - 1, stride, stride - 1, bias=False)
        self.norm = nn.LayerNorm(width, eps=EPS)
        config = MaxxVitTransformerCfg(
            dim_head=head,
            window_size=partition,
            rel_pos_type="none",
            init_values=LAYER_SCALE,
            norm_eps=EPS,
        )
        self.window = PartitionAttentionCl(width, "block", config, rates[0])
        self.window.norm1 = nn.Identity()  # its input is normalised
        self.grid = PartitionAttentionCl(width, "grid", config, rates[1])

    def forward(self, maps: Tensor) -> Tensor:
        """Map (N, h, w, C) to (N, h / stride, w / stride, width)."""
        reduced = self.reduce(maps.permute(0, 3, 1, 2)).permute(0, 2, 3, 1)
        return self.grid(self.window(self.norm(reduced)))


@BACKBONES.register_module()
class EventMaxViT(Backbone):
    """Gehrig, Scaramuzza, "Recurrent Vision Transformers for Object Detection with Event Cameras" (CVPR 2023).

    One pair of window and grid attention per stage, without position biases. The size of partitions
    depends on the input: 1/32 of the image along each side, halved for large images. RVT-B has 18.5
    M parameters with its detector; this backbone, with 20 input channels and ConvLSTMs of 1x1
    convolutions, has 12,784,768 of them.
    """

    variants = tuple(VARIANTS)
    stem = "stages.0.reduce.weight"

    def build(self, drop_path: float) -> None:
        width, head = VARIANTS[self.name]
        self.channels = (width, 2 * width, 4 * width, 8 * width)
        widths = (self.in_channels, *self.channels)
        rows, columns = (side // STRIDE for side in self.img_size)
        if rows * columns > LARGEST_PARTITION:
            rows, columns = (side // 2 if side % 2 == 0 else side for side in (rows, columns))
        rates = [drop_path * branch / 7 for branch in range(8)]  # two branches per stage
        self.stages = nn.ModuleList(
            Stage(
                widths[i],
                widths[i + 1],
                2 if i else 4,
                (rows, columns),
                head,
                rates[2 * i : 2 * i + 2],
            )
            for i in range(4)
        )

    def embed_patches(self, frames: Tensor) -> Tensor:
        """Frames with channels last; the first stage embeds their patches."""
        return frames.to(compute_dtype(cast("Stage", self.stages[0]).reduce.weight)).permute(
            0, 2, 3, 1
        )

    def stage_modules(self) -> list[nn.Module]:
        return list(self.stages)

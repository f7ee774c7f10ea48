"""ResNet for event histograms, optionally with a ConvLSTM after each stage."""

from typing import Any

from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn

from tespec.models.backbone import Backbone
from tespec.models.layers import compute_dtype
from tespec.registry import BACKBONES

# Block type, blocks per stage, and width of the first stage before expansion.
VARIANTS: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "resnet50": (Bottleneck, (3, 4, 6, 3), 64),
    "resnet_micro": (BasicBlock, (1, 1, 1, 1), 24),  # for CPUs
}


@BACKBONES.register_module()
class EventResNet(Backbone):
    """timm's ResNet on all bins as channels. Batch normalisation averages over the lanes and segments of a step."""

    variants = tuple(VARIANTS)
    stem = "resnet.conv1.weight"
    channels_last = False

    def build(self, drop_path: float) -> None:
        block, layers, width = VARIANTS[self.name]
        widths = tuple(width << stage for stage in range(4))
        self.resnet = ResNet(
            block, layers, 0, self.in_channels, channels=widths, drop_path_rate=drop_path
        )
        self.channels = tuple(each * block.expansion for each in widths)

    def embed_patches(self, frames: Tensor) -> Tensor:
        """Maps (N, h, w, C) of timm's stem, including its pooling."""
        net: Any = self.resnet
        frames = frames.to(compute_dtype(net.conv1.weight))
        return net.maxpool(net.act1(net.bn1(net.conv1(frames)))).permute(0, 2, 3, 1)

    def stage_modules(self) -> list[nn.Module]:
        return [getattr(self.resnet, f"layer{number}") for number in (1, 2, 3, 4)]

"""ResNet for event histograms, optionally with a ConvLSTM after each stage."""

from typing import Any

from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn

from tespec.models.backbone import Backbone
from tespec.models.layers import compute_dtype
from tespec.registry import BACKBONES

# Block type, blocks per stage, and width of the first stage before expansion.
SIZES: dict[str, tuple[Any, tuple[int, ...], int]] = {
    "resnet50": (Bottleneck, (3, 4, 6, 3), 64),
    "resnet_micro": (BasicBlock, (1, 1, 1, 1), 24),  # for CPUs
}


@BACKBONES.register_module()
class EventResNet(Backbone):
    """timm's ResNet with the time bins as input channels.

    Batch normalisation averages over the lanes and segments of a step.
    """

    sizes = tuple(SIZES)
    stem = "resnet.conv1.weight"
    channels_last = False

    def build(self, drop_path: float) -> None:
        block, layers, width = SIZES[self.name]
        widths = (width, 2 * width, 4 * width, 8 * width)
        self.channels = tuple(block.expansion * planes for planes in widths)
        self.resnet = ResNet(
            block, layers, 0, self.in_channels, channels=widths, drop_path_rate=drop_path
        )

    def embed_patches(self, frames: Tensor) -> Tensor:
        """Embed frames (N, in_channels, H, W) with timm's stem, which includes pooling."""
        net: Any = self.resnet
        frames = frames.to(compute_dtype(net.conv1.weight))
        maps = net.maxpool(net.act1(net.bn1(net.conv1(frames))))  # (N, C, H / 4, W / 4)
        return maps.permute(0, 2, 3, 1)  # (N, H / 4, W / 4, C)

    def stage_modules(self) -> list[nn.Module]:
        return [getattr(self.resnet, f"layer{number}") for number in (1, 2, 3, 4)]

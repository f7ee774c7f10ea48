"""A custom backbone: timm's ConvNeXt on event histograms, in two sizes (Liu et al., CVPR 2022)."""

import tespec.core.compat  # noqa: F401  # before timm

from timm.models.convnext import ConvNeXt

from tespec.models.backbone import Backbone
from tespec.registry import BACKBONES

# blocks per stage, first width
SIZES = {"convnext_tiny": ((3, 3, 9, 3), 96), "convnext_micro": ((1, 1, 2, 1), 24)}


@BACKBONES.register_module()
class EventConvNeXt(Backbone):
    sizes = tuple(SIZES)
    stem = "patches.0.weight"
    channels_last = False  # its stages take (N, C, h, w)

    def build(self, drop_path):
        depths, width = SIZES[self.name]
        self.channels = (width, 2 * width, 4 * width, 8 * width)
        network = ConvNeXt(
            self.in_channels,
            depths=depths,
            dims=self.channels,
            num_classes=0,
            drop_path_rate=drop_path,
        )
        self.patches, self.blocks = network.stem, network.stages

    def embed_patches(self, frames):
        return self.patches(frames.to(self.patches[0].weight.dtype)).permute(0, 2, 3, 1)

    def stage_modules(self):
        return list(self.blocks)

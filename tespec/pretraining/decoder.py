"""Light decoders from the features of a backbone to an image; they are dropped after pre-training."""

from __future__ import annotations

import tespec.core.compat  # noqa: F401  # before timm

from timm.models.swin_transformer import SwinTransformerBlock
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, gelu, interpolate, pixel_shuffle

from tespec.core.registry import MODELS
from tespec.models.event_swin import WINDOW
from tespec.models.layers import STRIDE


@MODELS.register_module()
class LastStageDecoder(nn.Module):
    """One Swin block and a 1x1 convolution: each token of the last stage draws its 32x32 px.

    The paper gives a Swin block, a 1x1 convolution and 3.7 M parameters, but no width; several widths fit. This one
    has 3.74 M for Swin-T.

    Args:
        channels: widths of the backbone's features.
        img_size: (H, W) in px of the padded input.
        planes: of the image.
        width: of the block.
        heads: of its attention.
    """

    def __init__(
        self, channels: tuple[int, ...], img_size: tuple[int, int], planes: int = 1, width: int = 488, heads: int = 8
    ) -> None:
        super().__init__()
        self.project = nn.Linear(channels[-1], width)
        self.block = SwinTransformerBlock(
            width, (img_size[0] // STRIDE, img_size[1] // STRIDE), num_heads=heads, window_size=WINDOW
        )
        self.draw = nn.Linear(width, planes * STRIDE * STRIDE)  # a 1x1 convolution on maps with channels last

    def forward(self, features: list[Tensor]) -> Tensor:
        """Image (B, T, planes, H, W) at img_size of features (B, T, C, h, w)."""
        last = features[-1]
        pixels = self.draw(self.block(self.project(last.flatten(0, 1).permute(0, 2, 3, 1))))
        return pixel_shuffle(pixels.permute(0, 3, 1, 2), STRIDE).unflatten(0, last.shape[:2])


@MODELS.register_module()
class AllStagesDecoder(nn.Module):
    """All four stages, brought to one width and summed at stride 8, and two convolutions.

    Small backbones need it: fed by the last stage alone, they do not leave the plateau of predicting zero.

    Args:
        channels: widths of the backbone's features, at strides 4, 8, 16 and 32.
        img_size: (H, W) in px of the padded input.
        planes: of the image.
        width: of the sum.
    """

    STRIDE = 8

    def __init__(self, channels: tuple[int, ...], img_size: tuple[int, int], planes: int = 1, width: int = 64) -> None:
        super().__init__()
        self.size = (img_size[0] // self.STRIDE, img_size[1] // self.STRIDE)
        self.laterals = nn.ModuleList(nn.Conv2d(each, width, kernel_size=1) for each in channels)
        self.mix = nn.Conv2d(width, width, kernel_size=3, padding=1)
        self.draw = nn.Conv2d(width, planes * self.STRIDE * self.STRIDE, kernel_size=1)

    def forward(self, features: list[Tensor]) -> Tensor:
        """Image (B, T, planes, H, W) at img_size of features (B, T, C, h, w)."""
        first, *deeper = (feature.flatten(0, 1) for feature in features)
        maps = self.laterals[0](avg_pool2d(first, 2))
        for lateral, feature in zip(self.laterals[1:], deeper, strict=True):
            maps = maps + interpolate(lateral(feature), size=self.size, mode="bilinear", align_corners=False)
        return pixel_shuffle(self.draw(gelu(self.mix(gelu(maps)))), self.STRIDE).unflatten(0, features[0].shape[:2])

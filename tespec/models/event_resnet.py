"""ResNet over event histograms, with a ConvLSTM after each stage or without."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple, cast

import tespec.core.compat  # noqa: F401  # before timm

from timm.models.resnet import BasicBlock, Bottleneck, ResNet
from torch import Tensor, nn

from tespec.core.errors import UserError
from tespec.core.registry import BACKBONES
from tespec.models.backbone import Backbone, BackboneState, run_stages
from tespec.models.convlstm import ConvLstm
from tespec.models.layers import STRIDE, pad_to


class Architecture(NamedTuple):
    """Kind of block, blocks per stage, and width of the first stage before its expansion."""

    block: type[BasicBlock] | type[Bottleneck]
    layers: tuple[int, int, int, int]
    width: int


ARCHITECTURES: dict[str, Architecture] = {
    "resnet50": Architecture(Bottleneck, (3, 4, 6, 3), 64),
    "resnet-micro": Architecture(BasicBlock, (1, 1, 1, 1), 24),  # for CPUs
}


@BACKBONES.register_module()
class EventResNet(Backbone):
    """timm's ResNet; the stem takes all bins. Batch normalisation averages over lanes and segments of a step.

    Args:
        arch: a key of `ARCHITECTURES`.
        recurrent: False leaves the ConvLSTMs out; the state is then always None.
        bins: time bins per segment; a histogram has 2 * bins channels.
        img_size: (H, W) in px of the padded input.
        in_channels: of the input, where it is no histogram: 1 or 3 of an image.
        drop_path: rate of stochastic depth in the last block.

    Raises:
        UserError: unknown arch, or an img_size that is no multiple of 32.
    """

    architectures = tuple(ARCHITECTURES)
    stem = "resnet.conv1.weight"

    def __init__(
        self,
        arch: str = "resnet50",
        recurrent: bool = False,
        bins: int = 10,
        img_size: tuple[int, int] = (256, 320),
        in_channels: int | None = None,
        drop_path: float = 0.0,
    ) -> None:
        super().__init__()
        if arch not in ARCHITECTURES:
            raise UserError("arch", f"unknown value {arch!r}", f"choose from {', '.join(ARCHITECTURES)}")
        if any(side % STRIDE or side <= 0 for side in img_size):
            raise UserError("img_size", f"{tuple(img_size)} is not made of multiples of {STRIDE}", "pad the input")
        block, layers, width = ARCHITECTURES[arch]
        self.arch, self.recurrent, self.bins = arch, recurrent, bins
        self.img_size = (int(img_size[0]), int(img_size[1]))
        self.in_channels = in_channels or 2 * bins
        widths = tuple(width << stage for stage in range(4))
        # timm's annotation asks for a block where it takes its class.
        self.resnet = ResNet(
            cast("Any", block),
            layers,
            num_classes=0,
            in_chans=self.in_channels,
            channels=widths,
            stem_width=width,
            drop_path_rate=drop_path,
        )
        first, second, third, fourth = (each * int(block.expansion) for each in widths)
        self.channels = (first, second, third, fourth)
        self.lstms = nn.ModuleList(ConvLstm(each) for each in self.channels if recurrent)

    def forward(
        self, histograms: Tensor, state: BackboneState | None = None
    ) -> tuple[list[Tensor], BackboneState | None]:
        """Features and state; see `Backbone.forward`."""
        net = cast("Any", self.resnet)
        frames = pad_to(histograms, self.img_size).flatten(0, 1).to(net.conv1.weight.dtype)
        maps = net.maxpool(net.act1(net.bn1(net.conv1(frames))))
        maps = maps.permute(0, 2, 3, 1).unflatten(0, histograms.shape[:2])
        stages: list[Callable[[Tensor], Tensor]] = [
            partial(_channels_last, stage) for stage in (net.layer1, net.layer2, net.layer3, net.layer4)
        ]
        return run_stages(stages, self.lstms, maps, state, self._recomputes)

    def stage_modules(self) -> list[nn.Module]:
        """The residual layers."""
        return [cast("nn.Module", getattr(self.resnet, f"layer{number}")) for number in (1, 2, 3, 4)]


def _channels_last(stage: nn.Module, maps: Tensor) -> Tensor:
    """A stage on maps (N, h, w, C)."""
    out: Tensor = stage(maps.permute(0, 3, 1, 2))
    return out.permute(0, 2, 3, 1)

"""The head of MiDaS: four stages fused from the deepest upwards to one map."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn.functional import interpolate, relu


class ResidualConvUnit(nn.Module):
    """Two 3x3 convolutions, each after a ReLU, added to the input."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, maps: Tensor) -> Tensor:
        """Maps (L, C, h, w) of the same shape."""
        return maps + self.conv2(relu(self.conv1(relu(maps))))


class Fusion(nn.Module):
    """Adds a stage's maps to those from below, refines the sum, and doubles its size."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.skip, self.out = ResidualConvUnit(channels), ResidualConvUnit(channels)

    def forward(self, below: Tensor | None, stage: Tensor) -> Tensor:
        """Maps (L, C, 2h, 2w) of those from below and the stage's (L, C, h, w); the deepest stage has none below."""
        return _doubled(self.out(stage if below is None else below + self.skip(stage)))


class MidasHead(nn.Module):
    """Four stages to one map at full resolution; 4,112,513 parameters with Swin-T's channels and 128 features.

    The first unit of the deepest fusion is never used, but belongs to the published count.

    Args:
        in_channels: of the four stages, the finest first.
        features: width.
    """

    def __init__(self, in_channels: Sequence[int], features: int = 128) -> None:
        super().__init__()
        self.project = nn.ModuleList(nn.Conv2d(width, features, 3, padding=1, bias=False) for width in in_channels)
        self.fuse = nn.ModuleList(Fusion(features) for _ in in_channels)
        self.narrow = nn.Conv2d(features, features // 2, 3, padding=1)
        self.refine = nn.Conv2d(features // 2, 32, 3, padding=1)
        self.predict = nn.Conv2d(32, 1, 1)

    def forward(self, features: Sequence[Tensor]) -> Tensor:
        """Map (L, H, W) of four stages (L, C, H/4, W/4) to (L, C, H/32, W/32); no range is imposed on it."""
        maps = None
        for project, fuse, stage in reversed(list(zip(self.project, self.fuse, features, strict=True))):
            maps = fuse(maps, project(stage))
        return self.predict(relu(self.refine(_doubled(self.narrow(maps))))).squeeze(1)

    def unused(self) -> list[nn.Parameter]:
        """Parameters that no output depends on."""
        return list(self.fuse[-1].get_submodule("skip").parameters())


def _doubled(maps: Tensor) -> Tensor:
    return interpolate(maps, scale_factor=2, mode="bilinear", align_corners=True)

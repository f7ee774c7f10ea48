"""Small networks of every objective, and batches for them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from baselines.cm3ae import Cm3ae
from baselines.ecddp import Ecddp
from baselines.mem import Mem
from baselines.moby import Moby
from tespec.core.config import pretraining_settings
from tespec.models import build_backbone
from tespec.pretraining.method import own_settings

SIZE = (64, 96)


def own(objective: str, profile: str = "sample", **changes: Any) -> Any:
    return own_settings(pretraining_settings(objective, profile).objective | changes)


def backbone(recurrent: bool = False, channels: int | None = None, arch: str = "micro", seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return build_backbone(arch, recurrent, 10, SIZE, channels)


def histograms(lanes: int = 3, segments: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (lanes, segments, 20, *SIZE), generator=generator, dtype=torch.uint8)


def pairs(lanes: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (lanes, 1, 1, *SIZE), generator=generator, dtype=torch.uint8)
    return {"histograms": histograms(lanes, seed=seed), "images": images}


def views(count: int = 2, lanes: int = 4) -> Tensor:
    return torch.randn(lanes, count, 1, *SIZE, generator=torch.Generator().manual_seed(0))


def distillation(**changes: Any) -> Ecddp:
    heads = {"hidden": 32, "bottleneck": 16, "prototypes": 24, "clusters": 3, "mask_ratio": (0.1, 0.5), "momentum": 0.9}
    sides = {"local_views": 1, "crop": 64, "large": 64, "small": 32}
    return Ecddp(own("ecddp", **(heads | sides | changes)), backbone())


def event_modelling(recurrent: bool = False, unit: int = 16, **changes: Any) -> Mem:
    """With a tokenizer that has learned nothing."""
    small = {"unit": unit, "tokens": 24, "width": 8, "hidden": 16, "crop": 64}
    tokenizer = pretraining_settings("mem", "sample").objective["tokenizer"] | small
    return Mem(own("mem", **({"tokenizer": tokenizer} | changes)), backbone(recurrent))


def momentum_contrast(queue: int = 8, arch: str = "micro") -> Moby:
    settings = own("moby", hidden=32, out=16, queue=queue, momentum=0.9)
    return Moby(settings, backbone(channels=1, arch=arch))


def autoencoder(**changes: Any) -> Cm3ae:
    return Cm3ae(own("cm3ae", **({"out": 16} | changes)), backbone(), backbone(channels=1, seed=1))

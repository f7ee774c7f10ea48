"""A small model and a batch for every objective and task."""

import torch

from baselines.cm3ae import Cm3ae
from baselines.cpc import Cpc
from baselines.ecddp import Ecddp
from baselines.ecdp import Ecdp
from baselines.imagenet import Imagenet
from baselines.mem import Mem
from baselines.mem_tokenizer import MemTokenizer
from baselines.moby import Moby
from baselines.scaleevent import ScaleEvent
from tespec.core.config import pretraining_settings
from tespec.models import build_backbone
from tespec.pretraining.method import method_settings
from tespec.pretraining.teacher import Teacher
from tespec.pretraining.tespec import Tespec
from tespec.tasks.depth import DepthHead, DepthModel
from tespec.tasks.detection import DetectionHead, DetectionModel
from tespec.tasks.segmentation import SegmentationHead, SegmentationModel

SIZE = (64, 96)


def backbone(recurrent=False, channels=None, seed=0, arch="swin_micro"):
    torch.manual_seed(seed)
    return build_backbone(arch, recurrent, 2, SIZE, channels)


def own(objective, profile="paper", **changes):
    """Settings of an objective in a profile, with changes; also seeds torch."""
    torch.manual_seed(0)
    return method_settings(pretraining_settings(objective, profile).objective | changes)


def histograms(lanes=2, segments=3, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 4, (lanes, segments, 4, *SIZE), generator=generator, dtype=torch.uint8)


def events(lanes=2, segments=3):
    return {
        "histograms": histograms(lanes, segments),
        "is_first": torch.ones(lanes, dtype=torch.bool),
    }


def labelled(**labels):
    return events() | {"label_position": torch.tensor([(0, 1), (0, 2), (1, 0)])} | labels


def views(count=2, lanes=8):
    return torch.randn(lanes, count, 1, *SIZE, generator=torch.Generator().manual_seed(0))


def pairs(lanes=8, seed=0):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (lanes, 1, 1, *SIZE), generator=generator, dtype=torch.uint8)
    return {"histograms": histograms(lanes, 1, seed), "images": images}


def smooth(low, high):
    """Ramp (3, H, W) from `low` at the top left to `high` at the bottom right."""
    ramp = torch.linspace(0, 1, SIZE[0]).view(-1, 1) + torch.linspace(0, 1, SIZE[1])
    return (low + (high - low) * ramp / 2).expand(3, -1, -1).clone()


def ecddp(recurrent=False, **changes):
    small = {
        "hidden": 32,
        "bottleneck": 16,
        "prototypes": 24,
        "clusters": 3,
        "mask_ratio": (0.1, 0.5),
    }
    sides = {"local_views": 1, "crop": 64, "large": 64, "small": 32}
    return Ecddp(own("ecddp", **(small | sides | changes)), backbone(recurrent))


DECODER = {"type": "LastStageDecoder", "width": 32}
TOKENIZER = {
    "crop": 64,
    "tokens": 24,
    "width": 8,
    "hidden": 16,
    "blocks": 1,
    "gamma": 0.5,
    "kl_weight": 0.1,
}


def mem(recurrent=False, unit=16, arch="swin_micro", **changes):
    """MEM with an untrained tokenizer."""
    tokenizer = (
        pretraining_settings("mem", "paper").objective["tokenizer"] | TOKENIZER | {"unit": unit}
    )
    settings = own("mem", **({"smallest_block": 1, "tokenizer": tokenizer} | changes))
    return Mem(settings, backbone(recurrent, arch=arch))


def moby():
    return Moby(own("moby", hidden=32, out=16, queue=8), backbone(channels=1))


def ecdp(arch="swin_micro"):
    teacher = Teacher(backbone(channels=1, seed=1), 1, SIZE, global_features=True)
    return Ecdp(own("ecdp", hidden=32, out=16), backbone(arch=arch), teacher)


def cm3ae(arch="swin_micro"):
    settings = own("cm3ae", blocks=1, decoder_heads=4, out=16)
    return Cm3ae(settings, backbone(arch=arch), backbone(channels=1, seed=1, arch=arch))


def scaleevent(arch="swin_micro"):
    teacher = Teacher(backbone(channels=1, seed=1), 1, SIZE)
    return ScaleEvent(own("scaleevent", activation=1), backbone(arch=arch), teacher)


BOXES = torch.tensor(
    [[[1, 5, 6, 30, 40], [0, 40, 10, 60, 30]], [[-1.0] * 5] * 2, [[0, 10, 5, 45, 35], [-1] * 5]]
)
# Model and batch of each objective or task.
CASES = {
    "tespec": lambda: (
        Tespec(own("tespec", decoder=DECODER), backbone(True), 0.025),
        events(),
    ),
    "cpc": lambda: (
        Cpc(own("cpc", width=16, ahead=2, places=32, temperature=0.02), backbone(True)),
        events(segments=4),
    ),
    "ecddp": lambda: (ecddp(), events(4, 1)),
    "mem-tokenizer": lambda: (MemTokenizer(own("mem-tokenizer", **TOKENIZER)), events()),
    "mem": lambda: (mem(True), events()),
    "moby": lambda: (moby(), {"views": views()}),
    "imagenet": lambda: (
        Imagenet(own("imagenet"), backbone(channels=1), 3),
        {"views": views(1), "labels": torch.arange(8) % 3},
    ),
    "ecdp": lambda: (ecdp(), pairs()),
    "cm3ae": lambda: (cm3ae(), pairs()),
    "scaleevent": lambda: (scaleevent(), pairs()),
    "segmentation": lambda: (
        SegmentationModel(backbone(True), 6, SegmentationHead(channels=16, dropout=0.0)),
        labelled(labels=(smooth(0, 5.9).to(torch.uint8))),
    ),
    "depth": lambda: (
        DepthModel(backbone(True), DepthHead(channels=16, min_depth=1.978, max_depth=80.0)),
        labelled(labels=smooth(3, 60)),
    ),
    "detection": lambda: (
        DetectionModel(backbone(True), 2, DetectionHead()),
        labelled(boxes=BOXES),
    ),
}

"""A small network of every objective and task with the losses that it is trained with, and a batch for it."""

import torch

from baselines.cm3ae import Cm3ae
from baselines.cpc import Cpc
from baselines.ecddp import Ecddp
from baselines.ecdp import Ecdp
from baselines.imagenet import Imagenet
from baselines.mem import Mem, MemTokenizer
from baselines.moby import Moby
from baselines.scaleevent import ScaleEvent, Teacher
from tespec.core.config import pretraining_settings
from tespec.models import build_backbone
from tespec.pretraining.method import own_settings
from tespec.pretraining.tespec import Tespec
from tespec.tasks.depth import DepthHead, DepthModel
from tespec.tasks.detection import DetectionHead, DetectionModel
from tespec.tasks.segmentation import SegmentationHead, SegmentationModel

SIZE = (64, 96)


def backbone(recurrent=False, channels=None, seed=0):
    torch.manual_seed(seed)
    return build_backbone("micro", recurrent, 2, SIZE, channels)


def histograms(lanes=2, segments=3):
    generator = torch.Generator().manual_seed(0)
    return {
        "histograms": torch.randint(0, 4, (lanes, segments, 4, *SIZE), generator=generator, dtype=torch.uint8),
        "fresh": torch.ones(lanes, dtype=torch.bool),
    }


def labelled(**labels):
    return histograms() | {"label_place": torch.tensor([(0, 1), (0, 2), (1, 0)])} | labels


def views(count):
    return torch.randn(8, count, 1, *SIZE, generator=torch.Generator().manual_seed(0))


def pairs():
    return histograms(8, 1) | {"images": torch.randn(8, 1, 1, *SIZE, generator=torch.Generator().manual_seed(1))}


def images():
    return backbone(channels=1, seed=1)


def smooth(low, high):
    """(3, H, W) that rises from `low` at the top left to `high` at the bottom right."""
    ramp = torch.linspace(0, 1, SIZE[0]).view(-1, 1) + torch.linspace(0, 1, SIZE[1])
    return (low + (high - low) * ramp / 2).expand(3, -1, -1).clone()


def own(objective, **changes):
    """Settings of an objective as the paper's profile has them, but for what makes it small; seeds what follows."""
    torch.manual_seed(0)
    return own_settings(pretraining_settings(objective, "paper").objective | changes)


TOKENIZER = {
    "unit": 16, "crop": 32, "tokens": 24, "width": 8, "hidden": 16, "blocks": 1, "hot": 10.0, "gamma": 0.5,
    "shift": 0.03, "temperature": (1.0, 0.5), "kl_weight": 0.1,
}  # fmt: skip


# The objective or task, and a batch.
CASES = {
    "tespec": lambda: (
        Tespec(own("tespec", decoder={"type": "LastStageDecoder", "width": 32}), backbone(True), 0.025),
        histograms() | {"mask": torch.tensor([[[1, 0, 1], [0, 1, 0]], [[0, 1, 1], [0, 0, 1]]], dtype=torch.bool)},
    ),
    "cpc": lambda: (
        Cpc(own("cpc", width=16, ahead=2, places=32, temperature=0.02), backbone(True)),
        histograms(segments=4),
    ),
    "ecddp": lambda: (
        Ecddp(
            own("ecddp", hidden=32, bottleneck=16, prototypes=24, clusters=3, local_views=1, mask_ratio=(0.1, 0.5)),
            backbone(),
        ),
        histograms(4, 1),
    ),
    "mem-tokenizer": lambda: (MemTokenizer(own("mem-tokenizer", **TOKENIZER)), histograms()),
    "mem": lambda: (Mem(own("mem", smallest_block=1, tokenizer=TOKENIZER), backbone(True)), histograms()),
    "moby": lambda: (Moby(own("moby", hidden=32, out=16, queue=8), backbone(channels=1)), {"views": views(2)}),
    "imagenet": lambda: (
        Imagenet(own("imagenet"), backbone(channels=1), 3),
        {"views": views(1), "labels": torch.arange(8) % 3},
    ),
    "ecdp": lambda: (Ecdp(own("ecdp", hidden=32, out=16), backbone(), images()), pairs()),
    "cm3ae": lambda: (
        Cm3ae(own("cm3ae", decoder={"type": "LastStageDecoder", "width": 32}, out=16), backbone(), images()),
        pairs(),
    ),
    "scaleevent": lambda: (
        ScaleEvent(own("scaleevent", activation=1), backbone(), Teacher(images(), 1, SIZE)),
        pairs(),
    ),
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
        labelled(
            boxes=torch.tensor(
                [[[1, 5, 6, 30, 40], [0, 40, 10, 60, 30]], [[-1.0] * 5, [-1] * 5], [[0, 10, 5, 45, 35], [-1] * 5]]
            )
        ),
    ),
}

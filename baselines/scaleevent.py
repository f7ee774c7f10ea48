"""ScaleEvent: distil a frozen image network into an event backbone (Chen et al., CVPR 2026)."""

from dataclasses import replace
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import timm.models
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, normalize
from typing_extensions import Self

from baselines import COUNTS
from tespec.core.config import pretraining_settings
from tespec.core.distributed import global_mean
from tespec.core.errors import UserError
from tespec.core.settings import Clip, Decay, NonNegativeFloat, Optimisation, PositiveInt, Pretraining, Share, Size
from tespec.datasets.images import as_input
from tespec.models.backbone import Backbone, build_backbone
from tespec.models.layers import in_fp32, pad_to, padded_size
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import ImageMethod, PairMethod
from tespec.registry import METHODS
from tespec.weights.load import load_backbone

TOKEN = 16  # px; side of a token, the stride of a ViT's patches and of the third stage
STAGE = 2


@dataclass(frozen=True)
class ScaleEventSettings:
    """Settings of the teacher and of the losses."""

    teacher: str = "vit_small_patch16_dinov3.lvd1689m"  # timm model, or a method here that pre-trains on images
    teacher_weights: str = ""  # its checkpoint; "": the method pre-trains it first
    activation: PositiveInt = 64  # minimum number of events in an active token; tau of Eq. 2
    alike: Share = 0.1  # pairs of image tokens with a higher cosine are compared
    plain_weight: NonNegativeFloat = 1.0  # of the feature distance
    intra_weight: NonNegativeFloat = 10.0  # of event-event similarities; lambda_is
    cross_weight: NonNegativeFloat = 4.0  # of event-image similarities; lambda_cs


@METHODS.register_module(name="scaleevent")
class ScaleEvent(PairMethod):
    """Match event features and their pairwise similarities with a teacher's features of the simultaneous image."""

    title = "ScaleEvent"
    group = "Beyond the paper"
    pretraining_data = "paired events and images"
    citation = "Chen et al.: Scaling Dense Event-Stream Pretraining from Visual Foundation Models, CVPR 2026"
    licence = "not specified (zhiwen-xdu/ScaleEvent)"
    weights = "checkpoints of zhiwen-xdu/ScaleEvent, plain ViTs, which no backbone here can load"
    summary = "Matches event features with those of a frozen image network; ConvLSTMs are randomly initialised."
    min_batch_size = 1
    deviations = (  # from zhiwen-xdu/ScaleEvent, scale_event/
        "ScaleEvent's encoder is a randomly initialised Swin and a linear layer on its last two stages, instead of the "
        "teacher's own ViT with its weights",
        f"ScaleEvent's {COUNTS}, instead of images of three bins",
        "ScaleEvent's tokens are active from 64 events on (the paper's Eq. 2), instead of one event in a downsampled "
        "image",
    )
    # Values from zhiwen-xdu/ScaleEvent, pretrain/pretrain_ddp.py and pretrain/criterion.py
    # (DistillLoss_With_CrossGram_V2), and from the paper, Secs. 3.1 to 4.1.
    recipe = Pretraining(
        objective=ScaleEventSettings(),
        dataset="ddd17",
        batch_size=80,  # 20 on each of 4 GPUs for ViT-S
        optimisation=Optimisation(
            peak_lr=5.0e-4,  # from random weights; 5e-6 from the teacher's
            steps=12500,  # 10 epochs of 100,000 pairs
            warmup_steps=625,
            clip=Clip("norm", 0.1),
            weight_decay=Decay(1.0e-4, 1.0e-4, ()),  # all parameters
        ),
        deviations=(
            "ScaleEvent learns at 5e-4 with warm-up and cosine decay, instead of at 5e-6 times 0.9 each epoch from "
            "the teacher's weights",
            "ScaleEvent is trained on the given recordings, without VID2E's simulated events; its 500,000 pairs "
            "include those of the data sets it is evaluated on",
        ),
    )

    def __init__(self, own: ScaleEventSettings, backbone: Backbone, teacher: "Teacher") -> None:
        super().__init__()
        self.own, self.backbone, self.teacher = own, backbone, teacher
        self.project = nn.Linear(sum(backbone.channels[STAGE:]), teacher.width)

    @classmethod
    def from_settings(cls, own: ScaleEventSettings, settings: Pretraining, data: PretrainData) -> Self:
        teacher = build_teacher(own.teacher, settings, padded_size(*data.size))
        return cls(own, cls.new_backbone(settings, data), teacher)

    @classmethod
    def upstream(cls, own: ScaleEventSettings) -> tuple[str, str]:
        name, file = own.teacher, own.teacher_weights
        method = METHODS.module_dict.get(name, object)
        if not is_timm(name) and not (issubclass(method, ImageMethod) and method.recipe):
            remedy = "use a timm network (timm.list_models()), or a method that pre-trains on images"
            what = "is neither a timm network nor a method that learns from images"
            raise UserError(f"objective.teacher {name!r}", what, remedy)
        if (file or is_timm(name)) and not Path(file).is_file():
            raise UserError(f"objective.teacher_weights {file!r}", "no such file", f"set it to the weights of {name}")
        return name, str(Path(file)) if file else ""

    @classmethod
    def upstream_settings(cls, settings: Pretraining, name: str) -> Pretraining:
        """Settings of the teacher's pre-training, with the backbone that `build_teacher` builds."""
        return replace(super().upstream_settings(settings, name), width=settings.width)

    def load_upstream(self, path: Path) -> None:
        network = self.teacher.network
        if isinstance(network, Backbone):
            load_backbone(network, path)
            return
        try:
            timm.models.load_checkpoint(network, str(path))
        except (OSError, EOFError, RuntimeError, ValueError, KeyError, UnpicklingError) as error:
            raise UserError(path, f"contains no weights of {self.own.teacher}", "use its checkpoint") from error

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Return "loss", the weighted sum of three losses, and "active", the share of active tokens."""
        own, size, histograms = self.own, self.backbone.img_size, batch["histograms"]
        (*_, third, last), _ = self.backbone(histograms)
        both = torch.cat([third.squeeze(1), interpolate(last.squeeze(1), scale_factor=2)], 1)
        events = self.project(both.flatten(2).mT)
        images = self.teacher(batch["images"].squeeze(1)).flatten(2).mT
        active = active_tokens(pad_to(histograms.squeeze(1), size), own.activation)
        plain, intra, cross = distances(events, images, active, own.alike)
        loss = own.plain_weight * plain + own.intra_weight * intra + own.cross_weight * cross
        named = {"loss_plain": plain, "loss_intra": intra, "loss_cross": cross}
        return {"loss": loss, **named, "active": active.mean()}, None


def active_tokens(histograms: Tensor, least: int) -> Tensor:
    """Mark tokens of histograms (B, C, H, W) with 1 if they hold at least `least` events, else 0: (B, N, 1) (Eq. 2)."""
    counts = avg_pool2d(histograms.sum(1, keepdim=True, dtype=torch.float32), TOKEN) * TOKEN**2
    return (counts.round() >= least).float().flatten(2).mT


@in_fp32
def distances(events: Tensor, images: Tensor, active: Tensor, alike: float) -> list[Tensor]:
    """This rank's shares of three mean distances between event and image features (B, N, D) at the same places.

    They are the absolute difference of the features, and the squared difference of event-event and event-image
    similarities from image-image ones. A similarity is the cosine of two tokens of a sample, at least 0. Tokens whose
    `active` (B, N, 1) is 0, and pairs with an image-image cosine of at most `alike`, add nothing to the sums.
    """
    events, images = events * active, images * active
    plain = (events - images).abs()
    events, images = normalize(events, dim=-1), normalize(images, dim=-1)
    wanted = images @ images.mT
    compared = wanted > alike
    intra, cross = (((each @ events.mT).clamp(min=0) - wanted).where(compared, 0).square() for each in (events, images))
    return [global_mean(each.sum(), each.numel()) for each in (plain, intra, cross)]


class Teacher(nn.Module):
    """Frozen image network, a backbone or a timm model, with 1 or 3 input channels, for images of (H, W) px."""

    def __init__(self, network: nn.Module, channels: int, size: Size) -> None:
        super().__init__()
        self.network, self.channels, self.size = network.requires_grad_(False), channels, size
        self.width = self(torch.zeros(1, 1, *size)).shape[1]

    @torch.no_grad()
    def forward(self, images: Tensor) -> Tensor:
        """Features (B, width, H / 16, W / 16) of grey images (B, 1, h, w) uint8, from the last layer of that size."""
        network: Any = self.network.eval()
        seen = pad_to(as_input(images.expand(-1, self.channels, -1, -1)), self.size)
        if isinstance(network, Backbone):
            features, _ = network(seen.unsqueeze(1))
            return features[STAGE].squeeze(1)
        how = {"norm": True, "intermediates_only": True, "output_fmt": "NCHW"}
        maps = network.forward_intermediates(seen, **how) if hasattr(network, "forward_intermediates") else ()
        found = [each for each in maps if each.shape[-1] * TOKEN == self.size[1]]
        if not found:
            remedy = "choose a ViT with 16 px patches, a Swin or a ResNet"
            raise UserError("objective.teacher", "has no features at stride 16", remedy)
        return found[-1]


def is_timm(name: str) -> bool:
    """Whether timm has a network of that name, with the pretrained tag in it, if any."""
    return timm.is_model(name) and ("." not in name or name in timm.list_models(include_tags=True))


def build_teacher(name: str, settings: Pretraining, size: Size) -> Teacher:
    """Build a teacher with random weights, a timm model or an image method's; raise `UserError` without stride 16."""
    if is_timm(name):
        published: Any = timm.get_pretrained_cfg(name)
        fixed: dict[str, Any] = {"img_size": size} if published.fixed_input_size else {}
        return Teacher(timm.create_model(name, **fixed), 3, size)
    channels = pretraining_settings(name, settings.profile).objective["channels"]
    return Teacher(build_backbone(settings.width, False, settings.bins, size, channels), channels, size)

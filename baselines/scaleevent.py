"""ScaleEvent: distil a frozen image network into an event backbone (Chen et al., CVPR 2026)."""

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, interpolate, normalize

from baselines import COUNTS
from tespec.core.distributed import global_mean
from tespec.core.settings import (
    Decay,
    Fraction,
    GradientClipping,
    NonNegativeFloat,
    Optimisation,
    PositiveInt,
    Pretraining,
)
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32, pad_to
from tespec.pretraining.method import Batch, Losses, TableRow
from tespec.pretraining.teacher import STAGE, TOKEN_SIZE, Teacher, TeacherMethod, TeacherSettings
from tespec.registry import METHODS


@dataclass(frozen=True)
class ScaleEventSettings(TeacherSettings):
    """Settings of the teacher and of the losses."""

    teacher: str = "vit_small_patch16_dinov3.lvd1689m"  # models/build_distill_model.py: DINOv3
    activation: PositiveInt = 64  # minimum number of events in an active token; tau of Eq. 2
    alike: Fraction = 0.1  # pairs of image tokens with a higher cosine are compared
    plain_weight: NonNegativeFloat = 1.0  # of the distance between features
    intra_weight: NonNegativeFloat = 10.0  # of event-event similarities; lambda_is
    cross_weight: NonNegativeFloat = 4.0  # of event-image similarities; lambda_cs


@METHODS.register_module(name="scaleevent")
class ScaleEvent(TeacherMethod):
    """Match event features, and their similarities, with a teacher's features of the image."""

    row = TableRow(
        title="ScaleEvent",
        group="Beyond the paper",
        pretraining_data="paired events and images",
        citation=(
            "Chen et al.: Scaling Dense Event-Stream Pretraining from Visual Foundation Models, "
            "CVPR 2026"
        ),
        licence="not specified (zhiwen-xdu/ScaleEvent)",
        weights="checkpoints of zhiwen-xdu/ScaleEvent, ViTs of other input: docs/weights.md",
        summary=(
            "Matches event features with those of a frozen image network; ConvLSTMs are randomly "
            "initialised."
        ),
    )
    version = 2
    min_batch_size = 1
    same_backbone = True  # as in the original
    deviations = (  # from zhiwen-xdu/ScaleEvent, scale_event/
        "ScaleEvent's encoder is a randomly initialised backbone and a linear layer on its last "
        "two features, instead of the teacher's own ViT with its weights",
        f"ScaleEvent's {COUNTS}, instead of images of three bins",
        "ScaleEvent's tokens are active from 64 events on (the paper's Eq. 2), instead of one "
        "event in a downsampled image",
        "ScaleEvent's teacher is in evaluation mode; in its code it is in training mode, in which "
        "DINOv3 rescales its position embedding at random, unlike other image networks",
    )
    # Values from zhiwen-xdu/ScaleEvent, pretrain/pretrain_ddp.py and pretrain/criterion.py, and
    # from the paper, Secs. 3.1 to 4.1.
    recipe = Pretraining(
        objective=ScaleEventSettings(),
        dataset="ddd17",
        batch_size=80,  # 20 on each of 4 GPUs for ViT-S
        optimisation=Optimisation(
            peak_lr=5.0e-4,  # from random weights; 5e-6 from the teacher's
            steps=12500,  # 10 epochs of 100,000 pairs (paper)
            warmup_steps=625,
            clip=GradientClipping("norm", 0.1),
            weight_decay=Decay(1.0e-4, 1.0e-4, ()),  # all parameters
        ),
        deviations=(
            "ScaleEvent learns at 5e-4 with warm-up and cosine decay, instead of at 5e-6 times 0.9 "
            "each epoch from the teacher's weights",
            "ScaleEvent is trained on the given recordings, without VID2E's simulated events; its "
            "500,000 pairs include those of the data sets it is evaluated on",
            "ScaleEvent sees 100,000 pairs an epoch, as in the paper, at the resolution of the "
            "recordings; its code has 150,000 of 1280 x 960 px",
        ),
    )

    def __init__(self, cfg: ScaleEventSettings, backbone: Backbone, teacher: Teacher) -> None:
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone
        self.teacher = teacher
        self.project = nn.Linear(sum(backbone.channels[STAGE:]), teacher.width)

    def loss(self, batch: Batch, state: None = None) -> tuple[Losses, None]:
        """Match the features of the events with the teacher's features of the image.

        Args:
            batch: "histograms" (B, 1, 2 * bins, H, W) and "images" (B, 1, 1, H, W), both uint8.
            state: unused.

        Returns:
            "loss", the weighted sum of the three others, and "active", the fraction of active
            tokens.
        """
        cfg = self.cfg
        histograms = batch["histograms"]
        (*_, third, last), _ = self.backbone(histograms)
        last = interpolate(last.squeeze(1), scale_factor=2)
        stages = torch.cat([third.squeeze(1), last], 1)  # (B, C, h, w) at stride 16
        events = self.project(stages.flatten(2).mT)  # (B, h * w, D)
        images = self.teacher(batch["images"].squeeze(1)).flatten(2).mT
        padded = pad_to(histograms.squeeze(1), self.backbone.img_size)
        active = active_tokens(padded, cfg.activation)
        plain, intra, cross = distances(events, images, active, cfg.alike)
        loss = cfg.plain_weight * plain + cfg.intra_weight * intra + cfg.cross_weight * cross
        return {
            "loss": loss,
            "loss_plain": plain,
            "loss_intra": intra,
            "loss_cross": cross,
            "active": active.mean(),
        }, None


def active_tokens(histograms: Tensor, min_events: int) -> Tensor:
    """Mark the tokens that hold enough events (Eq. 2).

    Args:
        histograms: (B, 2 * bins, H, W).
        min_events: minimum number of events in an active token.

    Returns:
        (B, N, 1) float32, 1 for active tokens, else 0.
    """
    counts = (
        avg_pool2d(histograms.sum(1, keepdim=True, dtype=torch.float32), TOKEN_SIZE) * TOKEN_SIZE**2
    )
    return (counts.round() >= min_events).float().flatten(2).mT


@in_fp32
def distances(
    events: Tensor, images: Tensor, active: Tensor, threshold: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the distances between event and image features at the same positions.

    As `DistillLoss_With_CrossGram` in zhiwen-xdu/ScaleEvent, scale_event/pretrain/criterion.py,
    which trains by default and was `DistillLoss_With_CrossGram_V2` in the first release. The
    paper's Eqs. 4 and 5 have absolute differences of similarities instead of squared ones.

    Args:
        events: event features (B, N, D).
        images: image features (B, N, D).
        active: (B, N, 1), 0 for tokens that add nothing to the sums, else 1.
        threshold: pairs of tokens with an image-image cosine of at most this add nothing to the
            last two sums.

    Returns:
        The means of the absolute difference of the features, and of the squared difference of
        event-event and of event-image similarities from image-image ones. A similarity is the
        cosine of two tokens of a sample, at least 0.
    """
    events = events * active
    images = images * active
    plain = (events - images).abs()
    events = normalize(events, dim=-1)
    images = normalize(images, dim=-1)
    target = images @ images.mT  # (B, N, N)
    compared = target > threshold
    intra = ((events @ events.mT).clamp(min=0) - target).where(compared, 0).square()
    cross = ((images @ events.mT).clamp(min=0) - target).where(compared, 0).square()
    return (
        global_mean(plain.sum(), plain.numel()),
        global_mean(intra.sum(), intra.numel()),
        global_mean(cross.sum(), cross.numel()),
    )

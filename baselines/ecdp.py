"""ECDP: contrastive learning of events and images (Yang, Pan, Liu, "Event Camera Data Pre-training", ICCV 2023)."""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, normalize

from baselines import COUNTS
from tespec.core import settings as cfg
from tespec.core.distributed import all_gather_rows
from tespec.events.store import CLIP
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import (
    Projector,
    ema_update_,
    global_avg_pool,
    info_nce,
    momentum_copy,
)
from tespec.pretraining.method import TableRow
from tespec.pretraining.teacher import Teacher, TeacherMethod, TeacherSettings
from tespec.pretraining.views import random_views
from tespec.registry import METHODS

ROUNDS = 3  # iterations of Sinkhorn's algorithm (model/hub_model.py)
# minimum and maximum number of correlated events (data/imagenet_dataset.py, as the next three)
ADDED = (100, 5000)
FEWEST = 1000  # events; none are added to a window with fewer
# std of an added event's offset from its original: px, and share of a window (1 ms of 50)
NEAR, SOON = 1.5, 1 / 50


@dataclass(frozen=True)
class EcdpSettings(TeacherSettings):
    """Settings of the image network, the views, the contrasts and the alignment."""

    # extract_clip_feature.py: CLIP, ViT-B/32
    teacher: str = "vit_base_patch32_clip_quickgelu_224.openai"
    # minimum and maximum share of the frame in a view; crop_min
    scale: tuple[cfg.Share, cfg.Share] = (0.45, 1.0)
    # maximum shift as a share of the shorter side; data/imagenet_dataset.py
    shift: cfg.Share = 20 / 224
    hidden: cfg.PositiveInt = 4096  # width of the heads
    out: cfg.PositiveInt = 256  # embedding width
    # of the softmax over products of event views; temp_event
    event_temperature: cfg.PositiveFloat = 0.2
    # of the softmax over cosines of events and images; temp_image
    temperature: cfg.PositiveFloat = 0.1
    # weight of the contrast of two views; twice the temperature
    event_contrast: cfg.NonNegativeFloat = 0.4
    # weight of the contrast with images; twice the temperature
    contrast: cfg.NonNegativeFloat = 0.2
    alignment: cfg.NonNegativeFloat = 2.0  # weight of the alignment; lambda_kl
    # pairs that are aligned together, those of a GPU; ours_pretraining_base.yml
    alignment_group: cfg.PositiveInt = 64
    # initial momentum of the momentum encoder; moco_m, rises to 1 (trainer/pr_trainer.py)
    momentum: cfg.Share = 0.99


@METHODS.register_module(name="ecdp")
class Ecdp(TeacherMethod):
    """Match two views of the events along their image's embedding, and events with images; align their similarities.

    The alignment makes the similarities of events follow those of their images. The images are
    embedded by a frozen network and one linear layer, which only the alignment trains.
    """

    row = TableRow(
        title="ECDP",
        group="Pre-trained on events",
        backbone="ResNet50",
        pretraining_data="N-ImageNet",
        citation="Yang, Pan, Liu: Event Camera Data Pre-training, ICCV 2023",
        licence="not specified (Yan98/Event-Camera-Data-Pre-training)",
        weights="the ResNet-50 checkpoint of Yan98/Event-Camera-Data-Pre-training",
        summary=(
            "Matches events with the image taken at the same time; a feed-forward ResNet-50 only."
        ),
    )
    version = 4
    network = "resnet"
    architectures = ("feedforward",)
    global_features = True
    deviations = (  # from Yan98/Event-Camera-Data-Pre-training, model/hub_model.py
        "ECDP's ResNet has one mean feature for both heads, instead of a token for each",
        "ECDP's ResNet sees complete frames of events, as it cannot drop patches, instead of half of the patches",
        "ECDP's ImageNet classification loss, which trains only its own linear layer, is omitted: no classes here",
        f"ECDP's {COUNTS}, instead of one per polarity, scaled to -1 to 1",
        "ECDP sees windows of the duration and the resolution of fine-tuning, instead of 30,000 events resized to "
        "224 x 224 px",
    )
    # Values from Yan98/Event-Camera-Data-Pre-training, config/ours/pr_vits.yml and its base
    # ours_pretraining_base.yml.
    # They are for ViT-S; none are published for ResNet-50. Values of the loss: model/hub_model.py.
    recipe = cfg.Pretraining(
        objective=EcdpSettings(),
        dataset="ddd17",
        batch_size=1024,  # README.md: 4 nodes of 4 GPUs, 64 pairs on each
        drop_path=0.0,  # model/ours_model/ours_model_pretrain.py
        optimisation=cfg.Optimisation(
            # base_lr 1.5e-4 * 1024 / 256; trainer/pr_trainer.py, as AdamW and the next three
            peak_lr=6.0e-4,
            schedule="cosine_moco",
            start_divisor=1.0e6,  # from 0 there
            end_divisor=1.0e6,  # to 0 there
            steps=375300,  # 300 epochs of 1,251 batches, for ImageNet's 1,281,167 images
            warmup_steps=50040,  # 40 epochs; warmup_epoch
            # Not clipped: trainer/pr_trainer.py clips only if max_grad_norm is set, which it is
            # not.
            # all parameters in one group; trainer/pr_trainer.py
            weight_decay=cfg.Decay(0.03, 0.03, ()),
        ),
        deviations=(
            "ECDP's ResNet-50 is trained with the settings of its ViT-S, since none are published for it",
            "ECDP is trained on recordings with grey frames, from random weights, instead of N-ImageNet from MoCo v3's",
        ),
    )

    def __init__(self, own: EcdpSettings, backbone: Backbone, teacher: Teacher) -> None:
        super().__init__()
        self.own, self.backbone, self.teacher = own, backbone, teacher
        width, hidden, out = backbone.channels[-1], own.hidden, own.out
        self.event_head, self.image_head = (
            head(width, hidden, hidden, out),
            head(width, hidden, hidden, out),
        )
        self.event_predictor, self.image_predictor = head(out, hidden, out), head(out, hidden, out)
        self.to_event = Projector(nn.Linear(teacher.width, out, bias=False))
        self.slow_backbone, self.slow_head = momentum_copy(backbone), momentum_copy(self.event_head)

    @classmethod
    def augment(
        cls, own: EcdpSettings, histogram: NDArray[np.uint8], generator: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Randomly reverse time, shift events and add correlated ones (data/imagenet_dataset.py)."""
        if generator.random() < 0.5:
            histogram = histogram[:, ::-1]  # reverses time bins and swaps polarities
        height, width = histogram.shape[-2:]
        most = round(own.shift * min(height, width))
        top, left = (most - int(generator.integers(-most, most + 1)) for _ in range(2))
        padded = np.pad(histogram, [(0, 0), (0, 0), (most, most), (most, most)])
        return with_correlated_events(
            padded[..., top : top + height, left : left + width], generator
        )

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Return "loss", the weighted sum of three losses, and "found", the share of events matched to their image."""
        own, frames = self.own, batch["histograms"]
        one = two = frames
        if self.training:
            size = (frames.shape[-2], frames.shape[-1])
            # keeps counts whole
            (one, two), _ = random_views(frames, 2, size, own.scale, "nearest")
        features = global_avg_pool(self.backbone, one)
        with torch.no_grad():
            keys = all_gather_rows(self.slow_head(global_avg_pool(self.slow_backbone, two)))
        events = all_gather_rows(self.event_predictor(self.event_head(features)))
        matched = all_gather_rows(self.image_predictor(self.image_head(features)))
        images = all_gather_rows(self.to_event(self.teacher(batch["images"].squeeze(1))))
        views = view_contrast(events, keys, images.detach(), own.event_temperature)
        contrast, found = info_nce(matched, images.detach(), own.temperature)
        alignment = likeness_divergence(matched, images, own.temperature, own.alignment_group)
        loss = own.event_contrast * views + own.contrast * contrast + own.alignment * alignment
        named = {"loss_views": views, "loss_contrast": contrast, "loss_alignment": alignment}
        return {"loss": loss, **named, "found": found}, None

    def after_step(self, share: float) -> None:
        ema_update_(self.slow_backbone, self.backbone, self.own.momentum, share)
        ema_update_(self.slow_head, self.event_head, self.own.momentum, share)


def head(*widths: int) -> Projector:
    """MLP without biases and with batch normalisation, which has no scale and shift after the last layer."""
    layers: list[nn.Module] = []
    for inside, outside in pairwise(widths):
        layers += [
            nn.Linear(inside, outside, bias=False),
            nn.BatchNorm1d(outside),
            nn.ReLU(inplace=True),
        ]
    return Projector(*layers[:-2], nn.BatchNorm1d(widths[-1], affine=False))


@in_fp32
def view_contrast(queries: Tensor, keys: Tensor, images: Tensor, temperature: float) -> Tensor:
    """InfoNCE of queries and keys (N, D), each projected onto the direction of its own image."""
    directions = normalize(images, dim=1)

    def projected(vectors: Tensor) -> Tensor:
        return (normalize(vectors, dim=1) * directions).sum(1, keepdim=True) * directions

    logits = projected(queries) @ projected(keys).T / temperature
    return cross_entropy(logits, torch.arange(len(queries), device=queries.device))


@in_fp32
def likeness_divergence(events: Tensor, images: Tensor, temperature: float, group: int) -> Tensor:
    """KL divergence between similarities of events and the balanced similarities of their images.

    Sinkhorn's algorithm balances them; gradients flow through its row sums, not through its column
    sums, which are summed over all groups (model/hub_model.py, get_kl_loss and sinkhorn).

    Args:
        events: event embeddings (N, D).
        images: image embeddings (N, D).
        temperature: of the softmax over cosines.
        group: pairs are compared within groups of so many consecutive ones if they divide N, else
            all with all.

    Returns:
        The mean over the N pairs, a scalar.
    """
    rows = len(events) if len(events) % group else group
    events, images = (
        normalize(vectors, dim=1).unflatten(0, (-1, rows)) for vectors in (events, images)
    )
    target = (images @ images.mT / temperature).exp()  # (N / rows, rows, rows)
    for _ in range(ROUNDS):
        target = target / target.sum((0, 1), keepdim=True).detach()
        target = target / target.sum(2, keepdim=True)
    predicted = log_softmax(events @ events.mT / temperature, dim=2)
    return kl_div(predicted.flatten(0, 1), target.flatten(0, 1), reduction="batchmean")


def with_correlated_events(
    histogram: NDArray[np.uint8], generator: np.random.Generator
) -> NDArray[np.uint8]:
    """Add copies of some events, slightly shifted in space and time, to a histogram (1, 2 * bins, H, W)."""
    counts, bins = histogram[0], histogram.shape[1] // 2
    events = np.repeat(np.argwhere(counts), counts[counts > 0], axis=0)
    if len(events) < FEWEST:
        return histogram
    added = int(generator.integers(min(ADDED[0], len(events) - 1), min(ADDED[1], len(events))))
    planes, *places = events[generator.choice(len(events), added, replace=False)].T
    spread, last = [[SOON * bins], [NEAR], [NEAR]], [[bins - 1], *events.max(0)[1:, None]]
    # events are anywhere in their cell
    origin = np.stack([planes % bins, *places]) + generator.random((3, added))
    in_bins, rows, columns = (
        (origin + generator.normal(0, spread, (3, added))).clip(0, last).astype(np.int64)
    )
    more = counts.astype(np.int64)
    np.add.at(more, (planes // bins * bins + in_bins, rows, columns), 1)
    return more.clip(max=CLIP).astype(np.uint8)[None]

"""ECDP: contrastive learning of events and images (Yang, Pan, Liu, ICCV 2023).

Files in parentheses and comments are those of Yan98/Event-Camera-Data-Pre-training.
"""

from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, kl_div, log_softmax, normalize

from baselines import COUNTS
from tespec.core.distributed import all_gather_rows
from tespec.core.settings import (
    Decay,
    Fraction,
    NonNegativeFloat,
    Optimisation,
    PositiveFloat,
    PositiveInt,
    Pretraining,
)
from tespec.events.store import MAX_COUNT
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import (
    Projector,
    global_avg_pool,
    info_nce,
    momentum_copy,
    momentum_update,
)
from tespec.pretraining.method import Batch, Losses, TableRow
from tespec.pretraining.teacher import Teacher, TeacherMethod, TeacherSettings
from tespec.pretraining.views import random_views
from tespec.registry import METHODS

SINKHORN_ROUNDS = 3  # model/hub_model.py
# Correlated events; data/imagenet_dataset.py.
ADDED = (100, 5000)  # minimum and maximum number
MIN_EVENTS = 1000  # no events are added to a window with fewer
STD_PX = 1.5  # of the offset between an added event and its original
STD_WINDOW = 1 / 50  # the same in time, as a fraction of the window: 1 ms of 50


@dataclass(frozen=True)
class EcdpSettings(TeacherSettings):
    """Settings of the image network, the views, the contrasts and the alignment."""

    # extract_clip_feature.py: CLIP, ViT-B/32
    teacher: str = "vit_base_patch32_clip_quickgelu_224.openai"
    # minimum and maximum fraction of the frame's area in a crop; crop_min
    scale: tuple[Fraction, Fraction] = (0.45, 1.0)
    # maximum shift as a fraction of the shorter side; data/imagenet_dataset.py
    shift: Fraction = 20 / 224
    hidden: PositiveInt = 4096  # width of the heads
    out: PositiveInt = 256  # embedding width
    # of the softmax over products of event views; temp_event
    event_temperature: PositiveFloat = 0.2
    # of the softmax over cosines of events and images; temp_image
    temperature: PositiveFloat = 0.1
    # weight of the contrast of two views; twice the temperature
    event_contrast: NonNegativeFloat = 0.4
    # weight of the contrast with images; twice the temperature
    contrast: NonNegativeFloat = 0.2
    alignment: NonNegativeFloat = 2.0  # weight of the alignment; lambda_kl
    # pairs that are aligned together, those of a GPU; ours_pretraining_base.yml
    alignment_group: PositiveInt = 64
    # initial momentum of the momentum encoder; moco_m, rises to 1 (trainer/pr_trainer.py)
    momentum: Fraction = 0.99


@METHODS.register_module(name="ecdp")
class Ecdp(TeacherMethod):
    """Contrast two crops of the events, and events with images, and align their similarities.

    The two crops are compared along the embedding of their image. The alignment makes the
    similarities of events follow those of their images. The images are embedded by a frozen network
    and one linear layer, which only the alignment trains.
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
        "ECDP's ResNet sees complete frames of events, as it cannot drop patches, "
        "instead of half of the patches",
        "ECDP's ImageNet classification loss, which trains only its own linear layer, is omitted: "
        "no classes here",
        f"ECDP's {COUNTS}, instead of one per polarity, scaled to -1 to 1",
        "ECDP sees windows of the duration and the resolution of fine-tuning, instead of 30,000 "
        "events resized to 224 x 224 px",
    )
    # Values from Yan98/Event-Camera-Data-Pre-training, config/ours/pr_vits.yml and its base
    # ours_pretraining_base.yml.
    # They are for ViT-S; none are published for ResNet-50. Values of the loss: model/hub_model.py.
    recipe = Pretraining(
        objective=EcdpSettings(),
        dataset="ddd17",
        batch_size=1024,  # README.md: 4 nodes of 4 GPUs, 64 pairs on each
        drop_path=0.0,  # model/ours_model/ours_model_pretrain.py
        optimisation=Optimisation(
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
            weight_decay=Decay(0.03, 0.03, ()),
        ),
        deviations=(
            "ECDP's ResNet-50 is trained with the settings of its ViT-S, "
            "since none are published for it",
            "ECDP is trained on recordings with grey frames, from random weights, "
            "instead of N-ImageNet from MoCo v3's",
        ),
    )

    def __init__(self, cfg: EcdpSettings, backbone: Backbone, teacher: Teacher) -> None:
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone
        self.teacher = teacher
        channels = backbone.channels[-1]
        self.event_head = mlp(channels, cfg.hidden, cfg.hidden, cfg.out)
        self.image_head = mlp(channels, cfg.hidden, cfg.hidden, cfg.out)
        self.event_predictor = mlp(cfg.out, cfg.hidden, cfg.out)
        self.image_predictor = mlp(cfg.out, cfg.hidden, cfg.out)
        self.to_event = Projector(nn.Linear(teacher.width, cfg.out, bias=False))
        self.momentum_backbone = momentum_copy(backbone)
        self.momentum_head = momentum_copy(self.event_head)

    @classmethod
    def augment(
        cls, cfg: EcdpSettings, histogram: NDArray[np.uint8], generator: np.random.Generator
    ) -> NDArray[np.uint8]:
        # as data/imagenet_dataset.py: reverse time, shift all events, add correlated ones
        if generator.random() < 0.5:
            histogram = histogram[:, ::-1]  # reverses time bins and swaps polarities
        height, width = histogram.shape[-2:]
        limit = round(cfg.shift * min(height, width))
        top = limit - int(generator.integers(-limit, limit + 1))
        left = limit - int(generator.integers(-limit, limit + 1))
        padded = np.pad(histogram, [(0, 0), (0, 0), (limit, limit), (limit, limit)])
        shifted = padded[..., top : top + height, left : left + width]
        return with_correlated_events(shifted, generator)

    def loss(self, batch: Batch, state: None = None) -> tuple[Losses, None]:
        """Contrast two crops of the events, and the events with their images.

        Args:
            batch: "histograms" (B, 1, 2 * bins, H, W) and "images" (B, 1, 1, H, W), both uint8.
            state: unused.

        Returns:
            "loss", the weighted sum of the three others, and "accuracy", the accuracy with which
            events are matched to their image.
        """
        cfg = self.cfg
        x_a = x_b = batch["histograms"]
        if self.training:  # nearest pixels keep counts integers
            (x_a, x_b), _ = random_views(x_a, 2, x_a.shape[-2:], cfg.scale, "nearest")
        features = global_avg_pool(self.backbone, x_a)  # (B, C)
        with torch.no_grad():
            # (N, D) of all ranks, as all that follow
            keys = all_gather_rows(self.momentum_head(global_avg_pool(self.momentum_backbone, x_b)))
        queries = all_gather_rows(self.event_predictor(self.event_head(features)))
        events = all_gather_rows(self.image_predictor(self.image_head(features)))
        images = all_gather_rows(self.to_event(self.teacher(batch["images"].squeeze(1))))

        loss_views = projected_contrast(queries, keys, images.detach(), cfg.event_temperature)
        loss_contrast, accuracy = info_nce(events, images.detach(), cfg.temperature)
        loss_alignment = similarity_divergence(events, images, cfg.temperature, cfg.alignment_group)
        loss = (
            cfg.event_contrast * loss_views
            + cfg.contrast * loss_contrast
            + cfg.alignment * loss_alignment
        )
        return {
            "loss": loss,
            "loss_views": loss_views,
            "loss_contrast": loss_contrast,
            "loss_alignment": loss_alignment,
            "accuracy": accuracy,
        }, None

    def after_step(self, progress: float) -> None:
        momentum_update(self.momentum_backbone, self.backbone, self.cfg.momentum, progress)
        momentum_update(self.momentum_head, self.event_head, self.cfg.momentum, progress)


def mlp(*widths: int) -> Projector:
    """Build an MLP without biases and with batch normalisation, without scale after the last layer.

    `widths` are those of the input, the hidden layers and the output.
    """
    layers: list[nn.Module] = []
    for inputs, outputs in pairwise(widths):
        layers += [
            nn.Linear(inputs, outputs, bias=False),
            nn.BatchNorm1d(outputs),
            nn.ReLU(inplace=True),
        ]
    return Projector(*layers[:-2], nn.BatchNorm1d(widths[-1], affine=False))


@in_fp32
def projected_contrast(queries: Tensor, keys: Tensor, images: Tensor, temperature: float) -> Tensor:
    """Compute InfoNCE of vectors that are projected onto the direction of their own image.

    As model/hub_model.py, vector_project and contrastive_loss.

    Args:
        queries: (N, D) of one crop of the events.
        keys: (N, D) of the other crop.
        images: embeddings (N, D) of the images.
        temperature: divisor of the products.

    Returns:
        The mean cross-entropy.
    """
    directions = normalize(images, dim=1)
    queries = (normalize(queries, dim=1) * directions).sum(1, keepdim=True) * directions
    keys = (normalize(keys, dim=1) * directions).sum(1, keepdim=True) * directions
    labels = torch.arange(len(queries), device=queries.device)
    return cross_entropy(queries @ keys.T / temperature, labels)


@in_fp32
def similarity_divergence(events: Tensor, images: Tensor, temperature: float, group: int) -> Tensor:
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
    size = len(events) if len(events) % group else group
    events = normalize(events, dim=1).unflatten(0, (-1, size))  # (N / size, size, D)
    images = normalize(images, dim=1).unflatten(0, (-1, size))
    target = (images @ images.mT / temperature).exp()  # (N / size, size, size)
    for _ in range(SINKHORN_ROUNDS):
        target = target / target.sum((0, 1), keepdim=True).detach()
        target = target / target.sum(2, keepdim=True)
    log_probs = log_softmax(events @ events.mT / temperature, dim=2)
    return kl_div(log_probs.flatten(0, 1), target.flatten(0, 1), reduction="batchmean")


def with_correlated_events(
    histogram: NDArray[np.uint8], generator: np.random.Generator
) -> NDArray[np.uint8]:
    """Add copies of some events, slightly shifted in space and time (data/imagenet_dataset.py).

    Args:
        histogram: (1, 2 * bins, H, W); returned as it is if it has fewer than `MIN_EVENTS` events.
        generator: source of the copied events and their offsets.

    Returns:
        The histogram with the copies, limited to the maximum count.
    """
    counts = histogram[0]
    bins = len(counts) // 2
    events = np.repeat(np.argwhere(counts), counts[counts > 0], axis=0)  # (N, 3)
    if len(events) < MIN_EVENTS:
        return histogram
    added = int(generator.integers(min(ADDED[0], len(events) - 1), min(ADDED[1], len(events))))
    planes, rows, columns = events[generator.choice(len(events), added, replace=False)].T
    # Events are anywhere in their cell; the copies lie within the area of all events.
    positions = np.stack([planes % bins, rows, columns]) + generator.random((3, added))
    offsets = generator.normal(0, [[STD_WINDOW * bins], [STD_PX], [STD_PX]], (3, added))
    last = [[bins - 1], *events.max(0)[1:, None]]
    new_bins, new_rows, new_columns = (positions + offsets).clip(0, last).astype(np.int64)
    total = counts.astype(np.int64)
    np.add.at(total, (planes // bins * bins + new_bins, new_rows, new_columns), 1)
    return total.clip(max=MAX_COUNT).astype(np.uint8)[None]

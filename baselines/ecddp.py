"""ECDDP: dense self-distillation on events (Yang, Pan, Liu, ECCV 2024).

The teacher encodes a square crop of every segment and two large crops of it. The student encodes
the large crops, half of them masked, and several small crops. It predicts the teacher's prototype
for every masked patch (patch loss), for clusters of the teacher's patches of the square (context
loss), and for the image, from another crop (image loss). Sinkhorn's algorithm balances the
teacher's assignments, and the teacher is a moving average of the student. Files in parentheses and
comments are those of Yan98/Event-Camera-Data-Dense-Pre-training.
"""

from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from baselines import COUNTS
from tespec.core.distributed import global_mean
from tespec.core.errors import UserError
from tespec.core.settings import (
    Decay,
    Downsample,
    Fraction,
    GradientClipping,
    NonNegativeFloat,
    Optimisation,
    PositiveInt,
    Pretraining,
)
from tespec.models.event_swin import EventSwin
from tespec.models.layers import STRIDE, pad_to, padded_size, to_device
from tespec.pretraining.contrast import momentum_copy, momentum_update, sinkhorn, soft_cross_entropy
from tespec.pretraining.dense import TOKEN_SIZE, DenseNetwork, crop_clusters, random_clusters
from tespec.pretraining.masking import draw_spread_blocks
from tespec.pretraining.method import Batch, EventMethod, Losses, PretrainData, TableRow
from tespec.pretraining.views import random_crops, random_views
from tespec.registry import METHODS

Side = Annotated[int, Field(strict=True, gt=0, multiple_of=STRIDE)]

FRAME = 320  # px; side of a first crop of the frame, from which the square is cropped (crop_size)
# Minimum and maximum fraction of the square's area in large and small crops (config,
# global_crops_scale and local_crops_scale).
LARGE_SCALE = (0.32, 1.0)
SMALL_SCALE = (0.05, 0.32)
STUDENT_TEMPERATURE = 0.1
TEACHER_TEMPERATURES = (0.04, 0.07)  # initial and final
EPOCHS = 300
WARMUP_EPOCHS = 30  # of the teacher's temperature (teacher_temp_warmup_epochs)
MIN_BLOCK = 4  # tokens; minimum area of a mask block (model/pretrain_model.py, MaskingGenerator)


@dataclass(frozen=True)
class EcddpSettings:
    """Settings of crops, heads, losses and teacher."""

    hidden: PositiveInt = 2048  # width of the heads' MLPs; DINO's
    bottleneck: PositiveInt = 256  # dimensions of prototypes; DINO's
    prototypes: PositiveInt = 32768
    clusters: PositiveInt = 8  # contexts of an image
    local_views: PositiveInt = 8  # number of small crops
    crop: Side = 224  # px; side of the square; input_size
    large: Side = 192  # px; side of the large crops
    small: Side = 96  # px; side of the small crops
    # Minimum and maximum fraction of masked patches in half of the large crops: int(64 * U(0.1,
    # 0.5)) of 144, because n_tokens stays 8 although a crop has 12 x 12 (model/pretrain_model.py).
    mask_ratio: tuple[Fraction, Fraction] = (0.1 * 64 / 144, 0.5 * 64 / 144)
    # The authors divide the patch loss by all large crops, although only half are masked
    # (model/network/loss.py).
    patch_weight: NonNegativeFloat = 0.5
    momentum: Fraction = 0.992  # initial momentum of the teacher; rises to 1
    # Fraction of the training before prototypes are updated; delay_epoch, 1 of 300.
    frozen_prototypes: Fraction = 1 / 300


@METHODS.register_module(name="ecddp")
class Ecddp(EventMethod):
    """Match a momentum teacher on masked patches, clusters of patches and images.

    Attention windows stay those of the backbone's `img_size` for crops of any size.
    """

    row = TableRow(
        title="ECDDP",
        group="Pre-trained on events",
        pretraining_data="E-TartanAir",
        citation="Yang, Pan, Liu: Event Camera Data Dense Pre-training, ECCV 2024",
        licence="not specified (Yan98/ECDDP)",
        weights="the Swin-T checkpoint of Yan98/ECDDP",
        summary=(
            "A student matches a momentum teacher on patches, contexts, images; ConvLSTMs are "
            "randomly initialised."
        ),
    )
    version = 3
    backbone_type = EventSwin
    val_batch_size = 16  # limits memory; prototypes are balanced within a batch
    deviations = (  # from Yan98/Event-Camera-Data-Dense-Pre-training
        "ECDDP's views come from a 320 px square of the data's frame, "
        "instead of a 480x640 px frame",
        "ECDDP's tokens are shifted before they are padded to full windows, as in timm, "
        "instead of after",
        "ECDDP's backbone has timm's norms, with an eps of 1e-5, instead of 1e-6",
        "ECDDP's norms of the four stages belong to its pyramid and are not transferred: "
        "the backbone has none",
        "ECDDP has no memory: with ConvLSTMs, the segments of a sequence share views and masks, and"
        " memory starts at zero",
    )
    # Values from Yan98/Event-Camera-Data-Dense-Pre-training, config/pretrain/swin_small.yml, unless
    # another file is named; those of the loss from its configs and supplementary material.
    recipe: ClassVar[Pretraining | None] = Pretraining(
        objective=EcddpSettings(),
        dataset="1mpx",
        batch_size=1024,  # asset/supp.pdf
        downsample=Downsample(2, "nearest"),
        drop_path=0.0,  # drop_path_rate
        optimisation=Optimisation(
            schedule="cosine_moco",  # trainer/base_trainer.py
            peak_lr=2.0e-3,  # base_lr 5e-4 * 1024 / 256; trainer/pretrain_trainer.py, as AdamW
            start_divisor=2000,  # from 1e-6; min_lr
            end_divisor=2000,  # to 1e-6; min_lr
            # 300 epochs of 129,949 samples, in asset/supp.pdf those of data/ETartanAir_dataset.py's
            # training scenes; drop_last
            steps=37800,
            warmup_steps=1260,  # 10 epochs; warmup_epoch
            clip=GradientClipping("norm", 3.0),  # max_grad_norm
            # weight_decay and weight_decay_end. Exempt: trainer/pretrain_trainer.py, params_groups;
            # prototypes decay.
            weight_decay=Decay(0.04, 0.4, ("later_vectors",)),
            patch_embed_lr=0.2,  # patch_embed_lr_scale
        ),
        deviations=(
            "ECDDP is trained on any recordings instead of synthetic E-TartanAir",
            f"ECDDP's {COUNTS}, instead of 6 bins for both",
        ),
    )
    progress: Tensor

    def __init__(self, cfg: EcddpSettings, backbone: EventSwin) -> None:
        super().__init__()
        self.cfg = cfg
        self.student = DenseNetwork(backbone, cfg.hidden, cfg.bottleneck, cfg.prototypes)
        self.teacher = momentum_copy(self.student)
        self.register_buffer("progress", torch.zeros((), dtype=torch.float64))

    @property
    def backbone(self) -> EventSwin:  # type: ignore[override]  # read, never set
        """The student's, which the authors fine-tune (model/swin_model.py, load_teacher)."""
        return self.student.backbone

    @classmethod
    def from_data(cls, data: PretrainData) -> "Ecddp":
        if data.settings.recurrent and data.settings.segments == 1:
            raise UserError("segments", "is 1, which trains no memory", "set it to 2 or more")
        return super().from_data(data)

    def before_step(self, progress: float) -> None:
        """Do not update the prototypes in the first epoch (trainer/pretrain_trainer.py)."""
        if progress < self.cfg.frozen_prototypes:
            for head in (self.student.patches, self.student.contexts, self.student.images):
                head.directions.grad = head.lengths.grad = None

    def after_step(self, progress: float) -> None:
        momentum_update(self.teacher, self.student, self.cfg.momentum, progress)
        self.progress.fill_(progress)

    def loss(self, batch: Batch, state: None = None) -> tuple[Losses, None]:
        """Compute the losses of a batch of sequences.

        With ConvLSTMs, all segments of a sequence share its crops, and also its masks, since memory
        would otherwise reveal masked patches. Without, segments are independent samples.

        Args:
            batch: "histograms" (B, T, 2 * bins, H, W) uint8.
            state: unused: memory starts at zero, since the last batch had other crops.

        Returns:
            "loss", the weighted sum of "loss_patch", "loss_context" and "loss_image", and None.
        """
        cfg = self.cfg
        histograms = batch["histograms"]
        if not self.backbone.recurrent:
            histograms = histograms.flatten(0, 1).unsqueeze(1)  # (B * T, 1, 2 * bins, H, W)
        segments = histograms.shape[1]
        square = random_crops(random_crops(histograms, FRAME), cfg.crop)
        square = pad_to(square, padded_size(*square.shape[-2:]))
        large, boxes = random_views(square, 2, (cfg.large, cfg.large), LARGE_SCALE)
        small, _ = random_views(square, cfg.local_views, (cfg.small, cfg.small), SMALL_SCALE)
        masks = draw_spread_blocks(len(square), cfg.large // TOKEN_SIZE, cfg.mask_ratio, MIN_BLOCK)

        with torch.no_grad():
            square_out = self.teacher(square)  # (N, C, h, w), N = B * T
            teacher_out = [self.teacher(crops) for crops in large]
        student_out = list(map(self.student, large, to_device(masks, large.device)))
        logits = [self.student.image(maps) for maps in student_out]
        logits += [self.student.image(self.student(crops)) for crops in small]

        masks = masks.repeat_interleave(segments, dim=1)  # (2, N, h, w)
        boxes = boxes.repeat_interleave(segments, dim=1)
        loss_patch = self._patch_loss(student_out, teacher_out, masks)
        loss_context = self._context_loss(student_out, square_out, boxes)
        loss_image = self._image_loss(logits, teacher_out)
        # Outputs that are compared: 2 of contexts, the others of images (model/pretrain_model.py).
        terms = 4 + 2 * cfg.local_views
        loss = cfg.patch_weight * loss_patch + (2 * loss_context + (terms - 2) * loss_image) / terms
        return {
            "loss": loss,
            "loss_patch": loss_patch,
            "loss_context": loss_context,
            "loss_image": loss_image,
        }, None

    @property
    def _temperature(self) -> Tensor:
        """The teacher's temperature in this epoch (trainer/pretrain_trainer.py, teacher_temps)."""
        start, end = TEACHER_TEMPERATURES
        epoch = (EPOCHS * self.progress + 1e-6).floor()  # rounding may lose an epoch
        return start + (end - start) * (epoch / (WARMUP_EPOCHS - 1)).clamp(max=1.0)

    def _patch_loss(
        self, student_out: list[Tensor], teacher_out: list[Tensor], masks: Tensor
    ) -> Tensor:
        """Patch loss: the mean over masked crops of their means over masked patches.

        Only the assignments of masked patches are balanced.
        """
        device = student_out[0].device
        # Computed on the CPU, which would wait for the GPU's result of data-dependent size.
        positions = to_device(masks.flatten().nonzero().squeeze(1), device)  # (P,)
        counts = masks.flatten(2).sum(2).flatten()  # (2 * N,)
        weights = to_device((1 / counts).repeat_interleave(counts), device)  # (P,)
        logits = self.student.patch(torch.cat(student_out), positions)
        targets = sinkhorn(self.teacher.patch(torch.cat(teacher_out), positions), self._temperature)
        losses = soft_cross_entropy(logits, targets, STUDENT_TEMPERATURE)
        return global_mean((weights * losses).sum(), masks.shape[1])

    def _context_loss(self, student_out: list[Tensor], square_out: Tensor, boxes: Tensor) -> Tensor:
        """Context loss: the mean over the clusters that are visible in a large crop."""
        clusters = random_clusters(square_out, self.cfg.clusters)  # (N, K, h, w)
        logits = self.teacher.context(square_out, clusters.flatten(2)).flatten(0, 1)
        targets = sinkhorn(logits, self._temperature)  # (N * K, prototypes)
        losses = []
        visible = []
        for maps, box in zip(student_out, boxes, strict=True):
            members = crop_clusters(clusters, box, maps.shape[-2:])
            logits = self.student.context(maps, members).flatten(0, 1)
            losses.append(soft_cross_entropy(logits, targets, STUDENT_TEMPERATURE))
            visible.append(members.any(2).flatten())
        # Invisible clusters have weight 0 instead of being removed, since only the device knows
        # their number.
        weights = torch.cat(visible)
        return global_mean((torch.cat(losses) * weights).sum(), weights.sum())

    def _image_loss(self, student_logits: list[Tensor], teacher_out: list[Tensor]) -> Tensor:
        """Image loss: the mean over all pairs of a student's and another teacher's crop."""
        logits = torch.cat([self.teacher.image(maps) for maps in teacher_out])
        targets = sinkhorn(logits, self._temperature).chunk(len(teacher_out))
        losses = [
            soft_cross_entropy(logits, target, STUDENT_TEMPERATURE).mean()
            for i, target in enumerate(targets)
            for j, logits in enumerate(student_logits)
            if i != j
        ]
        return torch.stack(losses).mean()


@METHODS.register_module(name="ecddp_resnet")
class EcddpResnet(Ecddp):
    """ECDDP with a feed-forward ResNet-50."""

    row = replace(
        Ecddp.row,
        backbone="ResNet50",
        weights="the ResNet-50 checkpoint of Yan98/ECDDP",
        summary=(
            "ECDDP's feed-forward ResNet-50, from the published checkpoint; pre-training here "
            "requires a Swin."
        ),
    )
    network = "resnet"
    architectures = ("feedforward",)
    recipe = None

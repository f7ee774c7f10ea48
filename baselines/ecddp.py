"""ECDDP: dense self-distillation on events (Yang, Pan, Liu, "Event Camera Data Dense Pre-training", ECCV 2024).

The teacher sees two large views of a square crop of each segment. The student sees them too, half
of them masked, and multiple small views. It predicts the teacher's prototype for each masked patch
(patch loss), for each cluster of the teacher's patches of the full square (context loss), and for
the image, from another view (image loss). Sinkhorn's algorithm balances the teacher's assignments,
and the teacher is a moving average of the student. Files in parentheses are those of
Yan98/Event-Camera-Data-Dense-Pre-training.
"""

from dataclasses import replace
from typing import Annotated, Any, ClassVar

import tespec.core.compat  # noqa: F401  # before timm and torchvision

import numpy as np
import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from timm.layers import Mlp
from torch import Tensor, nn
from torch.nn.functional import interpolate, normalize, scaled_dot_product_attention
from typing_extensions import Self

from baselines import COUNTS
from tespec.core import settings as cfg
from tespec.core.distributed import global_mean, shard_slice
from tespec.core.errors import UserError
from tespec.models.event_swin import PATCH, EventSwin
from tespec.models.layers import STRIDE, in_fp32, pad_to, padded_size, sent
from tespec.pretraining.contrast import (
    PrototypeHead,
    ema_update_,
    momentum_copy,
    sinkhorn,
    soft_cross_entropy,
)
from tespec.pretraining.data import PretrainData
from tespec.pretraining.masking import block_mask, replace_masked
from tespec.pretraining.method import EventMethod, TableRow
from tespec.pretraining.views import random_crops, random_views, seen_in
from tespec.registry import METHODS

Side = Annotated[int, Field(strict=True, gt=0, multiple_of=STRIDE)]


@dataclass(frozen=True)
class EcddpSettings:
    """Settings of views, heads, losses and teacher."""

    hidden: cfg.PositiveInt = 2048  # width of the heads' MLPs; DINO's
    bottleneck: cfg.PositiveInt = 256  # dimensions of prototypes; DINO's
    prototypes: cfg.PositiveInt = 32768
    clusters: cfg.PositiveInt = 8  # contexts per image
    local_views: cfg.PositiveInt = 8  # number of small views
    crop: Side = 224  # px; side of the square that views are cropped from; input_size
    large: Side = 192  # px; side of the large views
    small: Side = 96  # px; side of the small views
    # Minimum and maximum share of masked patches in half of the student's views: int(64 * U(0.1,
    # 0.5)) of 144, because n_tokens stays 8 although a view has 12 x 12 (model/pretrain_model.py).
    mask_ratio: tuple[cfg.Share, cfg.Share] = (0.1 * 64 / 144, 0.5 * 64 / 144)
    # The authors divide the patch loss by all views, although only half are masked
    # (model/network/loss.py).
    patch_weight: cfg.NonNegativeFloat = 0.5
    momentum: cfg.Share = 0.992  # initial momentum of the teacher; rises to 1
    # Fraction of the training before prototypes are updated; delay_epoch, 1 of 300.
    frozen_prototypes: cfg.Share = 1 / 300


# px; side of the first crop of the frame, which the views' square is cropped from (config,
# crop_size)
FRAME = 320
UNIT = 16  # px; side of a token of the feature pyramid, the unit of masks
# shares of the square's area (config, global and local_crops_scale)
GLOBAL, LOCAL = (0.32, 1.0), (0.05, 0.32)
STUDENT_TEMPERATURE = 0.1
TEACHER_TEMPERATURES = (0.04, 0.07)
EPOCHS = 300
RISE = 30  # epochs, at each of which the teacher's temperature rises (teacher_temp_warmup_epochs)
IN_CLUSTER = 0.25  # minimum share of a cluster in a token of a view (model/pretrain_model.py)
# tokens; minimum area of a mask block (model/pretrain_model.py, MaskingGenerator)
SMALLEST_BLOCK = 4
ROUNDS = 10  # K-means iterations (model/pretrain_model.py, batch_cosine_KMeans)
# pooling: layers, channels per head, side of its position embedding in tokens
LAYERS, HEAD, SIDE = 2, 32, 6


@torch.no_grad()
@in_fp32
def cluster(tokens: Tensor, starts: Tensor) -> Tensor:
    """Cluster tokens (N, P, C) by K-means over unit-length tokens; return memberships (N, K, P) bool.

    The tokens at `starts` (N, K) are the initial centres. A cluster without tokens stays empty.
    """
    tokens = normalize(tokens, dim=-1)
    centres = tokens.gather(1, starts.unsqueeze(-1).expand(-1, -1, tokens.shape[-1]))
    for _ in range(ROUNDS):
        nearest = (normalize(centres, dim=-1) @ tokens.transpose(1, 2)).argmax(1, keepdim=True)
        # Torch's `one_hot` reads the values, so the CPU would wait for the GPU.
        members = nearest == torch.arange(starts.shape[1], device=tokens.device).view(-1, 1)
        centres = members.to(tokens.dtype) @ tokens
    return members


class AttentionPool(nn.Module):
    """Attention pooling of an image's tokens, or subsets of them, into vectors (model/network/layers.py, AttPool)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.vector = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, 1, channels), std=0.02))
        self.positions = nn.Parameter(
            nn.init.trunc_normal_(torch.empty(1, channels, SIDE, SIDE), std=0.02)
        )
        self.layers = nn.ModuleList(_Gather(channels) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    @in_fp32
    def forward(self, maps: Tensor, members: Tensor | None = None) -> Tensor:
        """Pool maps (N, C, h, w) of tokens into vectors (N, K, C).

        Each sees itself and the tokens that are its `members` (N, K, h * w); None: one vector sees
        all tokens.
        """
        positions = interpolate(self.positions, size=maps.shape[-2:], mode="bicubic")
        tokens = (maps + positions).flatten(2).transpose(1, 2)
        count, seen = 1, None
        if members is not None:
            count = members.shape[1]
            itself = torch.eye(count, dtype=torch.bool, device=maps.device).expand(
                len(maps), -1, -1
            )
            seen = torch.cat([itself, members], dim=2).unsqueeze(1)
        vectors = self.vector.expand(len(maps), count, -1)
        for layer in self.layers:
            vectors = layer(vectors, tokens, seen)
        return self.norm(vectors)


class _Gather(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(channels, eps=1e-6) for _ in range(2))
        self.query, self.key, self.value = (
            nn.Linear(channels, channels, bias=False) for _ in range(3)
        )
        self.project = nn.Linear(channels, channels)
        self.mlp = Mlp(channels, 4 * channels)
        self.heads = max(1, channels // HEAD)

    def forward(self, vectors: Tensor, tokens: Tensor, seen: Tensor | None) -> Tensor:
        every = self.norm1(torch.cat([vectors, tokens], dim=1))
        parts = self.query(every[:, : vectors.shape[1]]), self.key(every), self.value(every)
        queries, keys, values = (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in parts
        )
        found = scaled_dot_product_attention(queries, keys, values, attn_mask=seen)
        vectors = vectors + self.project(found.transpose(1, 2).flatten(2))
        return vectors + self.mlp(self.norm2(vectors))


class _Pyramid(nn.Module):
    """Mean (N, 8 * width, h, w) of the four projected stages at stride 16 (model/network/swin_pretrain.py, fpns)."""

    def __init__(self, channels: tuple[int, ...]) -> None:
        super().__init__()
        out = channels[-1]
        self.norms = nn.ModuleList(nn.LayerNorm(each, eps=1e-6) for each in channels)
        one, two, three = (nn.Conv2d(each, out, 1, bias=False) for each in channels[:3])
        four = nn.ConvTranspose2d(out, out, 2, stride=2, bias=False)
        levels = [
            nn.Sequential(nn.AvgPool2d(4), one),
            nn.Sequential(nn.AvgPool2d(2), two),
            three,
            four,
        ]
        self.levels = nn.ModuleList(levels)

    def forward(self, features: list[Tensor]) -> Tensor:
        stages = zip(self.levels, self.norms, features, strict=True)
        levels = [level(norm(each.movedim(1, -1)).movedim(-1, 1)) for level, norm, each in stages]
        return torch.stack(levels).float().mean(0)  # avoids another rounding in half precision


class _Student(nn.Module):
    """Backbone, feature pyramid, pooling and heads; the teacher is a momentum copy."""

    def __init__(self, own: EcddpSettings, backbone: EventSwin) -> None:
        super().__init__()
        channels = backbone.channels[-1]
        self.backbone, self.pyramid = backbone, _Pyramid(backbone.channels)
        self.mask_token = nn.Parameter(torch.zeros(1, backbone.channels[0]))
        self.patches, self.contexts, self.images = (
            PrototypeHead(channels, own.hidden, own.bottleneck, own.prototypes) for _ in range(3)
        )
        self.pool_context, self.pool_image = AttentionPool(channels), AttentionPool(channels)

    def forward(self, frames: Tensor, mask: Tensor | None = None) -> Tensor:
        """Encode sequences of frames into tokens (B * T, C, h, w).

        Args:
            frames: counts (B, T, 2 * bins, 16 h, 16 w). Memory starts at zero in the first segment.
            mask: (B, h, w) bool, True where the tokens of all segments are masked; None: nowhere.
        """
        tokens = self.backbone.embed_patches(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        if mask is not None:
            side = UNIT // PATCH
            tokens = replace_masked(
                tokens, mask, self.mask_token.expand(1, side, side, -1).to(tokens.dtype)
            )
        features, _ = self.backbone.encode(tokens)
        return self.pyramid([stage.flatten(0, 1) for stage in features])

    def image(self, maps: Tensor) -> Tensor:
        """Logits (N, prototypes) of images."""
        return self.images(self.pool_image(maps).squeeze(1))

    def context(self, maps: Tensor, members: Tensor) -> Tensor:
        """Logits (N, K, prototypes) of the image parts `members` (N, K, h * w) bool."""
        return self.contexts(self.pool_context(maps, members))


@METHODS.register_module(name="ecddp")
class Ecddp(EventMethod):
    """Patch, context and image losses; attention windows stay those of the backbone's `img_size` for all views."""

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
    masks_patches = True
    val_batch_size = 16  # limits memory; prototypes are balanced within a batch
    deviations = (  # from Yan98/Event-Camera-Data-Dense-Pre-training
        "ECDDP's views come from a 320 px square of the data's frame, instead of a 480x640 px frame",
        "ECDDP's tokens are shifted before they are padded to full windows, as in timm, instead of after",
        "ECDDP's backbone has timm's norms, with an eps of 1e-5, instead of 1e-6",
        "ECDDP's norms of the four stages belong to its pyramid and are not transferred: the backbone has none",
        "ECDDP has no memory: with ConvLSTMs, the segments of a sequence share views and masks, and"
        " memory starts at zero",
    )
    # Values from Yan98/Event-Camera-Data-Dense-Pre-training, config/pretrain/swin_small.yml, unless
    # another file is named; those of the loss from its configs and supplementary material.
    recipe: ClassVar[cfg.Pretraining | None] = cfg.Pretraining(
        objective=EcddpSettings(),
        dataset="1mpx",
        batch_size=1024,  # asset/supp.pdf
        downsample=cfg.Downsample(2, "nearest"),
        drop_path=0.0,  # drop_path_rate
        optimisation=cfg.Optimisation(
            schedule="cosine_moco",  # trainer/base_trainer.py
            peak_lr=2.0e-3,  # base_lr 5e-4 * 1024 / 256; trainer/pretrain_trainer.py, as AdamW
            start_divisor=2000,  # from 1e-6; min_lr
            end_divisor=2000,  # to 1e-6; min_lr
            # 300 epochs of 129,949 samples, in asset/supp.pdf those of data/ETartanAir_dataset.py's
            # training scenes; drop_last
            steps=37800,
            warmup_steps=1260,  # 10 epochs; warmup_epoch
            clip=cfg.Clip("norm", 3.0),  # max_grad_norm
            # weight_decay and weight_decay_end. Exempt: trainer/pretrain_trainer.py, params_groups;
            # prototypes decay.
            weight_decay=cfg.Decay(0.04, 0.4, ("later_vectors",)),
            patch_embed_lr=0.2,  # patch_embed_lr_scale
        ),
        deviations=(
            "ECDDP is trained on any recordings instead of synthetic E-TartanAir",
            f"ECDDP's {COUNTS}, instead of 6 bins for both",
        ),
    )
    share: Tensor

    def __init__(self, own: EcddpSettings, backbone: EventSwin) -> None:
        super().__init__()
        self.own = own
        backbone.take_any_size()
        # Torch's initialisation instead of timm's (model/network/swin_pretrain.py, init_all=False).
        for stage in backbone.stage_modules():
            for layer in stage.modules():
                if isinstance(layer, nn.Linear):
                    layer.reset_parameters()
        self.student = _Student(own, backbone)
        self.teacher = momentum_copy(self.student)
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))

    @property
    def backbone(self) -> EventSwin:  # type: ignore[override]  # read, never set
        """The student's backbone, which the authors fine-tune (model/swin_model.py, load_teacher)."""
        return self.student.backbone

    @classmethod
    def from_settings(cls, own: Any, settings: cfg.Pretraining, data: PretrainData) -> Self:
        if settings.recurrent and settings.segments == 1:
            raise UserError("segments", "is 1, which trains no memory", "set it to 2 or more")
        return super().from_settings(own, settings, data)

    def before_step(self, share: float) -> None:
        """Do not update the prototypes in the first epoch (trainer/pretrain_trainer.py)."""
        if share < self.own.frozen_prototypes:
            for head in (self.student.patches, self.student.contexts, self.student.images):
                head.directions.grad = head.lengths.grad = None

    def after_step(self, share: float) -> None:
        ema_update_(self.teacher, self.student, self.own.momentum, share)
        self.share.fill_(share)

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Compute the losses of a batch of sequences.

        With ConvLSTMs, all segments of a sequence share its views, and also its masks, since memory
        would otherwise reveal masked patches. Without, each segment has its own.

        Args:
            batch: "histograms" (B, T, 2 * bins, H, W), counts.
            state: unused: memory starts at zero, since the last batch was seen in other views.

        Returns:
            "loss", the weighted sum of "loss_patch", "loss_context" and "loss_image", and None.
        """
        own, histograms = self.own, batch["histograms"]
        if not self.backbone.recurrent:
            histograms = histograms.flatten(0, 1).unsqueeze(1)
        segments = histograms.shape[1]
        square = random_crops(random_crops(histograms, FRAME), own.crop)
        square = pad_to(square, padded_size(*square.shape[-2:]))
        large, boxes = random_views(square, 2, (own.large, own.large), GLOBAL)
        small, _ = random_views(square, own.local_views, (own.small, own.small), LOCAL)
        masks = self._masks(len(square), own.large // UNIT)
        with torch.no_grad():
            whole, taught = self.teacher(square), [self.teacher(view) for view in large]
        seen = list(map(self.student, large, sent(masks, large.device)))
        logits = [self.student.image(maps) for maps in seen]
        logits += [self.student.image(self.student(view)) for view in small]
        patch = self._patch_loss(seen, taught, masks.repeat_interleave(segments, dim=1))
        context = self._context_loss(seen, whole, boxes.repeat_interleave(segments, dim=1))
        image = self._image_loss(logits, taught)
        # Outputs compared: 2 of contexts, the others of images (model/pretrain_model.py).
        terms = 4 + 2 * own.local_views
        loss = own.patch_weight * patch + (2 * context + (terms - 2) * image) / terms
        return {
            "loss": loss,
            "loss_patch": patch,
            "loss_context": context,
            "loss_image": image,
        }, None

    def _masks(self, lanes: int, side: int) -> Tensor:
        """Draw masks (2, lanes, side, side) bool of both views: half of the batch's views, at evenly spread ratios."""
        whole, here = shard_slice(lanes)
        low, high = self.own.mask_ratio
        places = torch.randperm(2 * whole).view(2, whole)[:, here].flatten().tolist()
        seeds = torch.randint(2**31, (2, whole))[:, here].flatten().tolist()
        masks = []
        for place, seed in zip(places, seeds, strict=True):
            rng = np.random.default_rng(seed)
            share = low + (high - low) * (place + rng.random()) / whole if place < whole else 0.0
            masks.append(block_mask(rng, side, side, int(share * side * side), SMALLEST_BLOCK))
        return torch.from_numpy(np.stack(masks)).unflatten(0, (2, lanes))

    @property
    def _temperature(self) -> Tensor:
        """Temperature of the current epoch (trainer/pretrain_trainer.py, teacher_temps)."""
        start, end = TEACHER_TEMPERATURES
        epoch = (EPOCHS * self.share + 1e-6).floor()  # rounding may lose an epoch
        return start + (end - start) * (epoch / (RISE - 1)).clamp(max=1.0)

    def _patch_loss(self, seen: list[Tensor], taught: list[Tensor], masks: Tensor) -> Tensor:
        """Patch loss, averaged per masked view, then over these views; only masked patches are balanced."""
        # Computed on the CPU: the GPU's result has a data-dependent size, for which the CPU would
        # wait.
        places = sent(torch.from_numpy(np.flatnonzero(masks)), seen[0].device)
        counts = masks.flatten(2).sum(2).flatten()
        weights = sent((1 / counts).repeat_interleave(counts), seen[0].device)
        logits, wanted = (
            network.patches(
                torch.cat(maps).flatten(2).transpose(1, 2).flatten(0, 1).index_select(0, places)
            )
            for network, maps in ((self.student, seen), (self.teacher, taught))
        )
        found = soft_cross_entropy(logits, sinkhorn(wanted, self._temperature), STUDENT_TEMPERATURE)
        return global_mean((weights * found).sum(), masks.shape[1])

    def _context_loss(self, seen: list[Tensor], whole: Tensor, boxes: Tensor) -> Tensor:
        """Context loss, averaged over the clusters that are visible in a view."""
        own, (height, width) = self.own, whole.shape[-2:]
        lanes, here = shard_slice(len(whole))
        starts = torch.rand(lanes, height * width).argsort(1)[here, : own.clusters]
        members = cluster(whole.flatten(2).transpose(1, 2), sent(starts, whole.device))
        wanted = sinkhorn(self.teacher.context(whole, members).flatten(0, 1), self._temperature)
        found, there = [], []
        for maps, box in zip(seen, boxes, strict=True):
            part = seen_in(
                members.unflatten(2, (height, width)), box, (maps.shape[-2], maps.shape[-1])
            ).flatten(2)
            logits = self.student.context(maps, part > IN_CLUSTER).flatten(0, 1)
            found.append(soft_cross_entropy(logits, wanted, STUDENT_TEMPERATURE))
            there.append((part > IN_CLUSTER).any(2).flatten())
        # Invisible clusters get weight 0 instead of being removed: only the device knows how many
        # there are.
        return global_mean((torch.cat(found) * torch.cat(there)).sum(), torch.cat(there).sum())

    def _image_loss(self, logits: list[Tensor], taught: list[Tensor]) -> Tensor:
        """Image loss, averaged over all pairs of a student view and a different teacher view."""
        assigned = sinkhorn(
            torch.cat([self.teacher.image(maps) for maps in taught]), self._temperature
        )
        pairs = [
            soft_cross_entropy(each, wanted, STUDENT_TEMPERATURE).mean()
            for number, wanted in enumerate(assigned.chunk(len(taught)))
            for each in (*logits[:number], *logits[number + 1 :])
        ]
        return torch.stack(pairs).mean()


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

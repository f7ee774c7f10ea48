"""ECDDP: dense self-distillation on events (Yang, Pan, Liu, "Event Camera Data Dense Pre-training", ECCV 2024).

Two large views of a square of each segment go to the teacher; the student sees them masked, and small views of the
square besides. It has to name the teacher's prototype at each hidden patch (patch loss), for each of the teacher's
clusters of patches (context loss) and for the image as a whole, whichever view it sees (image loss). The teacher's
assignments are balanced by Sinkhorn's algorithm, and the teacher follows the student.

As published, single windows are compared: each segment of a sequence is seen by itself, and ConvLSTMs start from zeros.
How else this differs from the publication stands under `deviations`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn

from tespec.core.distributed import global_mean, shard_slice
from tespec.core.errors import UserError
from tespec.core.registry import METHODS
from tespec.core.settings import Clip, Count, Decay, Downsample, Optimisation, Pretraining, Share
from tespec.datasets.batches import draw_mask
from tespec.models.event_swin import EventSwin
from tespec.models.layers import STRIDE, in_fp32, sent
from tespec.pretraining.clusters import cluster, pool
from tespec.pretraining.contrast import PrototypeHead, agreement, sinkhorn
from tespec.pretraining.masking import MaskPatch, replace_hidden
from tespec.pretraining.method import EventMethod
from tespec.pretraining.momentum import follow, momentum_at, teacher_of
from tespec.pretraining.views import random_crops, random_views


@dataclass(frozen=True)
class EcddpSettings:
    """Settings of views, heads and teacher.

    Raises:
        UserError: views whose sides are no multiples of 32 px.
    """

    hidden: Count  # width of the heads' perceptrons
    bottleneck: Count  # dimensions of prototypes
    prototypes: Count
    clusters: Count  # contexts per image
    local_views: Count  # number of small views
    crop: Count  # px; side of the square that all views are of, the image's side where that is shorter
    large: Count  # px; side of the large views, a multiple of 32
    small: Count  # px; side of the small views, a multiple of 32
    mask_ratio: Share  # of patches hidden from the student
    momentum: Share  # of the teacher at the start; it rises to 1

    def __post_init__(self) -> None:
        for name, side in (("large", self.large), ("small", self.small)):
            if side % STRIDE:
                raise UserError(f"objective.{name}", f"{side} px is no multiple of {STRIDE}", "choose one")


GLOBAL, LOCAL = (0.32, 1.0), (0.05, 0.32)  # shares of the image's area (Yan98/ECDDP, config)
STUDENT_TEMPERATURE = 0.1
TEACHER_TEMPERATURES = (0.04, 0.07)
WARMUP_SHARE = 0.1  # of the training, over which the teacher's temperature rises: 30 of 300 epochs


class _Student(nn.Module):
    """Backbone, heads and attention pooling; the teacher is one as well."""

    def __init__(self, own: EcddpSettings, backbone: EventSwin) -> None:
        super().__init__()
        channels = backbone.channels[-1]
        self.backbone = backbone
        self.patches, self.contexts, self.images = (
            PrototypeHead(channels, own.hidden, own.bottleneck, own.prototypes) for _ in range(3)
        )
        self.attention = nn.Linear(channels, 1)


class _Seen(NamedTuple):
    """What a network makes of a view: logits of the image (N, K), and tokens (N, P, C)."""

    image: Tensor
    tokens: Tensor


@METHODS.register_module(name="ecddp")
class Ecddp(EventMethod):
    """Patch, context and image losses.

    Args:
        own: its settings.
        backbone: what is pre-trained; it keeps the windows of attention of its own `img_size` for views of any size.
    """

    title = "ECDDP"
    group = "Pre-trained on events"
    pretraining_data = "E-TartanAir"
    test_time_augmentation = True
    citation = "Yang, Pan, Liu: Event Camera Data Dense Pre-training, ECCV 2024"
    licence = "not stated (Yan98/ECDDP)"
    weights = "the Swin-T checkpoint of Yan98/ECDDP"
    summary = (
        "A student agrees with a slow teacher on patches, contexts and whole images of events; made for feed-forward "
        "networks, ConvLSTMs start at random."
    )
    loss_is = "sum of patch, context and image loss"
    masks_patches = True
    deviations = (  # from Yan98/Event-Camera-Data-Dense-Pre-training, model/ and data/
        "ECDDP's square of 320 px is cut from the frame at hand, 360x640 px for 1Mpx halved, instead of 480x640",
        "ECDDP's tokens are rolled before they are padded to whole windows of attention, instead of after",
        "of a sequence ECDDP sees each segment by itself, so that ConvLSTMs are trained from a state of zeros",
        "ECDDP's tokens are those of the last stage, instead of the mean of all stages at stride 16",
        "ECDDP's contexts are clusters of each large crop by itself, from evenly spaced tokens in 5 rounds, instead of "
        "those of the whole image, from random tokens in 10",
        "ECDDP's tokens are pooled by a single score for contexts and by their mean for images, instead of by two "
        "blocks of attention each",
        "ECDDP hides the same share of single patches in every crop, instead of blocks of 0.1 to 0.5 in every second "
        "one",
        "ECDDP's patch, context and image loss weigh 1, 1 and 1, instead of 1, 0.1 and 0.9",
        "ECDDP's prototypes are directions alone, instead of directions with a learned length",
    )
    # Values: Yan98/Event-Camera-Data-Dense-Pre-training, config/pretrain/swin_small.yml unless another file is named
    # beside them; those of the loss from its configs and supplementary material.
    recipe: ClassVar[Pretraining | None] = Pretraining(
        objective=EcddpSettings(
            hidden=2048,  # DINO's
            bottleneck=256,  # DINO's
            prototypes=32768,
            clusters=8,
            local_views=8,
            crop=320,  # px; data/ETartanAir_dataset.py
            large=192,
            small=96,
            mask_ratio=0.4,  # iBOT draws from 0.1 to 0.5 with probability 0.5; one number here
            momentum=0.992,
        ),
        dataset="1mpx",
        batch_size=1024,  # asset/supp.pdf
        downsample=Downsample(2, "nearest"),
        drop_path=0.0,  # drop_path_rate
        optimisation=Optimisation(
            optimizer="AdamW",  # trainer/pretrain_trainer.py
            peak_lr=2.0e-3,  # base_lr 5e-4 * 1024 / 256 (trainer/pretrain_trainer.py)
            schedule="cosine",  # trainer/base_trainer.py
            start_divisor=2000,  # from 1e-6; min_lr
            end_divisor=2000,  # to 1e-6; min_lr
            steps=100000,  # this project's
            warmup_steps=3300,  # 10 of 300 epochs; warmup_epoch
            clip=Clip("norm", 3.0),  # max_grad_norm
            # weight_decay and weight_decay_end. Exempt: trainer/pretrain_trainer.py, params_groups; prototypes decay.
            weight_decay=Decay(0.04, 0.4, ("vectors",)),
            patch_embed_lr=0.2,  # patch_embed_lr_scale
        ),
        deviations=(
            "ECDDP on any recordings instead of the synthetic E-TartanAir, for a number of steps of this project",
            "ECDDP's input has 10 bins for each polarity instead of 6 for both together",
            "ECDDP's prototypes learn from the first step on, instead of from the second epoch on",
            "ECDDP's patch embedding has no weight decay on its biases and norm",
        ),
    )
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sample": {
            "batch_size": 16,
            "segments": 1,
            "optimisation": {"peak_lr": 1.0e-3},
            "objective": {
                "hidden": 256,
                "bottleneck": 64,
                "prototypes": 256,
                "clusters": 4,
                "local_views": 2,
                "crop": 96,
                "large": 96,
                "small": 64,
            },
        },
        "small": {"optimisation": {"peak_lr": 5.0e-4}},  # the best of four by validation loss
    }
    share: Tensor

    def __init__(self, own: EcddpSettings, backbone: EventSwin) -> None:
        super().__init__()
        self.own = own
        backbone.take_any_size()
        self.student = _Student(own, backbone)
        self.teacher = teacher_of(self.student)
        self.mask_patch = MaskPatch(STRIDE, backbone.in_channels)
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))

    @property
    def backbone(self) -> EventSwin:  # type: ignore[override]  # read, never set
        """The teacher's backbone, which is the better one."""
        return self.teacher.backbone

    def after_step(self, share: float) -> None:
        """Let the teacher follow; `share` of the training is done."""
        follow(self.teacher, self.student, momentum_at(self.own.momentum, share))
        self.share.fill_(share)

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step; views and masks are drawn from torch's generator, and no state is carried.

        Args:
            batch: histograms (B, T, 2 * bins, H, W).
            state: None.

        Returns:
            "loss", the sum of "loss_patch", "loss_context" and "loss_image"; and None.
        """
        own = self.own
        frames = random_crops(batch["histograms"].flatten(0, 1).unsqueeze(1), own.crop)
        large = random_views(frames, 2, (own.large, own.large), GLOBAL)
        small = random_views(frames, own.local_views, (own.small, own.small), LOCAL)
        units = own.large // STRIDE
        whole, here = shard_slice(len(frames))
        seeds = torch.randint(2**31, (2, whole))[:, here].tolist()
        masks = [torch.stack([draw_mask(seed, units, units, own.mask_ratio) for seed in row]) for row in seeds]
        # Found on the CPU, where nothing waits for how many there are.
        hidden = [sent(torch.from_numpy(np.flatnonzero(mask)), frames.device) for mask in masks]
        with torch.no_grad():
            taught = [self._see(self.teacher, view) for view in large]
        seen = [self._see(self.student, view, sent(mask, view.device)) for view, mask in zip(large, masks, strict=True)]
        seen_small = [self._see(self.student, view) for view in small]
        losses = {
            "loss_patch": self._patch_loss(seen, taught, hidden),
            "loss_context": self._context_loss(seen, taught),
            "loss_image": self._image_loss([*seen, *seen_small], taught),
        }
        return {"loss": torch.stack(list(losses.values())).sum()} | losses, None

    def _see(self, network: _Student, frames: Tensor, mask: Tensor | None = None) -> _Seen:
        tokens = network.backbone.embed_patches(frames.flatten(0, 1)).unflatten(0, frames.shape[:2])
        if mask is not None:
            tokens = replace_hidden(tokens, mask, network.backbone.embed_patches(self.mask_patch()))
        features, _ = network.backbone.encode(tokens)
        last = features[-1][:, -1].flatten(2).transpose(1, 2).float()
        return _Seen(network.images(last.mean(1)), last)

    @property
    def _temperature(self) -> Tensor:
        start, end = TEACHER_TEMPERATURES
        return start + (end - start) * (self.share / WARMUP_SHARE).clamp(max=1.0)

    def _patch_loss(self, seen: list[_Seen], taught: list[_Seen], hidden: list[Tensor]) -> Tensor:
        # Prototypes are named, and balanced, at the hidden patches alone, as in the published model/pretrain_model.py.
        logits, wanted = (
            network.patches(
                torch.cat(
                    [each.tokens.flatten(0, 1).index_select(0, at) for each, at in zip(views, hidden, strict=True)]
                )
            )
            for network, views in ((self.student, seen), (self.teacher, taught))
        )
        found = agreement(logits, sinkhorn(wanted, self._temperature), STUDENT_TEMPERATURE)
        return global_mean(found.sum(), len(found))

    def _context_loss(self, seen: list[_Seen], taught: list[_Seen]) -> Tensor:
        logits: list[Tensor] = []
        wanted: list[Tensor] = []
        present: list[Tensor] = []
        for student, teacher in zip(seen, taught, strict=True):
            nearest = cluster(teacher.tokens, self.own.clusters)
            for network, each, kept in ((self.student, student, logits), (self.teacher, teacher, wanted)):
                scores = in_fp32(network.attention)(each.tokens).squeeze(-1)
                contexts, there = pool(each.tokens, scores, nearest, self.own.clusters)
                kept.append(network.contexts(contexts.flatten(0, 1)))
            present.append(there.flatten())
        # Clusters without tokens are carried along, as how many there are is known on the device alone.
        there = torch.cat(present)
        assigned = sinkhorn(torch.cat(wanted), self._temperature, there)
        found = agreement(torch.cat(logits), assigned, STUDENT_TEMPERATURE)
        return global_mean(found.sum(), there.sum())

    def _image_loss(self, seen: list[_Seen], taught: list[_Seen]) -> Tensor:
        assigned = sinkhorn(torch.cat([each.image for each in taught]), self._temperature).chunk(len(taught))
        pairs = [
            agreement(student.image, wanted, STUDENT_TEMPERATURE).mean()
            for number, wanted in enumerate(assigned)
            for place, student in enumerate(seen)
            if place != number
        ]
        return torch.stack(pairs).mean()

    @classmethod
    def val_batch_size(cls, settings: Pretraining) -> int:
        """As many windows as in training, among which prototypes are balanced; a sequence is played on one lane."""
        return 1 if settings.recurrent else settings.batch_size


@METHODS.register_module(name="ecddp_resnet")
class EcddpResnet(Ecddp):
    """The same with a ResNet-50, feed-forward; it masks patches, so it is pre-trained here with a Swin alone."""

    network_title = "ResNet50"
    network = "resnet"
    architectures = ("feedforward",)
    recipe = None
    weights = "the ResNet-50 checkpoint of Yan98/ECDDP"
    summary = "ECDDP's ResNet-50, feed-forward; hides patches, so it is pre-trained here with a Swin alone."

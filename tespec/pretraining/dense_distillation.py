"""ECDDP's objective: agree with a slow teacher on patches, on contexts and on whole images."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from tespec.core.distributed import averaged, rows
from tespec.core.errors import UserError
from tespec.core.registry import OBJECTIVES
from tespec.datasets.batches import draw_mask
from tespec.models.event_swin import EventSwin
from tespec.models.layers import STRIDE, in_fp32
from tespec.pretraining.clusters import cluster, pool
from tespec.pretraining.contrast import PrototypeHead, agreement, sinkhorn
from tespec.pretraining.masking import MaskPatch, replace_hidden
from tespec.pretraining.momentum import follow, momentum_at, teacher_of
from tespec.pretraining.objective import EventObjective
from tespec.pretraining.views import random_crops, random_views

GLOBAL, LOCAL = (0.32, 1.0), (0.05, 0.32)  # shares of the image's area (Yan98/ECDDP, config)
STUDENT_TEMPERATURE = 0.1
TEACHER_TEMPERATURES = (0.04, 0.07)
WARMUP_SHARE = 0.1  # of the training, over which the teacher's temperature rises: 30 of 300 epochs


class _Student(nn.Module):
    """Backbone, heads and attention pooling; the teacher is one as well."""

    def __init__(self, backbone: EventSwin, hidden: int, bottleneck: int, prototypes: int) -> None:
        super().__init__()
        channels = backbone.channels[-1]
        self.backbone = backbone
        self.patches, self.contexts, self.images = (
            PrototypeHead(channels, hidden, bottleneck, prototypes) for _ in range(3)
        )
        self.attention = nn.Linear(channels, 1)


class _Seen(NamedTuple):
    """What a network makes of a view: logits of the image (N, K), and tokens (N, P, C)."""

    image: Tensor
    tokens: Tensor


class DenseDistillation(nn.Module):
    """Patch, context and image losses of Yang, Pan, Liu, "Event Camera Data Dense Pre-training" (ECCV 2024).

    Two large views of a square of the last segment go to the teacher; the student sees them masked, and small views of
    the square besides. It has to name the teacher's prototype at each hidden patch (patch loss), for each of the
    teacher's clusters of patches (context loss) and for the image as a whole, whichever view it sees (image loss). The
    teacher's assignments are balanced by Sinkhorn's algorithm, and the teacher follows the student.

    As published, single windows are compared: of a sequence the last segment is all that is seen, and ConvLSTMs start
    from zeros. How else this differs from the publication is said in configs/objectives/ecddp.yaml.

    Args:
        backbone: what is pre-trained; it keeps the windows of attention of its own `img_size` for views of any size.
        hidden: width of the heads' perceptrons.
        bottleneck: dimensions of prototypes.
        prototypes: their number.
        clusters: contexts per image.
        local_views: number of small views.
        mask_ratio: share of patches hidden from the student.
        momentum: of the teacher at the start; it rises to 1.
        crop: side in px of the square that all views are of; the image's side where that is shorter.
        large: side of the large views in px, a multiple of 32.
        small: side of the small views in px, a multiple of 32.

    Raises:
        UserError: views whose sides are no multiples of 32 px.
    """

    draws_alike = True  # of what is drawn for the whole batch, each process takes its own
    share: Tensor

    def __init__(
        self,
        backbone: EventSwin,
        hidden: int,
        bottleneck: int,
        prototypes: int,
        clusters: int,
        local_views: int,
        mask_ratio: float,
        momentum: float,
        crop: int = 320,
        large: int = 192,
        small: int = 96,
    ) -> None:
        super().__init__()
        for name, side in (("large", large), ("small", small)):
            if side % STRIDE or side <= 0:
                raise UserError(f"objective.{name}", f"{side} px is no multiple of {STRIDE}", "choose one")
        backbone.take_any_size()
        self.student = _Student(backbone, hidden, bottleneck, prototypes)
        self.teacher = teacher_of(self.student)
        self.mask_patch = MaskPatch(STRIDE, backbone.in_channels)
        self.clusters, self.local_views, self.mask_ratio = clusters, local_views, mask_ratio
        self.crop, self.large, self.small = crop, (large, large), (small, small)
        self.momentum = momentum
        self.register_buffer("share", torch.zeros((), dtype=torch.float64))

    @property
    def backbone(self) -> EventSwin:
        """The teacher's backbone, which is the better one."""
        return self.teacher.backbone

    def after_step(self, share: float) -> None:
        """Let the teacher follow; `share` of the training is done."""
        follow(self.teacher, self.student, momentum_at(self.momentum, share))
        self.share.fill_(share)

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step; views and masks are drawn from torch's generator, and no state is carried.

        Args:
            batch: histograms (B, T, 2 * bins, H, W).
            state: None.

        Returns:
            "loss", the sum of "loss_patch", "loss_context" and "loss_image"; and None.
        """
        frames = random_crops(batch["histograms"][:, -1:], self.crop)
        large = [random_views(frames, self.large, GLOBAL) for _ in range(2)]
        small = [random_views(frames, self.small, LOCAL) for _ in range(self.local_views)]
        units = (self.large[0] // STRIDE, self.large[1] // STRIDE)
        whole, own = rows(len(frames))
        seeds = torch.randint(2**31, (2, whole))[:, own].tolist()
        masks = [torch.stack([draw_mask(seed, *units, self.mask_ratio) for seed in row]) for row in seeds]
        hidden = [mask.to(frames.device) for mask in masks]
        with torch.no_grad():
            taught = [self._see(self.teacher, view) for view in large]
        seen = [self._see(self.student, view, mask) for view, mask in zip(large, hidden, strict=True)]
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
    def _temperature(self) -> float:
        start, end = TEACHER_TEMPERATURES
        return start + (end - start) * min(1.0, float(self.share) / WARMUP_SHARE)

    def _assigned(self, logits: Tensor) -> Tensor:
        """Assignments of the teacher's logits (N, K), balanced over the batch of all processes."""
        return sinkhorn(logits, self._temperature)

    def _patch_loss(self, seen: list[_Seen], taught: list[_Seen], hidden: list[Tensor]) -> Tensor:
        # Prototypes are named, and balanced, at the hidden patches alone, as in the published model/pretrain_model.py.
        logits, wanted = (
            network.patches(torch.cat([each.tokens[mask.flatten(1)] for each, mask in zip(views, hidden, strict=True)]))
            for network, views in ((self.student, seen), (self.teacher, taught))
        )
        found = agreement(logits, self._assigned(wanted), STUDENT_TEMPERATURE)
        return averaged(found.sum(), len(found))

    def _context_loss(self, seen: list[_Seen], taught: list[_Seen]) -> Tensor:
        logits: list[Tensor] = []
        wanted: list[Tensor] = []
        for student, teacher in zip(seen, taught, strict=True):
            nearest = cluster(teacher.tokens, self.clusters)
            for network, each, kept in ((self.student, student, logits), (self.teacher, teacher, wanted)):
                scores = in_fp32(network.attention)(each.tokens).squeeze(-1)
                contexts, there = pool(each.tokens, scores, nearest, self.clusters)
                kept.append(network.contexts(contexts[there]))
        found = agreement(torch.cat(logits), self._assigned(torch.cat(wanted)), STUDENT_TEMPERATURE)
        return averaged(found.sum(), len(found))

    def _image_loss(self, seen: list[_Seen], taught: list[_Seen]) -> Tensor:
        assigned = self._assigned(torch.cat([each.image for each in taught])).chunk(len(taught))
        pairs = [
            agreement(student.image, wanted, STUDENT_TEMPERATURE).mean()
            for number, wanted in enumerate(assigned)
            for place, student in enumerate(seen)
            if place != number
        ]
        return torch.stack(pairs).mean()


@dataclass(frozen=True)
class DistillationSettings:
    """See `DenseDistillation`."""

    hidden: int
    bottleneck: int
    prototypes: int
    clusters: int
    local_views: int
    crop: int
    large: int
    small: int
    mask_ratio: float
    momentum: float


@OBJECTIVES.register_module(name="ecddp")
class DenseDistillationTask(EventObjective):
    """The second row of the paper's table of objectives, and the pre-training of ECDDP itself."""

    settings_type = DistillationSettings
    loss_is = "sum of patch, context and image loss"

    def network(self) -> DenseDistillation:
        """The objective with a fresh backbone."""
        own = self.own
        return DenseDistillation(
            self.swin(),
            own.hidden,
            own.bottleneck,
            own.prototypes,
            own.clusters,
            own.local_views,
            own.mask_ratio,
            own.momentum,
            own.crop,
            own.large,
            own.small,
        )

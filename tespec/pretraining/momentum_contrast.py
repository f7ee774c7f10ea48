"""MoBY: two views of an image, a slow encoder, and a queue of what it saw before."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tespec.core.distributed import all_gather_rows
from tespec.core.registry import OBJECTIVES
from tespec.models.backbone import Backbone
from tespec.pretraining.contrast import info_nce, pooled, projector
from tespec.pretraining.momentum import follow, momentum_at, teacher_of
from tespec.pretraining.objective import ImageObjective


class MomentumContrast(nn.Module):
    """Symmetric contrast of Xie et al., "Self-Supervised Learning with Swin Transformers" (2021).

    Args:
        backbone: what is pre-trained, the online encoder.
        hidden: width of projectors and predictor.
        out: dimensions that are compared.
        queue: number of keys kept as negatives, for each of the two views.
        temperature: of the softmax over cosines.
        momentum: of the slow encoder at the start; it rises to 1.
    """

    draws_alike = True  # of what stochastic depth draws for the whole batch, each process takes its own
    queues: Tensor
    place: Tensor

    def __init__(
        self, backbone: Backbone, hidden: int, out: int, queue: int, temperature: float, momentum: float
    ) -> None:
        super().__init__()
        self.backbone = backbone
        self.projector = projector(backbone.channels[-1], hidden, out)
        self.predictor = projector(out, hidden, out)
        self.slow_backbone, self.slow_projector = teacher_of(backbone), teacher_of(self.projector)
        self.temperature, self.momentum = temperature, momentum
        self.register_buffer("queues", normalize(torch.randn(2, queue, out), dim=-1))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def after_step(self, share: float) -> None:
        """Let the slow encoder follow; `share` of the training is done."""
        momentum = momentum_at(self.momentum, share)
        follow(self.slow_backbone, self.backbone, momentum)
        follow(self.slow_projector, self.projector, momentum)

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step; in training the keys go into the queues.

        Args:
            batch: views (B, 2, C, H, W) float32.
            state: None.

        Returns:
            "loss", and "found", the share of views whose other view is told from the queue; and None.
        """
        views = batch["views"].transpose(0, 1)
        queries = [self.predictor(self.projector(_whole(self.backbone, view))) for view in views]
        with torch.no_grad():
            keys = [normalize(self.slow_projector(_whole(self.slow_backbone, view)), dim=1) for view in views]
        parts = [
            info_nce(queries[mine], keys[other], self.temperature, self.queues[other].clone())
            for mine, other in ((0, 1), (1, 0))
        ]
        if self.training:
            self._keep(torch.stack([all_gather_rows(each)[0] for each in keys]))
        return {"loss": parts[0][0] + parts[1][0], "found": (parts[0][1] + parts[1][1]) / 2}, None

    @torch.no_grad()
    def _keep(self, keys: Tensor) -> None:
        """Put keys (2, B, D) in the place of the oldest."""
        length = self.queues.shape[1]
        places = (self.place + torch.arange(keys.shape[1], device=keys.device)) % length
        self.queues[:, places] = keys
        self.place.copy_((self.place + keys.shape[1]) % length)


def _whole(backbone: Backbone, images: Tensor) -> Tensor:
    """Mean (B, C) of the last stage over images (B, C, H, W)."""
    features, _ = backbone(images.unsqueeze(1))
    return pooled(features[-1])


@dataclass(frozen=True)
class MomentumSettings:
    """See `MomentumContrast` and `tespec.datasets.images.ViewRule`; `size` is a view's side in px."""

    size: int
    channels: int
    scale: tuple[float, float]
    jitter: float
    hidden: int
    out: int
    queue: int
    temperature: float
    momentum: float


@OBJECTIVES.register_module(name="momentum_contrast")
class MomentumContrastTask(ImageObjective):
    """Two views of each image."""

    settings_type = MomentumSettings
    loss_is = "sum over both views of the contrast with the other view and the queue"
    views = 2

    def network(self) -> MomentumContrast:
        """The objective with a fresh backbone."""
        own = self.own
        return MomentumContrast(self.backbone(), own.hidden, own.out, own.queue, own.temperature, own.momentum)

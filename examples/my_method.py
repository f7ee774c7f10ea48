"""BYOL on frames of events (Grill et al., "Bootstrap Your Own Latent", NeurIPS 2020).

The online network predicts the projection that a momentum encoder has of another crop.
"""

import torch
from pydantic.dataclasses import dataclass
from torch.nn.functional import cosine_similarity

from tespec.core.settings import Downsample, Fraction, Optimisation, PositiveInt, Pretraining
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import global_avg_pool, momentum_copy, momentum_update, projector
from tespec.pretraining.method import EventMethod, TableRow
from tespec.pretraining.views import random_views
from tespec.registry import METHODS


@dataclass(frozen=True)
class BYOLSettings:
    hidden: PositiveInt = 4096  # width of projector and predictor
    out: PositiveInt = 256  # embedding width
    scale: tuple[Fraction, Fraction] = (0.08, 1.0)  # minimum and maximum area of a crop
    momentum: Fraction = 0.99  # initial momentum of the momentum encoder; rises to 1


@METHODS.register_module(name="byol")
class BYOL(EventMethod):
    row = TableRow(
        title="BYOL",
        group="Pre-trained on events",
        pretraining_data="1Mpx",
        citation="Grill et al.: Bootstrap Your Own Latent, NeurIPS 2020",
        summary="Predicts the momentum encoder's projection of another crop.",
    )
    min_batch_size = 2  # projector and predictor normalise over the batch
    recipe = Pretraining(
        objective=BYOLSettings(),
        dataset="1mpx",
        batch_size=512,
        downsample=Downsample("auto", "nearest", to_width=640),
        optimisation=Optimisation(peak_lr=1.0e-3, steps=100_000, warmup_steps=1_000),
    )

    def __init__(self, cfg, backbone):
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone
        self.projector = projector(backbone.channels[-1], cfg.hidden, cfg.out)
        self.predictor = projector(cfg.out, cfg.hidden, cfg.out)
        self.momentum_backbone = momentum_copy(self.backbone)
        self.momentum_projector = momentum_copy(self.projector)

    def loss(self, batch, state):
        frames = batch["histograms"][:, -1:]  # (B, 1, 2 * bins, H, W)
        (crop_a, crop_b), _ = random_views(frames, 2, frames.shape[-2:], self.cfg.scale)
        pred_a = self.predictor(self.projector(global_avg_pool(self.backbone, crop_a)))
        pred_b = self.predictor(self.projector(global_avg_pool(self.backbone, crop_b)))
        with torch.no_grad():
            target_a = self.momentum_projector(global_avg_pool(self.momentum_backbone, crop_a))
            target_b = self.momentum_projector(global_avg_pool(self.momentum_backbone, crop_b))
        return {"loss": cosine_loss(pred_a, target_b) + cosine_loss(pred_b, target_a)}, None

    def after_step(self, progress):
        momentum_update(self.momentum_backbone, self.backbone, self.cfg.momentum, progress)
        momentum_update(self.momentum_projector, self.projector, self.cfg.momentum, progress)


@in_fp32
def cosine_loss(prediction, target):
    return 2 - 2 * cosine_similarity(prediction, target, dim=1).mean()

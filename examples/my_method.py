"""BYOL on frames of events: predict a momentum encoder's projection of another view (Grill et al., NeurIPS 2020)."""

import torch
from pydantic.dataclasses import dataclass
from torch.nn.functional import cosine_similarity

from tespec.core.settings import Downsample, Optimisation, PositiveInt, Pretraining, Share
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import ema_update_, global_avg_pool, momentum_copy, projector
from tespec.pretraining.method import EventMethod
from tespec.pretraining.views import random_views
from tespec.registry import METHODS


@dataclass(frozen=True)
class ByolSettings:
    hidden: PositiveInt = 4096  # width of projector and predictor
    out: PositiveInt = 256  # embedding width
    scale: tuple[Share, Share] = (0.08, 1.0)  # minimum and maximum share of the frame in a view
    momentum: Share = 0.99  # initial momentum of the momentum encoder; rises to 1


@METHODS.register_module(name="byol")
class BYOL(EventMethod):
    title = "BYOL"
    group = "Pre-trained on events"
    pretraining_data = "1Mpx"
    citation = "Grill et al.: Bootstrap Your Own Latent, NeurIPS 2020"
    summary = "Predicts the momentum encoder's projection of another view."
    min_batch_size = 2  # projector and predictor normalise over the batch
    recipe = Pretraining(
        objective=ByolSettings(),
        dataset="1mpx",
        batch_size=512,
        downsample=Downsample("auto", "nearest", to_width=640),
        optimisation=Optimisation(peak_lr=1.0e-3, steps=100_000, warmup_steps=1_000),
    )

    def __init__(self, own, backbone):
        super().__init__()
        self.own, self.backbone = own, backbone
        self.project = projector(backbone.channels[-1], own.hidden, own.out)
        self.predict = projector(own.out, own.hidden, own.out)
        self.slow_backbone, self.slow_project = momentum_copy(backbone), momentum_copy(self.project)

    def loss(self, batch, state):
        frames = batch["histograms"][:, -1:]
        views, _ = random_views(frames, 2, frames.shape[-2:], self.own.scale)
        predicted = [
            self.predict(self.project(global_avg_pool(self.backbone, view))) for view in views
        ]
        with torch.no_grad():
            wanted = [
                self.slow_project(global_avg_pool(self.slow_backbone, view)) for view in views
            ]
        return {"loss": distance(predicted[0], wanted[1]) + distance(predicted[1], wanted[0])}, None

    def after_step(self, share):
        ema_update_(self.slow_backbone, self.backbone, self.own.momentum, share)
        ema_update_(self.slow_project, self.project, self.own.momentum, share)


@in_fp32
def distance(predicted, wanted):
    return 2 - 2 * cosine_similarity(predicted, wanted, dim=1).mean()

"""MoBY: self-supervised Swin on images (Xie et al., "Self-Supervised Learning with Swin Transformers", 2021).

Two views of an image have to find each other among a queue of others, by a slow encoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn.functional import normalize

from tespec.core.distributed import all_gather_rows
from tespec.core.registry import METHODS
from tespec.core.settings import Clip, Count, Decay, Optimisation, Positive, Pretraining, Share
from tespec.datasets.images import as_input
from tespec.models.backbone import Backbone
from tespec.pretraining.contrast import info_nce, projector, whole
from tespec.pretraining.method import ImageMethod, ViewSettings
from tespec.pretraining.momentum import follow, momentum_at, teacher_of


@dataclass(frozen=True)
class MobySettings(ViewSettings):
    """Settings of the views and of the contrast."""

    hidden: Count  # width of projectors and predictor
    out: Count  # dimensions that are compared
    queue: Count  # keys kept as negatives, for each of the two views
    temperature: Positive  # of the softmax over cosines
    momentum: Share  # of the slow encoder at the start; it rises to 1


@METHODS.register_module(name="moby")
class Moby(ImageMethod):
    """Symmetric contrast of two views of each image.

    Args:
        own: its settings.
        backbone: the online encoder, which is pre-trained.
    """

    title = "MoBY"
    group = "Pre-trained on images"
    pretraining_data = "ImageNet-1k"
    citation = "Xie et al.: Self-Supervised Learning with Swin Transformers, 2021"
    licence = "MIT (SwinTransformer/Transformer-SSL)"
    weights = "moby_swin_t_300ep_pretrained.pth of SwinTransformer/Transformer-SSL, whose links to DeiT-S are swapped"
    summary = (
        "Two views of an image have to find each other among a queue of others, by a slow encoder; patch embedding and "
        "ConvLSTMs as for ImageNet."
    )
    loss_is = "sum over both views of the contrast with the other view and the queue"
    views = 2
    deviations = (  # from SwinTransformer/Transformer-SSL, data/build.py and models/
        "MoBY's views differ in crop, flip, brightness and contrast, but not in saturation, hue, greyness, blur or "
        "solarisation",
        "MoBY's features are pooled without Swin's last normalisation",
    )
    # Swin-T on ImageNet-1k. Values: SwinTransformer/Transformer-SSL, the file named beside each.
    recipe = Pretraining(
        objective=MobySettings(  # moby_main.py and config.py
            size=224,
            channels=3,
            scale=(0.08, 1.0),
            jitter=0.4,  # hue, saturation, blur and solarisation are left out
            hidden=4096,
            out=256,
            queue=4096,
            temperature=0.2,
            momentum=0.99,
        ),
        dataset="objects",
        batch_size=512,  # get_started.md: 8 GPUs, 64 images on each
        drop_path=0.2,  # of the online encoder alone; configs/moby_swin_tiny.yaml, ONLINE_DROP_PATH_RATE
        optimisation=Optimisation(
            optimizer="AdamW",  # config.py
            peak_lr=1.0e-3,  # configs/moby_swin_tiny.yaml, at a batch of 512 (moby_main.py)
            schedule="cosine",  # config.py
            start_divisor=2000,  # from 5e-7; config.py, WARMUP_LR
            end_divisor=200,  # to 5e-6; config.py, MIN_LR
            steps=750000,  # 300 epochs; configs/moby_swin_tiny.yaml
            warmup_steps=12500,  # 5 epochs; configs/moby_swin_tiny.yaml
            clip=Clip("norm", 5.0),  # config.py, CLIP_GRAD; moby_main.py
            # 0.05: configs/moby_swin_tiny.yaml. Exempt: microsoft/Swin-Transformer, optimizer.py, where the network
            # adds names to the vectors; models/moby.py names none, so its tables of position biases decay.
            weight_decay=Decay(0.05, 0.05, ("vectors",)),
        ),
    )
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sample": {
            "batch_size": 32,
            "segments": 1,
            "optimisation": {"peak_lr": 1.0e-3},
            "objective": {"size": 64, "channels": 1, "hidden": 256, "out": 64, "queue": 1024},
        },
        "small": {"batch_size": 16, "optimisation": {"peak_lr": 1.25e-4}},  # the best of four by validation loss
    }
    queues: Tensor
    place: Tensor

    def __init__(self, own: MobySettings, backbone: Backbone) -> None:
        super().__init__()
        self.own = own
        self.backbone = backbone
        self.projector = projector(backbone.channels[-1], own.hidden, own.out)
        self.predictor = projector(own.out, own.hidden, own.out)
        self.slow_backbone, self.slow_projector = teacher_of(backbone), teacher_of(self.projector)
        self.register_buffer("queues", normalize(torch.randn(2, own.queue, own.out), dim=-1))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step; in training the keys go into the queues.

        Args:
            batch: views (B, 2, C, H, W) uint8 and their color jitter (B, 2, 2); see `as_input`.
            state: None.

        Returns:
            "loss", and "found", the share of views whose other view is told from the queue; and None.
        """
        views = as_input(batch["views"], batch.get("color_jitter")).split(1, dim=1)
        queries = [self.predictor(self.projector(whole(self.backbone, view))) for view in views]
        with torch.no_grad():
            keys = [normalize(self.slow_projector(whole(self.slow_backbone, view)), dim=1) for view in views]
        (one, found_one), (two, found_two) = (
            info_nce(queries[mine], keys[other], self.own.temperature, self.queues[other].clone())
            for mine, other in ((0, 1), (1, 0))
        )
        if self.training:
            self._keep(torch.stack([all_gather_rows(each) for each in keys]))
        return {"loss": one + two, "found": (found_one + found_two) / 2}, None

    @torch.no_grad()
    def _keep(self, keys: Tensor) -> None:
        """Put keys (2, B, D) in the place of the oldest."""
        length = self.queues.shape[1]
        places = (self.place + torch.arange(keys.shape[1], device=keys.device)) % length
        self.queues[:, places] = keys
        self.place.copy_((self.place + keys.shape[1]) % length)

    def after_step(self, share: float) -> None:
        """Let the slow encoder follow; `share` of the training is done."""
        momentum = momentum_at(self.own.momentum, share)
        follow(self.slow_backbone, self.backbone, momentum)
        follow(self.slow_projector, self.projector, momentum)

"""MoBY: self-supervised Swin on images (Xie et al., "Self-Supervised Learning with Swin Transformers", 2021)."""

import random
from typing import Any

import tespec.core.compat  # noqa: F401  # before timm and torchvision

import torch
from PIL import Image, ImageFilter
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import normalize
from torchvision.transforms import v2
from typing_extensions import Self

from tespec.core.distributed import all_gather_rows
from tespec.core.errors import UserError
from tespec.core.settings import (
    Clip,
    Decay,
    Optimisation,
    PositiveFloat,
    PositiveInt,
    Pretraining,
    Share,
)
from tespec.datasets.images import ViewOf, as_input
from tespec.models.backbone import Backbone
from tespec.pretraining.contrast import (
    ema_update_,
    global_avg_pool,
    info_nce,
    momentum_copy,
    projector,
)
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import ImageMethod, TableRow, ViewSettings
from tespec.registry import METHODS


def blurred(image: Image.Image) -> Image.Image:
    """Blur by Pillow's Gaussian of 0.1 to 2 px (Transformer-SSL, data/build.py, GaussianBlur)."""
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


@dataclass(frozen=True)
class MobySettings(ViewSettings):
    """Settings of views and contrast; values from moby_main.py and config.py."""

    hidden: PositiveInt = 4096  # width of projectors and predictor
    out: PositiveInt = 256  # embedding width
    queue: PositiveInt = 4096  # keys kept as negatives, for each of the two views
    temperature: PositiveFloat = 0.2  # of the softmax over cosines
    momentum: Share = 0.99  # initial momentum of the momentum encoder; rises to 1


@METHODS.register_module(name="moby")
class Moby(ImageMethod):
    """Each of two views of an image is matched with the other among a queue of keys from a momentum encoder."""

    row = TableRow(
        title="MoBY",
        group="Pre-trained on images",
        pretraining_data="ImageNet-1k",
        citation="Xie et al.: Self-Supervised Learning with Swin Transformers, 2021",
        licence="MIT (SwinTransformer/Transformer-SSL)",
        weights=(
            "moby_swin_t_300ep_pretrained.pth of SwinTransformer/Transformer-SSL, whose links to "
            "DeiT-S are swapped"
        ),
        summary=(
            "Matches two views of an image against a queue; patch embedding and ConvLSTMs as for "
            "`imagenet`."
        ),
    )
    version = 3
    # Swin-T on ImageNet-1k. Values from SwinTransformer/Transformer-SSL, the file named next to
    # each.
    recipe = Pretraining(
        objective=MobySettings(),
        dataset="objects",
        batch_size=512,  # get_started.md: 8 GPUs, 64 images on each
        # of the online encoder alone; configs/moby_swin_tiny.yaml, ONLINE_DROP_PATH_RATE
        drop_path=0.2,
        optimisation=Optimisation(
            # configs/moby_swin_tiny.yaml, at a batch of 512 (moby_main.py); as AdamW, config.py
            peak_lr=1.0e-3,
            schedule="cosine_moby",
            start_divisor=2000,  # from 5e-7; config.py, WARMUP_LR
            end_divisor=200,  # to 5e-6; config.py, MIN_LR
            steps=750_600,  # 300 epochs of 2,502 complete batches; configs/moby_swin_tiny.yaml
            warmup_steps=12_510,  # 5 epochs; configs/moby_swin_tiny.yaml
            clip=Clip("norm", 5.0),  # config.py, CLIP_GRAD; moby_main.py
            # 0.05: configs/moby_swin_tiny.yaml. Exempt: microsoft/Swin-Transformer, optimizer.py:
            # vectors and parameters that the network names; models/moby.py names none, so its
            # position bias tables decay.
            weight_decay=Decay(0.05, 0.05, ("vectors",)),
        ),
    )
    queues: Tensor
    place: Tensor

    def __init__(self, own: MobySettings, backbone: Backbone) -> None:
        super().__init__()
        self.own, self.backbone = own, backbone
        self.norm = nn.LayerNorm(backbone.channels[-1])
        self.projector = projector(backbone.channels[-1], own.hidden, own.out)
        self.predictor = projector(own.out, own.hidden, own.out)
        self.slow_backbone, self.slow_norm = momentum_copy(backbone), momentum_copy(self.norm)
        self.slow_projector = momentum_copy(self.projector)
        self.register_buffer("queues", normalize(torch.randn(2, own.queue, own.out), dim=-1))
        self.register_buffer("place", torch.zeros((), dtype=torch.int64))

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Return "loss", and "found", the share of views matched with their other view instead of the queue."""
        views = as_input(batch["views"]).split(1, dim=1)
        queries = [
            self.predictor(self.projector(global_avg_pool(self.backbone, view, self.norm)))
            for view in views
        ]
        with torch.no_grad():
            slow = [global_avg_pool(self.slow_backbone, view, self.slow_norm) for view in views]
            keys = [normalize(self.slow_projector(each), dim=1) for each in slow]
        (one, found_one), (two, found_two) = (
            info_nce(queries[mine], keys[other], self.own.temperature, self.queues[other].clone())
            for mine, other in ((0, 1), (1, 0))
        )
        if self.training:
            self._keep(torch.stack([all_gather_rows(each) for each in keys]))
        return {"loss": one + two, "found": (found_one + found_two) / 2}, None

    def _keep(self, keys: Tensor) -> None:
        """Replace the oldest keys of the queues with keys (2, B, D)."""
        places = (self.place + torch.arange(keys.shape[1], device=keys.device)) % self.own.queue
        self.queues[:, places] = keys
        self.place.copy_((self.place + keys.shape[1]) % self.own.queue)

    def after_step(self, share: float) -> None:
        ema_update_(self.slow_backbone, self.backbone, self.own.momentum, share)
        ema_update_(self.slow_norm, self.norm, self.own.momentum, share)
        ema_update_(self.slow_projector, self.projector, self.own.momentum, share)

    @classmethod
    def views(cls, own: MobySettings, training: bool = True) -> tuple[ViewOf, ViewOf]:
        """BYOL's two random views, also in validation, where equal views would match trivially (data/build.py)."""

        def view(blur: float, solarise: float) -> ViewOf:
            steps = [
                v2.RandomResizedCrop(own.size, own.scale),
                v2.RandomHorizontalFlip(),
                v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
                v2.RandomGrayscale(p=0.2),
                v2.RandomApply([v2.Lambda(blurred)], p=blur),
                v2.RandomSolarize(threshold=128, p=solarise),
            ]
            return v2.Compose(
                [*steps, *([v2.Grayscale()] if own.channels == 1 else []), v2.PILToTensor()]
            )

        return view(1.0, 0.0), view(0.1, 0.2)

    @classmethod
    def from_settings(cls, own: Any, settings: Pretraining, data: PretrainData) -> Self:
        if settings.batch_size > own.queue:
            raise UserError(
                "batch_size",
                f"{settings.batch_size} images do not fit into the queue of {own.queue}",
                "use fewer, or increase objective.queue",
            )
        return super().from_settings(own, settings, data)

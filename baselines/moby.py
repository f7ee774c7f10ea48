"""MoBY: contrastive pre-training of Swin on images (Xie et al., 2021, arXiv:2105.04553).

Files in comments are those of SwinTransformer/Transformer-SSL.
"""

import random

import tespec.core.compat  # noqa: F401  # before timm and torchvision

import torch
from PIL import Image, ImageFilter
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import normalize
from torchvision.transforms import v2

from tespec.core.distributed import all_gather_rows
from tespec.core.errors import UserError
from tespec.core.settings import (
    Decay,
    Fraction,
    GradientClipping,
    Optimisation,
    PositiveFloat,
    PositiveInt,
    Pretraining,
)
from tespec.datasets.images import ViewTransform, normalise
from tespec.models.backbone import Backbone
from tespec.pretraining.contrast import (
    global_avg_pool,
    info_nce,
    momentum_copy,
    momentum_update,
    projector,
)
from tespec.pretraining.method import (
    Batch,
    CropSettings,
    ImageMethod,
    Losses,
    PretrainData,
    TableRow,
)
from tespec.registry import METHODS


def blurred(image: Image.Image) -> Image.Image:
    """Blur by Pillow's Gaussian of 0.1 to 2 px (data/build.py, GaussianBlur)."""
    return image.filter(ImageFilter.GaussianBlur(random.uniform(0.1, 2.0)))


def byol_transform(cfg: CropSettings, blur: float, solarise: float) -> ViewTransform:
    """Compose BYOL's random transform of an image (data/build.py).

    Args:
        cfg: output size and channels, and scale of the crop.
        blur: probability of a Gaussian blur.
        solarise: probability of inverting pixels of at least 128.

    Returns:
        Transform from an RGB image to a tensor (C, size, size) uint8.
    """
    return v2.Compose(
        [
            v2.RandomResizedCrop(cfg.size, cfg.scale),
            v2.RandomHorizontalFlip(),
            v2.RandomApply([v2.ColorJitter(0.4, 0.4, 0.2, 0.1)], p=0.8),
            v2.RandomGrayscale(p=0.2),
            v2.RandomApply([v2.Lambda(blurred)], p=blur),
            v2.RandomSolarize(threshold=128, p=solarise),
            v2.Grayscale() if cfg.channels == 1 else v2.Identity(),
            v2.PILToTensor(),
        ]
    )


@dataclass(frozen=True)
class MobySettings(CropSettings):
    """Settings of views and contrast; defaults of moby_main.py and config.py."""

    hidden: PositiveInt = 4096  # width of projectors and predictor
    out: PositiveInt = 256  # embedding width
    queue: PositiveInt = 4096  # negatives: past keys of either view
    temperature: PositiveFloat = 0.2  # of the softmax over cosines
    momentum: Fraction = 0.99  # initial momentum of the momentum encoder; rises to 1


@METHODS.register_module(name="moby")
class Moby(ImageMethod):
    """Contrast two views of an image against queues of past keys from a momentum encoder."""

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
            clip=GradientClipping("norm", 5.0),  # config.py, CLIP_GRAD; moby_main.py
            # 0.05: configs/moby_swin_tiny.yaml. Exempt: microsoft/Swin-Transformer, optimizer.py:
            # vectors and parameters that the network names; models/moby.py names none, so its
            # position bias tables decay.
            weight_decay=Decay(0.05, 0.05, ("vectors",)),
        ),
    )
    queue: Tensor
    queue_ptr: Tensor

    def __init__(self, cfg: MobySettings, backbone: Backbone) -> None:
        super().__init__()
        self.cfg = cfg
        self.backbone = backbone
        self.norm = nn.LayerNorm(backbone.channels[-1])
        self.projector = projector(backbone.channels[-1], cfg.hidden, cfg.out)
        self.predictor = projector(cfg.out, cfg.hidden, cfg.out)
        self.momentum_backbone = momentum_copy(backbone)
        self.momentum_norm = momentum_copy(self.norm)
        self.momentum_projector = momentum_copy(self.projector)
        # keys of the first and of the second views, (2, K, D)
        self.register_buffer("queue", normalize(torch.randn(2, cfg.queue, cfg.out), dim=-1))
        self.register_buffer("queue_ptr", torch.zeros((), dtype=torch.int64))

    def loss(self, batch: Batch, state: None = None) -> tuple[Losses, None]:
        """Contrast the query of an image with its key from the other view, against a queue.

        Args:
            batch: "views" (B, 2, C, H, W), two of every image.
            state: unused.

        Returns:
            "loss", the sum over both directions, and "accuracy", the accuracy of the matches.
        """
        x_a, x_b = normalise(batch["views"]).split(1, dim=1)  # (B, 1, C, H, W) float32
        query_a = self._query(x_a)  # (B, D)
        query_b = self._query(x_b)
        key_a = self._key(x_a)
        key_b = self._key(x_b)
        queue_a, queue_b = self.queue.clone()  # (K, D)
        loss_ab, accuracy_ab = info_nce(query_a, key_b, self.cfg.temperature, queue_b)
        loss_ba, accuracy_ba = info_nce(query_b, key_a, self.cfg.temperature, queue_a)
        if self.training:
            self._enqueue(torch.stack([all_gather_rows(key_a), all_gather_rows(key_b)]))
        return {"loss": loss_ab + loss_ba, "accuracy": (accuracy_ab + accuracy_ba) / 2}, None

    def _query(self, x: Tensor) -> Tensor:
        return self.predictor(self.projector(global_avg_pool(self.backbone, x, self.norm)))

    @torch.no_grad()
    def _key(self, x: Tensor) -> Tensor:
        features = global_avg_pool(self.momentum_backbone, x, self.momentum_norm)
        return normalize(self.momentum_projector(features), dim=1)

    def _enqueue(self, keys: Tensor) -> None:
        """Replace the oldest keys of the queues by keys (2, B, D)."""
        positions = self.queue_ptr + torch.arange(keys.shape[1], device=keys.device)
        self.queue[:, positions % self.cfg.queue] = keys
        self.queue_ptr.copy_((self.queue_ptr + keys.shape[1]) % self.cfg.queue)

    def after_step(self, progress: float) -> None:
        momentum_update(self.momentum_backbone, self.backbone, self.cfg.momentum, progress)
        momentum_update(self.momentum_norm, self.norm, self.cfg.momentum, progress)
        momentum_update(self.momentum_projector, self.projector, self.cfg.momentum, progress)

    @classmethod
    def views(cls, cfg: MobySettings, training: bool = True) -> tuple[ViewTransform, ViewTransform]:
        # random in validation too, where equal views would match trivially
        return byol_transform(cfg, 1.0, 0.0), byol_transform(cfg, 0.1, 0.2)

    @classmethod
    def from_data(cls, data: PretrainData) -> "Moby":
        count = data.settings.batch_size
        if count > data.cfg.queue:
            raise UserError(
                "batch_size",
                f"{count} images do not fit into the queue of {data.cfg.queue}",
                "use fewer, or increase objective.queue",
            )
        return super().from_data(data)

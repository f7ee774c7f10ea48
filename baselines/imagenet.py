"""ImageNet, supervised: the weights that most networks start from (Liu et al., "Swin Transformer", ICCV 2021)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tespec.core.errors import UserError
from tespec.core.registry import METHODS
from tespec.core.settings import Clip, Decay, Optimisation, Pretraining, Share
from tespec.datasets.images import as_input
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import pooled
from tespec.pretraining.data import PretrainData
from tespec.pretraining.method import ImageMethod, ViewSettings

IMAGENET_CLASSES = 1000  # without data


@dataclass(frozen=True)
class ImagenetSettings(ViewSettings):
    """Settings of the view and of the loss."""

    smoothing: Share  # of the label, spread over all classes


@METHODS.register_module(name="imagenet")
class Imagenet(ImageMethod):
    """Cross-entropy of a linear layer on the mean of the last stage.

    Args:
        own: its settings.
        backbone: what is pre-trained.
        classes: number of classes.
    """

    title = "RGB Supervised"
    group = "Pre-trained on images"
    pretraining_data = "ImageNet-1k"
    citation = "Liu et al.: Swin Transformer, ICCV 2021"
    licence = "MIT (microsoft/Swin-Transformer)"
    weights = (
        "swin_tiny_patch4_window7_224.pth of microsoft/Swin-Transformer, or timm's swin_tiny_patch4_window7_224.ms_in1k"
    )
    summary = "Classification of images; the patch embedding is repeated over the bins, ConvLSTMs start at random."
    loss_is = "cross-entropy with label smoothing"
    views = 1
    deviations = (  # from microsoft/Swin-Transformer, config.py (AUG) and models/
        "Swin's classification is trained without mixup, cutmix, RandAugment and random erasing",
        "Swin's last normalisation comes after pooling instead of before it",
    )
    # Swin-T on ImageNet-1k. Values: microsoft/Swin-Transformer, the file named beside each; learning rates are those of
    # its config.py times 1024 / 512 (main.py).
    recipe = Pretraining(
        objective=ImagenetSettings(size=224, channels=3, scale=(0.08, 1.0), jitter=0.4, smoothing=0.1),
        dataset="objects",
        batch_size=1024,  # get_started.md: 8 GPUs, 128 images on each
        drop_path=0.2,  # configs/swin_tiny_patch4_window7_224.yaml
        optimisation=Optimisation(
            optimizer="AdamW",  # config.py
            peak_lr=1.0e-3,  # config.py, BASE_LR
            schedule="cosine",  # config.py
            start_divisor=1000,  # from 1e-6; config.py, WARMUP_LR
            end_divisor=100,  # to 1e-5; config.py, MIN_LR
            steps=375000,  # 300 epochs; config.py
            warmup_steps=25000,  # 20 epochs; config.py
            clip=Clip("norm", 5.0),  # config.py, CLIP_GRAD
            # 0.05: config.py. Exempt: optimizer.py, and models/swin_transformer.py, no_weight_decay_keywords.
            weight_decay=Decay(0.05, 0.05, ("vectors", "positions")),
        ),
    )
    profiles: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "sample": {
            "batch_size": 32,
            "segments": 1,
            "optimisation": {"peak_lr": 1.0e-3},
            "objective": {"size": 64, "channels": 1},
        },
        "small": {"batch_size": 16, "optimisation": {"peak_lr": 1.25e-4}},  # the best of four by validation loss
    }

    def __init__(self, own: ImagenetSettings, backbone: Backbone, classes: int) -> None:
        super().__init__()
        self.own = own
        self.backbone = backbone
        self.norm = nn.LayerNorm(backbone.channels[-1])
        self.classify = nn.Linear(backbone.channels[-1], classes)

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step.

        Args:
            batch: views (B, 1, C, H, W) uint8, their color jitter (B, 1, 2), see `as_input`, and labels (B,) int64.
            state: None.

        Returns:
            "loss", and "accuracy", the share of images that is right; and None.
        """
        features, _ = self.backbone(as_input(batch["views"], batch.get("color_jitter")))
        return self._losses(features[-1], batch["labels"]), None

    @in_fp32
    def _losses(self, last: Tensor, labels: Tensor) -> dict[str, Tensor]:
        logits = self.classify(self.norm(pooled(last)))
        loss = cross_entropy(logits, labels, label_smoothing=self.own.smoothing)
        return {"loss": loss, "accuracy": (logits.argmax(1) == labels).float().mean().detach()}

    @classmethod
    def from_settings(cls, own: Any, settings: Pretraining, data: PretrainData) -> Self:
        """The method with a randomly initialised backbone and as many classes as the data has folders.

        Raises:
            UserError: there is only one.
        """
        images = getattr(data, "images", None)
        classes = len(images.classes) if images else IMAGENET_CLASSES
        if classes < 2:
            what = f"its images lie in {classes} folder"
            raise UserError(data.root, what, "give a folder with one folder of images for each class")
        return cls(own, cls.new_backbone(settings, data), classes)

    @torch.no_grad()
    def validate(self, data: PretrainData, device: torch.device) -> dict[str, float]:
        """Loss and feature metrics, and the share of validation images that is right in percent."""
        metrics = super().validate(data, device)
        right = count = 0.0
        for batch in data.val_batches(device):
            losses, _ = self.loss(batch, None)
            right += losses["accuracy"].item() * len(batch["labels"])
            count += len(batch["labels"])
        return metrics | {"accuracy": 100 * right / count}

"""ImageNet, supervised: the weights that most networks start from (Liu et al., "Swin Transformer", ICCV 2021)."""

from __future__ import annotations

from typing import Any

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from tespec.core.errors import UserError
from tespec.core.registry import METHODS, OBJECTIVES
from tespec.core.settings import Share
from tespec.datasets.images import as_input
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32
from tespec.pretraining.contrast import pooled
from tespec.pretraining.method import Method
from tespec.pretraining.objective import ImageObjective, ViewSettings


@METHODS.register_module(name="imagenet")
class Imagenet(Method):
    """A row of the paper's tables."""

    title = "RGB Supervised"
    group = "Pre-trained on images"
    pretraining_data = "ImageNet-1k"
    recipe = "imagenet"
    citation = "Liu et al.: Swin Transformer, ICCV 2021"
    licence = "MIT (microsoft/Swin-Transformer)"
    weights = (
        "swin_tiny_patch4_window7_224.pth of microsoft/Swin-Transformer, or timm's swin_tiny_patch4_window7_224.ms_in1k"
    )
    summary = "Classification of images; the patch embedding is repeated over the bins, ConvLSTMs start at random."


@dataclass(frozen=True)
class ClassificationSettings(ViewSettings):
    """Settings of the view and of the loss."""

    smoothing: Share  # of the label, spread over all classes


class Classification(nn.Module):
    """Cross-entropy of a linear layer on the mean of the last stage.

    Args:
        own: its settings.
        backbone: what is pre-trained.
        classes: number of classes.
    """

    draws_alike = True  # of what stochastic depth draws for the whole batch, each process takes its own

    def __init__(self, own: ClassificationSettings, backbone: Backbone, classes: int) -> None:
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


@OBJECTIVES.register_module(name="classification")
class ClassificationTask(ImageObjective):
    """One view of each image, whose folder is its class."""

    settings_type = ClassificationSettings
    network_type = Classification
    loss_is = "cross-entropy with label smoothing"
    views = 1

    classes = 1000  # ImageNet's, where no data says it

    def open_data(self) -> None:
        """Find the images and their classes."""
        super().open_data()
        self.classes = len(self.images.classes)
        if self.classes < 2:
            what = f"its images lie in {self.classes} folder"
            raise UserError(self.root, what, "give a folder with one folder of images for each class")

    def network(self) -> Classification:
        """The network with a fresh backbone."""
        return Classification(self.own, self.backbone(), self.classes)

    @torch.no_grad()
    def evaluate(self, model: Any, device: torch.device) -> dict[str, float]:
        """Loss and spread, and the share of images held out that is right."""
        metrics = super().evaluate(model, device)
        right = count = 0.0
        for batch in self.held_out(device):
            losses, _ = model.loss(batch, None)
            right += losses["accuracy"].item() * len(batch["labels"])
            count += len(batch["labels"])
        return metrics | {"accuracy": 100 * right / count}


RECIPE = """
# Swin-T on ImageNet-1k. Values: microsoft/Swin-Transformer, the file named beside each; learning rates are those of its
# config.py times 1024 / 512 (main.py). bins, rule, window_ms and downsample concern events alone.
name: imagenet
version: 1
objective:
  type: classification
  size: 224                # px
  channels: 3
  scale: [0.08, 1.0]       # share of the image that a view shows
  jitter: 0.4
  smoothing: 0.1
  deviations:              # from microsoft/Swin-Transformer, config.py (AUG) and models/
    - Swin's classification is trained without mixup, cutmix, RandAugment and random erasing
    - Swin's last normalisation comes after pooling instead of before it
dataset: objects
recurrent: false
bins: 10
rule: edges
window_ms: 50
segments: 1
batch_size: 1024         # get_started.md: 8 GPUs, 128 images on each
downsample: {factor: 1, keep: nearest, to_width: null}
sampling: clips          # single windows need no order
drop_path: 0.2           # configs/swin_tiny_patch4_window7_224.yaml

optimisation:
  optimizer: AdamW       # config.py
  peak_lr: 1.0e-3        # config.py, BASE_LR
  schedule: cosine       # config.py
  start_divisor: 1000    # from 1e-6; config.py, WARMUP_LR
  end_divisor: 100       # to 1e-5; config.py, MIN_LR
  steps: 375000          # 300 epochs; config.py
  warmup_steps: 25000    # 20 epochs; config.py
  clip: {by: norm, at: 5.0}  # config.py, CLIP_GRAD
  # 0.05: config.py. Exempt: optimizer.py, and the names of models/swin_transformer.py, no_weight_decay_keywords.
  weight_decay: {start: 0.05, end: 0.05, exempt: [vectors, positions]}
  patch_embed_lr: 1.0    # share of the learning rate for the patch embedding
  precision: auto
  non_finite: stop       # or skip: pass over steps whose loss or gradients are not finite

augmentation:            # views are drawn by the objective
  flip: 0.0
  zoom: 0.0
  zoom_in_share: 0.8
  zoom_in: [1.0, 1.5]
  zoom_out: [1.0, 1.2]

deviations: []           # of the optimisation from the publication; those of the objective stand with it
# What differs under a profile, over its general values and what stands here of its base.
profiles:
  sample:
    batch_size: 32
    segments: 1
    optimisation: {peak_lr: 1.0e-3}
    objective: {size: 64, channels: 1}
  small: {batch_size: 16, optimisation: {peak_lr: 1.25e-4}}  # the best of four by validation loss
"""

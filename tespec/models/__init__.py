"""Backbones, ConvLSTM, and layers."""

import tespec.core.compat  # noqa: F401  # before timm

from tespec.models.backbone import Backbone, build_backbone
from tespec.models.event_maxvit import EventMaxViT
from tespec.models.event_resnet import EventResNet
from tespec.models.event_swin import EventSwin
from tespec.models.event_vit import EventViT

__all__ = ["Backbone", "EventMaxViT", "EventResNet", "EventSwin", "EventViT", "build_backbone"]

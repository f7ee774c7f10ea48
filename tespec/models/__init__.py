"""Backbones, ConvLSTM, the MiDaS head, and layers."""

from __future__ import annotations

from tespec.models.backbone import Backbone, build_backbone
from tespec.models.event_maxvit import EventMaxViT
from tespec.models.event_resnet import EventResNet
from tespec.models.event_swin import EventSwin

__all__ = ["Backbone", "EventMaxViT", "EventResNet", "EventSwin", "build_backbone"]

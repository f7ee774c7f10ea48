"""Backbones, heads, and the networks of each task."""

from __future__ import annotations

from tespec.models.backbone import Backbone, build_backbone
from tespec.models.depth import DepthModel
from tespec.models.detection import DetectionModel
from tespec.models.event_maxvit import EventMaxViT
from tespec.models.event_resnet import EventResNet
from tespec.models.event_swin import EventSwin
from tespec.models.segmentation import SegmentationModel

__all__ = [
    "Backbone",
    "DepthModel",
    "DetectionModel",
    "EventMaxViT",
    "EventResNet",
    "EventSwin",
    "SegmentationModel",
    "build_backbone",
]

"""Backbone, heads, and the networks of each task."""

from __future__ import annotations

from tespec.models.depth import DepthModel
from tespec.models.detection import DetectionModel
from tespec.models.event_swin import EventSwin
from tespec.models.segmentation import SegmentationModel

__all__ = ["DepthModel", "DetectionModel", "EventSwin", "SegmentationModel"]

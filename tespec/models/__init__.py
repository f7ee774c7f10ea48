"""Backbone, task models and the values that go through them."""

from tespec.models.event_swin import EventSwin
from tespec.models.segmentation import SegmentationModel

__all__ = ["EventSwin", "SegmentationModel"]

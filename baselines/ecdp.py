"""ECDP: contrast of events with images."""

from __future__ import annotations

from tespec.core.registry import METHODS
from tespec.pretraining.method import Method


@METHODS.register_module(name="ecdp")
class Ecdp(Method):
    """A row of the paper's tables."""

    title = "ECDP"
    group = "Pre-trained on events"
    backbone = "ResNet50"
    network = "resnet"
    architectures = ("feedforward",)
    pretraining_data = "N-ImageNet"
    recipe = "ecdp"
    citation = "Yang, Pan, Liu: Event Camera Data Pre-training, ICCV 2023"
    licence = "not stated (Yan98/Event-Camera-Data-Pre-training)"
    weights = "the ResNet-50 checkpoint of Yan98/Event-Camera-Data-Pre-training"
    summary = "Events and the image of their moment find each other; a feed-forward ResNet-50, there is no Swin."

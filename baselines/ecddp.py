"""ECDDP: dense self-distillation on events, with a Swin or a ResNet."""

from __future__ import annotations

from typing import ClassVar

from tespec.core.registry import METHODS
from tespec.pretraining.method import Method


@METHODS.register_module(name="ecddp")
class Ecddp(Method):
    """A row of the paper's tables."""

    title = "ECDDP"
    group = "Pre-trained on events"
    pretraining_data = "E-TartanAir"
    recipe: ClassVar[str | None] = "ecddp"
    test_time_augmentation = True
    citation = "Yang, Pan, Liu: Event Camera Data Dense Pre-training, ECCV 2024"
    licence = "not stated (Yan98/ECDDP)"
    weights = "the Swin-T checkpoint of Yan98/ECDDP"
    summary = (
        "A student agrees with a slow teacher on patches, contexts and whole images of events; made for feed-forward "
        "networks, ConvLSTMs start at random."
    )


@METHODS.register_module(name="ecddp_resnet")
class EcddpResnet(Ecddp):
    """The same with a ResNet-50, feed-forward."""

    backbone = "ResNet50"
    network = "resnet"
    architectures = ("feedforward",)
    recipe = None
    weights = "the ResNet-50 checkpoint of Yan98/ECDDP"
    summary = "ECDDP's ResNet-50, feed-forward; hides patches, so it is pre-trained here with a Swin alone."

"""MoBY: self-supervised Swin on images."""

from __future__ import annotations

from tespec.core.registry import METHODS
from tespec.pretraining.method import Method


@METHODS.register_module(name="moby")
class Moby(Method):
    """A row of the paper's tables."""

    title = "MoBY"
    group = "Pre-trained on images"
    pretraining_data = "ImageNet-1k"
    recipe = "moby"
    citation = "Xie et al.: Self-Supervised Learning with Swin Transformers, 2021"
    licence = "MIT (SwinTransformer/Transformer-SSL)"
    weights = "moby_swin_t_300ep_pretrained.pth of SwinTransformer/Transformer-SSL, whose links to DeiT-S are swapped"
    summary = (
        "Two views of an image have to find each other among a queue of others, by a slow encoder; patch embedding and "
        "ConvLSTMs as for ImageNet."
    )

"""ImageNet, supervised: the weights that most networks start from."""

from __future__ import annotations

from tespec.core.registry import METHODS
from tespec.pretraining.method import Method


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

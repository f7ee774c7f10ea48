"""RVT: a detector with a recurrent MaxViT, trained from random weights."""

from __future__ import annotations

from tespec.core.registry import METHODS
from tespec.pretraining.method import Method


@METHODS.register_module(name="rvt")
class Rvt(Method):
    """A row of the literature, as proof that another architecture fits the harness."""

    title = "RVT"
    group = "The best performance in the literature"
    network_title = "MaxViT"
    network = "maxvit"
    architectures = ("recurrent",)
    citation = "Gehrig, Scaramuzza: Recurrent Vision Transformers, CVPR 2023"
    summary = "A recurrent MaxViT without pre-training, through the same heads and the same training as the others."

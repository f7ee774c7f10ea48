"""No pre-training: the backbone starts from timm's random initialisation."""

from __future__ import annotations

from tespec.method import Method
from tespec.registry import METHODS


@METHODS.register_module(name="scratch")
class Scratch(Method):
    """The floor every pre-training has to beat."""

    title = "No Pre-training"
    group = "No pre-training"
    summary = "Random initialisation; the whole network learns from the task's labels alone."

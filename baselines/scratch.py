"""Methods without pre-training: random initialisation, and RVT's network."""

from pathlib import Path

from tespec.core.errors import UserError
from tespec.models import Backbone, EventMaxViT
from tespec.pretraining.method import Method, TableRow
from tespec.registry import METHODS
from tespec.weights.load import WeightsReport


@METHODS.register_module(name="scratch")
class Scratch(Method):
    """Train from random initialisation."""

    row = TableRow(
        title="No Pre-training",
        group="No pre-training",
        summary="Random initialisation; the complete network learns from the task's labels alone.",
    )

    @classmethod
    def initialise(cls, backbone: Backbone, checkpoint: Path | None) -> WeightsReport:
        if checkpoint is not None:
            raise UserError(
                "--method scratch", "takes no --checkpoint", "omit it, or choose another method"
            )
        return super().initialise(backbone, None)


@METHODS.register_module(name="rvt")
class Rvt(Method):
    """Train RVT's recurrent MaxViT from random initialisation, as its authors do."""

    row = TableRow(
        title="RVT",
        group="The best performance in the literature",
        backbone="MaxViT",
        citation="Gehrig, Scaramuzza: Recurrent Vision Transformers, CVPR 2023",
        summary=(
            "A recurrent MaxViT without pre-training, with the same heads and training as the "
            "others."
        ),
    )
    version = 2
    network = "maxvit"
    architectures = ("recurrent",)
    backbone_type = EventMaxViT

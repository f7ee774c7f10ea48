"""The positive control for pre-training: a backbone that has learned the same task from the labels of other streets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.core.errors import UserError
from tespec.core.registry import METHODS
from tespec.pretraining.method import Method
from tespec.weights.files import read_tensors
from tespec.weights.load import WeightsReport, load_tensors

if TYPE_CHECKING:
    from tespec.models import Backbone

BACKBONE = "backbone."  # begins the names of its tensors in the file of a whole network


@METHODS.register_module(name="labels")
class Labels(Method):
    """Not a method to compare, but what any comparison has to be able to see."""

    title = "Labels of other streets"
    group = "Controls"
    pretraining_data = "labels of other streets"
    summary = (
        "Control: the backbone of a network that a run of the same task trained with labels on other data "
        "(--checkpoint runs/evaluation-scratch-.../model.safetensors); its head is left out."
    )

    def initialise(self, backbone: Backbone, checkpoint: Path | None, seed: int) -> WeightsReport:
        """Start `backbone` from that of a whole network; the network's head is named as unused.

        Raises:
            UserError: no file is given, it holds no whole network, or its backbone does not fit.
        """
        if checkpoint is None:
            remedy = "give --checkpoint runs/evaluation-scratch-.../model.safetensors"
            raise UserError("--method labels", "starts from a network that was trained with labels", remedy)
        tensors, recipe = read_tensors(checkpoint)
        inner = {name.removeprefix(BACKBONE): each for name, each in tensors.items() if name.startswith(BACKBONE)}
        if "kind" not in recipe or not inner:
            remedy = "give the model.safetensors of a run, or another --method for weights of a pre-training"
            raise UserError(checkpoint, "holds no network that a run has trained with labels", remedy)
        # What is left is a backbone's file, which has no task.
        of_backbone = {name: value for name, value in recipe.items() if name != "kind"}
        of_backbone["recurrent"] = recipe.get("arch") == "recurrent"
        report = load_tensors(backbone, inner, of_backbone, checkpoint)
        head = sorted(name for name in tensors if not name.startswith(BACKBONE))
        return replace(report, unused=(*report.unused, *head), recipe=recipe)

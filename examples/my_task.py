"""A custom kind of task: count the objects of a class on any data set with boxes; see cars.yaml."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import torch
from torch import nn
from torch.nn.functional import softplus

from tespec.core.boxes import Boxes
from tespec.core.config import add_file
from tespec.core.distributed import global_mean
from tespec.datasets.batches import pad_boxes
from tespec.metrics import FrameScorer, Score, Scores
from tespec.models.layers import in_fp32
from tespec.registry import TASKS
from tespec.tasks.base import Network, Task, select_labelled

add_file("tasks", Path(__file__).with_name("cars.yaml"))


class CountingNetwork(Network):
    def __init__(self, backbone, classes):
        super().__init__(backbone)
        self.head = nn.Linear(backbone.channels[-1], classes)

    @in_fp32
    def losses(self, features, batch):
        classes = torch.arange(self.head.out_features, device=batch["boxes"].device)
        counts = (batch["boxes"][..., :1] == classes).sum(1)
        predicted = self.outputs(
            select_labelled(features, batch["label_position"]), batch["histograms"].shape[-2:]
        )
        return {"loss": global_mean((predicted - counts).abs().sum(), counts.numel())}

    def outputs(self, features, size):
        return softplus(self.head(features[-1].mean(dim=(2, 3))))


class CountingScorer(FrameScorer):
    def update(self, predicted, truth, recording, groups=()):
        error = np.abs(predicted - np.bincount(truth.label, minlength=len(predicted))).mean()
        self._frames.append(SimpleNamespace(recording=recording, groups=groups, error=error))

    def definition(self):
        return "mae: mean over frames and classes of the absolute error of the number of objects"

    def overall(self):
        return self._scores(self._frames)

    def _scores(self, frames):
        return Scores({"mae": float(np.mean([frame.error for frame in frames]))}, partial={})


@TASKS.register_module(name="counting")
class CountingTask(Task):
    collate = pad_boxes
    scores = {"mae": Score("MAE ↓", "lower", "objects")}

    @classmethod
    def network(cls, settings, backbone):
        return CountingNetwork(backbone, len(settings.classes))

    def scorer(self):
        return CountingScorer()

    @staticmethod
    def draw(axis, label):
        counts = np.bincount(label.label) if isinstance(label, Boxes) else label
        axis.text(
            0.03, 0.9, "  ".join(f"{count:.1f}" for count in counts), transform=axis.transAxes
        )

"""The label prior of a task: the most frequent label of each pixel by the training set, ignoring the input."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset

from tespec.comparison.records import Record
from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.settings import Finetuning
from tespec.metrics.priors import box_prior, class_prior, depth_prior
from tespec.pretraining.method import Method
from tespec.runs.finetune import CellSpec, prepare_run
from tespec.runs.run import Outcome, run_or_load

PRIOR = "prior"  # name in records


class Prior(Method):
    """Baseline that every trained network has to beat."""

    title = "Label prior"
    group = "References"
    network_title = "-"
    architectures = ("feedforward",)
    summary = "The most frequent label of each pixel in the training set, the same for every test frame; no network."


class Constant:
    """Stands for a model that answers the same whatever it sees; `answers` are what one label's prediction is."""

    def __init__(self, answer: Tensor | Boxes) -> None:
        self._answer = answer

    def eval(self) -> Constant:
        """Itself."""
        return self

    def predict(self, histograms: Tensor, state: None, label_place: Tensor) -> tuple[Tensor | Sequence[Boxes], None]:
        """The answer for each label, as a model of its task would give it."""
        count = len(label_place)
        if isinstance(self._answer, Tensor):
            return self._answer.expand(count, *self._answer.shape), None
        return [self._answer] * count, None


def label_prior(spec: CellSpec) -> Record:
    """Score the label prior of a task's feed-forward cell, or load its record.

    Raises:
        UserError: there is no prior for this kind of task, or data that cannot be used.
    """
    prepared = prepare_run("reference", spec)

    def evaluate() -> Outcome:
        evaluation = prepared.task.evaluate(Constant(prior_of(prepared.task)), prepared.run.device)
        return prepared.outcome(evaluation, {"input": "none: the most frequent labels of the training set"})

    return run_or_load(prepared.run, evaluate)


def prior_of(task: Any) -> Tensor | Boxes:
    """What a task's model would predict that knows nothing but the training labels.

    Raises:
        UserError: nothing of the kind is known for this kind of task, or there are no labels.
    """
    settings: Finetuning = task.settings
    labels: Any = ConcatDataset([recording.labels for recording in task.learned])  # read when they are asked for
    if settings.kind == "segmentation":
        return torch.from_numpy(class_prior(labels, len(settings.classes)))
    if settings.kind == "depth":
        head = settings.head
        return torch.from_numpy(depth_prior(labels, head["min_depth"], head["max_depth"]))
    if settings.kind == "detection":
        return box_prior(labels)
    raise UserError(f"reference prior, {settings.task}", f"is not known for {settings.kind}", "leave it out")

"""Floor and ceiling of a task: the prior of its labels, without input, and a network that sees the true frame."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tespec.comparison.records import Record
from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.settings import Finetuning
from tespec.datasets.base import TEST
from tespec.datasets.recording import LabelledRecording
from tespec.metrics.priors import box_prior, class_prior, depth_prior
from tespec.pretraining.method import Method
from tespec.runs.data import Data
from tespec.runs.finetune import Wanted, open_run, train_and_score
from tespec.runs.run import Outcome, carry_out
from tespec.runs.setup import Setup
from tespec.world.frames import with_frames

REFERENCE = "reference"
GROUP = "References"


class TrueFrame(Method):
    """The ceiling."""

    title = "True grey frame"
    group = GROUP
    architectures = ("feedforward",)
    summary = "The same network and head see the camera's frame at the label's time in place of the histogram."


class Prior(Method):
    """The floor."""

    title = "Prior of the labels"
    group = GROUP
    backbone = "-"
    architectures = ("feedforward",)
    summary = "The most likely labels by the training set, the same for every test frame; no network."


KINDS: dict[str, Method] = {"frame": TrueFrame(), "prior": Prior()}


class Constant:
    """Stands for a model that answers the same whatever it sees; `answers` are what one label's prediction is."""

    def __init__(self, answer: Tensor | Boxes) -> None:
        self._answer = answer

    def eval(self) -> Constant:
        """Itself."""
        return self

    def advance(self, histograms: Tensor, state: None = None) -> None:
        """Nothing is remembered."""

    def predict(self, histograms: Tensor, state: None, label_place: Tensor) -> tuple[Tensor | Sequence[Boxes], None]:
        """The answer for each label, as a model of its task would give it."""
        count = len(label_place)
        if isinstance(self._answer, Tensor):
            return self._answer.expand(count, *self._answer.shape), None
        return [self._answer] * count, None


def reference(name: str, settings: Finetuning, data: Data, seed: int, setup: Setup, split: str = TEST) -> Record:
    """Make a reference of a task, or take up the complete record of the same.

    Args:
        name: of `KINDS`.
        settings: of the task's feed-forward cell.
        data: the task's data, of the sample world for "frame".
        seed: decides everything random.
        setup: where and how.
        split: "test" or "val", on which it is scored.

    Raises:
        UserError: there is no such reference, or data that it cannot be made of.
    """
    if name not in KINDS:
        raise UserError(f"reference {name}", "no such reference", f"choose from {', '.join(KINDS)}")
    wanted = Wanted(name, KINDS[name], settings, data, None, seed, setup, split=split)
    opened = open_run(REFERENCE, wanted, {"input": name}, trains=name == "frame")
    task = opened.task
    if name == "frame":
        task.train, task.scored = with_frames(task.train, data.root), with_frames(task.scored, data.root)
        said = "the true grey frame at the label's time, in every channel of the histogram"
        return train_and_score(opened, {"input": said})

    def evaluate() -> Outcome:
        said = "nothing: the most likely labels by the training set, the same for every frame"
        return opened.outcome(task.evaluate(Constant(prior_of(task)), opened.run.device), {"input": said})

    return carry_out(opened.run, evaluate)


def prior_of(task: Any) -> Tensor | Boxes:
    """What a task's model would predict that knows nothing but the training labels.

    Raises:
        UserError: nothing of the kind is known for this kind of task, or there are no labels.
    """
    settings: Finetuning = task.settings
    labels = (label for recording in task.learned for label in _labels(recording))
    if settings.kind == "segmentation":
        return torch.from_numpy(class_prior(labels, len(settings.classes)))
    if settings.kind == "depth":
        head = settings.head
        return torch.from_numpy(depth_prior(labels, head["min_depth"], head["max_depth"]))
    if settings.kind == "detection":
        return box_prior(labels)
    raise UserError(f"reference prior, {settings.task}", f"is not known for {settings.kind}", "leave it out")


def _labels(recording: LabelledRecording) -> Any:
    return (recording.labels[index] for index in range(len(recording.labelled)))

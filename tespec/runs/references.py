"""Between what a table's numbers can lie: a floor that looks at nothing, and a network that sees the true frame."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tespec.core.boxes import Boxes
from tespec.comparison.records import Record, write_record
from tespec.datasets.recording import LabelledRecording
from tespec.world.frames import with_frames
from tespec.core.errors import UserError
from tespec.metrics.priors import box_prior, class_prior, depth_prior
from tespec.pretraining.method import Method
from tespec.core.settings import Finetuning
from tespec.runs.data import Data
from tespec.runs.finetune import Cell, computed, open_cell
from tespec.runs.once import once
from tespec.runs.setup import Setup, deal

REFERENCE = "reference"
GROUP = "References"


class TrueFrame(Method):
    """The upper reference."""

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


def reference(name: str, settings: Finetuning, data: Data, seed: int, setup: Setup) -> Record:
    """Make a reference of a task, or take up the complete record of the same.

    Args:
        name: of `KINDS`.
        settings: of the task's feed-forward cell.
        data: the task's data, of the sample world for "frame".
        seed: decides everything random.
        setup: where and how.

    Raises:
        UserError: there is no such reference, or data that it cannot be made of.
    """
    if name not in KINDS:
        raise UserError(f"reference {name}", "no such reference", f"choose from {', '.join(KINDS)}")
    began = time.monotonic()
    method = KINDS[name]
    cell = open_cell(REFERENCE, name, method, settings, data, None, seed, setup, extra={"input": name})
    if name == "frame":
        cell.task.train = with_frames(cell.task.train, data.root)
        cell.task.test = with_frames(cell.task.test, data.root)
    turns = deal(cell.task.steps, seed, cell.settings.batch_size, setup)
    opened = time.monotonic() - began

    def make(how: Setup) -> Record:
        if name == "frame":
            said = {"input": "the true grey frame at the label's time, in every channel of the histogram"}
            return computed(cell, turns, seed, how, opened, said)
        return _counted(cell, how, opened)

    return once(setup, cell.run, cell.settings.optimisation.steps, make)


def _counted(cell: Cell, setup: Setup, opened: float) -> Record:
    counted = time.monotonic()
    model = Constant(prior_of(cell.task))
    evaluation = cell.task.evaluate(model, cell.device)
    said = "nothing: the most likely labels by the training set, the same for every frame"
    record = cell.record(
        setup,
        protocol=cell.task.protocol() | {"scores": evaluation.definition, "input": said},
        metrics=evaluation.metrics,
        groups=evaluation.groups,
        recordings=evaluation.recordings,
        classes=evaluation.classes,
        time={
            "train": time.monotonic() - counted - evaluation.seconds,
            "evaluate": evaluation.seconds,
            "total": opened + time.monotonic() - counted,
        },
        curve=[],
    )
    write_record(record, setup.results / "runs")
    return record


def prior_of(task: Any) -> Tensor | Boxes:
    """What a task's model would predict that knows nothing but the training labels.

    Raises:
        UserError: nothing of the kind is known for this kind of task, or there are no labels.
    """
    settings: Finetuning = task.settings
    labels = (label for recording in task.train for label in _labels(recording))
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

"""What all kinds of task share: data, steps, and playing the recordings scored on; each adds its network and scores."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor

from tespec.core.distributed import all_gather, rank, world_size
from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.registry import DATASETS, TASKS, find_registered
from tespec.core.scores import ZEROED, Score, without_state
from tespec.core.settings import Finetuning, Size, most_labels
from tespec.datasets.base import TEST, TRAIN, LabelledDataset
from tespec.datasets.batches import (
    WHOLE,
    Collate,
    EvaluationBatch,
    EvaluationBatches,
    LabelledBatches,
    Shard,
    StepBatches,
    evaluation_of,
    pad_boxes,
    stack_depths,
    stack_masks,
)
from tespec.datasets.labels import BOXES, DEPTH, MASK, STANDING
from tespec.datasets.recording import LabelledRecording, with_label_share
from tespec.datasets.windows import WindowRule
from tespec.metrics.frames import partial_means
from tespec.models import Backbone, build_backbone
from tespec.models.backbone import reset
from tespec.models.layers import padded_size
from tespec.training.device import with_precision
from tespec.training.loading import Batches

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


@dataclass(frozen=True)
class Evaluation:
    """Scores of a model on the recordings of a split.

    Attributes:
        metrics: overall, by name.
        groups: of named groups of frames.
        recordings: of each recording.
        classes: the score of each class.
        definition: what the scores mean, and how many labels they stand on.
        partial: which means are over fewer classes, recordings or frames than declared; "" if none.
        seconds: time it took.
    """

    metrics: dict[str, float]
    groups: dict[str, dict[str, float]]
    recordings: dict[str, dict[str, float]]
    classes: dict[str, float]
    definition: str
    partial: str
    seconds: float


# What labels have to be, by what makes tensors of them; those of another collate are not checked.
LABEL_KINDS: dict[Any, str] = {stack_masks: MASK, stack_depths: DEPTH, pad_boxes: BOXES}
HALF = {"bf16": torch.bfloat16, "fp16": torch.float16}
NAMED = 80  # recordings in one text


class Task(ABC):
    """A kind of task: data with labels, a head on the backbone, scores, and pictures; registered in `TASKS`.

    docs/add_a_task.md shows one in full.

    Args:
        settings: the cell's settings.
        root: folder of the data set.
        split: "test" or "val", on which it is scored.

    Attributes:
        collate: labels of a step, each with its lane's augmentation, as tensors of a batch.
        scores: what tables say of each score, by its name in `metrics`; the main one first.
        test_time_augmentations: names of those it knows.
        settings: of the cell.
        dataset: the data set.
        split: on which it is scored.
        train: recordings trained on.
        scored: recordings scored on.

    Raises:
        UserError: the data cannot be read, or has no such split.
    """

    collate: ClassVar[Collate]
    scores: ClassVar[Mapping[str, Score]]
    test_time_augmentations: ClassVar[Sequence[str]] = ("none",)

    def __init__(self, settings: Finetuning, root: Path, split: str = TEST) -> None:
        self.settings, self.split = settings, split
        self._check_augmentation()
        self.dataset = open_dataset(settings, root)
        self.dataset.names(split)  # before anything is opened
        self.train, self.scored = self._opened(TRAIN), self._opened(split)

    def _check_augmentation(self) -> None:
        name, known = self.settings.test_time_augmentation, type(self).test_time_augmentations
        if name not in known:
            what = f"{name!r} does not go with {self.settings.kind}"
            raise UserError("test_time_augmentation", what, f"choose from {', '.join(known)}")

    def _opened(self, split: str) -> list[LabelledRecording]:
        with progress(f"opening the {split} recordings", "recordings") as advance:
            return self.dataset.recordings(split, lambda done, total: advance(done, total, ""))

    @property
    def splits(self) -> tuple[list[LabelledRecording], list[LabelledRecording]]:
        """Recordings trained on, and those scored on."""
        return self.train, self.scored

    @property
    def learned(self) -> list[LabelledRecording]:
        """Recordings trained on, with the labels that are learned from."""
        return with_label_share(self.train, self.settings.label_share)

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the histograms in px."""
        return self.train[0].region.height, self.train[0].region.width

    def model(self) -> Any:
        """A fresh backbone with a fresh head, for histograms of `size`."""
        return type(self).network(self.settings, fresh_backbone(self.settings, self.size))

    @classmethod
    @abstractmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> Any:
        """`backbone` with a fresh head; needs no data.

        Raises:
            UserError: settings of the head that do not go together.
        """

    def steps(self, seed: int, shard: Shard = WHOLE) -> StepBatches:
        """Batches of the training by step."""
        return LabelledBatches(self.learned, self.settings, seed, type(self).collate, shard)

    @classmethod
    def blank_batch(cls, settings: Finetuning, size: Size, lanes: int, device: torch.device) -> dict[str, Tensor]:
        """A batch of so many lanes without events, to count what a step costs; as many labels as there can be.

        Args:
            settings: the cell's settings.
            size: (H, W) of the histograms in px.
            lanes: number of lanes.
            device: of the batch.
        """
        segments = settings.segments
        labelled = range(segments - cls.labels_in_chunk(settings), segments)
        place = [(lane, segment) for lane in range(lanes) for segment in labelled]
        shape = (lanes, segments, 2 * settings.bins, *size)
        return {
            "histograms": torch.zeros(shape, dtype=torch.uint8, device=device),
            "fresh": torch.ones(lanes, dtype=torch.bool, device=device),
            "label_place": torch.tensor(place, dtype=torch.int64, device=device),
        } | cls.blank_labels(settings, size, len(place), device)

    @classmethod
    def labels_in_chunk(cls, settings: Finetuning) -> int:
        """The most labels of a lane's chunk that reach the head."""
        return most_labels(settings.segments, settings.labels_per_chunk, settings.window_ms, settings.protocol)

    @classmethod
    @abstractmethod
    def blank_labels(cls, settings: Finetuning, size: Size, count: int, device: torch.device) -> dict[str, Tensor]:
        """What `collate` gives for `count` labels, without regard to what they say; `size` is (H, W) in px."""

    def protocol(self) -> dict[str, str]:
        """What the scores mean, in words."""
        return {
            TRAIN: named(self.train) + self._learned(),
            self.split: named(self.scored),
            **self.dataset.describe(),
            "events": self.dataset.rule.describe() + self._state(),
            "scored": f"every {self.split} label once; test-time augmentation: {self.settings.test_time_augmentation}",
            "histograms": f"{self.settings.bins} bins, rule {self.settings.rule}",
            "scores": self.scorer().definition(),
        }

    def _learned(self) -> str:
        """How many of the training labels are learned from, in words; "" for all."""
        if self.settings.label_share == 1:
            return ""
        learned, every = (sum(len(each.labelled) for each in group) for group in (self.learned, self.train))
        return f"; {learned:,} of these {every:,} labels are learned from, spread evenly over each recording"

    def _state(self) -> str:
        """What becomes of the state in the evaluation, in words."""
        if not self.settings.recurrent:
            return ""
        if self.settings.carries_state:
            again = f"; {ZEROED}: each label scored again after one window from a zero state"
            return ", state carried through the whole recording" + (again if self._scores_without_state else "")
        return f", state zero at the start of a clip of {self.settings.segments} windows that ends at the label"

    @property
    def _scores_without_state(self) -> bool:
        return self.settings.evaluate_without_state and self.settings.carries_state

    @abstractmethod
    def scorer(self) -> Any:
        """A scorer that has seen nothing."""

    @staticmethod
    @abstractmethod
    def read(predictions: Any) -> Sequence[Any]:
        """What a model predicts for labelled segments, as the scorer wants it for each."""

    @staticmethod
    def draw(axis: Axes, label: Any) -> AxesImage | None:
        """Draw a label, or what `read` makes of a prediction, over the events that `axis` shows.

        Returns:
            the image whose values a bar beside the pictures has to explain, under the name that `set_label` gave it;
            None where there is none.
        """
        from tespec.pictures.panels import draw_label

        return draw_label(axis, label)

    def player(self, model: Any) -> Any:
        """What is asked for predictions: the model, or its test-time augmentation."""
        return model

    def outcomes(self, predictions: Any, labels: Sequence[Any]) -> Sequence[Any]:
        """What the scorer is told of each label: by default what `read` makes of its prediction.

        Args:
            predictions: of a model for labelled segments, on its device.
            labels: of these segments, as the recordings give them.
        """
        return self.read(predictions)

    def score(self, scorer: Any, outcome: Any, truth: Any, recording: LabelledRecording, label: int) -> None:
        """Tell the scorer of one outcome; `truth` is the recording's label number `label`."""
        scorer.update(outcome, truth, recording.name, groups_of(recording, label))

    def of_classes(self, overall: Any) -> dict[str, float]:
        """The score of each class, from the scorer's overall scores; none where a task has no classes."""
        return {}

    @torch.no_grad()
    def evaluate(self, model: Any, device: torch.device, workers: int = 0) -> Evaluation:
        """Play the scored recordings once and score every label; processes share them out, and each has all scores.

        Args:
            model: on `device`.
            device: where it predicts, in the precision of its training.
            workers: processes that read events and labels; 0: this one does.

        Raises:
            UserError: data cannot be read.
        """
        began, shard = time.monotonic(), (rank(), world_size())
        scorer = self._scored(model, evaluation_of(self.settings, self.scored, shard), device, workers)
        overall = scorer.overall()
        groups = {name: each.metrics() for name, each in scorer.by("group").items()}
        if self._scores_without_state:
            zeroed = self._scored(
                model, evaluation_of(self.settings, self.scored, shard, single_windows=True), device, workers
            )
            groups[without_state("")] = zeroed.overall().metrics()
            groups |= {without_state(name): each.metrics() for name, each in zeroed.by("group").items()}
        return Evaluation(
            metrics=overall.metrics(),
            groups=groups,
            recordings={name: each.metrics() for name, each in scorer.by("recording").items()},
            classes=self.of_classes(overall),
            definition=scorer.definition(),
            partial=partial_means(scorer),
            seconds=time.monotonic() - began,
        )

    def _scored(self, model: Any, steps: EvaluationBatches, device: torch.device, workers: int) -> Any:
        """A scorer that has seen every label of the scored recordings once, as `steps` play them."""
        scorer, done = self.scorer(), 0
        total = sum(len(recording.labelled) for recording in self.scored)
        batches = Batches(steps, 0, len(steps), workers, pin=device.type == "cuda")
        try:
            with progress("evaluation", "labels") as advance:
                for batch, predictions in self._played(batches, self.player(model.eval()), device):
                    outcomes = self.outcomes(predictions, batch.labels)
                    for frame, truth, outcome in zip(batch.frames, batch.labels, outcomes, strict=True):
                        self.score(scorer, outcome, truth, self.scored[frame.recording], frame.label)
                    done += len(batch.frames)
                    advance(done, total, "")
        except (RuntimeError, OSError, EOFError) as error:
            batches.require_workers(error, self.settings.optimisation.steps)
            raise
        others = all_gather(scorer.state())
        scorer.merge(state for process, state in enumerate(others) if process != rank())
        return scorer

    def _played(
        self, batches: Iterable[Any], player: Any, device: torch.device
    ) -> Iterator[tuple[EvaluationBatch, Any]]:
        """The batches that have labels, and what is predicted for these, state carried through all batches."""
        half = HALF.get(with_precision(self.settings.optimisation, device).precision)
        state = None
        for batch in batches:
            histograms, fresh, place = (each.to(device, non_blocking=True) for each in batch[:3])
            state = reset(state, fresh)
            with torch.autocast(device.type, half, enabled=half is not None):
                if batch.frames:
                    predictions, state = player.predict(histograms, state, place)
                else:
                    state = player.advance(histograms, state)
            if batch.frames:
                yield batch, predictions


def fresh_backbone(settings: Finetuning, size: tuple[int, int]) -> Backbone:
    """The backbone that the settings name, for histograms of `size` (H, W) in px."""
    return build_backbone(
        settings.width, settings.recurrent, settings.bins, padded_size(*size), drop_path=settings.drop_path
    )


def open_dataset(settings: Finetuning, root: Path) -> LabelledDataset:
    """The dataset that the settings name, in `root`; its labels are checked to be what their task learns from.

    Raises:
        UserError: there is no such dataset, or not in `root`.
    """
    kind = find_registered(DATASETS, settings.dataset, "dataset")
    dataset: LabelledDataset = kind(
        root,
        settings.splits,
        settings.classes,
        WindowRule(settings.recurrent, settings.window_ms),
        settings.downsample,
        settings.protocol,
        sensor=settings.sensor,
    )
    task = TASKS.module_dict.get(settings.kind)
    dataset.label_kind = LABEL_KINDS.get(getattr(task, "collate", None))
    return dataset


def named(recordings: Sequence[LabelledRecording]) -> str:
    """Recordings with their numbers of labels, in words; of very many the first, since texts of records are bounded."""
    words = [
        f"{recording.name} ({len(recording.labelled)} labels"
        + (f", {recording.left_out} left out)" if recording.left_out else ")")
        for recording in recordings[:NAMED]
    ]
    labels = sum(len(recording.labelled) for recording in recordings)
    more = f" and {len(recordings) - NAMED:,} more ({labels:,} labels in all)" if len(recordings) > NAMED else ""
    return ", ".join(words) + more


def groups_of(recording: LabelledRecording, label: int) -> tuple[str, ...]:
    """Named groups that a label belongs to: whether the camera moves, where its speed is known."""
    if recording.ego_speed is None:
        return ()
    return ("standing",) if recording.ego_speed[label] < STANDING else ("moving",)

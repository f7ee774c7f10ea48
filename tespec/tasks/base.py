"""What all kinds of task share: a backbone with a head, data, batches and evaluation; each adds head and scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor, nn

from tespec.core.distributed import all_gather, rank, ranks_per_batch, world_size
from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import Finetuning, Size, build
from tespec.datasets.base import TEST, TRAIN, LabelledDataset
from tespec.datasets.batches import (
    WHOLE,
    Collate,
    EvaluationBatches,
    LabelledBatches,
    Shard,
    StepBatches,
    pad_boxes,
    stack_depths,
    stack_masks,
)
from tespec.datasets.labels import BOXES, DEPTH, MASK, STANDING
from tespec.datasets.recording import LabelledRecording, WindowRule, with_label_share
from tespec.metrics import Score
from tespec.models import Backbone, build_backbone
from tespec.models.backbone import BackboneState, detach, reset
from tespec.models.layers import padded_size
from tespec.registry import DATASETS, TASKS, find_registered
from tespec.training.device import with_precision
from tespec.training.loading import load_batches
from tespec.training.trainer import HALF

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


State = BackboneState | None


class Network(nn.Module, ABC):
    """A backbone; subclasses add a head, its losses and what it predicts.

    Args:
        backbone: gives the four features.
    """

    recipe: Mapping[str, Any] | None = None  # settings of the training, where the file it was loaded from names them
    frozen: bool = False  # whether the head alone is trained

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def freeze_backbone(self) -> None:
        """Train the head alone: the backbone has no gradients, and stays in evaluation mode."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        """Set the mode of the network; a frozen backbone stays in evaluation mode."""
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    @abstractmethod
    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses of a step by name; "loss" is minimised.

        Args:
            features: of the four stages, (B, T, C, h, w) of all segments; the head sees the labelled ones alone.
            batch: as of `loss`.
        """

    @abstractmethod
    def outputs(self, features: list[Tensor], size: Sequence[int]) -> Any:
        """Predictions of segments with features (L, C, h, w), for histograms of `size` (H, W) in px."""

    def answer(self, outputs: Any) -> Any:
        """What `step` makes of the outputs: by default the outputs."""
        return outputs

    def loss(self, batch: dict[str, Tensor], state: State) -> tuple[dict[str, Tensor], State]:
        """Losses of a step, and the detached state.

        Args:
            batch: histograms (B, T, 2 * bins, H, W), fresh (B,) bool, label_place (L, 2) int64 lane and segment of
                each label, and the labels as the task collates them.
            state: what the step before returned, None at the start.
        """
        features, state = self.backbone(batch["histograms"], reset(state, batch["fresh"]))
        return self.losses(features, batch), detach(state)

    def predict(self, histograms: Tensor, state: State, label_place: Tensor) -> tuple[Any, State]:
        """Outputs of some segments of histograms (B, T, 2 * bins, H, W), None where there are none, and the state.

        Args:
            histograms: of all segments.
            state: what the call before returned, None at the start.
            label_place: (L, 2) int64 lane and segment of those that reach the head.
        """
        features, state = self.backbone(histograms, state)
        if not len(label_place):
            return None, state
        return self.outputs(select_labelled(features, label_place), histograms.shape[-2:]), state

    @torch.no_grad()
    def step(self, histogram: Tensor, state: State = None) -> tuple[Any, State]:
        """The answer for one segment (B, 2 * bins, H, W) of each lane, and the state, without gradients."""
        features, state = self.backbone.step(histogram, state)
        return self.answer(self.outputs(features, histogram.shape[-2:])), state


def select_labelled(features: Sequence[Tensor], place: Tensor) -> list[Tensor]:
    """Features (L, C, h, w) of the segments at place (L, 2), lane and segment, from those (B, T, C, h, w) of all."""
    return [feature[place[:, 0], place[:, 1]] for feature in features]


def dummy_labels(place: Tensor, labels: Tensor, no_label: float) -> tuple[Tensor, Tensor, bool]:
    """Places and labels for the head, and whether they are a dummy for none at all.

    A rank without labels must go through the head as well where the others exchange something inside it.

    Args:
        place: (L, 2) int64 lane and segment of each label.
        labels: (L, ...).
        no_label: the value of a pixel, or of the numbers of a box, without a label.
    """
    if len(place) or ranks_per_batch() == 1:
        return place, labels, False
    return place.new_zeros(1, 2), labels.new_full((1, *labels.shape[1:]), no_label), True


# What labels have to be, by what makes tensors of them; those of another collate are not checked.
LABEL_KINDS: dict[Any, str] = {stack_masks: MASK, stack_depths: DEPTH, pad_boxes: BOXES}
NAMED = 80  # recordings in one text
BOXES_PER_FRAME = 16  # where the cost of a step is counted


class Task(ABC):
    """A kind of task: data with labels, a head on the backbone, scores, and pictures; registered in `TASKS`.

    docs/extending.md says how to add one.

    Args:
        settings: the cell's settings.
        root: folder of the data set.
        split: "test" or "val", on which it is scored.

    Raises:
        UserError: the data cannot be read, or has no such split.
    """

    collate: ClassVar[Collate]  # labels of a step, each with its lane's augmentation, as tensors of a batch
    scores: ClassVar[Mapping[str, Score]]  # what tables say of each score, by its name in `metrics`; the main one first
    head: ClassVar[Any] = None  # dataclass of the settings under `head`, None where there are none
    test_time_augmentations: ClassVar[Sequence[str]] = ("none",)
    train: list[LabelledRecording]  # trained on
    scored: list[LabelledRecording]

    def __init__(self, settings: Finetuning, root: Path, split: str = TEST) -> None:
        if settings.test_time_augmentation not in self.test_time_augmentations:
            what = f"{settings.test_time_augmentation!r} does not go with {settings.kind}"
            raise UserError("test_time_augmentation", what, f"choose from {', '.join(self.test_time_augmentations)}")
        if settings.augmentation.zoom and type(self).collate is stack_depths:  # zooming changes sizes but not depths
            raise UserError("augmentation.zoom", "zoom augmentation is not supported for depth", "set it to 0")
        if self.head:
            build(self.head, settings.head, "head")
        self.settings, self.split = settings, split
        self.dataset = open_dataset(settings, root)
        self.dataset.names(split)  # before anything is opened
        self.train, self.scored = self.dataset.recordings(TRAIN), self.dataset.recordings(split)

    @property
    def learned(self) -> list[LabelledRecording]:
        """Recordings trained on, with the labels that are learned from."""
        return with_label_share(self.train, self.settings.label_share)

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the histograms in px."""
        return self.train[0].region.height, self.train[0].region.width

    def model(self) -> Any:
        """A randomly initialised backbone and head, for histograms of `size`."""
        return self.network(self.settings, fresh_backbone(self.settings, self.size))

    @classmethod
    @abstractmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> Any:
        """`backbone` with a randomly initialised head; needs no data.

        Raises:
            UserError: settings of the head that do not go together.
        """

    def steps(self, seed: int, shard: Shard = WHOLE) -> StepBatches:
        """Batches of the training by step."""
        return LabelledBatches(self.learned, self.settings, seed, type(self).collate, shard)

    @classmethod
    def blank_batch(cls, settings: Finetuning, size: Size, lanes: int, device: torch.device) -> dict[str, Tensor]:
        """A batch of `lanes` without events and with as many labels as there can be, to count what a step costs.

        `size` is (H, W) of the histograms in px.
        """
        segments, most = settings.segments, settings.most_labels
        place = [(lane, segment) for lane in range(lanes) for segment in range(segments - most, segments)]
        shape = (lanes, segments, 2 * settings.bins, *size)
        return {
            "histograms": torch.zeros(shape, dtype=torch.uint8, device=device),
            "fresh": torch.ones(lanes, dtype=torch.bool, device=device),
            "label_place": torch.tensor(place, dtype=torch.int64, device=device),
        } | cls.blank_labels(settings, size, len(place), device)

    @classmethod
    def blank_labels(cls, settings: Finetuning, size: Size, count: int, device: torch.device) -> dict[str, Tensor]:
        """`count` labels to count the cost of a step by, as `collate` gives them; `size` is (H, W) in px.

        Raises:
            UserError: `collate` is none of the harness's, and the task has no such method of its own.
        """
        box = [0.0, size[1] / 4, size[0] / 4, 3 * size[1] / 4, 3 * size[0] / 4]
        labels = {
            stack_masks: {"labels": torch.zeros(1, *size, dtype=torch.uint8)},
            stack_depths: {"labels": torch.full((1, *size), 10.0)},
            pad_boxes: {"boxes": torch.tensor(box).expand(1, BOXES_PER_FRAME, 5)},
        }.get(cls.collate)
        if labels is None:
            raise UserError(f"{cls.__name__}.blank_labels", "is missing", "define it for the labels of your `collate`")
        return {name: label.to(device).repeat(count, *[1] * (label.ndim - 1)) for name, label in labels.items()}

    def protocol(self) -> dict[str, str]:
        """What is trained on and scored, and how, in words."""
        settings, train, state = self.settings, named(self.train), ""
        if settings.label_share != 1:
            learned, every = (sum(len(each.labelled) for each in group) for group in (self.learned, self.train))
            train += f"; {learned:,} of these {every:,} labels are learned from, spread evenly over each recording"
        if settings.carries_state:
            state = ", state carried through the whole recording"
        elif settings.recurrent:
            state = f", state zero at the start of a clip of {settings.segments} windows that ends at the label"
        return {
            TRAIN: train,
            self.split: named(self.scored),
            **self.dataset.describe(),
            "events": self.dataset.rule.describe() + state,
            "scored": f"every {self.split} label once; test-time augmentation: {settings.test_time_augmentation}",
            "histograms": f"{settings.bins} bins, rule {settings.rule}",
        }

    @abstractmethod
    def scorer(self) -> Any:
        """A scorer that has seen nothing."""

    @staticmethod
    def read(predictions: Any) -> Sequence[Any]:
        """A model's predictions for labelled segments one by one, as the scorer takes them; tensors as arrays.

        Raises:
            UserError: a prediction is no number.
        """
        if not isinstance(predictions, Tensor):
            return list(predictions)
        values = predictions.float().cpu().numpy()
        if not np.isfinite(values).all():
            raise UserError("the trained model", "predicts what is no number", "lower optimisation.peak_lr")
        return list(values)

    @staticmethod
    def draw(axis: Axes, label: Any) -> AxesImage | None:
        """Draw a label, or what `read` makes of a prediction, over the events that `axis` shows.

        Returns:
            the image whose values a bar beside the pictures has to explain, under the name that `set_label` gave it;
            None where there is none.
        """
        from tespec.pictures import draw_label

        return draw_label(axis, label)

    def player(self, model: Any) -> Any:
        """What is asked for predictions: the model, or its test-time augmentation."""
        return model

    def score(self, scorer: Any, predicted: Any, truth: Any, recording: LabelledRecording, label: int) -> None:
        """Give the scorer one prediction; `truth` is the recording's label number `label`."""
        scorer.update(predicted, truth, recording.name, groups_of(recording, label))

    @torch.no_grad()
    def evaluate(self, model: Any, device: torch.device, workers: int = 0) -> Any:
        """Score every label of the scored recordings once; processes share them out.

        Args:
            model: on `device`.
            device: where it predicts, in the precision of its training.
            workers: processes that read events and labels; 0: this one does.

        Returns:
            the scorer, which has seen the labels of all processes.

        Raises:
            UserError: data cannot be read.
        """
        total = sum(len(recording.labelled) for recording in self.scored)
        scorer, player, state, done = self.scorer(), self.player(model.eval()), None, 0
        steps = EvaluationBatches(self.settings, self.scored, (rank(), world_size()))
        half = HALF.get(with_precision(self.settings.optimisation, device).precision)
        with progress("evaluation", "labels") as advance:
            batch: Any
            for batch in load_batches(steps, 0, len(steps), workers, pin=device.type == "cuda"):
                histograms, fresh, place = (each.to(device, non_blocking=True) for each in batch[:3])
                state = reset(state, fresh)
                with torch.autocast(device.type, half, enabled=half is not None):
                    predictions, state = player.predict(histograms, state, place)
                found = self.read(predictions) if batch.frames else []
                for (index, label), truth, predicted in zip(batch.frames, batch.labels, found, strict=True):
                    self.score(scorer, predicted, truth, self.scored[index], label)
                done += len(batch.frames)
                advance(done, total, "")
        others = all_gather(scorer.state())
        scorer.merge(state for process, state in enumerate(others) if process != rank())
        return scorer


def fresh_backbone(settings: Finetuning, size: tuple[int, int]) -> Backbone:
    """The backbone that the settings name, randomly initialised, for histograms of `size` (H, W) in px."""
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
    dataset.label_kind = LABEL_KINDS.get(getattr(TASKS.module_dict.get(settings.kind), "collate", None))
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

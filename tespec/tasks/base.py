"""Base classes of all kinds of task: network, data, batches and evaluation; each kind adds its head and scores."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import starmap
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from tespec.core.distributed import all_gather, rank, world_size
from tespec.core.errors import UserError
from tespec.core.settings import Finetuning, HistogramSpec, Size, build
from tespec.datasets import batches
from tespec.datasets.base import TEST, TRAIN, LabelledDataset
from tespec.datasets.labels import BOXES, DEPTH, MASK, STANDING
from tespec.datasets.lanes import WHOLE, Shard
from tespec.datasets.recording import (
    LabelledRecording,
    event_corrections,
    require_one_size,
    with_label_fraction,
)
from tespec.datasets.sources import pack_missing
from tespec.metrics import Score
from tespec.models import Backbone, build_backbone
from tespec.models.backbone import BackboneState, detach, reset
from tespec.models.layers import padded_size
from tespec.registry import DATASETS, TASKS, find_registered
from tespec.tasks.play import Player, play
from tespec.training.device import with_precision
from tespec.training.trainer import HALF

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


class Network(nn.Module, ABC):
    """A backbone, which returns the features of four stages; subclasses add a head, its losses and its predictions."""

    # settings of the training, if the file it was loaded from contains them
    recipe: Mapping[str, Any] | None = None
    frozen: bool = False  # whether only the head is trained

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def freeze_backbone(self) -> None:
        """Train only the head: the backbone has no gradients and stays in evaluation mode."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    @abstractmethod
    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Losses of a step by name; "loss" is minimised.

        Features (B, T, C, h, w) of the four stages are of all segments; the head uses only the
        labelled ones. The batch is as in `loss`.
        """

    @abstractmethod
    def outputs(self, features: list[Tensor], size: Sequence[int]) -> Any:
        """Predict from features (L, C, h, w) of segments, for histograms of `size` (H, W) in px."""

    def answer(self, outputs: Any) -> Any:
        """Convert the outputs to the prediction that `step` returns; by default they are the same."""
        return outputs

    def loss(
        self, batch: dict[str, Tensor], state: BackboneState
    ) -> tuple[dict[str, Tensor], BackboneState]:
        """Losses of a step, and the detached state, which is None before the first step.

        The batch holds histograms (B, T, 2 * bins, H, W), fresh (B,) bool, label_place (L, 2) int64
        lane and segment of each label, and the labels as the task collates them.
        """
        features, state = self.backbone(batch["histograms"], reset(state, batch["fresh"]))
        return self.losses(features, batch), detach(state)

    def predict(
        self, histograms: Tensor, state: BackboneState, label_place: Tensor
    ) -> tuple[Any, BackboneState]:
        """Outputs for segments of histograms (B, T, 2 * bins, H, W), None if none is selected, and the state.

        `label_place` holds (L, 2) int64 lane and segment of the selected ones; the state is None at
        the start.
        """
        features, state = self.backbone(histograms, state)
        if not len(label_place):
            return None, state
        return self.outputs(select_labelled(features, label_place), histograms.shape[-2:]), state

    @torch.no_grad()
    def step(self, histogram: Tensor, state: BackboneState = None) -> tuple[Any, BackboneState]:
        """Predict one segment (B, 2 * bins, H, W) of each lane without gradients; return prediction and state."""
        features, state = self.backbone.step(histogram, state)
        return self.answer(self.outputs(features, histogram.shape[-2:])), state


def select_labelled(features: Sequence[Tensor], place: Tensor) -> list[Tensor]:
    """Select features (L, C, h, w) at place (L, 2), lane and segment, from those of all segments (B, T, C, h, w)."""
    return [feature[place[:, 0], place[:, 1]] for feature in features]


def dummy_labels(place: Tensor, labels: Tensor, no_label: float) -> tuple[Tensor, Tensor, bool]:
    """Return places (L, 2) and labels (L, ...) for the head, and whether they are a dummy because this rank has none.

    The head also runs without labels, since it may communicate between ranks and its gradients must
    be zero, not None: optimizers skip parameters without a gradient. `no_label` is the value of
    pixels or boxes without a label.
    """
    if len(place):
        return place, labels, False
    return place.new_zeros(1, 2), labels.new_full((1, *labels.shape[1:]), no_label), True


# Expected kind of labels by collate function; labels for other collate functions are not checked.
LABEL_KINDS: dict[Any, str] = {
    batches.stack_masks: MASK,
    batches.stack_depths: DEPTH,
    batches.pad_boxes: BOXES,
}
NAMED = 80  # recordings listed in one text
BOXES_PER_FRAME = 16  # for estimating the cost of a step


class Task(ABC):
    """A kind of task: labelled data, a head on the backbone, scores, and figures; registered in `TASKS`.

    Its data are in `root`; it is scored on the split "test" or "val". docs/extending.md explains
    how to add one.
    """

    # function from a step's labels, each with its lane's augmentation, to tensors
    collate: ClassVar[batches.Collate]
    content: ClassVar[str] = "content"  # that a label needs to be learned and scored, for messages
    # table column of each score, by its name in `metrics`; the main one first
    scores: ClassVar[Mapping[str, Score]]
    head: ClassVar[Any] = None  # dataclass of the settings under `head`, None if there are none
    test_time_augmentations: ClassVar[Sequence[str]] = ("none",)
    train: list[LabelledRecording]  # for training
    scored: list[LabelledRecording]

    def __init__(self, settings: Finetuning, root: Path, split: str = TEST) -> None:
        if settings.test_time_augmentation not in self.test_time_augmentations:
            what = f"{settings.test_time_augmentation!r} is not supported for {settings.kind}"
            raise UserError(
                "test_time_augmentation",
                what,
                f"choose from {', '.join(self.test_time_augmentations)}",
            )
        if (
            settings.augmentation.zoom and type(self).collate is batches.stack_depths
        ):  # it changes sizes, not depths
            raise UserError(
                "augmentation.zoom", "zoom augmentation is not supported for depth", "set it to 0"
            )
        if self.head:
            build(self.head, settings.head, "head")
        self.settings, self.split = settings, split
        self.dataset = open_dataset(settings, root)
        pack_missing(files.source for each in (split, TRAIN) for files in self.dataset.files(each))
        self.train, self.scored = self.dataset.recordings(TRAIN), self.dataset.recordings(split)
        require_one_size(root, ((each.name, each.region) for each in (*self.train, *self.scored)))
        self._require_content()

    @property
    def learned(self) -> list[LabelledRecording]:
        """Training recordings with the share of their labels that is used."""
        return with_label_fraction(self.train, self.settings.label_fraction)

    @property
    def size(self) -> tuple[int, int]:
        """Size of the histograms as (H, W) in px."""
        return self.train[0].region.height, self.train[0].region.width

    @cached_property
    def histogram_spec(self) -> HistogramSpec:
        """How events become histograms; windows from label to label have the median length of the training's ones."""
        lengths = np.concatenate([np.diff(recording.windows) for recording in self.train]) / 1000
        window_ms = self.settings.window_ms or float(np.median(lengths))
        return HistogramSpec.of(self.settings, self.size, window_ms)

    def is_learned(self, recording: LabelledRecording, label: int) -> bool:
        """Whether label number `label` of a recording has `content`; by default true."""
        return True

    def is_scored(self, recording: LabelledRecording, label: int) -> bool:
        """Whether label number `label` of a recording counts in the scores; by default `is_learned`."""
        return self.is_learned(recording, label)

    def _require_content(self) -> None:
        """Refuse recordings without a label to learn or score; reads labels up to the first with content."""
        for split, recordings, counts in (
            (TRAIN, self.learned, self.is_learned),
            (self.split, self.scored, self.is_scored),
        ):
            labels = [
                (recording, label)  # its number
                for recording in recordings
                for label in range(len(recording.labelled))
            ]
            if not any(starmap(counts, labels)):
                what = f"none of the {len(labels)} labels has {self.content}: {named(recordings)}"
                raise UserError(f"{split} recordings", what, "give recordings with such labels")

    def model(self) -> Any:
        """Build a randomly initialised backbone and head for histograms of `size`."""
        return self.network(self.settings, fresh_backbone(self.settings, self.size))

    @classmethod
    @abstractmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> Any:
        """Add a randomly initialised head to `backbone`; needs no data."""

    def steps(self, seed: int, shard: Shard = WHOLE) -> batches.StepBatches:
        """Training batches by step."""
        return batches.LabelledBatches(self.learned, self.settings, seed, type(self).collate, shard)

    @classmethod
    def blank_batch(
        cls, settings: Finetuning, size: Size, lanes: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Batch of `lanes` of `size` (H, W) px without events, with the most labels, to estimate the cost of a step."""
        segments, most = settings.segments, settings.most_labels
        place = [
            (lane, segment) for lane in range(lanes) for segment in range(segments - most, segments)
        ]
        shape = (lanes, segments, 2 * settings.bins, *size)
        return {
            "histograms": torch.zeros(shape, dtype=torch.uint8, device=device),
            "fresh": torch.ones(lanes, dtype=torch.bool, device=device),
            "label_place": torch.tensor(place, dtype=torch.int64, device=device),
        } | cls.blank_labels(settings, size, len(place), device)

    @classmethod
    def blank_labels(
        cls, settings: Finetuning, size: Size, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        """`count` labels as `collate` returns them, for `blank_batch`; a task with its own `collate` overrides this."""
        box = [0.0, size[1] / 4, size[0] / 4, 3 * size[1] / 4, 3 * size[0] / 4]
        labels = {
            batches.stack_masks: {"labels": torch.zeros(1, *size, dtype=torch.uint8)},
            batches.stack_depths: {"labels": torch.full((1, *size), 10.0)},
            batches.pad_boxes: {"boxes": torch.tensor(box).expand(1, BOXES_PER_FRAME, 5)},
        }.get(cls.collate)
        if labels is None:
            raise UserError(
                f"{cls.__name__}.blank_labels",
                "is missing",
                "define it for the labels of your `collate`",
            )
        return {
            name: label.to(device).repeat(count, *[1] * (label.ndim - 1))
            for name, label in labels.items()
        }

    def protocol(self) -> dict[str, str]:
        """Describe the training data, the scored data and the evaluation protocol."""
        settings, train, state = self.settings, named(self.train), ""
        described = self.dataset.describe()
        if settings.label_fraction != 1:
            learned, every = (
                sum(len(each.labelled) for each in group) for group in (self.learned, self.train)
            )
            train += f"; {learned:,} of these {every:,} labels are used for training, spread evenly over each recording"
        if settings.recurrent:
            clip = f"reset at the start of a clip of {settings.segments} windows that ends at the label"
            carried = "carried through the complete recording"
            state = f", state {clip if self.histogram_spec.reset else carried}"
        return {
            TRAIN: train,
            self.split: named(self.scored),
            **event_corrections((*self.train, *self.scored)),
            **described,
            "events": described["events"] + state,
            "scored": f"every {self.split} label once; test-time augmentation: {settings.test_time_augmentation}",
            "histograms": f"{settings.bins} bins, rule {settings.rule}",
        }

    @abstractmethod
    def scorer(self) -> Any:
        """Create an empty scorer."""

    @staticmethod
    def read(predictions: Any) -> Sequence[Any]:
        """Convert a model's predictions to one value per labelled segment for the scorer; tensors become arrays."""
        if not isinstance(predictions, Tensor):
            return list(predictions)
        require_finite(predictions)
        return list(predictions.float().cpu().numpy())

    @staticmethod
    def draw(axis: Axes, label: Any) -> AxesImage | None:
        """Draw a label, or a prediction converted by `read`, over the events that `axis` shows.

        Returns the image that needs a colour bar, whose title is the image's label, or None.
        """
        from tespec.pictures import draw_label

        return draw_label(axis, label)

    @classmethod
    def player(
        cls, settings: Finetuning, model: Any, spec: HistogramSpec, size: Size, device: torch.device
    ) -> Player:
        """Return the model on `device` as it is scored, for recordings with histograms of `size` (H, W) in px.

        On a GPU it predicts in the precision of its training, on a CPU in float32. Tasks with
        test-time augmentation override this to wrap the model.
        """
        on_gpu = device.type == "cuda"
        half = HALF.get(with_precision(settings.optimisation, device).precision) if on_gpu else None
        return Player(model.predict, cls.read, spec, device, half)

    def score(
        self, scorer: Any, predicted: Any, truth: Any, recording: LabelledRecording, label: int
    ) -> None:
        """Update the scorer with one prediction; `truth` is label number `label` of the recording."""
        scorer.update(predicted, truth, recording.name, groups_of(recording, label))

    def evaluate(self, model: Any, device: torch.device, workers: int = 0) -> Any:
        """Score every label of the scored recordings once, divided among the ranks; return the scorer of all.

        The model is on `device`. `workers` processes load the data, 0 is this one.
        """
        scorer = self.scorer()
        player = self.player(self.settings, model.eval(), self.histogram_spec, self.size, device)
        every = play(
            player,
            self.scored,
            lanes=self.settings.play_lanes,
            shard=(rank(), world_size()),
            workers=workers,
            label="evaluation",
        )
        for played in every:
            self.score(scorer, played.output, played.label, played.recording, played.position)
        others = all_gather(scorer.state())
        scorer.merge(state for process, state in enumerate(others) if process != rank())
        return scorer


def require_finite(*predictions: Tensor) -> None:
    """Raise `UserError` if a prediction is infinite or NaN."""
    if not all(each.isfinite().all() for each in predictions):
        raise UserError(
            "the trained model", "predicts infinity or NaN", "lower optimisation.peak_lr"
        )


def fresh_backbone(settings: Finetuning, size: tuple[int, int]) -> Backbone:
    """Build the backbone named by the settings, randomly initialised, for histograms of `size` (H, W) in px."""
    return build_backbone(
        settings.backbone,
        settings.recurrent,
        settings.bins,
        padded_size(*size),
        drop_path=settings.drop_path,
    )


def features_player(backbone: Backbone, spec: HistogramSpec, device: torch.device) -> Player:
    """Return a backbone on `device` that plays recordings in float32; its outputs are four features (C, h, w)."""

    def predict(
        histograms: Tensor, state: BackboneState, place: Tensor
    ) -> tuple[Any, BackboneState]:
        features, state = backbone(histograms, state)
        if not all(stage.isfinite().all() for stage in features):
            raise UserError(
                "the backbone", "gives features that are infinite or NaN", "use other weights"
            )
        return zip(*select_labelled(features, place), strict=True), state

    return Player(predict, list, spec, device)


def open_dataset(settings: Finetuning, root: Path) -> LabelledDataset:
    """Open the dataset named by the settings in `root`; its labels must be of the kind that the task expects."""
    kind = find_registered(DATASETS, settings.dataset, "dataset")
    dataset: LabelledDataset = kind(
        root,
        window_ms=settings.window_ms,
        contiguous=settings.recurrent,
        bins=settings.bins,
        rule=settings.rule,
        classes=settings.classes,
        splits=settings.splits,
        sensor=settings.sensor,
        downsample=settings.downsample,
        protocol=settings.protocol,
    )
    dataset.label_kind = LABEL_KINDS.get(
        getattr(TASKS.module_dict.get(settings.kind), "collate", None)
    )
    return dataset


def named(recordings: Sequence[LabelledRecording]) -> str:
    """List recordings with their number of labels; at most the first `NAMED`, since texts of records are bounded."""
    words = [
        f"{each.name} ({len(each.labelled)} labels{f', {each.left_out} left out' if each.left_out else ''})"
        for each in recordings[:NAMED]
    ]
    labels = sum(len(recording.labelled) for recording in recordings)
    more = (
        f" and {len(recordings) - NAMED:,} more ({labels:,} labels in all)"
        if len(recordings) > NAMED
        else ""
    )
    return ", ".join(words) + more


def groups_of(recording: LabelledRecording, label: int) -> tuple[str, ...]:
    """Groups of a label: "standing" or "moving", if the speed of the camera is known."""
    if recording.ego_speed is None:
        return ()
    return ("standing",) if recording.ego_speed[label] < STANDING else ("moving",)

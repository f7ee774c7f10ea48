"""Base classes of all tasks: network, data, batches and evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import Self

from tespec.core.distributed import all_gather, rank, world_size
from tespec.core.errors import UserError, require
from tespec.core.settings import Finetuning, HistogramSpec, Size, build
from tespec.datasets import batches
from tespec.datasets.base import TEST, TRAIN, LabelledDataset
from tespec.datasets.labels import BOXES, DEPTH, MASK, STANDING
from tespec.datasets.lanes import FULL_BATCH, Shard
from tespec.datasets.recording import (
    LabelledRecording,
    contents_of,
    event_corrections,
    hash_data,
    require_one_size,
    with_label_fraction,
)
from tespec.datasets.sources import pack_missing
from tespec.metrics import Score
from tespec.models.backbone import Backbone, BackboneState, build_backbone, detach, reset
from tespec.models.layers import padded_size
from tespec.registry import DATASETS, TASKS, find_registered
from tespec.tasks.play import Predictor, play
from tespec.training.device import with_precision
from tespec.training.trainer import HALF

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.image import AxesImage


class Network(nn.Module, ABC):
    """Backbone with the head of a task; subclasses add head, losses and predictions.

    See examples/my_task.py.
    """

    # settings of the training, if the file it was loaded from contains them
    recipe: Mapping[str, Any] | None = None
    frozen: bool = False  # whether only the head is trained

    def __init__(self, backbone: Backbone) -> None:
        super().__init__()
        self.backbone = backbone

    def freeze_backbone(self) -> None:
        """Train only the head: the backbone is not differentiated and stays in evaluation mode."""
        self.frozen = True
        self.backbone.requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.backbone.train(mode and not self.frozen)
        return self

    @abstractmethod
    def losses(self, features: list[Tensor], batch: dict[str, Tensor]) -> dict[str, Tensor]:
        """Compute the losses of a step.

        Args:
            features: features of the four stages, (B, T, C, h, w), for all segments; the head uses
                only the labelled ones.
            batch: as in `loss`.

        Returns:
            Scalars by name; "loss" is minimised.
        """

    @abstractmethod
    def outputs(self, features: list[Tensor], size: Sequence[int]) -> Any:
        """Predict from the features of segments.

        Args:
            features: features of the four stages, (L, C, h, w).
            size: (H, W) in px of the histograms.

        Returns:
            The outputs of L segments, as `Task.read` splits them.
        """

    def postprocess(self, outputs: Any) -> Any:
        """Convert the outputs to the prediction that `step` returns; by default they are equal."""
        return outputs

    def loss(
        self, batch: dict[str, Tensor], state: BackboneState
    ) -> tuple[dict[str, Tensor], BackboneState]:
        """Compute the losses of a step.

        Args:
            batch: histograms (B, T, 2 * bins, H, W), is_first (B,) bool, label_position (L, 2)
                int64 lane and segment of the labels, and the labels as the task collates them.
            state: None before the first step.

        Returns:
            The losses by name, and the detached state.
        """
        with torch.set_grad_enabled(torch.is_grad_enabled() and not self.frozen):
            features, state = self.backbone(batch["histograms"], reset(state, batch["is_first"]))
        return self.losses(features, batch), detach(state)

    def predict(
        self, histograms: Tensor, state: BackboneState, label_position: Tensor
    ) -> tuple[Any, BackboneState]:
        """Predict some segments of a sequence.

        Args:
            histograms: (B, T, 2 * bins, H, W).
            state: None at the start.
            label_position: (L, 2) int64 lane and segment of the selected segments.

        Returns:
            Their outputs, None if none is selected, and the state.
        """
        features, state = self.backbone(histograms, state)
        if not len(label_position):
            return None, state
        return self.outputs(select_labelled(features, label_position), histograms.shape[-2:]), state

    @torch.no_grad()
    def step(self, histogram: Tensor, state: BackboneState = None) -> tuple[Any, BackboneState]:
        """Predict one segment of every lane, without gradients.

        Args:
            histogram: (B, 2 * bins, H, W).
            state: as returned for the previous segment; None at the start.

        Returns:
            The prediction and the state.
        """
        features, state = self.backbone.step(histogram, state)
        return self.postprocess(self.outputs(features, histogram.shape[-2:])), state


def select_labelled(features: Sequence[Tensor], index: Tensor) -> list[Tensor]:
    """Select the features of labelled segments.

    Args:
        features: (B, T, C, h, w) by stage.
        index: (L, 2) int64 lane and segment.

    Returns:
        (L, C, h, w) by stage.
    """
    lane, segment = index.unbind(1)
    return [feature[lane, segment] for feature in features]


def dummy_labels(index: Tensor, labels: Tensor, no_label: float) -> tuple[Tensor, Tensor, bool]:
    """Replace labels by a dummy on a rank that has none.

    The head also runs without labels, since it may communicate between ranks and its gradients must
    be zero, not None: optimizers skip parameters without a gradient.

    Args:
        index: (L, 2) int64 lane and segment of the labels.
        labels: (L, ...).
        no_label: value of pixels or boxes without a label.

    Returns:
        Index and labels for the head, and whether they are a dummy.
    """
    if len(index):
        return index, labels, False
    return index.new_zeros(1, 2), labels.new_full((1, *labels.shape[1:]), no_label), True


# Expected kind of labels by collate function; labels for other collate functions are not checked.
LABEL_KINDS: dict[Any, str] = {
    batches.stack_masks: MASK,
    batches.stack_depths: DEPTH,
    batches.pad_boxes: BOXES,
}
MAX_LISTED = 80  # recordings that a text lists, since texts of records are bounded
BOXES_PER_FRAME = 16  # for estimating the cost of a step


class Task(ABC):
    """A kind of task: labelled data, a head on the backbone, scores, and figures.

    docs/extending.md explains how to add one and register it in `TASKS`.

    Args:
        settings: fine-tuning settings.
        root: folder of the data.
        split: scored split, "test" or "val".
        seed: of the run; draws the training labels if only a fraction of them is used.

    Raises:
        UserError: a setting does not fit the task, or the data are missing, invalid or without
            anything to learn or score.
    """

    # function from a step's labels, each with its lane's augmentation, to tensors
    collate: ClassVar[batches.Collate]
    content: ClassVar[str] = "content"  # that a label needs to be learned and scored, for messages
    # table column of each score, by its name in `metrics`; the main one first
    scores: ClassVar[Mapping[str, Score]]
    head: ClassVar[Any] = None  # dataclass of the settings under `head`, None if there are none
    test_time_augmentations: ClassVar[Sequence[str]] = ("none",)

    def __init__(self, settings: Finetuning, root: Path, split: str = TEST, seed: int = 0) -> None:
        require(
            settings.test_time_augmentation in self.test_time_augmentations,
            "test_time_augmentation",
            f"{settings.test_time_augmentation!r} is not supported for {settings.kind}",
            f"choose from {', '.join(self.test_time_augmentations)}",
        )
        # zooming changes sizes, not depths
        require(
            not settings.augmentation.zoom or type(self).collate is not batches.stack_depths,
            "augmentation.zoom",
            "zoom augmentation is not supported for depth",
            "set it to 0",
        )
        self.settings = settings
        self.head_settings: Any = build(self.head, settings.head, "head") if self.head else None
        self.split = split
        self.seed = seed
        self.dataset = open_dataset(settings, root)
        pack_missing(files.source for name in (split, TRAIN) for files in self.dataset.files(name))
        self.train = self.dataset.recordings(TRAIN)
        self.scored = self.dataset.recordings(split)
        recordings = (*self.train, *self.scored)
        require_one_size(root, ((recording.name, recording.region) for recording in recordings))
        self._require_content(TRAIN, self.train_subset, self.has_target)
        self._require_content(split, self.scored, self.is_scored)

    @property
    def train_subset(self) -> list[LabelledRecording]:
        """Training recordings with the fraction of their labels that is used."""
        return with_label_fraction(self.train, self.settings.label_fraction, self.seed)

    @property
    def size(self) -> tuple[int, int]:
        """Size of the histograms as (H, W) in px."""
        return self.train[0].region.height, self.train[0].region.width

    @cached_property
    def histogram_spec(self) -> HistogramSpec:
        """How events become histograms; windows from label to label have their median length."""
        lengths = np.concatenate([np.diff(recording.windows) for recording in self.train]) / 1000
        window_ms = self.settings.window_ms or float(np.median(lengths))
        return HistogramSpec.from_settings(self.settings, self.size, window_ms)

    def has_target(self, recording: LabelledRecording, label: int) -> bool:
        """Decide whether a label has anything to learn.

        Args:
            recording: recording that holds the label.
            label: its index in the recording.

        Returns:
            Whether it has `content`; by default true.
        """
        return True

    def is_scored(self, recording: LabelledRecording, label: int) -> bool:
        """Decide whether a label counts in the scores.

        Args:
            recording: recording that holds the label.
            label: its index in the recording.

        Returns:
            By default `has_target`.
        """
        return self.has_target(recording, label)

    def _require_content(
        self,
        split: str,
        recordings: Sequence[LabelledRecording],
        has_content: Callable[[LabelledRecording, int], bool],
    ) -> None:
        """Refuse a split without `content`; reads its labels up to the first that has some."""
        labels = [
            (recording, label)  # its index
            for recording in recordings
            for label in range(len(recording.label_indices))
        ]
        require(
            any(has_content(recording, label) for recording, label in labels),
            f"{split} recordings",
            f"none of the {len(labels)} labels has {self.content}: {listed(recordings)}",
            "give recordings with such labels",
        )

    def model(self) -> Any:
        """Build a randomly initialised backbone and head for histograms of `size`."""
        return self.network(self.settings, random_backbone(self.settings, self.size))

    @classmethod
    @abstractmethod
    def network(cls, settings: Finetuning, backbone: Backbone) -> Any:
        """Add a randomly initialised head to a backbone.

        Args:
            settings: fine-tuning settings; no data are needed.
            backbone: part of the network, not copied.

        Returns:
            The `Network`.
        """

    def steps(self, seed: int, shard: Shard = FULL_BATCH) -> batches.StepBatches:
        """Create the training batches.

        Args:
            seed: seed of order and augmentation.
            shard: index and number of the ranks that divide the lanes of a batch.

        Returns:
            The batches by step.
        """
        return batches.LabelledBatches(
            self.train_subset, self.settings, seed, type(self).collate, shard
        )

    @classmethod
    def blank_batch(
        cls, settings: Finetuning, size: Size, lanes: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Create a batch without events and with the most labels, to estimate the cost of a step.

        Args:
            settings: fine-tuning settings.
            size: (H, W) in px of the histograms.
            lanes: batch size B.
            device: where the tensors are created.

        Returns:
            A batch as `Network.loss` takes it.
        """
        segments = range(settings.segments - settings.max_labels, settings.segments)
        index = [(lane, segment) for lane in range(lanes) for segment in segments]
        binning = settings.binning
        shape = (lanes, settings.segments, binning.channels, *size)
        return {
            "histograms": torch.zeros(shape, dtype=getattr(torch, binning.dtype), device=device),
            "is_first": torch.ones(lanes, dtype=torch.bool, device=device),
            "label_position": torch.tensor(index, dtype=torch.int64, device=device),
        } | cls.blank_labels(settings, size, len(index), device)

    @classmethod
    def blank_labels(
        cls, settings: Finetuning, size: Size, count: int, device: torch.device
    ) -> dict[str, Tensor]:
        """Create labels for `blank_batch`; a task with its own `collate` overrides this.

        Args:
            settings: fine-tuning settings.
            size: (H, W) in px of the histograms.
            count: number of labels.
            device: where the tensors are created.

        Returns:
            Tensors (count, ...) as `collate` returns them.
        """
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

    def checksums(self, *, check: bool) -> dict[str, str]:
        """Hash the training and the scored recordings; see `tespec.core.hashes`.

        Args:
            check: whether to read all files again.

        Returns:
            Checksums by name.
        """
        contents = contents_of(self.train, self.scored)
        return hash_data(contents, (*self.train, *self.scored), check=check)

    def protocol(self) -> dict[str, str]:
        """Describe the training data, the scored data and the evaluation protocol."""
        settings = self.settings
        train = listed(self.train)
        if settings.label_fraction != 1:
            used = sum(len(recording.label_indices) for recording in self.train_subset)
            total = sum(len(recording.label_indices) for recording in self.train)
            train += (
                f"; {used:,} of these {total:,} labels are used for training, "
                "drawn by the run's seed, spread evenly over the recordings and their time"
            )
        state = ""
        if settings.recurrent and self.histogram_spec.reset:
            windows = f"a clip of {settings.segments} windows that ends at the label"
            state = f", state reset at the start of {windows}"
        elif settings.recurrent:
            state = ", state carried through the complete recording"
        described = self.dataset.describe()
        return {
            TRAIN: train,
            self.split: listed(self.scored),
            **event_corrections((*self.train, *self.scored)),
            **described,
            "events": described["events"] + state,
            "scored": f"every {self.split} label once; "
            f"test-time augmentation: {settings.test_time_augmentation}",
            "histograms": settings.binning.describe(),
        }

    @abstractmethod
    def scorer(self) -> Any:
        """Create an empty scorer."""

    @staticmethod
    def read(predictions: Any) -> Sequence[Any]:
        """Split a model's outputs into one value per labelled segment; tensors become arrays."""
        if not isinstance(predictions, Tensor):
            return list(predictions)
        require_finite(predictions)
        return list(predictions.float().cpu().numpy())

    @staticmethod
    def draw(axis: Axes, label: Any) -> AxesImage | None:
        """Draw a label, or a prediction converted by `read`.

        Args:
            axis: axis that shows the events.
            label: label of one segment.

        Returns:
            The image that needs a colour bar, whose title is the image's label, or None.
        """
        from tespec.pictures import draw_label

        return draw_label(axis, label)

    @classmethod
    def player(
        cls, settings: Finetuning, model: Any, spec: HistogramSpec, size: Size, device: torch.device
    ) -> Predictor:
        """Prepare a model as it is scored: on a GPU in the precision of its training, else float32.

        Tasks with test-time augmentation override this to wrap the model.

        Args:
            settings: fine-tuning settings.
            model: network, on `device`.
            spec: how its histograms are made.
            size: (H, W) in px of the histograms.
            device: where the model is.
        """
        on_gpu = device.type == "cuda"
        half = HALF.get(with_precision(settings.optimisation, device).precision) if on_gpu else None
        return Predictor(model.predict, cls.read, spec, device, half)

    def score(
        self, scorer: Any, predicted: Any, truth: Any, recording: LabelledRecording, label: int
    ) -> None:
        """Update the scorer with one prediction.

        Args:
            scorer: as created by `scorer`.
            predicted: a value returned by `read`.
            truth: the label.
            recording: recording that holds the label.
            label: its index in the recording.
        """
        scorer.update(predicted, truth, recording.name, groups_of(recording, label))

    def evaluate(
        self,
        model: Any,
        device: torch.device,
        workers: int = 0,
        spec: HistogramSpec | None = None,
        recordings: Sequence[LabelledRecording] | None = None,
        save: Callable[[Any, LabelledRecording, int], None] | None = None,
    ) -> Any:
        """Score every label of the scored recordings once, divided among the ranks.

        Args:
            model: network, on `device`.
            device: where the model is.
            workers: number of processes that load the data; 0: this one.
            spec: how histograms are made and the state is reset; default: as in training.
            recordings: default: the scored ones.
            save: called with each prediction, its recording, and the index of its label.

        Returns:
            The scorer with the frames of all ranks.
        """
        scorer = self.scorer()
        trained = self.histogram_spec
        spec = spec or trained
        for window in play(
            self.player(self.settings, model.eval(), spec, self.size, device),
            self.scored if recordings is None else recordings,
            # With another `spec`, about as many windows at a time as with training's.
            lanes=max(1, self.settings.eval_lanes * trained.segments // spec.segments),
            shard=(rank(), world_size()),
            workers=workers,
            label="evaluation",
        ):
            self.score(scorer, window.output, window.label, window.recording, window.position)
            if save:
                save(window.output, window.recording, window.position)
        states = all_gather(scorer.state())
        scorer.merge(state for index, state in enumerate(states) if index != rank())
        return scorer


def require_finite(*predictions: Tensor) -> None:
    """Raise `UserError` if a prediction is infinite or NaN."""
    require(
        all(prediction.isfinite().all() for prediction in predictions),
        "the trained model",
        "predicts infinity or NaN",
        "lower optimisation.peak_lr",
    )


def random_backbone(settings: Finetuning, size: tuple[int, int]) -> Backbone:
    """Build the backbone named by the settings, randomly initialised.

    Args:
        settings: fine-tuning settings.
        size: (H, W) in px of the histograms.
    """
    backbone = build_backbone(
        settings.backbone,
        settings.recurrent,
        settings.bins,
        padded_size(*size),
        settings.binning.channels,
        settings.drop_path,
    )
    backbone.expect(settings.representation)
    backbone.new_stem = settings.new_stem
    return backbone


def features_player(backbone: Backbone, spec: HistogramSpec, device: torch.device) -> Predictor:
    """Prepare a backbone for `play` in float32.

    Args:
        backbone: network, on `device`.
        spec: how its histograms are made.
        device: where the backbone is.

    Returns:
        A player whose output is the four features (C, h, w) of a segment.
    """

    def predict(
        histograms: Tensor, state: BackboneState, index: Tensor
    ) -> tuple[Any, BackboneState]:
        features, state = backbone(histograms, state)
        require(
            all(stage.isfinite().all() for stage in features),
            "the backbone",
            "gives features that are infinite or NaN",
            "use other weights",
        )
        return zip(*select_labelled(features, index), strict=True), state

    return Predictor(predict, list, spec, device)


def open_dataset(settings: Finetuning, root: Path) -> LabelledDataset:
    """Open the data set named by the settings; its labels must be those that the task expects.

    Args:
        settings: fine-tuning settings.
        root: folder of the data.
    """
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
    task = TASKS.module_dict.get(settings.kind)
    dataset.label_kind = LABEL_KINDS.get(getattr(task, "collate", None))
    return dataset


def listed(recordings: Sequence[LabelledRecording]) -> str:
    """List recordings with their number of labels, at most the first `MAX_LISTED`."""
    text = ", ".join(
        f"{recording.name} ({len(recording.label_indices)} labels"
        + (f", {recording.left_out} left out)" if recording.left_out else ")")
        for recording in recordings[:MAX_LISTED]
    )
    if len(recordings) > MAX_LISTED:
        n_labels = sum(len(recording.label_indices) for recording in recordings)
        text += f" and {len(recordings) - MAX_LISTED:,} more ({n_labels:,} labels in all)"
    return text


def groups_of(recording: LabelledRecording, label: int) -> tuple[str, ...]:
    """Find the groups of a frame by the speed of the camera.

    Args:
        recording: recording that holds the label.
        label: its index in the recording.

    Returns:
        "standing" or "moving"; nothing if the speed is unknown.
    """
    if recording.ego_speed is None:
        return ()
    return ("standing",) if recording.ego_speed[label] < STANDING else ("moving",)

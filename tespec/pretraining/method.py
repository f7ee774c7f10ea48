"""Base classes of methods: their row in the tables, the start of a backbone, and pre-training."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from typing_extensions import Self

from tespec.core.errors import UserError
from tespec.core.settings import (
    ARCHITECTURES,
    Fraction,
    PositiveInt,
    Pretraining,
    Size,
    build,
    suggest,
)
from tespec.datasets.images import ViewTransform
from tespec.models.backbone import Backbone, backbones, build_backbone, find_backbone
from tespec.models.layers import padded_size
from tespec.pretraining.data import (
    Batch,
    EventData,
    ImageData,
    Losses,
    PairData,
    PretrainData,
)
from tespec.registry import METHODS, register_methods
from tespec.weights.load import WeightsReport, load_backbone


@dataclass(frozen=True)
class TableRow:
    """Facts about a method: its row in the tables, the output of `--describe`, and records."""

    title: str  # name in the tables
    group: str = "Methods added here"  # heading above its rows
    backbone: str = "Swin-T/7"  # published network, as the tables name it
    pretraining_data: str = "-"  # data set of the pre-training, "-" for none
    citation: str = ""  # key or reference of the publication
    licence: str = ""  # of the published weights, "" if there are none
    weights: str = ""  # published file with these weights
    summary: str = ""  # one or two sentences


class Method:
    """How a backbone is initialised; registered in `METHODS`.

    Subclasses set `row` and may override `initialise`.
    """

    row: ClassVar[TableRow]
    # increase it when results change; results of other versions are recomputed
    version: ClassVar[int] = 1
    # "swin", "resnet" or "maxvit", whose size the profile sets; or a backbone such as "swin_tiny"
    network: ClassVar[str] = "swin"
    # class of the backbones that it works with, such as `PatchBackbone` if it masks patches
    backbone_type: ClassVar[type[nn.Module]] = Backbone
    # recurrent, feed-forward or both; empty for a part of another method that is not a backbone
    architectures: ClassVar[tuple[str, ...]] = ARCHITECTURES
    # published pre-training settings; None: not pre-trained here
    recipe: ClassVar[Pretraining | None] = None

    def __init_subclass__(cls) -> None:
        """Refuse a class attribute that has not the type of its default."""
        super().__init_subclass__()
        for name, value in vars(cls).items():
            kind = type(getattr(super(cls, cls), name, None))
            if kind in (bool, int, tuple) and not isinstance(value, kind):
                raise TypeError(f"{cls.__name__}.{name} is {value!r}, not of type {kind.__name__}")

    @classmethod
    def initialise(cls, backbone: Backbone, checkpoint: Path | None) -> WeightsReport:
        """Load the weights that a fine-tuning starts from, in place.

        Args:
            backbone: randomly initialised backbone.
            checkpoint: file with pre-trained weights; None: the initialisation stays random.

        Returns:
            The file's format and the tensors that were loaded or adapted.

        Raises:
            UserError: if the file does not cover the complete backbone.
        """
        if checkpoint is None:
            return WeightsReport("random initialisation", "", 0, len(backbone.state_dict()))
        return load_backbone(backbone, checkpoint)

    @classmethod
    def require(cls, name: str, arch: str) -> None:
        """Refuse an architecture that the method does not support.

        Args:
            name: registered name of the method.
            arch: "recurrent" or "feedforward".

        Raises:
            UserError: names the supported architectures.
        """
        if not cls.architectures:
            raise UserError(
                f"--method {name}", "is a component of another method, not a backbone", "see --list"
            )
        if arch not in cls.architectures:
            raise UserError(
                f"--method {name} --arch {arch}",
                f"{cls.row.title} with {cls.row.backbone} is {' or '.join(cls.architectures)} only",
                f"use --arch {cls.architectures[0]}",
            )

    @classmethod
    def require_backbone(cls, backbone: str | None) -> str:
        """Refuse an unknown backbone, and one that is no `backbone_type`.

        Args:
            backbone: name of a backbone; None or "": the profile's.

        Returns:
            The name, or the kind of network of which the profile chooses the backbone.

        Raises:
            UserError: names the backbones that the method works with.
        """
        if backbone and not issubclass(find_backbone(backbone), cls.backbone_type):
            accepted = [
                name for name, kind in backbones().items() if issubclass(kind, cls.backbone_type)
            ]
            raise UserError(
                f"--backbone {backbone}",
                f"{cls.row.title} does not work with it",
                f"choose from {', '.join(accepted)}",
            )
        return backbone or cls.network


class PretrainMethod(Method, nn.Module):
    """An SSL method: a module with a loss, whose backbone is the attribute `backbone`.

    It is built from `cfg`, settings of the type of `recipe.objective`, and a randomly initialised
    backbone. The loss draws masks and crops from torch's generator, which has the same seed on all
    ranks at each step, so runs resume exactly. To draw per sample, draw for the global batch and
    take the rows of this micro-batch (`tespec.core.distributed.shard_slice`).

    Optional hooks: `before_step(progress)` is called when the gradients of a step are complete,
    `after_step(progress)` after each step, with the completed fraction of the training.
    `load_required(path)` loads the network of `requires` before the first step.
    """

    data_type: ClassVar[type[PretrainData]]  # class of the data; set by the base classes
    deviations: ClassVar[tuple[str, ...]] = ()  # of its loss from the authors' code, for records
    # images, pairs or lanes: two, to normalise over the batch or to compare samples
    min_batch_size: ClassVar[int] = 2
    # settings, or groups of them, without effect; the user may not change them
    unused: ClassVar[tuple[str, ...]] = ()
    # Method that pre-trains a network which this one uses, or "objective.KEY" for a setting that
    # names it, whose weights the user may give as "objective.KEY_weights". It is pre-trained first,
    # and `load_required` receives its file (`tespec.runs.identity`).
    requires: ClassVar[str] = ""
    shared_rng: ClassVar[bool] = True  # whether all ranks draw the same random numbers
    backbone: Backbone

    @abstractmethod
    def loss(self, batch: Batch, state: Any) -> tuple[Losses, Any]:
        """Compute the losses of a training step.

        Args:
            batch: tensors by name, see `EventData`, `ImageData` and `PairData`.
            state: returned by the step before; None at the first step.

        Returns:
            Losses by name, of which "loss" is minimised and all are logged, and the detached state
            for the next step.
        """

    def val_losses(self, batch: Batch, state: Any) -> tuple[Losses, Any]:
        """Compute the losses of a validation batch, which are averaged over all samples.

        Args:
            batch: as in `loss`.
            state: returned by the batch before; None at the first batch.

        Returns:
            Losses by name, by default "loss" alone, and the state for the next batch.
        """
        losses, state = self.loss(batch, state)
        return {"loss": losses["loss"]}, state

    def val_metrics(self, means: Mapping[str, Tensor]) -> dict[str, float]:
        """Convert the means of `val_losses` over the validation data into metrics of the record."""
        return {name: mean.item() for name, mean in means.items()}

    @classmethod
    def from_data(cls, data: PretrainData) -> Self:
        """Build the method with a randomly initialised backbone, for data and their settings.

        Raises:
            UserError: if the settings do not fit the data.
        """
        return cls(data.cfg, cls.new_backbone(data))

    @classmethod
    def new_backbone(cls, data: PretrainData) -> Backbone:
        """Build a randomly initialised backbone for the input size and channels of `data`."""
        return build_backbone(
            data.settings.backbone,
            data.settings.recurrent,
            data.settings.bins,
            padded_size(*data.size),
            data.channels,
            data.settings.drop_path,
        )


class EventMethod(PretrainMethod):
    """A method that learns from event histograms of recordings; see `EventData` for its batches.

    >>> import torch
    >>> from tespec.models import EventSwin
    >>> class SmallFeatures(EventMethod):
    ...     row = TableRow(title="Small features")
    ...
    ...     def __init__(self, cfg, backbone):
    ...         super().__init__()
    ...         self.cfg = cfg
    ...         self.backbone = backbone
    ...
    ...     def loss(self, batch, state):
    ...         features, _ = self.backbone(batch["histograms"])
    ...         return {"loss": features[-1].square().mean()}, None
    >>> method = SmallFeatures(None, EventSwin("swin_micro", recurrent=False, img_size=(64, 96)))
    >>> losses, _ = method.loss({"histograms": torch.zeros(2, 1, 20, 64, 96)}, None)
    >>> losses["loss"].shape
    torch.Size([])
    """

    data_type = EventData
    min_batch_size = 1
    # lanes of a validation batch without memory, at least `min_batch_size`; with memory, a batch
    # has one lane, whose state follows one recording
    val_batch_size: ClassVar[int] = 1


@dataclass(frozen=True)
class CropSettings:
    """Settings of random crops; defaults of the reference implementations for ImageNet-1k."""

    size: PositiveInt = 224  # px; side of a crop
    channels: Literal[1, 3] = 3  # grey or RGB
    # minimum and maximum fraction of the image's area in a crop
    scale: tuple[Fraction, Fraction] = (0.08, 1.0)


class ImageMethod(PretrainMethod):
    """A method that learns from augmented crops of images; see `ImageData` for its batches.

    Its settings extend `CropSettings`.
    """

    data_type = ImageData
    unused = (
        "augmentation",
        "bins",
        "downsample",
        "rule",
        "sampling",
        "segments",
        "sensor_px",
        "window_ms",
    )

    @classmethod
    @abstractmethod
    def views(cls, cfg: Any, training: bool = True) -> Sequence[ViewTransform]:
        """Return the transforms that augment an image.

        Args:
            cfg: settings of the method.
            training: whether to augment for training or for validation.

        Returns:
            A transform for each crop, from an RGB image to a tensor (C, H, W). It may draw from
            the global generators, which are seeded for each image.
        """


class PairMethod(PretrainMethod):
    """A method that learns from pairs of events and image, with a backbone for each."""

    data_type = PairData
    unused = ("sampling", "segments")

    @classmethod
    def augment(
        cls, cfg: Any, histogram: NDArray[np.uint8], generator: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Augment a training histogram in the workers of the data loader.

        Most methods augment the batch in `loss` instead.

        Args:
            cfg: settings of the method.
            histogram: (1, 2 * bins, H, W).
            generator: seeded for each pair.
        """
        return histogram

    @classmethod
    def from_data(cls, data: PretrainData) -> Self:
        """Build the method with two randomly initialised backbones, for events and grey images."""
        images = build_backbone(
            data.settings.backbone,
            False,
            data.settings.bins,
            padded_size(*data.size),
            in_channels=1,
        )
        return cls(data.cfg, cls.new_backbone(data), images)


def find_method(name: str) -> type[Method]:
    """Return the registered method of that name; for an unknown name, the message suggests one."""
    if name not in METHODS.module_dict:
        raise UserError(
            f"--method {name}", "unknown method", suggest(name, sorted(METHODS.module_dict))
        )
    method: type[Method] = METHODS.module_dict[name]
    if not issubclass(method, Method) or not hasattr(method, "row"):
        raise UserError(
            f"--method {name}",
            f"{method.__name__} is no method with a title",
            f"derive it from EventMethod, and set {method.__name__}.row = TableRow(title=...)",
        )
    return method


def open_pretraining(
    settings: Pretraining, root: Path | None, size: Size | None = None, skip_damaged: bool = False
) -> PretrainData:
    """Open the data that the method of the settings learns from.

    Args:
        settings: of the pre-training.
        root: folder of the data; None: only blank batches, to estimate the cost of a step.
        size: height and width in px of these blank batches.
        skip_damaged: whether to skip unreadable recordings instead of refusing them.

    Raises:
        UserError: if settings, backbone and data do not fit.
    """
    method = objective_class(settings)
    method.require_backbone(settings.backbone)
    data = method.data_type(settings, method, method_settings(settings.objective), size)
    if root is not None:
        data.open(root, skip_damaged)
    return data


def objective_class(settings: Pretraining) -> type[PretrainMethod]:
    """Return the class whose loss is trained: the recipe's, or that of `--set objective=NAME`."""
    register_methods()
    return METHODS.module_dict[settings.objective["type"]]


def method_settings(objective: Mapping[str, Any]) -> Any:
    """Build a method's `cfg` from its name as `type` and values by name; refuse invalid ones."""
    return build(
        type(METHODS.module_dict[objective["type"]].recipe.objective),
        {name: value for name, value in objective.items() if name != "type"},
        "objective",
    )

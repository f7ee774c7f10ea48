"""Base classes of the compared methods: metadata for tables, initialisation of a backbone, and pre-training."""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from typing_extensions import Self

from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.settings import (
    ARCHITECTURES,
    Mask,
    PositiveInt,
    Pretraining,
    Share,
    Size,
    build,
    suggest,
)
from tespec.datasets.images import ViewOf
from tespec.metrics.features import PLACES, FeatureReservoir, feature_std_and_rank
from tespec.models import Backbone, EventSwin, build_backbone
from tespec.models.layers import padded_size
from tespec.pretraining.data import Batch, EventData, ImageData, PairData, PretrainData
from tespec.registry import METHODS, register_methods
from tespec.weights.load import WeightsReport, load_backbone

SEED = 0  # of random draws in validation, the same for every run
FRAMES = 64  # validation frames from which the features of each stage are measured


class Method:
    """How a backbone is initialised; registered in `METHODS`. Subclasses set metadata and may override `initialise`."""

    title: ClassVar[str] = ""  # name in the tables
    # increase it when results change; results of other versions are recomputed
    version: ClassVar[int] = 1
    group: ClassVar[str] = "Methods added here"  # heading above its rows in the tables
    network_title: ClassVar[str] = "Swin-T/7"  # network name in the tables
    # "swin", "resnet" or "maxvit", whose size the profile sets; or an architecture
    network: ClassVar[str] = "swin"
    # Recurrent, feed-forward or both; empty for a part of another method that is not a backbone.
    architectures: ClassVar[tuple[str, ...]] = ARCHITECTURES
    pretraining_data: ClassVar[str] = "-"  # data set of the pre-training, "-" for none
    # published pre-training settings; None: not pre-trained here
    recipe: ClassVar[Pretraining | None] = None
    citation: ClassVar[str] = ""  # key or reference of the publication
    licence: ClassVar[str] = ""  # licence of the published weights, "" if there are none
    weights: ClassVar[str] = ""  # published file with these weights
    summary: ClassVar[str] = ""  # one or two sentences for `--describe`

    @classmethod
    def initialise(cls, backbone: Backbone, checkpoint: Path | None) -> WeightsReport:
        """Load `checkpoint` into `backbone`, in place; without one, the backbone keeps its random initialisation.

        A file that does not cover the complete backbone is refused.
        """
        if checkpoint is None:
            return WeightsReport("random initialisation", "", 0, len(backbone.state_dict()))
        return load_backbone(backbone, checkpoint)

    @classmethod
    def require(cls, name: str, arch: str) -> None:
        """Refuse an architecture that the method does not support; the message lists the supported ones."""
        if not cls.architectures:
            raise UserError(
                f"--method {name}", "is a component of another method, not a backbone", "see --list"
            )
        if arch not in cls.architectures:
            what = f"{cls.title} with {cls.network_title} is {' or '.join(cls.architectures)} only"
            raise UserError(
                f"--method {name} --arch {arch}", what, f"use --arch {cls.architectures[0]}"
            )

    @classmethod
    def facts(cls) -> dict[str, Any]:
        """Metadata of the method, for records and `--describe`."""
        names = ("pretraining_data", "citation", "licence", "weights", "summary")
        row = {"title": cls.title, "group": cls.group, "backbone": cls.network_title}
        return row | {name: getattr(cls, name) for name in names}


class PretrainMethod(Method, nn.Module):
    """An SSL method: a network with a loss, whose backbone is the attribute `backbone`.

    It is built from its own settings, of the type of `recipe.objective`, and a randomly initialised
    backbone. Its loss draws from torch's generator, which has the same seed on all ranks at each
    step, so that runs resume exactly. To draw per sample, it draws for the global batch and uses
    the rows of its micro-batch (`tespec.core.distributed.shard_slice`).
    """

    data_type: ClassVar[type[PretrainData]]  # class of the data; set by the base classes
    deviations: ClassVar[tuple[str, ...]] = ()  # of its loss from the authors' code, for records
    # lanes, images or pairs; 2 if batches are normalised or samples compared
    min_batch_size: ClassVar[int] = 1
    masks_patches: ClassVar[bool] = False  # True requires a Swin
    # settings, or groups of them, without effect; the user may not change them
    unused: ClassVar[tuple[str, ...]] = ()
    shared_rng = True  # whether all ranks draw the same random numbers
    backbone: Backbone

    def loss(self, batch: Batch, state: Any) -> tuple[dict[str, Tensor], Any]:
        """Losses of a step by name, of which "loss" is minimised, and the detached state for the next step.

        For batches, see `EventData`, `ImageData` and `PairData`; the first step's state is None.
        """
        raise NotImplementedError(f"{type(self).__name__} has no loss")

    @classmethod
    def from_settings(cls, own: Any, settings: Pretraining, data: PretrainData) -> Self:
        """Build the method with a randomly initialised backbone; settings that do not fit the data are refused."""
        return cls(own, cls.new_backbone(settings, data))

    @classmethod
    def new_backbone(cls, settings: Pretraining, data: PretrainData) -> Backbone:
        """Build a randomly initialised backbone for `data`; a method that masks patches requires a Swin."""
        size, bins = padded_size(*data.size), settings.bins
        backbone = build_backbone(
            settings.backbone, settings.recurrent, bins, size, data.channels, settings.drop_path
        )
        if cls.masks_patches and not isinstance(backbone, EventSwin):
            what = f"{settings.backbone} has no patches to mask"
            raise UserError(
                f"objective {settings.objective['type']}", what, "choose a Swin with --backbone"
            )
        return backbone

    @classmethod
    def upstream(cls, own: Any) -> tuple[str, str]:
        """Method that pre-trains a network which the training needs, "" for none, and that network's file if given."""
        return "", ""

    def load_upstream(self, path: Path) -> None:
        """Load the network of `upstream` from its file, before the first step; one that does not fit is refused."""
        raise NotImplementedError(
            f"{type(self).__name__} names an upstream, but has no load_upstream"
        )

    @classmethod
    def upstream_settings(cls, settings: Pretraining, name: str) -> Pretraining:
        """Settings of the upstream pre-training; its steps are scaled by the ratio of this one's to their default."""
        first, usual = (
            pretraining_settings(each, settings.profile) for each in (name, settings.name)
        )
        share, how = settings.optimisation.steps / usual.optimisation.steps, first.optimisation
        steps, warmup = max(1, round(share * how.steps)), int(share * how.warmup_steps)
        return replace(
            first, optimisation=replace(how, steps=steps, warmup_steps=min(warmup, steps - 1))
        )

    def val_losses(self, batch: Batch, state: Any) -> tuple[dict[str, Tensor], Any]:
        """Validation losses of a batch by name, and the state for the next batch."""
        losses, state = self.loss(batch, state)
        return {"loss": losses["loss"]}, state

    @torch.no_grad()
    def validate(self, data: PretrainData, device: torch.device) -> dict[str, float]:
        """Mean losses over all validation samples, and std and rank of their last features, in constant memory."""
        self.eval()
        sums: defaultdict[str, float] = defaultdict(float)
        last, samples, state, memory = FeatureReservoir(PLACES), 0, None, None
        with progress("validation", "batches") as advance:
            for number, batch in enumerate(data.val_batches(device)):
                torch.manual_seed(SEED + number)
                losses, state = self.val_losses(batch, state)
                features, memory = data.features(self.backbone, batch, memory)
                last.add(features[-1])
                for name, loss in losses.items():
                    sums[name] += loss.item() * len(features[0])
                samples += len(features[0])
                advance(number + 1, None, "")
        std, rank = feature_std_and_rank(last.features)
        means = {name: total / samples for name, total in sums.items()}
        return means | {"last_stage_std": std, "last_stage_rank": rank}

    @torch.no_grad()
    def stage_spreads(
        self, data: PretrainData, device: torch.device
    ) -> dict[str, dict[str, float]]:
        """Std and rank of the features of each stage, "stage 1" to "stage 4", on about `FRAMES` validation frames."""
        stages, state = [FeatureReservoir(PLACES) for _ in range(4)], None
        for batch in data.val_batches(device, FRAMES):
            features, state = data.features(self.backbone, batch, state)
            for reservoir, feature in zip(stages, features, strict=True):
                reservoir.add(feature)
        spreads = [feature_std_and_rank(reservoir.features)._asdict() for reservoir in stages]
        return {f"stage {number}": spread for number, spread in enumerate(spreads, 1)}

    # most draw nothing
    def draw(self, data: PretrainData, device: torch.device, path: Path) -> None:
        """Save a figure of the network's outputs on the validation data, if the method has one."""


class EventMethod(PretrainMethod):
    """A method that learns from event histograms of recordings; see `EventData` for its batches."""

    data_type = EventData

    @classmethod
    def mask(cls, own: Any) -> Mask | None:
        """Settings of the masks in a batch; None: batches have no masks."""
        return None

    @classmethod
    def val_batch_size(cls, settings: Pretraining) -> int:
        """Lanes of a validation batch: 1 if recurrent, since its state follows one recording, else `min_batch_size`."""
        return 1 if settings.recurrent else cls.min_batch_size


@dataclass(frozen=True)
class ViewSettings:
    """Settings of random image views; defaults of the reference implementations for ImageNet-1k."""

    size: PositiveInt = 224  # px; side of a view
    channels: Literal[1, 3] = 3  # grey or RGB
    # minimum and maximum share of the image's area in a view
    scale: tuple[Share, Share] = (0.08, 1.0)


class ImageMethod(PretrainMethod):
    """A method that learns from views of images; see `ImageData`. Its own settings include `ViewSettings`."""

    data_type = ImageData
    min_batch_size = 2
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
    def views(cls, own: Any, training: bool = True) -> Sequence[ViewOf]:
        """Transforms from an RGB image to each view (C, H, W); they may draw from global generators, see `seeded`."""


class PairMethod(PretrainMethod):
    """A method that learns from pairs of events and image, with a backbone for each; see `PairData`."""

    data_type = PairData
    min_batch_size = 2
    unused = ("sampling", "segments")

    @classmethod
    def augment(
        cls, own: Any, histogram: NDArray[np.uint8], generator: np.random.Generator
    ) -> NDArray[np.uint8]:
        """Augment a training histogram (1, 2 * bins, H, W); most methods augment views of the batch instead."""
        return histogram

    @classmethod
    def from_settings(cls, own: Any, settings: Pretraining, data: PretrainData) -> Self:
        """Build the method with two randomly initialised backbones, for events and for images."""
        images = build_backbone(
            settings.backbone, False, settings.bins, padded_size(*data.size), in_channels=1
        )
        return cls(own, cls.new_backbone(settings, data), images)


def find_method(name: str) -> type[Method]:
    """Return the registered method of that name; for an unknown name, the message suggests known ones."""
    method: type[Method] | None = METHODS.module_dict.get(name)
    if method is None:
        raise UserError(
            f"--method {name}", "unknown method", suggest(name, sorted(METHODS.module_dict))
        )
    if not method.title:
        raise UserError(
            f"--method {name}", "has no title for its table row", f"set {method.__name__}.title"
        )
    return method


def open_pretraining(
    settings: Pretraining, root: Path | None, size: Size | None = None, skip_damaged: bool = False
) -> PretrainData:
    """Open the data in `root` for the method of the settings; None prepares blank batches of `size` instead."""
    method = pretrain_method(settings)
    data = method.data_type(settings, method, own_settings(settings.objective), size)
    if root is not None:
        data.open(root, skip_damaged)
    return data


def new_network(settings: Pretraining, data: PretrainData) -> PretrainMethod:
    """Build the method of the settings with a randomly initialised backbone for `data`."""
    return pretrain_method(settings).from_settings(own_settings(settings.objective), settings, data)


def pretrain_method(settings: Pretraining) -> type[PretrainMethod]:
    """Class of the method whose loss is trained: the recipe's, or another (`--set objective=NAME`)."""
    register_methods()
    return METHODS.module_dict[settings.objective["type"]]


def own_settings(objective: Mapping[str, Any]) -> Any:
    """Build a method's own settings from its name as `type` and values by name; invalid ones are refused."""
    register_methods()
    own = {key: value for key, value in objective.items() if key != "type"}
    return build(type(METHODS.module_dict[objective["type"]].recipe.objective), own, "objective")

"""What a way to pre-train is to the harness: its data, its network, and what is measured on data held out.

An objective is two classes: a network with `loss(batch, state)`, and a class registered in `OBJECTIVES` that says what
data it learns from, by inheriting from `EventObjective`, `ImageObjective` or `PairObjective`.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.registry import OBJECTIVES, find_registered, register_methods
from tespec.core.settings import Count, FromZero, Mask, Pretraining, Share, Size, build
from tespec.datasets.batches import WHOLE, PretrainBatches, Shard, StepBatches
from tespec.datasets.folder import TrainValSplit, divide, lengths_by_split
from tespec.datasets.images import (
    ImageBatches,
    PairBatches,
    ViewRule,
    as_input,
    held_out_batch,
    open_images,
    paired,
    subsample,
)
from tespec.datasets.recording import fingerprint
from tespec.metrics.features import PLACES, FeatureReservoir, feature_std_and_rank
from tespec.models import Backbone, EventSwin, build_backbone
from tespec.models.backbone import reset
from tespec.models.layers import padded_size
from tespec.pretraining.health import FRAMES, stage_spreads
from tespec.pretraining.held_out import HeldOut

SHOWN = 8  # names in a line
SEED = 0  # of what objectives draw on data held out, the same for every run
Batch = dict[str, Tensor]


def build_objective(
    settings: Pretraining, root: Path | None, size: Size | None = None, skip_damaged: bool = False
) -> PretrainingTask:
    """The objective that the settings name, on the data in `root`, or without data for an input of `size`.

    Recordings that cannot be read are left out if `skip_damaged`.

    Raises:
        UserError: there is no such objective, its settings do not fit, or the data cannot be read.
    """
    task: PretrainingTask = _registered(settings.objective)(settings, root, size, skip_damaged)
    return task


def own_settings(objective: Mapping[str, Any]) -> Any:
    """The typed settings of an objective, given `type` and values by name.

    Raises:
        UserError: there is no such objective, or a setting is unknown, missing or out of range.
    """
    own = {key: value for key, value in objective.items() if key not in ("type", "deviations")}
    return build(_registered(objective).settings_type, own, "objective")


def _registered(objective: Mapping[str, Any]) -> type[PretrainingTask]:
    register_methods()
    kind: type[PretrainingTask] = find_registered(OBJECTIVES, str(objective.get("type", "")), "objective.type")
    return kind


class PretrainingTask(ABC):
    """Data, network and scores of one objective; registered in `OBJECTIVES`, built with (settings, root).

    The network is an `nn.Module` with `backbone` and `loss(batch, state)`, which returns scalar losses by name, "loss"
    being minimised, and the detached state that the next step gets. What it draws comes from torch's generator, which
    is seeded at every step, so that runs resume exactly. Where it has `after_step(share)`, that is called after every
    step with the share of the training that is done. `draws_alike = True` says that every process draws for the batch
    of all processes and takes its own part (`tespec.core.distributed.batch_rows`).

    Args:
        settings: of the pre-training.
        root: the data; None: there is none, and what needs none can be asked, such as what a step costs.
        size: (H, W) in px of what the backbone sees, where there is no data that says it.
        skip_damaged: recordings that cannot be read are left out.

    Attributes:
        settings_type: pydantic dataclass of the objective's own settings.
        network_type: class of the network, built with (own settings, backbone).
        loss_is: what "loss" is, in words.
        hides_patches: whether the backbone has to be a Swin, whose patches can be hidden.
        fewest: lanes, images or pairs that a batch cannot do without; two where batches are normalised.
        own: the objective's own settings, of type `settings_type`.
        notes: lines for the user about the data.
        damaged: names of recordings that were left out.

    Raises:
        UserError: data that cannot be read, or settings that do not fit.
    """

    settings_type: ClassVar[type[Any]]
    network_type: ClassVar[type[Any]]
    loss_is: ClassVar[str]
    hides_patches: ClassVar[bool] = False
    fewest: ClassVar[int] = 1
    notes: tuple[str, ...] = ()
    damaged: tuple[str, ...] = ()

    root: Path
    _size: Size

    def __init__(
        self, settings: Pretraining, root: Path | None, size: Size | None = None, skip_damaged: bool = False
    ) -> None:
        self.settings, self.skip_damaged = settings, skip_damaged
        self.own = own_settings(settings.objective)
        self.check_settings()
        if size is not None:
            self._size = size
        if root is not None:
            self.root = root
            self.open_data()

    def check_settings(self) -> None:  # noqa: B027  # most fit
        """Refuse settings that do not fit the objective, whatever the data.

        Raises:
            UserError: they do not.
        """

    @abstractmethod
    def open_data(self) -> None:
        """Open the data in `root`, and set `_size`.

        Raises:
            UserError: it cannot be read.
        """

    @property
    def size(self) -> Size:
        """(H, W) in px of what the backbone sees."""
        return self._size

    @property
    def channels(self) -> int | None:
        """Input channels of the backbone where they are not those of histograms."""
        return None

    def backbone(self) -> Backbone:
        """A fresh backbone.

        Raises:
            UserError: patches are to be hidden, and the architecture has none.
        """
        settings, size = self.settings, padded_size(*self.size)
        backbone = build_backbone(
            settings.width, settings.recurrent, settings.bins, size, self.channels, settings.drop_path
        )
        if self.hides_patches and not isinstance(backbone, EventSwin):
            what = f"{settings.width} has no patches to hide"
            raise UserError(f"objective {settings.objective['type']}", what, "choose a Swin")
        return backbone

    def network(self) -> Any:
        """The network with a fresh backbone."""
        return self.network_type(self.own, self.backbone())

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the data."""

    @abstractmethod
    def recordings(self) -> dict[str, dict[str, float]]:
        """How many windows, pairs or images of each recording, or folder, are trained on ("train") or "held_out"."""

    @abstractmethod
    def counts(self) -> dict[str, str]:
        """How much data there is, in words."""

    @abstractmethod
    def steps(self, seed: int, shard: Shard = WHOLE) -> Any:
        """Batches of the training by step, or a part of each: see `tespec.datasets.batches.StepBatches`."""

    @abstractmethod
    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        """A batch of so many lanes, images or pairs without content, to count what a step costs."""

    @property
    def lanes_held_out(self) -> int:
        """Lanes, images or pairs of a batch of data held out."""
        return max(self.settings.batch_size, self.fewest)

    @abstractmethod
    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Batches of data held out, in order, the same for every run."""

    @abstractmethod
    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features (B, T, C, h, w) of the backbone's stages, and its state."""

    def protocol(self) -> dict[str, str]:
        """What the numbers mean, in words."""
        return {
            "loss": self.loss_is,
            "feature_std": "deviation of unit-length features of all stages on data held out, times root(channels)",
            "feature_rank": "exponential of the entropy of their singular values",
            "feature_places": f"{PLACES:,} places of all frames held out, drawn alike for every run; all where fewer",
            "last_stage_std, last_stage_rank": "the same of the last stage alone",
            "stages": f"of each stage, on about {FRAMES} frames held out, and before its memory where it has one; "
            "magnitude is the mean of |x|",
            **self.counts(),
            **({"left out as damaged": ", ".join(self.damaged)} if self.damaged else {}),
        }

    def divided(self) -> TrainValSplit:
        """The recordings in `root`; `notes` and `damaged` say what was left out."""
        settings = self.settings
        division = divide(self.root, settings.window_ms, settings.downsample, settings.sensor, self.skip_damaged)
        self.damaged = tuple(division.damaged)
        self.notes = (
            *_left_alone(division.excluded_test),
            *(f"left out as damaged: {error}" for error in division.damaged.values()),
        )
        return division

    def evaluate(self, model: Any, device: torch.device) -> dict[str, float]:
        """Mean loss on data held out, and how its features spread; memory does not grow with the data."""
        return self._held_out_measures(model, device)

    @torch.no_grad()
    def _held_out_measures(self, model: Any, device: torch.device, *, scored: bool = True) -> dict[str, float]:
        """As of `evaluate`; the loss alone is left out where it is not `scored`."""
        model.eval()
        total, lanes, count = 0.0, 0, 0
        whole, last = FeatureReservoir(PLACES), FeatureReservoir(PLACES)
        state = seen = None
        with progress("data held out", "batches") as advance:
            for batch in self.held_out(device):
                if scored:
                    torch.manual_seed(SEED + count)
                    losses, state = model.loss(batch, state)
                features, seen = self.features(model, batch, seen)
                whole.add(features, features[1].shape[-2:])
                last.add(features[-1:], features[-1].shape[-2:])
                if scored:
                    total += losses["loss"].item() * len(features[0])
                lanes += len(features[0])
                count += 1
                advance(count, None, "")
        found, deepest = feature_std_and_rank(whole.features()), feature_std_and_rank(last.features())
        return ({"loss": total / max(lanes, 1)} if scored else {}) | {
            "feature_std": found.std,
            "feature_rank": found.rank,
            "last_stage_std": deepest.std,
            "last_stage_rank": deepest.rank,
        }

    def glimpse(self, device: torch.device) -> Iterator[Batch]:
        """About `FRAMES` frames of the data held out, the same for every run."""
        return islice(self.held_out(device), max(1, FRAMES // self.lanes_held_out))

    def spreads(
        self, model: Any, device: torch.device, stages: Sequence[int] = range(4)
    ) -> dict[str, dict[str, float]]:
        """How features of some stages differ there, see `stage_spreads`."""
        return stage_spreads(model.backbone, self._features(model, self.glimpse(device)), stages)

    def _features(self, model: Any, batches: Iterator[Batch]) -> Iterator[list[Tensor]]:
        state = None
        for batch in batches:
            features, state = self.features(model, batch, state)
            yield features

    def draw(self, model: Any, device: torch.device, path: Path) -> bool:
        """Draw what the model does on data held out, where there is something to see; whether it did."""
        return False


class EventObjective(PretrainingTask):
    """An objective whose batches are histograms of lanes.

    A batch holds `histograms` (B, T, 2 * bins, H, W) uint8, `fresh` (B,) bool, whether a lane starts a recording, and,
    where `masks` says how, `mask` (B, rows, cols) bool, True where a patch is hidden.
    """

    @property
    def lanes_held_out(self) -> int:
        """One with memory, whose state is carried along each recording; else as few as the objective can do with."""
        return 1 if self.settings.recurrent else self.fewest

    def open_data(self) -> None:
        """Divide the recordings into those trained on and those held out."""
        settings, root = self.settings, self.root
        self._division = self.divided()
        stepped = (
            f"{path}: {count:,} event times stepped back and were raised to the latest time before them"
            for path, count in self._division.clamped.items()
        )
        self.notes = (*self.notes, *stepped)
        longest = max(map(len, self._division.held_out))
        if longest < settings.segments:
            what = f"the longest part held out has {longest} windows of {settings.window_ms:g} ms, not "
            fewer = f"--set segments={longest}, or " if longest else ""
            raise UserError(root, f"{what}{settings.segments} (segments)", f"give {fewer}longer recordings")
        if len(self.chunks(torch.device("cpu"))) < min(self.fewest, self.lanes_held_out):
            what = f"fewer than {self.fewest} stretches of {settings.segments} windows are held out"
            raise UserError(root, what, "set fewer segments, or give longer recordings")
        self._size = self._division.size

    def fingerprint(self) -> str:
        """Hash of the recordings."""
        return fingerprint(self._division.train, self._division.held_out)

    def recordings(self) -> dict[str, dict[str, float]]:
        """Windows of each recording."""
        return lengths_by_split(self._division.train, self._division.held_out)

    def counts(self) -> dict[str, str]:
        """Recordings, in words."""
        train, held_out = len(self._division.train), len(self._division.held_out)
        return {
            "recordings": f"{train} to train on, {held_out} held out",
            "split": "held-out recordings, or the last quarter of the time where there are fewer than five",
        }

    def masks(self) -> Mask | None:
        """How masks are drawn, for objectives that take some."""
        return None

    def steps(self, seed: int, shard: Shard = WHOLE) -> StepBatches:
        """Batches of the training by step."""
        return PretrainBatches(self._division.train, self.settings, seed, shard, self.masks())

    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        """Histograms without events, and masks that hide nothing."""
        settings, mask = self.settings, self.masks()
        shape = (lanes, settings.segments, 2 * settings.bins, *self.size)
        batch = {
            "histograms": torch.zeros(shape, dtype=torch.uint8, device=device),
            "fresh": torch.ones(lanes, dtype=torch.bool, device=device),
        }
        if mask is None:
            return batch
        units = [-(-side // mask.unit) for side in self.size]
        return batch | {"mask": torch.zeros(lanes, *units, dtype=torch.bool, device=device)}

    def chunks(self, device: torch.device) -> HeldOut:
        """The recordings held out, chunk by chunk."""
        return HeldOut(self._division.held_out, self.settings, device, self.masks())

    def glimpse(self, device: torch.device) -> Iterator[Batch]:
        """About `FRAMES` frames of several recordings held out, the same for every run."""
        return self._batches(self.chunks(device).glimpse(FRAMES))

    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Their chunks one after the other, `lanes_held_out` at once; a last batch below `fewest` is left out."""
        return self._batches(self.chunks(device))

    def _batches(self, chunks: HeldOut) -> Iterator[Batch]:
        waiting = (chunk.batch for chunk in chunks)
        least = min(self.fewest, self.lanes_held_out)
        while len(several := list(islice(waiting, self.lanes_held_out))) >= least:
            yield {name: torch.cat([each[name] for each in several]) for name in several[0]}

    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features of events, the state carried along each recording."""
        features: list[Tensor]
        features, state = model.backbone(batch["histograms"], reset(state, batch["fresh"]))
        return features, state


@dataclass(frozen=True)
class ViewSettings:
    """How views of an image are drawn, see `tespec.datasets.images.ViewRule`; settings of an `ImageObjective`."""

    size: Count  # px; side of a view
    channels: Count  # 1, grey, or 3, RGB
    scale: tuple[Share, Share]  # lowest and highest share of the image that a view shows
    jitter: FromZero  # of brightness and contrast


class ImageObjective(PretrainingTask):
    """An objective whose batches are views of images; the backbone is feed-forward and sees 1 or 3 channels.

    A batch holds `views` (B, views, C, H, W) uint8 and their `color_jitter` (B, views, 2) float32, of which
    `tespec.datasets.images.as_input` makes what the backbone sees, and `labels` (B,) int64, the folder that each image
    lies in.

    Attributes:
        views: number of views of each image.
    """

    HELD_OUT: ClassVar[int] = 512  # images
    views: ClassVar[int]
    fewest = 2

    def check_settings(self) -> None:
        """Refuse memory, and images that are neither grey nor RGB."""
        if self.settings.recurrent:
            raise UserError("recurrent", "images have no order in time", "set it to false")
        if self.own.channels not in (1, 3):
            raise UserError("objective.channels", f"{self.own.channels} is neither grey nor RGB", "choose 1 or 3")

    def open_data(self) -> None:
        """Find the images."""
        self.images = open_images(self.root)
        if len(self.images.held_out) < self.fewest:
            what = f"fewer than {self.fewest} images are left for validation"
            raise UserError(self.root, what, "give more images")
        self.notes = _left_alone(self.images.excluded_test)
        self._rule = ViewRule(self.size, self.own.channels, self.own.scale, self.own.jitter, self.views)

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of a view in px."""
        return self.own.size, self.own.size

    @property
    def channels(self) -> int:
        """1 or 3."""
        channels: int = self.own.channels
        return channels

    def fingerprint(self) -> str:
        """Hash of the folder."""
        return self.images.fingerprint()

    def recordings(self) -> dict[str, dict[str, float]]:
        """Images of each folder."""
        return self.images.counts()

    def counts(self) -> dict[str, str]:
        """Images and classes, in words."""
        images = self.images
        return {
            "images": f"{len(images.train):,} to train on, {len(images.held_out):,} held out",
            "classes": ", ".join(images.classes[:20]) + (", ..." if len(images.classes) > 20 else ""),
        }

    def steps(self, seed: int, shard: Shard = WHOLE) -> ImageBatches:
        """Batches of the training by step."""
        return ImageBatches(self.images, self._rule, self.settings.batch_size, seed, shard)

    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        """Black views, all of the first class."""
        return {
            "views": torch.zeros(lanes, self.views, self.channels, *self.size, dtype=torch.uint8, device=device),
            "color_jitter": torch.ones(lanes, self.views, 2, device=device),
            "labels": torch.zeros(lanes, dtype=torch.int64, device=device),
        }

    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Batches of images held out: whole ones, or views where several of each image are compared."""
        paths, size = self.images.held_out[: self.HELD_OUT], max(self.settings.batch_size, self.fewest)
        for first in range(0, len(paths) - self.fewest + 1, size):
            batch = held_out_batch(self.images, paths[first : first + size], self._rule)
            yield {name: value.to(device) for name, value in batch.items()}

    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features of the first view."""
        features: list[Tensor]
        features, _ = model.backbone(as_input(batch["views"][:, :1]))
        return features, None


class PairObjective(PretrainingTask):
    """An objective whose batches are pairs of events and the grey image at their end; the backbone is feed-forward.

    A batch holds `histograms` (B, 1, 2 * bins, H, W) uint8 and `images` (B, 1, 1, H, W) uint8, of which
    `tespec.datasets.images.as_input` makes what a backbone sees. The network is built with (own settings, backbone, a
    backbone for the images).
    """

    HELD_OUT: ClassVar[int] = 256  # pairs
    fewest = 2

    def check_settings(self) -> None:
        """Refuse memory, and batches of a single pair."""
        settings = self.settings
        if settings.recurrent:
            raise UserError("recurrent", "pairs of events and image have no order in time", "set it to false")
        if settings.batch_size < self.fewest:
            raise UserError("batch_size", "a pair alone has nothing to be told from", "give 2 or more")

    def open_data(self) -> None:
        """Divide the recordings, and find the image at the end of each window."""
        settings = self.settings
        division = self.divided()
        self._train = paired(division.train, settings.window_ms)
        self._held_out = subsample(paired(division.held_out, settings.window_ms), self.HELD_OUT)
        if sum(map(len, self._held_out)) < self.fewest:
            what = f"fewer than {self.fewest} pairs are left for validation"
            raise UserError(self.root, what, "give longer recordings, or more of them")
        self._size = division.size

    def fingerprint(self) -> str:
        """Hash of the recordings, and of the names and sizes of their images."""
        digest = hashlib.sha256(fingerprint(self._train, self._held_out).encode())
        for path in (path for each in (*self._train, *self._held_out) for path in each.images):
            digest.update(f"{path.name}|{path.stat().st_size}\n".encode())
        return digest.hexdigest()[:12]

    def recordings(self) -> dict[str, dict[str, float]]:
        """Pairs of each recording."""
        return lengths_by_split(self._train, self._held_out)

    def counts(self) -> dict[str, str]:
        """Pairs, in words."""
        train, held_out = sum(map(len, self._train)), sum(map(len, self._held_out))
        return {"pairs": f"{train:,} to train on, {held_out:,} held out"}

    def network(self) -> Any:
        """The network with two fresh backbones, for events and for images."""
        settings, size = self.settings, padded_size(*self.size)
        images = build_backbone(settings.width, False, settings.bins, size, in_channels=1)
        return self.network_type(self.own, self.backbone(), images)

    def steps(self, seed: int, shard: Shard = WHOLE) -> PairBatches:
        """Batches of the training by step."""
        return PairBatches(self._train, self.settings, seed, shard)

    def blank_batch(self, lanes: int, device: torch.device) -> Batch:
        """Histograms without events, and black images."""
        shape = (lanes, 1, 2 * self.settings.bins, *self.size)
        return {
            "histograms": torch.zeros(shape, dtype=torch.uint8, device=device),
            "images": torch.zeros(lanes, 1, 1, *self.size, dtype=torch.uint8, device=device),
        }

    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Batches of pairs held out, of all of them where a training batch has more."""
        still = replace(self.settings.augmentation, flip=0.0, zoom=0.0)
        pairs = sum(map(len, self._held_out))
        size = min(self.settings.batch_size, pairs)
        steps = PairBatches(self._held_out, replace(self.settings, augmentation=still, batch_size=size), 0)
        for step in range(pairs // size if size >= self.fewest else 0):
            yield {name: value.to(device) for name, value in steps[step].items()}

    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features of events."""
        features: list[Tensor]
        features, _ = model.backbone(batch["histograms"])
        return features, None


def _left_alone(names: Sequence[str]) -> tuple[str, ...]:
    """A line for the user about recordings of test splits; none where there are none."""
    more = "" if len(names) <= SHOWN else f" and {len(names) - SHOWN} more"
    return (f"of a test split, so left alone: {', '.join(names[:SHOWN])}{more}",) if names else ()

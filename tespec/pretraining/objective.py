"""What a way to pre-train is to the harness: its data, its network, and what is measured on data held out."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from tespec.core.errors import UserError
from tespec.core.progress import progress
from tespec.core.registry import OBJECTIVES, find_registered, import_modules
from tespec.core.settings import Mask, Pretraining, build
from tespec.datasets.batches import WHOLE, PretrainSteps, Shard, Steps, draw_mask
from tespec.datasets.images import ImageSteps, ViewRule, held_out_batch, open_images
from tespec.datasets.recording import Recording, fingerprint
from tespec.datasets.unlabelled import divide, lengths_by_split
from tespec.metrics.probes import PLACES, Places, spread
from tespec.models import Backbone, EventSwin, build_backbone
from tespec.models.backbone import reset
from tespec.models.layers import padded_size

SHOWN = 8  # names in a line
SEED = 0  # of what objectives draw on data held out, the same for every run
Batch = dict[str, Tensor]


class PretrainingTask(ABC):
    """Data, network and scores of one objective; registered in `OBJECTIVES`, built with (settings, root).

    Args:
        settings: of the pre-training.
        root: the data.

    Attributes:
        own: the objective's own settings, of type `settings_type`.
        notes: lines for the user about the data.

    Raises:
        UserError: data that cannot be read, or settings that do not fit.
    """

    settings_type: ClassVar[type[Any]]
    loss_is: ClassVar[str]
    notes: tuple[str, ...] = ()

    def __init__(self, settings: Pretraining, root: Path) -> None:
        self.settings, self.root = settings, root
        own = {key: value for key, value in settings.objective.items() if key not in ("type", "deviations")}
        self.own = build(type(self).settings_type, own, "objective")

    @property
    @abstractmethod
    def size(self) -> tuple[int, int]:
        """(H, W) in px of what the backbone sees."""

    @property
    def channels(self) -> int | None:
        """Input channels of the backbone where they are not those of histograms."""
        return None

    def backbone(self) -> Backbone:
        """A fresh backbone."""
        settings = self.settings
        return build_backbone(
            settings.width,
            settings.recurrent,
            settings.bins,
            padded_size(*self.size),
            self.channels,
            settings.drop_path,
        )

    def swin(self) -> EventSwin:
        """A fresh backbone for objectives that hide patches.

        Raises:
            UserError: the architecture has none.
        """
        backbone = self.backbone()
        if not isinstance(backbone, EventSwin):
            what = f"{self.settings.width} has no patches to hide"
            raise UserError(f"objective {self.settings.objective['type']}", what, "choose a Swin")
        return backbone

    @abstractmethod
    def fingerprint(self) -> str:
        """Hash of the data."""

    @abstractmethod
    def recordings(self) -> dict[str, dict[str, float]]:
        """How many windows, pairs or images of each recording, or folder, are trained on ("train") or "held_out"."""

    @abstractmethod
    def network(self) -> Any:
        """The objective with a fresh backbone."""

    @abstractmethod
    def steps(self, seed: int, shard: Shard = WHOLE) -> Any:
        """Batches of the training by step, or a shard of each: see `tespec.datasets.batches.Steps`."""

    @abstractmethod
    def small_batch(self) -> Batch:
        """The smallest batch that can be trained on, for measuring what a step costs."""

    @abstractmethod
    def counts(self) -> dict[str, str]:
        """How much data there is, in words."""

    @abstractmethod
    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Batches of data held out, in order, the same for every run."""

    def protocol(self) -> dict[str, str]:
        """What the numbers mean, in words."""
        return {
            "loss": type(self).loss_is,
            "feature_std": "deviation of unit-length features of all stages on data held out, times root(channels)",
            "feature_rank": "exponential of the entropy of their singular values",
            "feature_places": f"{PLACES:,} places of all frames held out, drawn alike for every run; all where fewer",
            "last_stage_std, last_stage_rank": "the same of the last stage alone",
            **self.counts(),
        }

    @torch.no_grad()
    def evaluate(self, model: Any, device: torch.device) -> dict[str, float]:
        """Mean loss on data held out, and how its features spread; memory does not grow with the data."""
        model.eval()
        total, count = 0.0, 0
        whole, last = Places(PLACES), Places(PLACES)
        state = seen = None
        with progress("data held out", "batches") as advance:
            for batch in self.held_out(device):
                torch.manual_seed(SEED + count)
                losses, state = model.loss(batch, state)
                total += losses["loss"].item()
                features, seen = self.features(model, batch, seen)
                whole.add(features, features[1].shape[-2:])
                last.add(features[-1:], features[-1].shape[-2:])
                count += 1
                advance(count, count, "")
        found, deepest = spread(whole.features()), spread(last.features())
        return {
            "loss": total / max(count, 1),
            "feature_std": found.std,
            "feature_rank": found.rank,
            "last_stage_std": deepest.std,
            "last_stage_rank": deepest.rank,
        }

    @abstractmethod
    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features (B, T, C, h, w) of the backbone's stages, and its state."""

    def draw(self, model: Any, device: torch.device, path: Path) -> bool:
        """Draw what the model does on data held out, where there is something to see; whether it did."""
        return False


def left_alone(names: Sequence[str]) -> tuple[str, ...]:
    """A line for the user about recordings of test splits; none where there are none."""
    more = "" if len(names) <= SHOWN else f" and {len(names) - SHOWN} more"
    return (f"of a test split, so left alone: {', '.join(names[:SHOWN])}{more}",) if names else ()


RECORDINGS = 8
CHUNKS = 60  # of each recording
PREDICT_ZERO = "loss_zero"


class Chunk(NamedTuple):
    """A training step's worth of one recording: its first window, and a batch of one lane."""

    recording: Recording
    first: int
    batch: dict[str, Tensor]


@dataclass(frozen=True)
class HeldOut:
    """The held-out recordings one after the other, from their first window on, without augmentation.

    Masks are the same for every run, so that losses of different seeds and methods compare.

    Attributes:
        recordings: the first `RECORDINGS` that hold a chunk are played, at most `CHUNKS` chunks each.
        settings: of the pre-training.
        device: where the batches go.
        mask: how masks are drawn; None: none are.
    """

    recordings: Sequence[Recording]
    settings: Pretraining
    device: torch.device
    mask: Mask | None = None

    def __len__(self) -> int:
        return sum(self._chunks(recording) for recording in self._played)

    @property
    def _played(self) -> list[Recording]:
        return [recording for recording in self.recordings if self._chunks(recording)][:RECORDINGS]

    def _chunks(self, recording: Recording) -> int:
        return min(CHUNKS, len(recording) // self.settings.segments)

    def __iter__(self) -> Iterator[Chunk]:
        settings = self.settings
        for number, recording in enumerate(self._played):
            for index in range(self._chunks(recording)):
                first = index * settings.segments
                histograms = recording.histograms(first, settings.segments, settings.bins, settings.rule)
                batch = {
                    "histograms": torch.from_numpy(histograms).unsqueeze(0),
                    "fresh": torch.tensor([index == 0]),
                } | self._mask(recording, number, index)
                yield Chunk(recording, first, {name: value.to(self.device) for name, value in batch.items()})

    def _mask(self, recording: Recording, *numbers: int) -> dict[str, Tensor]:
        if self.mask is None:
            return {}
        region, unit = recording.region, self.mask.unit
        rows, columns = -(-region.height // unit), -(-region.width // unit)
        return {"mask": draw_mask(np.random.default_rng(numbers), rows, columns, self.mask.ratio).unsqueeze(0)}


@torch.no_grad()
def held_out_losses(model: Any, held_out: HeldOut, scored: str = "loss_masked") -> dict[str, float]:
    """Mean loss with the backbone's state carried along a recording, and with it zeroed at each chunk.

    The target's state is carried in both, so that the targets are the same. The gap between the two is what the model
    gets from its memory.

    Args:
        model: an objective whose state is (backbone state, target's state).
        held_out: recordings with at least one chunk.
        scored: which of the model's losses.

    Returns:
        `<scored>_carried`, `<scored>_zeroed`, and `loss_zero`, the loss of predicting zero everywhere.
    """
    model.eval()
    carried_name, zeroed_name = f"{scored}_carried", f"{scored}_zeroed"
    sums = dict.fromkeys((carried_name, zeroed_name, PREDICT_ZERO), 0.0)
    state: Any = None
    with progress("held-out recordings", "chunks") as advance:
        for done, chunk in enumerate(held_out, start=1):
            zeroed, _ = model.loss(chunk.batch, None if state is None else (None, state[1]))
            carried, state = model.loss(chunk.batch, state)
            sums[carried_name] += carried[scored].item()
            sums[zeroed_name] += zeroed[scored].item()
            sums[PREDICT_ZERO] += carried["loss_zero"].item()
            advance(done, len(held_out), "")
    return {name: total / len(held_out) for name, total in sums.items()}


class EventObjective(PretrainingTask):
    """An objective whose batches are histograms of lanes."""

    @property
    def fewest_segments(self) -> int:
        """Segments of a step that the objective cannot do without."""
        return 1

    def __init__(self, settings: Pretraining, root: Path) -> None:
        super().__init__(settings, root)
        self._division = divide(root, settings.window_ms, settings.downsample, settings.sensor)
        stepped = (
            f"{path}: {count:,} event times stepped back and were raised to the latest time before them"
            for path, count in self._division.clamped.items()
        )
        self.notes = (*left_alone(self._division.tested_on), *stepped)
        if max(map(len, self._division.held_out)) < settings.segments:
            raise UserError(root, f"nothing held out has {settings.segments} windows", "set fewer segments")

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the histograms in px."""
        return self._division.size

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

    def steps(self, seed: int, shard: Shard = WHOLE) -> Steps:
        """Batches of the training by step."""
        return PretrainSteps(self._division.train, self.settings, seed, shard, self.masks())

    def small_batch(self) -> Batch:
        """A batch of one lane and as few segments as the objective needs."""
        small = replace(self.settings, batch_size=1, segments=self.fewest_segments)
        return PretrainSteps(self._division.train, small, seed=0, mask=self.masks())[0]

    def chunks(self, device: torch.device) -> HeldOut:
        """The recordings held out, chunk by chunk."""
        return HeldOut(self._division.held_out, self.settings, device, self.masks())

    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Their batches."""
        return (chunk.batch for chunk in self.chunks(device))

    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features of events, the state carried along each recording."""
        features: list[Tensor]
        features, state = model.backbone(batch["histograms"], reset(state, batch["fresh"]))
        return features, state


HELD_OUT_IMAGES = 512


class ImageObjective(PretrainingTask):
    """An objective whose batches are views of images; the backbone is feed-forward and sees 1 or 3 channels."""

    views: int
    fewest: int = 2

    def __init__(self, settings: Pretraining, root: Path) -> None:
        super().__init__(settings, root)
        if settings.recurrent:
            raise UserError("recurrent", "images have no order in time", "set it to false")
        if self.own.channels not in (1, 3):
            raise UserError("objective.channels", f"{self.own.channels} is neither grey nor RGB", "choose 1 or 3")
        self.images = open_images(root)
        self.notes = left_alone(self.images.tested_on)

    @property
    def rule(self) -> ViewRule:
        """How views are drawn."""
        own = self.own
        return ViewRule(self.size, own.channels, own.scale, own.jitter, type(self).views)

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

    def steps(self, seed: int, shard: Shard = WHOLE) -> ImageSteps:
        """Batches of the training by step."""
        return ImageSteps(self.images, self.rule, self.settings.batch_size, seed, shard)

    def small_batch(self) -> Batch:
        """A batch of as few images as the objective needs."""
        batch = ImageSteps(self.images, self.rule, self.fewest, 0)[0]
        return batch | {"histograms": batch["views"]}

    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Batches of whole images held out; the last one may be left out where it is too small."""
        paths, size = self.images.held_out[:HELD_OUT_IMAGES], max(self.settings.batch_size, self.fewest)
        for first in range(0, len(paths), size):
            batch = held_out_batch(self.images, paths[first : first + size], self.rule)
            yield {name: value.to(device) for name, value in batch.items()}

    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features of the first view."""
        features: list[Tensor]
        features, _ = model.backbone(batch["views"][:, :1])
        return features, None


def build_objective(settings: Pretraining, root: Path) -> PretrainingTask:
    """The objective that the settings name, on the data in `root`.

    Raises:
        UserError: there is no such objective, or the data cannot be read.
    """
    import_modules("tespec.pretraining")
    name = str(settings.objective.get("type", ""))
    task: PretrainingTask = find_registered(OBJECTIVES, name, "objective.type")(settings, root)
    return task

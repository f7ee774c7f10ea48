"""ECDP's event-image contrast as a way to pre-train."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import kl_div, log_softmax, normalize, softmax

from tespec.core.distributed import of_all_rows
from tespec.core.errors import UserError
from tespec.core.registry import OBJECTIVES
from tespec.core.settings import Pretraining
from tespec.datasets.batches import WHOLE, Shard
from tespec.datasets.pairs import Paired, PairSteps, paired, some
from tespec.datasets.recording import fingerprint
from tespec.datasets.unlabelled import divide, lengths_by_split
from tespec.models import build_backbone
from tespec.models.backbone import Backbone
from tespec.models.layers import in_fp32, padded_size
from tespec.pretraining.contrast import info_nce, pooled, projector
from tespec.pretraining.objective import Batch, PretrainingTask, left_alone


class ImageContrast(nn.Module):
    """Events and their image find each other, and their likenesses within the batch agree.

    After Yang, Pan, Liu, "Event Camera Data Pre-training" (ICCV 2023): an event-image contrast, and an alignment of
    the distributions that events and images form over the batch. There the image network is CLIP's, frozen; here it is
    trained along, as its weights cannot be shipped.

    Args:
        backbone: what is pre-trained, on events.
        images: a backbone for the images.
        hidden: width of the projectors.
        out: dimensions that are compared.
        temperature: of the softmax over cosines.
        alignment: weight of the alignment.
    """

    def __init__(
        self, backbone: Backbone, images: Backbone, hidden: int, out: int, temperature: float, alignment: float
    ) -> None:
        super().__init__()
        self.backbone, self.images = backbone, images
        self.of_events = projector(backbone.channels[-1], hidden, out)
        self.of_images = projector(images.channels[-1], hidden, out)
        self.temperature, self.alignment = temperature, alignment

    def loss(self, batch: dict[str, Tensor], state: None = None) -> tuple[dict[str, Tensor], None]:
        """Losses of a step.

        Args:
            batch: histograms (B, 1, 2 * bins, H, W) and images (B, 1, 1, H, W) float32.
            state: None.

        Returns:
            "loss", which is "loss_contrast" + alignment * "loss_alignment", and "found", the share of events whose
            image is told from the others; and None.
        """
        events, _ = of_all_rows(self.of_events(_whole(self.backbone, batch["histograms"])))
        images, _ = of_all_rows(self.of_images(_whole(self.images, batch["images"])))
        forth, found = info_nce(events, images, self.temperature)
        back, _ = info_nce(images, events, self.temperature)
        aligned = _alignment(events, images.detach(), self.temperature)
        contrast = (forth + back) / 2
        return {
            "loss": contrast + self.alignment * aligned,
            "loss_contrast": contrast,
            "loss_alignment": aligned,
            "found": found,
        }, None


@in_fp32
def _alignment(events: Tensor, images: Tensor, temperature: float) -> Tensor:
    """Divergence of how alike events are to each other from how alike their images are."""
    events, images = normalize(events, dim=1), normalize(images, dim=1)
    others = ~torch.eye(len(events), dtype=torch.bool, device=events.device)
    of_events = (events @ events.T / temperature)[others].view(len(events), -1)
    of_images = (images @ images.T / temperature)[others].view(len(events), -1)
    return kl_div(log_softmax(of_events, dim=1), softmax(of_images, dim=1), reduction="batchmean")


def _whole(backbone: Backbone, frames: Tensor) -> Tensor:
    features, _ = backbone(frames)
    return pooled(features[-1])


HELD_OUT_PAIRS = 256


@dataclass(frozen=True)
class ContrastSettings:
    """See `ImageContrast`."""

    hidden: int
    out: int
    temperature: float
    alignment: float


@OBJECTIVES.register_module(name="image_contrast")
class ImageContrastTask(PretrainingTask):
    """Events and the grey frame at their end."""

    settings_type = ContrastSettings
    loss_is = "contrast of events with images, and back, and alignment of their distributions"

    def __init__(self, settings: Pretraining, root: Path) -> None:
        super().__init__(settings, root)
        if settings.recurrent:
            raise UserError("recurrent", "pairs of events and image have no order in time", "set it to false")
        if settings.batch_size < 2:
            raise UserError("batch_size", "a pair alone has nothing to be told from", "give 2 or more")
        division = divide(root, settings.window_ms, settings.downsample, settings.sensor)
        self.notes = left_alone(division.tested_on)
        self._train = paired(division.train, settings.window_ms)
        self._held_out: list[Paired] = some(paired(division.held_out, settings.window_ms), HELD_OUT_PAIRS)

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the histograms in px."""
        region = self._train[0].region
        return region.height, region.width

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

    def network(self) -> ImageContrast:
        """The objective with a fresh backbone, and another for the images."""
        own, settings = self.own, self.settings
        images = build_backbone(settings.width, False, settings.bins, padded_size(*self.size), in_channels=1)
        return ImageContrast(self.backbone(), images, own.hidden, own.out, own.temperature, own.alignment)

    def steps(self, seed: int, shard: Shard = WHOLE) -> PairSteps:
        """Batches of the training by step."""
        return PairSteps(self._train, self.settings, seed, shard)

    def small_batch(self) -> Batch:
        """Two pairs."""
        return PairSteps(self._train, replace(self.settings, batch_size=2), 0)[0]

    def held_out(self, device: torch.device) -> Iterator[Batch]:
        """Batches of pairs held out."""
        still = replace(self.settings.augmentation, flip=0.0, zoom=0.0)
        steps = PairSteps(self._held_out, replace(self.settings, augmentation=still), 0)
        for step in range(sum(map(len, self._held_out)) // self.settings.batch_size):
            yield {name: value.to(device) for name, value in steps[step].items()}

    def features(self, model: Any, batch: Batch, state: Any) -> tuple[list[Tensor], Any]:
        """Features of events."""
        features: list[Tensor]
        features, _ = model.backbone(batch["histograms"])
        return features, None

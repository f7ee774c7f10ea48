"""Test-time augmentation: the mean of what a segmentation network says of an image and of its other views."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import interpolate

from tespec.models.backbone import BackboneState, resized
from tespec.models.labelled import pick
from tespec.models.layers import padded_size
from tespec.models.segmentation import SegmentationModel

States = tuple[BackboneState | None, ...]


class Views(NamedTuple):
    """Scales at which an image is seen, and whether it is also mirrored at each."""

    scales: tuple[float, ...]
    flip: bool


VIEWS: Mapping[str, Views | None] = {
    "none": None,
    "flip": Views((1.0,), True),
    "ecddp": Views((1.0, 1.5, 2.0), True),  # Yan98/ECDDP, eval_seg.py
}


class Variants:
    """A segmentation network that is asked once for each view; logits are averaged.

    Histograms are scaled bilinearly. Each view plays the recording with a state, and a backbone, of its own: the same
    weights built for the scaled size.

    Args:
        model: the trained network.
        views: how images are seen.
        size: (H, W) of the histograms in px.
    """

    def __init__(self, model: SegmentationModel, views: Views, size: tuple[int, int]) -> None:
        self._model = model
        self._seen = [
            ((round(scale * size[0]), round(scale * size[1])), mirrored)
            for scale in views.scales
            for mirrored in ((False, True) if views.flip else (False,))
        ]
        built = {seen: resized(model.backbone, padded_size(*seen)) for seen, _ in self._seen}
        self._backbones = [built[seen] for seen, _ in self._seen]

    def advance(self, histograms: Tensor, state: States | None = None) -> States:
        """The states of the views after segments (B, T, 2 * bins, H, W) that nothing is predicted for."""
        return self._play(histograms, state)[1]

    def predict(self, histograms: Tensor, state: States | None, label_place: Tensor) -> tuple[Tensor, States]:
        """Mean logits (L, classes, H, W) of the segments at label_place (L, 2) lane and segment, and the states."""
        features, states = self._play(histograms, state)
        logits = []
        for (size, mirrored), backbone, maps in zip(self._seen, self._backbones, features, strict=True):
            seen = self._model.logits(pick(maps, label_place), backbone.img_size, size)
            whole = interpolate(seen, size=histograms.shape[-2:], mode="bilinear", align_corners=False)
            logits.append(whole.flip(-1) if mirrored else whole)
        return torch.stack(logits).mean(dim=0), states

    def _play(self, histograms: Tensor, state: States | None) -> tuple[list[list[Tensor]], States]:
        states = (None,) * len(self._seen) if state is None else state
        played = [
            backbone(_view(histograms, *seen), before)
            for seen, backbone, before in zip(self._seen, self._backbones, states, strict=True)
        ]
        return [features for features, _ in played], tuple(after for _, after in played)


def _view(histograms: Tensor, size: tuple[int, int], mirrored: bool) -> Tensor:
    frames = histograms.flip(-1) if mirrored else histograms
    if frames.shape[-2:] == size:
        return frames
    scaled = interpolate(frames.flatten(0, 1).float(), size=size, mode="bilinear", align_corners=False)
    return scaled.unflatten(0, histograms.shape[:2])

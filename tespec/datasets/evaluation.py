"""Every label of a split once: recordings played from their start, side by side, or single windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tespec.datasets.lanes import lengths_of, serpentine
from tespec.datasets.recording import LabelledRecording


class Frame(NamedTuple):
    """Where the prediction for one label stands in a batch, and whose label it is."""

    lane: int
    segment: int
    recording: int
    label: int


class EvaluationBatch(NamedTuple):
    """Histograms (B, T, 2*bins, H, W) uint8, `fresh` (B,) bool, and the frames to score; all others are padding."""

    histograms: Tensor
    fresh: Tensor
    frames: list[Frame]


def evaluation_batches(
    recordings: Sequence[LabelledRecording], lanes: int, segments: int, bins: int, rule: str
) -> Iterator[EvaluationBatch]:
    """Play every recording from its first window to its last, `lanes` at a time.

    A recording stays on its lane, whose state starts afresh with it and is carried to its end. What a lane is padded
    with after its last window is in no batch's `frames`.
    """
    playlists = serpentine(lengths_of(recordings), lanes)
    programme = [
        [(index, first) for index in playlist for first in range(0, len(recordings[index]), segments)]
        for playlist in playlists
    ]
    height, width = recordings[0].region.height, recordings[0].region.width
    for step in range(max(len(chunks) for chunks in programme)):
        histograms = np.zeros((len(programme), segments, 2 * bins, height, width), np.uint8)
        fresh, frames = np.zeros(len(programme), bool), []
        for lane, chunks in enumerate(programme):
            if step >= len(chunks):
                continue
            index, first = chunks[step]
            count = min(segments, len(recordings[index]) - first)
            histograms[lane, :count] = recordings[index].histograms(first, count, bins, rule)
            fresh[lane] = first == 0
            frames += [Frame(lane, segment, index, first + segment) for segment in range(count)]
        yield EvaluationBatch(torch.from_numpy(histograms), torch.from_numpy(fresh), frames)

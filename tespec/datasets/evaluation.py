"""Every label of a split once: recordings played from their start, side by side, or single windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tespec.datasets.lanes import lengths_of, serpentine
from tespec.datasets.parts import WHOLE, Part
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
    recordings: Sequence[LabelledRecording],
    lanes: int,
    segments: int,
    bins: int,
    rule: str,
    *,
    stateful: bool = True,
    part: Part = WHOLE,
) -> Iterator[EvaluationBatch]:
    """Every label of every recording exactly once, in batches of `lanes` times `segments` windows at most.

    A lane that has no more windows is padded with empty ones, which are in no batch's `frames`.

    Args:
        recordings: what is evaluated.
        lanes: recordings played side by side; fewer if there are fewer.
        segments: windows per lane and batch.
        bins: time bins per window.
        rule: binning rule, see `event_histogram`.
        stateful: whether recordings are played in order, each on one lane, whose state starts afresh with it and is
            carried to its end. If not, windows stand alone: they are dealt to the lanes one after the other, and every
            state is fresh.
        part: which process of how many; each plays every so manieth lane, and all together every label once.
    """
    chunks = [
        [(index, first) for first in range(0, len(recording), segments)] for index, recording in enumerate(recordings)
    ]
    if stateful:
        programme = [
            [chunk for index in playlist for chunk in chunks[index]]
            for playlist in serpentine(lengths_of(recordings), lanes)
        ]
    else:
        flat = [chunk for each in chunks for chunk in each]
        programme = [flat[lane::lanes] for lane in range(min(lanes, len(flat)))]
    programme = programme[part[0] :: part[1]]
    height, width = recordings[0].region.height, recordings[0].region.width
    for step in range(max(map(len, programme), default=0)):
        histograms = np.zeros((len(programme), segments, 2 * bins, height, width), np.uint8)
        fresh, frames = np.full(len(programme), not stateful), []
        for lane, playlist in enumerate(programme):
            if step >= len(playlist):
                continue
            index, first = playlist[step]
            count = min(segments, len(recordings[index]) - first)
            histograms[lane, :count] = recordings[index].histograms(first, count, bins, rule)
            fresh[lane] |= first == 0
            frames += [
                Frame(lane, int(recordings[index].labelled[label]) - first, index, label)
                for label in recordings[index].labels_in(first, count)
            ]
        yield EvaluationBatch(torch.from_numpy(histograms), torch.from_numpy(fresh), frames)

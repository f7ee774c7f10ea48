"""Every label of a split once: recordings played from their start, side by side, or clips, or single windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tespec.core.settings import Finetuning
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


class _Chunk(NamedTuple):
    """Windows of a recording that are played at once, and those of its labels that are scored there."""

    recording: int
    first: int
    windows: int
    labels: range


def evaluation_of(
    settings: Finetuning, recordings: Sequence[LabelledRecording], part: Part = WHOLE
) -> Iterator[EvaluationBatch]:
    """The batches on which a network is evaluated that was trained by `settings`: as it has learned to see windows."""
    return evaluation_batches(
        recordings,
        (settings.evaluation_lanes if settings.carries_state else settings.batch_size) * part[1],
        settings.segments,
        settings.bins,
        settings.rule,
        stateful=settings.carries_state,
        clips=settings.recurrent,
        part=part,
    )


def evaluation_batches(
    recordings: Sequence[LabelledRecording],
    lanes: int,
    segments: int,
    bins: int,
    rule: str,
    *,
    stateful: bool = True,
    clips: bool = False,
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
            carried to its end. If not, every state is fresh.
        clips: what is played where no state is carried: for each label the `segments` windows that end at it, fewer at
            the beginning of a recording; or each window once, since it stands alone.
        part: which process of how many; each plays every so manieth lane, and all together every label once.
    """
    cut = _clips if clips and not stateful else _in_a_row
    chunks = [cut(index, recording, segments) for index, recording in enumerate(recordings)]
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
            index, first, count, labels = playlist[step]
            histograms[lane, :count] = recordings[index].histograms(first, count, bins, rule)
            fresh[lane] |= first == 0
            frames += [Frame(lane, int(recordings[index].labelled[label]) - first, index, label) for label in labels]
        yield EvaluationBatch(torch.from_numpy(histograms), torch.from_numpy(fresh), frames)


def _in_a_row(index: int, recording: LabelledRecording, segments: int) -> list[_Chunk]:
    counts = {first: min(segments, len(recording) - first) for first in range(0, len(recording), segments)}
    return [_Chunk(index, first, count, recording.labels_in(first, count)) for first, count in counts.items()]


def _clips(index: int, recording: LabelledRecording, segments: int) -> list[_Chunk]:
    return [
        _Chunk(index, max(0, end - segments + 1), min(segments, end + 1), range(label, label + 1))
        for label, end in enumerate(recording.labelled.tolist())
    ]

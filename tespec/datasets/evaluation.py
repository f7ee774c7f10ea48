"""The batches of an evaluation: every label of every recording once, item k being what is played at step k."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from tespec.core.settings import Finetuning
from tespec.datasets.batches import WHOLE, Shard
from tespec.datasets.lanes import lengths_of, serpentine
from tespec.datasets.recording import LabelledRecording


class LabelledSegment(NamedTuple):
    """Where the prediction for one label stands in a batch, and whose label it is."""

    lane: int
    segment: int
    recording: int
    label: int


class EvaluationBatch(NamedTuple):
    """What is played at one step.

    Attributes:
        histograms: (B, T, 2*bins, H, W) uint8.
        fresh: (B,) bool, whether a lane's state starts afresh.
        place: (L, 2) int64 lane and segment of each label.
        frames: of the L labels; all other segments are played without being scored, or are padding.
        labels: the labels themselves, as the recordings give them.
    """

    histograms: Tensor
    fresh: Tensor
    place: Tensor
    frames: list[LabelledSegment]
    labels: list[Any]


class _Chunk(NamedTuple):
    """Windows of a recording that are played at once, and those of its labels that are scored there."""

    recording: int
    first: int
    windows: int
    labels: range


class EvaluationSteps(Dataset[EvaluationBatch]):
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
        shard: which lanes are played; all shards together play every label once.

    Attributes:
        lanes: lanes of this shard.
        segments: windows per lane and batch.
        windows: windows that this shard plays, without padding.
    """

    def __init__(
        self,
        recordings: Sequence[LabelledRecording],
        lanes: int,
        segments: int,
        bins: int,
        rule: str,
        *,
        stateful: bool = True,
        clips: bool = False,
        shard: Shard = WHOLE,
    ) -> None:
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
        self._programme = programme[shard[0] :: shard[1]]
        self._recordings, self._bins, self._rule, self._stateful = recordings, bins, rule, stateful
        self.lanes, self.segments = len(self._programme), segments
        self.windows = sum(chunk.windows for playlist in self._programme for chunk in playlist)

    def __len__(self) -> int:
        return max(map(len, self._programme), default=0)

    def __iter__(self) -> Iterator[EvaluationBatch]:
        return (self[step] for step in range(len(self)))

    def __getitem__(self, step: int) -> EvaluationBatch:
        region = self._recordings[0].region
        shape = (self.lanes, self.segments, 2 * self._bins, region.height, region.width)
        histograms, fresh = np.zeros(shape, np.uint8), np.full(self.lanes, not self._stateful)
        frames, labels = [], []
        for lane, playlist in enumerate(self._programme):
            if step >= len(playlist):
                continue
            index, first, count, scored = playlist[step]
            recording = self._recordings[index]
            recording.fill(histograms[lane, :count], first, self._bins, self._rule)
            fresh[lane] |= first == 0
            frames += [LabelledSegment(lane, int(recording.labelled[label]) - first, index, label) for label in scored]
            labels += [recording.labels[label] for label in scored]
        place = torch.tensor([frame[:2] for frame in frames], dtype=torch.int64).reshape(-1, 2)
        return EvaluationBatch(torch.from_numpy(histograms), torch.from_numpy(fresh), place, frames, labels)


def evaluation_of(
    settings: Finetuning, recordings: Sequence[LabelledRecording], shard: Shard = WHOLE
) -> EvaluationSteps:
    """The batches on which a network is evaluated that was trained by `settings`: as it has learned to see windows."""
    return EvaluationSteps(
        recordings,
        (settings.evaluation_lanes if settings.carries_state else settings.batch_size) * shard[1],
        settings.segments,
        settings.bins,
        settings.rule,
        stateful=settings.carries_state,
        clips=settings.recurrent,
        shard=shard,
    )


def windows_alone(
    settings: Finetuning, recordings: Sequence[LabelledRecording], shard: Shard = WHOLE
) -> EvaluationSteps:
    """The batches on which a recurrent network is scored without memory: the window of each label from a zero state."""
    lanes = settings.batch_size * shard[1]
    return EvaluationSteps(recordings, lanes, 1, settings.bins, settings.rule, stateful=False, clips=True, shard=shard)


def _in_a_row(index: int, recording: LabelledRecording, segments: int) -> list[_Chunk]:
    counts = {first: min(segments, len(recording) - first) for first in range(0, len(recording), segments)}
    return [_Chunk(index, first, count, recording.labels_in(first, count)) for first, count in counts.items()]


def _clips(index: int, recording: LabelledRecording, segments: int) -> list[_Chunk]:
    return [
        _Chunk(index, max(0, end - segments + 1), min(segments, end + 1), range(label, label + 1))
        for label, end in enumerate(recording.labelled.tolist())
    ]

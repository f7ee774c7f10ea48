"""Every label is evaluated once: streams with their state, clips that end at a label, and single windows."""

from dataclasses import dataclass
from itertools import pairwise
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tespec.datasets.batches import EvaluationBatches
from tespec.datasets.recording import LabelledRecording
from tespec.events.histogram import Region

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=6)
SMALL = st.integers(1, 7)
MODES = {"streams": (True, True), "clips": (True, False), "windows": (False, False)}  # recurrent, carries_state


@dataclass
class Numbered:
    """A recording with a label at every so many windows, whose histogram says which window of which one it is."""

    number: int
    length: int
    every: int = 1
    region: ClassVar = Region(1, 2)
    labels_in = LabelledRecording.labels_in

    def __len__(self):
        return self.length

    @property
    def labelled(self):
        return np.arange(self.every - 1, self.length, self.every)

    @property
    def labels(self):
        return [(self.number, label) for label in range(len(self.labelled))]

    def fill(self, out, first, bins, rule):
        assert (bins, rule) == (1, "edges")
        out[:, 0, 0, 0] = 1 + self.number
        out[:, 0, 0, 1] = np.arange(first, first + len(out))


def batches(lengths, lanes, segments, mode="streams", every=1, shards=1):
    """Recordings, and the batches of all shards."""
    recurrent, carries_state = MODES[mode]
    settings = SimpleNamespace(
        recurrent=recurrent, carries_state=carries_state, segments=segments, bins=1, rule="edges"
    )
    settings.evaluation_lanes, settings.batch_size = (lanes, 999) if carries_state else (999, lanes)
    recordings = [Numbered(number, length, every) for number, length in enumerate(lengths)]
    shares = [EvaluationBatches(settings, recordings, (number, shards)) for number in range(shards)]
    return recordings, [batch for share in shares for batch in share]


@given(LENGTHS, SMALL, SMALL, st.sampled_from(sorted(MODES)), st.integers(1, 6), st.integers(1, 4))
def test_every_label_is_scored_once_at_its_window_and_padding_never(lengths, lanes, segments, mode, every, shards):
    recordings, played = batches(lengths, lanes, segments, mode, every, shards)
    scored = [frame for batch in played for frame in batch.frames]
    assert sorted(scored) == [(each.number, label) for each in recordings for label in range(len(each.labelled))]
    for batch in played:
        assert batch.labels == batch.frames
        assert mode == "streams" or batch.fresh.all()
        for (number, label), (lane, segment) in zip(batch.frames, batch.place.tolist(), strict=True):
            window = int(recordings[number].labelled[label])
            before = min(segments - 1, window) if mode == "clips" else 0
            assert mode != "clips" or segment == before
            seen = batch.histograms[lane, segment - before : segment + 1, 0, 0].tolist()
            assert seen == [[1 + number, each] for each in range(window - before, window + 1)]
    if mode != "clips":
        assert sum(int((batch.histograms[:, :, 0, 0, 0] > 0).sum()) for batch in played) == sum(lengths)


@given(LENGTHS, SMALL, SMALL)
def test_a_recording_is_played_in_order_on_one_lane_with_its_state(lengths, lanes, segments):
    _, played = batches(lengths, lanes, segments)
    for lane in range(len(played[0].histograms)):
        order = []
        for batch in played:
            chunk = [frame for frame, place in zip(batch.frames, batch.place, strict=True) if place[0] == lane]
            assert batch.place[batch.place[:, 0] == lane, 1].tolist() == list(range(len(chunk)))
            assert bool(batch.fresh[lane]) == (bool(chunk) and chunk[0][1] == 0)
            order += chunk
        for (recording, label), following in pairwise(order):
            last = label == lengths[recording] - 1
            assert following == ((following[0], 0) if last else (recording, label + 1))


@pytest.mark.parametrize(("mode", "shape"), [("streams", (2, 3)), ("windows", (2, 3)), ("clips", (5, 3))])
def test_more_lanes_than_there_is_to_play_are_not_made(mode, shape):
    _, (batch,) = batches([2, 3], lanes=50, segments=3, mode=mode)
    assert batch.histograms.shape == (*shape, 2, 1, 2)

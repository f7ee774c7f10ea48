from dataclasses import dataclass
from itertools import pairwise
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tespec.datasets.batches import EvaluationBatches
from tespec.events.spatial import Region

LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=6)
SMALL = st.integers(1, 7)


@dataclass
class Numbered:
    """A recording whose histogram says which window of which recording it is."""

    number: int
    length: int
    every: int = 1
    region: ClassVar = Region(1, 2)

    def __len__(self):
        return self.length

    def labels_in(self, first, count):
        begin, end = np.searchsorted(self.labelled, (first, first + count))
        return range(begin, end)

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


def play(lengths, lanes, segments, stateful=True):
    recordings = [Numbered(number, length) for number, length in enumerate(lengths)]
    return list(EvaluationBatches(recordings, lanes, segments, 1, "edges", stateful=stateful))


@given(LENGTHS, SMALL, SMALL, st.booleans())
def test_every_label_is_scored_once_and_padding_never(lengths, lanes, segments, stateful):
    batches = play(lengths, lanes, segments, stateful)
    scored = [(frame.recording, frame.label) for batch in batches for frame in batch.frames]
    assert sorted(scored) == [(number, label) for number, length in enumerate(lengths) for label in range(length)]
    for batch in batches:
        seen = np.zeros(batch.histograms.shape[:2], bool)
        for frame in batch.frames:
            histogram = batch.histograms[frame.lane, frame.segment, 0, 0]
            assert histogram.tolist() == [1 + frame.recording, frame.label]
            seen[frame.lane, frame.segment] = True
        assert not batch.histograms.numpy()[~seen].any()


@given(LENGTHS, SMALL, SMALL)
def test_a_recording_is_played_in_order_on_one_lane_with_its_state(lengths, lanes, segments):
    batches = play(lengths, lanes, segments)
    for lane in range(batches[0].histograms.shape[0]):
        chunks = [[frame for frame in batch.frames if frame.lane == lane] for batch in batches]
        for step, chunk in enumerate(chunks):
            assert [frame.segment for frame in chunk] == list(range(len(chunk)))
            assert bool(batches[step].fresh[lane]) == (bool(chunk) and chunk[0].label == 0)
        order = [(frame.recording, frame.label) for chunk in chunks for frame in chunk]
        for (recording, label), following in pairwise(order):
            last = label == lengths[recording] - 1
            assert following == ((following[0], 0) if last else (recording, label + 1))


@given(LENGTHS, SMALL, SMALL)
def test_windows_that_stand_alone_fill_the_batches(lengths, lanes, segments):
    batches = play(lengths, lanes, segments, stateful=False)
    assert all(batch.fresh.all() for batch in batches)
    chunks = sum(-(-length // segments) for length in lengths)
    assert len(batches) == -(-chunks // lanes)


@pytest.mark.parametrize("stateful", [True, False])
def test_more_lanes_than_recordings_are_not_made(stateful):
    (batch,) = play([2, 3], lanes=50, segments=3, stateful=stateful)
    assert batch.histograms.shape == (2, 3, 2, 1, 2)


@given(LENGTHS, SMALL, SMALL, st.integers(1, 6))
def test_windows_between_labels_are_played_but_not_scored(lengths, lanes, segments, every):
    recordings = [Numbered(number, length, every) for number, length in enumerate(lengths)]
    batches = list(EvaluationBatches(recordings, lanes, segments, 1, "edges"))
    scored = [(frame.recording, frame.label) for batch in batches for frame in batch.frames]
    assert sorted(scored) == [(each.number, label) for each in recordings for label in range(len(each.labelled))]
    for batch in batches:
        for frame in batch.frames:
            seen = batch.histograms[frame.lane, frame.segment, 0, 0].tolist()
            assert seen == [1 + frame.recording, recordings[frame.recording].labelled[frame.label]]
    played = sum(int((batch.histograms[:, :, 0, 0, 0] > 0).sum()) for batch in batches)
    assert played == sum(lengths)


@given(LENGTHS, SMALL, SMALL, st.booleans(), st.integers(1, 4))
def test_processes_together_score_every_label_once(lengths, lanes, segments, stateful, processes):
    recordings = [Numbered(number, length) for number, length in enumerate(lengths)]
    scored = [
        (frame.recording, frame.label)
        for number in range(processes)
        for batch in EvaluationBatches(
            recordings, lanes, segments, 1, "edges", stateful=stateful, shard=(number, processes)
        )
        for frame in batch.frames
    ]
    assert sorted(scored) == [(number, label) for number, length in enumerate(lengths) for label in range(length)]


@given(LENGTHS, SMALL, SMALL, st.integers(1, 6), st.integers(1, 3))
def test_each_label_is_at_the_end_of_a_clip_of_its_own(lengths, lanes, segments, every, processes):
    recordings = [Numbered(number, length, every) for number, length in enumerate(lengths)]
    scored = []
    for number in range(processes):
        for batch in EvaluationBatches(
            recordings, lanes, segments, 1, "edges", stateful=False, clips=True, shard=(number, processes)
        ):
            assert batch.fresh.all()
            seen = np.zeros(batch.histograms.shape[:2], bool)
            for frame in batch.frames:
                end = int(recordings[frame.recording].labelled[frame.label])
                windows = batch.histograms[frame.lane, : frame.segment + 1, 0, 0].tolist()
                first = max(0, end - segments + 1)
                assert windows == [[1 + frame.recording, window] for window in range(first, end + 1)]
                seen[frame.lane, : frame.segment + 1] = True
            assert not batch.histograms.numpy()[~seen].any()
            scored += [(frame.recording, frame.label) for frame in batch.frames]
    assert sorted(scored) == [(each.number, label) for each in recordings for label in range(len(each.labelled))]

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tespec.core.errors import UserError
from tespec.datasets.recording import LabelledRecording, Recording, cut_at_gaps
from tespec.datasets.sources import EventSource
from tespec.datasets.windows import windows_side_by_side
from tespec.events import event_histogram, open_events
from tespec.events.spatial import Region


@pytest.fixture(scope="module")
def path(tiny_world):
    return tiny_world / "1mpx" / "train" / "moorea_2019-02-19_000_td_500000_8500000_td.dat"


WHOLE = Region(64, 96)


@pytest.mark.parametrize(
    ("region", "rule"),
    [
        (WHOLE, "edges"),
        (WHOLE, "rvt"),
        (Region(50, 96), "edges"),
        (Region(32, 48, 2, "nearest"), "edges"),
        (Region(32, 48, 2, "all"), "edges"),
    ],
)
def test_histograms_are_those_of_each_window(path, region, rule):
    stream = open_events(path)
    windows = windows_side_by_side(stream.t_first, stream.t_last, 40_000)[3:7]
    histograms = Recording("street", EventSource(path), region, windows).histograms(1, 3, 6, rule)
    assert histograms.shape == (3, 12, region.height, region.width)
    for histogram, (start, end) in zip(histograms, windows[1:].tolist(), strict=True):
        x, y, t, p = region.apply(stream.slice(start, end))
        size = {"height": region.height, "width": region.width}
        expected = event_histogram(x, y, t, p, t_start=start, t_end=end, bins=6, rule=rule, **size)
        np.testing.assert_array_equal(histogram, expected)


def test_files_are_opened_when_events_are_asked_for():
    recording = Recording("gone", EventSource(Path("gone.dat")), Region(4, 4), np.array([[0, 10]]))
    assert len(recording) == 1
    with pytest.raises(UserError, match=r"gone.dat: no such file"):
        recording.histograms(0, 1, 2, "edges")


class Numbers(list):
    def part(self, first, end):
        return Numbers(self[first:end])

    def checksums(self):
        return [10 * number for number in self]


def labelled_at(length, places):
    windows = windows_side_by_side(0, length * 10, 10)
    speed = np.arange(len(places), dtype=np.float32)
    return LabelledRecording("r", None, WHOLE, windows, Numbers(range(len(places))), np.array(places, np.int64), speed)


def test_a_part_has_the_labels_of_its_windows():
    recording = labelled_at(12, [1, 4, 5, 11])
    part = recording.part(4, 11)
    assert (len(part), part.labelled.tolist(), part.ego_speed.tolist()) == (7, [0, 1], [1, 2])
    assert [part.labels[index] for index in range(2)] == [1, 2]
    assert part.labels.checksums() == [10, 20]
    assert part.label_times.tolist() == recording.label_times[1:3].tolist()
    assert list(part.labels_in(1, 3)) == [1]
    with pytest.raises(IndexError):
        part.labels[2]


@given(st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))), st.integers(1, 9))
def test_cut_at_gaps_every_chunk_has_a_label_and_no_label_is_lost(drawn, longest):
    length, places = drawn[0], sorted(drawn[1])
    parts = cut_at_gaps([labelled_at(length, places)], longest)
    assert [part.labels[index] for part in parts for index in range(len(part.labels))] == list(range(len(places)))
    for part in parts:
        for first in range(len(part) - longest + 1):
            assert len(part.labels_in(first, longest)) > 0
        assert len(part) == max(part.labelled[-1] + 1, min(longest, length))
    gaps = np.diff(places, prepend=-1)
    assert len(parts) == (0 if not places else 1 + int((gaps[1:] > longest).sum()))


def test_a_recording_without_gaps_keeps_its_name():
    (part,) = cut_at_gaps([labelled_at(10, [2, 5, 8])], 4)
    assert (part.name, len(part)) == ("r", 9)
    parts = cut_at_gaps([labelled_at(20, [2, 15, 18])], 4)
    assert [(each.name, len(each)) for each in parts] == [("r (part 1)", 4), ("r (part 2)", 7)]

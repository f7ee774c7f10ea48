"""Recordings as time windows: window bounds, labels of parts, data fingerprints, and shares of the
labels.
"""

import shutil

import numpy as np
import pytest
from ddd17_copies import extract, png
from hypothesis import given, settings
from hypothesis import strategies as st
from twins import copied, fingerprint, opened

from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.core.settings import Binning, Downsample
from tespec.datasets.check import windows_at
from tespec.datasets.folder import ALL, EventFolder, split_train_val
from tespec.datasets.recording import (
    LabelledRecording,
    contiguous_windows,
    cut_at_gaps,
    label_windows,
    van_der_corput_order,
    with_label_fraction,
)
from tespec.events.histogram import Region
from tespec.events.readers.dat import write_dat
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task

TIMES = (
    st.lists(st.integers(1, 10**7), min_size=1, max_size=20, unique=True).map(sorted).map(np.array)
)


@given(TIMES, st.integers(1_000, 10**6))
def test_windows_on_a_grid_hold_every_event_once_and_end_at_the_labels(times, length):
    windows, label_window = label_windows(times, 0, length / 1000, contiguous=True)
    np.testing.assert_array_equal(windows[label_window, 1], times)
    np.testing.assert_array_equal(windows[1:, 0], windows[:-1, 1])
    assert (np.diff(windows, axis=1) > 0).all()
    assert label_window[-1] == len(windows) - 1
    lead = windows[: label_window[0] + 1]
    assert (np.diff(lead, axis=1) == length).all()
    assert len(lead) == 1 or lead[0, 0] >= 0
    assert lead[0, 0] - length < 0


def test_spacings_are_divided_into_the_closest_number_of_windows():
    windows, label_window = label_windows(np.array([100, 103, 250]), 90, 0.05, contiguous=True)
    assert windows.tolist() == [[50, 100], [100, 103], [103, 152], [152, 201], [201, 250]]
    assert label_window.tolist() == [0, 1, 4]


@given(st.integers(-(10**6), 10**6), st.integers(0, 10**4), st.integers(1, 10**3))
def test_contiguous_windows_fill_the_time_as_far_as_they_fit(first, duration, length):
    starts = range(first, first + duration - length + 1, length)
    assert contiguous_windows(first, first + duration, length).tolist() == [
        [each, each + length] for each in starts
    ]


def test_a_recording_shorter_than_a_window_is_previewed_in_one(tmp_path):
    x, y, t, p = (np.array(values) for values in ([1, 2], [3, 4], [7_000, 17_000], [0, 1]))
    write_dat(tmp_path / "a.dat", x, y, t, p, 12, 16)
    (recording,) = EventFolder(tmp_path).recordings(ALL)
    assert recording.windows.tolist() == [[7_000, 57_000]]
    assert windows_at(recording, [0.05]) == [0]
    assert recording.histograms(0, 1, Binning(10, "edges")).sum() == 2


class Numbers(list):
    def checksums(self):
        return {str(number): 10 * number for number in self}


def labelled_at(length, places):
    windows, labels = contiguous_windows(0, length * 10, 10), Numbers(range(len(places)))
    speed = np.arange(len(places), dtype=np.float32)
    return LabelledRecording(
        "r", None, Region(64, 96), windows, labels, np.array(places, np.int64), speed
    )


def test_a_part_has_the_labels_of_its_windows():
    recording = labelled_at(12, [1, 4, 5, 11])
    part = recording.part(4, 11)
    assert (len(part), part.label_indices.tolist(), part.ego_speed.tolist()) == (7, [0, 1], [1, 2])
    assert [part.labels[index] for index in range(len(part.labels))] == [1, 2]
    assert (part.label_times.tolist(), list(part.labels_in(1, 3))) == (
        recording.label_times[1:3].tolist(),
        [1],
    )


@given(
    st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.sets(st.integers(0, n - 1)))),
    st.integers(1, 9),
)
def test_cut_at_gaps_every_chunk_has_a_label_and_no_label_is_lost(drawn, longest):
    length, places = drawn[0], sorted(drawn[1])
    parts = cut_at_gaps([labelled_at(length, places)], longest)
    assert [part.labels[index] for part in parts for index in range(len(part.labels))] == list(
        range(len(places))
    )
    for part in parts:
        for first in range(len(part) - longest + 1):
            assert len(part.labels_in(first, longest)) > 0
        assert len(part) == max(part.label_indices[-1] + 1, min(longest, length))
    gaps = np.diff(places, prepend=-1)
    assert len(parts) == (0 if not places else 1 + int((gaps[1:] > longest).sum()))
    parts_of_several = [f"r (part {number})" for number in range(1, len(parts) + 1)]
    assert [part.name for part in parts] == (["r"] if len(parts) == 1 else parts_of_several)


def of_archive(root, arch="recurrent"):
    return fingerprint(opened(root, "ddd17", arch=arch).recordings("test"))


def test_the_same_data_elsewhere_zipped_or_in_other_windows_is_the_same(tiny_world, tmp_path):
    archive = copied(tiny_world, tmp_path, "ddd17")
    first = of_archive(archive)
    assert len(first) == 12
    shutil.copytree(archive, tmp_path / "Kopie mit Ü" / "ddd17")
    (archive / "dir2" / "Thumbs.db").write_text("x")
    assert (
        of_archive(tmp_path / "Kopie mit Ü" / "ddd17")
        == of_archive(archive, "feedforward")
        == first
    )
    extract(archive / "dir2")
    assert of_archive(archive) == first


def change_byte(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


CHANGES = {
    "mask": lambda recording: min(extract(recording).iterdir()).write_bytes(
        png(np.zeros((64, 96), np.uint8))
    ),
    "missing mask": lambda recording: min(extract(recording).iterdir()).unlink(),
    "label time": lambda recording: change_byte(
        recording / "index" / "index_50ms.npy", 128 + 24 * 30 + 2
    ),
    "speed": lambda recording: change_byte(recording / "ego_speed.npy", -1),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_changed_data_is_other_data(tiny_world, tmp_path, change):
    archive = copied(tiny_world, tmp_path, "ddd17")
    before = of_archive(archive)
    change(archive / "dir2")
    assert of_archive(archive) != before


def test_the_reduction_and_the_split_of_a_recording_count(tiny_world):
    divisions = [
        split_train_val(tiny_world / "1mpx", 50, Downsample(factor, "nearest"))
        for factor in (1, 1, 2)
    ]
    whole, again, half = (fingerprint(division.train) for division in divisions)
    assert whole == again != half
    first, second = opened(tiny_world / "ddd17", "ddd17").recordings("train")
    divided = [[first], [second]], [[first, second], []], [[second], [first]]
    assert len({fingerprint(*splits) for splits in divided}) == 3


# A share of the training labels: evenly spread, the same for all networks, and no other label is
# seen.
@pytest.mark.parametrize("count", [1, 2, 7, 64, 100])
def test_every_beginning_is_spread_evenly(count):
    order = van_der_corput_order(count)
    assert sorted(order.tolist()) == list(range(count))
    for kept in range(1, count + 1):
        gaps = np.diff([-1, *sorted(order[:kept].tolist()), count])
        assert gaps.max() <= 2 * count / kept + 1


def built(world, task, arch, share=1.0):
    changes = [
        f"label_fraction={share}",
        "batch_size=4",
        "labels_per_chunk=null",
        "sampling=random",
    ]
    return build_task(
        settings_of(Data(world / task, "sample"), task, arch, None, changes), world / task
    )


@pytest.mark.parametrize("task", names("tasks"))
def test_networks_of_both_kinds_learn_from_the_same_labels_and_a_larger_share_holds_a_smaller_one(
    tiny_world, task
):
    def learned(arch, share):
        return [
            set(each.label_times.tolist())
            for each in built(tiny_world, task, arch, share).train_subset
        ]

    fifth, half, every = (learned("recurrent", share) for share in (0.2, 0.5, 1.0))
    assert half == learned("feedforward", 0.5)
    for few, more, all_of_them in zip(fifth, half, every, strict=True):
        assert few < more < all_of_them
    assert sum(map(len, fifth)) == round(0.2 * sum(map(len, every)))


@settings(max_examples=30)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(0, 9))
def test_few_labels_are_nested_and_spread_over_recordings_and_time(counts, seed):
    total = sum(counts)
    recordings = [labelled_at(count, range(count)) for count in counts]
    before = [set()] * len(counts)
    for number in range(1, total + 1):
        few = with_label_fraction(recordings, number / total, seed)
        chosen = [each.label_indices.tolist() for each in few]
        assert sum(map(len, chosen)) == number
        for labels, smaller, count in zip(chosen, before, counts, strict=True):
            assert smaller <= set(labels)
            assert abs(len(labels) - number * count / total) < 2
            if labels:
                gaps = np.diff([*labels, labels[0] + count])
                assert gaps.max() <= 2 * count / len(labels) + 3
        before = [set(labels) for labels in chosen]


def test_one_label_of_many_recordings_is_drawn_by_the_seed():
    recordings = [labelled_at(30, range(30))] * 4
    drawn = set()
    for seed in range(20):
        few = with_label_fraction(recordings, 0.008, seed)
        ((number, label),) = [
            (n, label) for n, each in enumerate(few) for label in each.label_indices.tolist()
        ]
        drawn.add((number, label))
    assert len(drawn) > 15
    with pytest.raises(UserError, match=r"0.004 of 120 training labels is none; set it to 0.0083 "):
        with_label_fraction(recordings, 0.004, 0)
    assert sum(len(each.labels) for each in with_label_fraction(recordings, 0.0083, 0)) == 1


@pytest.mark.parametrize(
    ("task", "arch"), [("ddd17", "recurrent"), ("gen1", "feedforward"), ("gen1", "recurrent")]
)
def test_no_other_label_is_seen_and_each_of_them_is(tiny_world, task, arch):
    one = built(tiny_world, task, arch, 0.2)
    wanted, seen = (
        {(each.name, time) for each in one.train_subset for time in each.label_times.tolist()},
        set(),
    )
    steps = one.steps(0)
    for step in range(60):
        for lane, slot in zip(steps._shard_lanes, steps._slots(step), strict=True):
            recording = steps._recordings[slot.recording]
            name = recording.name.partition(" (part ")[0]
            chosen = steps._choose(recording.labels_in(slot.first, steps.segments), lane, step)
            assert len(chosen) > 0
            seen |= {(name, int(recording.label_times[label])) for label in chosen}
    assert seen == wanted


def test_a_label_and_its_speed_stay_with_their_window():
    whole = labelled_at(12, [1, 4, 5, 11])
    (few,) = with_label_fraction([whole], 0.5, seed=0)
    assert (few.label_indices.tolist(), [*few.labels], few.ego_speed.tolist()) == (
        [1, 4],
        [0, 1],
        [0, 1],
    )
    assert (few.windows is whole.windows, few.labels.checksums()) == (
        True,
        whole.labels.checksums(),
    )
    assert [*few.part(2, 12).labels] == [1]
    same, none = with_label_fraction([whole, labelled_at(12, [])], 1.0, seed=0)
    assert (len(none), len(none.labels)) == (12, 0)
    assert (same.label_indices.tolist(), [*same.labels]) == (
        whole.label_indices.tolist(),
        [*whole.labels],
    )

from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tespec.datasets.batches import Lanes, balance_lanes, shuffled


@st.composite
def playable_lanes(draw, random_share=0.0):
    segments = draw(st.integers(1, 5))
    lengths = draw(st.lists(st.integers(0, 25), min_size=1, max_size=6).filter(lambda found: max(found) >= segments))
    return Lanes(tuple(lengths), segments, draw(st.integers(1, 9)), draw(st.integers(0, 2**40)), random_share)


@given(playable_lanes())
def test_lanes_say_whether_any_state_is_ever_carried(lanes):
    fresh = {lanes.slot(lane, step).fresh for lane in range(lanes.count) for step in range(60)}
    assert lanes.has_no_continuation == (fresh == {True})
    assert not replace(lanes, random_share=1.0).has_no_continuation


@given(playable_lanes(), st.data())
def test_a_stream_goes_on_where_it_stopped_and_starts_afresh_with_the_run_and_each_pass_only(lanes, data):
    lane, step = data.draw(st.integers(0, lanes.count - 1)), data.draw(st.integers(0, 10**9))
    now, then = lanes.slot(lane, step), lanes.slot(lane, step + 1)
    if now.first // lanes.segments == lanes.lengths[now.recording] // lanes.segments - 1:
        assert (then.first < lanes.segments, then.fresh) == (True, True)
        assert then.pass_index > now.pass_index
    else:
        assert then == (now.recording, now.first + lanes.segments, now.pass_index, False)
    assert lanes.slot(lane, 0).fresh


@given(playable_lanes(), st.data())
def test_an_epoch_plays_each_recording_once_in_a_row_and_several_every_window(lanes, data):
    lane, segments = data.draw(st.integers(0, lanes.count - 1)), lanes.segments
    chunks = [length // segments for length in lanes.lengths]
    slots = [lanes.slot(lane, step) for step in range((segments + 1) * sum(chunks))]
    epochs = [list(each) for _, each in groupby(slots, key=lambda slot: slot.pass_index // len(chunks))]
    epochs = [each for each in epochs if len(each) == sum(chunks)][:segments]  # not the cut one at the start
    for epoch in epochs:
        passes = [list(each) for _, each in groupby(epoch, key=lambda slot: slot.pass_index)]
        assert sorted(each[0].recording for each in passes) == [k for k, count in enumerate(chunks) if count]
        for each in passes:
            recording, phase = each[0].recording, each[0].first
            assert [slot.first for slot in each] == [phase + c * segments for c in range(chunks[recording])]
    played = {(slot.recording, slot.first + place) for epoch in epochs for slot in epoch for place in range(segments)}
    whole = [number for number, count in enumerate(chunks) if count]
    assert played == {(number, window) for number in whole for window in range(lanes.lengths[number])}


@given(playable_lanes(random_share=0.5), st.data())
def test_a_slot_does_not_depend_on_what_was_asked_for_before(lanes, data):
    lane = data.draw(st.integers(0, lanes.count - 1))
    steps = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
    assert [lanes.slot(lane, step) for step in steps] == [replace(lanes).slot(lane, step) for step in steps]


def test_random_lanes_reach_all_that_they_may_end_at_and_streams_stay_streams():
    lanes = Lanes((3, 7), segments=2, count=4, seed=0, random_share=0.5)
    drawn = [lanes.slot(lane, step) for lane in (0, 1) for step in range(200)]
    assert {slot[:2] for slot in drawn} == {(0, first) for first in range(2)} | {(1, first) for first in range(6)}
    assert all(slot.fresh for slot in drawn)
    assert [slot.pass_index for slot in drawn] == [*range(200)] * 2
    assert not all(lanes.slot(lane, step).fresh for lane in (2, 3) for step in range(50))
    ends = (np.array([0, 2, 6]), np.array([1]), np.array([0]))
    lanes = Lanes((8, 4, 2), segments=4, count=1, seed=0, random_share=1.0, ends=ends)
    assert {lanes.slot(0, step)[:2] for step in range(200)} == {(0, 0), (0, 3), (1, 0)}


def test_lanes_of_a_single_recording_and_seeds_differ_and_recordings_shorter_than_a_chunk_are_not_played():
    lanes = Lanes((800,), segments=2, count=8, seed=0)
    starts = sorted(lanes.slot(lane, 0).first for lane in range(8))
    assert all(later - earlier > 2 for earlier, later in pairwise(starts))
    orders = (Lanes((9,) * 12, 3, 1, seed) for seed in (0, 1, 2**33))
    assert len({tuple(each.slot(0, step).recording for step in range(36)) for each in orders}) == 3
    assert not Lanes((4, 2), segments=5, count=3, seed=0).playable
    lanes = Lanes((4, 6), segments=5, count=3, seed=0)
    assert {lanes.slot(lane, step).recording for lane in range(3) for step in range(20)} == {1}


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 12))
def test_recordings_are_dealt_once_and_evenly(lengths, lanes):
    dealt = balance_lanes(lengths, lanes)
    assert sorted(recording for lane in dealt for recording in lane) == list(range(len(lengths)))
    assert len(dealt) == min(lanes, len(lengths))
    sums = [sum(lengths[recording] for recording in lane) for lane in dealt]
    assert max(sums, default=0) - min(sums, default=0) <= max(lengths, default=0)
    assert balance_lanes([1, 2, 3, 4, 5], 2) == [[4, 1, 0], [3, 2]]


@given(st.data(), st.integers(0, 2**40))
def test_random_chunks_end_where_they_may(data, seed):
    segments = data.draw(st.integers(1, 4))
    lengths = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)))
    ends = tuple(np.array(sorted(data.draw(st.sets(st.integers(0, length - 1)))), np.int64) for length in lengths)
    lanes = Lanes(lengths, segments, 2, seed, 1.0, ends)
    whole = [number for number, length in enumerate(lengths) if length >= segments]
    allowed = {(number, max(0, int(end) - segments + 1)) for number in whole for end in ends[number]}
    assert lanes.playable == bool(allowed)
    if lanes.playable:
        assert {lanes.slot(lane, step)[:2] for lane in range(2) for step in range(20)} <= allowed


@given(st.integers(1, 40), st.integers(0, 2**40))
def test_what_is_shuffled_is_shown_once_in_each_epoch_in_an_order_drawn_once(count, seed):
    drawn, default_rng = [], np.random.default_rng
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "default_rng", lambda key: drawn.append(key) or default_rng(key))
        shown = [each for first in range(0, 3 * count, 2) for each in shuffled([first, first + 1], count, seed)]
    assert all(sorted(shown[first : first + count]) == list(range(count)) for first in (0, count, 2 * count))
    assert len(drawn) <= 4
    assert shuffled(range(0, 3 * count, 7), count, seed) == shown[: 3 * count : 7]

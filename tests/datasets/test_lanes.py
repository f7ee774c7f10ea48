from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tespec.datasets.lanes import Lanes, serpentine
from tespec.datasets.parts import share_of

LENGTHS = st.lists(st.integers(0, 25), min_size=1, max_size=6)


@st.composite
def playable_lanes(draw, random_share=0.0):
    segments = draw(st.integers(1, 5))
    lengths = draw(LENGTHS.filter(lambda lengths: max(lengths) >= segments))
    return Lanes(tuple(lengths), segments, draw(st.integers(1, 9)), draw(st.integers(0, 2**40)), random_share)


def chunks_of(lanes):
    return [length // lanes.segments for length in lanes.lengths]


@given(playable_lanes(), st.data())
def test_a_stream_goes_on_where_it_stopped(lanes, data):
    lane, step = data.draw(st.integers(0, lanes.count - 1)), data.draw(st.integers(0, 10**9))
    now, then = lanes.slot(lane, step), lanes.slot(lane, step + 1)
    ended = now.first // lanes.segments == chunks_of(lanes)[now.recording] - 1
    if ended:
        assert (then.first, then.fresh) == (0, True)
        assert then.play > now.play
    else:
        assert then == (now.recording, now.first + lanes.segments, now.play, False)


@given(playable_lanes(), st.data())
def test_each_lap_plays_every_chunk_once_in_an_order_of_its_own(lanes, data):
    lane, chunks = data.draw(st.integers(0, lanes.count - 1)), chunks_of(lanes)
    slots = [lanes.slot(lane, step) for step in range(3 * sum(chunks))]
    laps = [list(lap) for _, lap in groupby(slots, key=lambda slot: slot.play // len(chunks))]
    for lap in laps[1:-1]:
        played = sorted((slot.recording, slot.first) for slot in lap)
        assert played == [(k, c * lanes.segments) for k, count in enumerate(chunks) for c in range(count)]


@given(playable_lanes())
def test_state_starts_afresh_with_the_run_and_with_each_recording_only(lanes):
    for lane in range(lanes.count):
        assert lanes.slot(lane, 0).fresh
        for step in range(1, 20):
            slot = lanes.slot(lane, step)
            assert slot.fresh == (slot.first == 0)


@given(playable_lanes(random_share=1.0), st.integers(0, 10**9))
def test_random_lanes_start_afresh_anywhere(lanes, step):
    for lane in range(lanes.count):
        slot = lanes.slot(lane, step)
        assert slot.fresh
        assert slot.play == step
        assert 0 <= slot.first <= lanes.lengths[slot.recording] - lanes.segments


def test_random_lanes_reach_every_window_and_streams_stay_streams():
    lanes = Lanes((3, 7), segments=2, count=4, seed=0, random_share=0.5)
    seen = {lanes.slot(lane, step)[:2] for lane in (0, 1) for step in range(200)}
    assert seen == {(0, first) for first in range(2)} | {(1, first) for first in range(6)}
    assert not any(lanes.slot(lane, step).first % 2 for lane in (2, 3) for step in range(50))


def test_lanes_of_a_single_recording_differ():
    lanes = Lanes((800,), segments=2, count=8, seed=0)
    starts = sorted(lanes.slot(lane, 0).first for lane in range(8))
    assert all(later - earlier > 2 for earlier, later in pairwise(starts))


def test_seeds_give_different_orders():
    orders = {
        tuple(Lanes((9,) * 12, 3, 1, seed).slot(0, step).recording for step in range(36)) for seed in (0, 1, 2**33)
    }
    assert len(orders) == 3


def test_recordings_shorter_than_a_chunk_are_not_played():
    assert not Lanes((4, 2), segments=5, count=3, seed=0).playable
    lanes = Lanes((4, 6), segments=5, count=3, seed=0)
    assert lanes.playable
    assert {lanes.slot(lane, step).recording for lane in range(3) for step in range(20)} == {1}


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 12))
def test_serpentine_deals_every_recording_once_and_evenly(lengths, lanes):
    dealt = serpentine(lengths, lanes)
    assert sorted(recording for lane in dealt for recording in lane) == list(range(len(lengths)))
    assert len(dealt) == min(lanes, len(lengths))
    sums = [sum(lengths[recording] for recording in lane) for lane in dealt]
    assert max(sums, default=0) - min(sums, default=0) <= max(lengths, default=0)


@pytest.mark.parametrize(("lengths", "dealt"), [([1, 2, 3, 4, 5], [[4, 1, 0], [3, 2]]), ([7], [[0]]), ([], [])])
def test_serpentine_goes_there_and_back(lengths, dealt):
    assert serpentine(lengths, 2) == dealt


@given(st.data(), st.integers(0, 2**40))
def test_random_chunks_end_where_they_may_and_everywhere_there(data, seed):
    segments = data.draw(st.integers(1, 4))
    lengths = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)))
    ends = tuple(np.array(sorted(data.draw(st.sets(st.integers(0, length - 1)))), np.int64) for length in lengths)
    lanes = Lanes(lengths, segments, 2, seed, 1.0, ends)
    allowed = {
        (number, int(end)) for number, each in enumerate(ends) for end in each if segments - 1 <= end < lengths[number]
    }
    assert lanes.playable == bool(allowed and max(lengths) >= segments)
    if lanes.playable:
        slots = [lanes.slot(lane, step) for lane in range(2) for step in range(20)]
        assert {(slot.recording, slot.first + segments - 1) for slot in slots} <= allowed
        assert all(slot.fresh and slot.first >= 0 for slot in slots)


def test_all_ends_allowed_is_no_restriction():
    ends = (np.arange(9), np.arange(5))
    for step in range(50):
        slots = [Lanes((9, 5), 3, 2, 7, 1.0, each).slot(1, step) for each in (None, ends)]
        assert slots[0] == slots[1]


@given(st.integers(0, 40), st.integers(1, 9))
def test_processes_share_the_lanes(count, processes):
    shares = [share_of(count, (number, processes)) for number in range(processes)]
    assert [lane for share in shares for lane in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_there_is_no_process_beyond_the_last():
    with pytest.raises(ValueError, match="part 2 of 2"):
        share_of(8, (2, 2))

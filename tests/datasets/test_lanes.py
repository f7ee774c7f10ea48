from dataclasses import replace
from itertools import groupby, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tespec.core.config import names
from tespec.datasets.batches import lanes_of
from tespec.datasets.lanes import Lanes, Shuffled, balance_lanes
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task

LENGTHS = st.lists(st.integers(0, 25), min_size=1, max_size=6)


@st.composite
def playable_lanes(draw, random_share=0.0):
    segments = draw(st.integers(1, 5))
    lengths = draw(LENGTHS.filter(lambda lengths: max(lengths) >= segments))
    return Lanes(tuple(lengths), segments, draw(st.integers(1, 9)), draw(st.integers(0, 2**40)), random_share)


def chunks_of(lanes):
    return [length // lanes.segments for length in lanes.lengths]


@given(playable_lanes())
def test_lanes_say_whether_any_state_is_ever_carried(lanes):
    fresh = {lanes.slot(lane, step).fresh for lane in range(lanes.count) for step in range(60)}
    assert lanes.has_no_continuation == (fresh == {True})
    assert not replace(lanes, random_share=1.0).has_no_continuation


@pytest.mark.parametrize("task", names("tasks"))
def test_streams_of_the_comparison_carry_a_state(tiny_world, task):
    settings = settings_of(Data(tiny_world / task, "sample"), task, "recurrent", "small")
    steps = build_task(settings, tiny_world / task).steps(0)
    assert settings.sampling == "mixed"
    assert not steps.has_no_continuation


@given(playable_lanes(), st.data())
def test_a_stream_goes_on_where_it_stopped(lanes, data):
    lane, step = data.draw(st.integers(0, lanes.count - 1)), data.draw(st.integers(0, 10**9))
    now, then = lanes.slot(lane, step), lanes.slot(lane, step + 1)
    ended = now.first // lanes.segments == chunks_of(lanes)[now.recording] - 1
    if ended:
        assert (then.first < lanes.segments, then.fresh) == (True, True)
        assert then.pass_index > now.pass_index
    else:
        assert then == (now.recording, now.first + lanes.segments, now.pass_index, False)


def laps_of(lanes, lane, count):
    """What a lane plays in `count` whole laps from step 0 on, by lap; the cut one it may begin with is left out."""
    total = sum(chunks_of(lanes))
    slots = [lanes.slot(lane, step) for step in range((count + 1) * total)]
    laps = [list(lap) for _, lap in groupby(slots, key=lambda slot: slot.pass_index // len(lanes.lengths))]
    return [lap for lap in laps if len(lap) == total][:count]


@given(playable_lanes(), st.data())
def test_each_lap_plays_as_many_chunks_of_each_recording_as_it_holds_in_a_row(lanes, data):
    lane, chunks = data.draw(st.integers(0, lanes.count - 1)), chunks_of(lanes)
    for lap in laps_of(lanes, lane, 3):
        passes = [list(each) for _, each in groupby(lap, key=lambda slot: slot.pass_index)]
        assert sorted(each[0].recording for each in passes) == [k for k, count in enumerate(chunks) if count]
        for each in passes:
            recording, phase = each[0].recording, each[0].first
            assert [slot.first for slot in each] == [phase + c * lanes.segments for c in range(chunks[recording])]
            assert each[-1].first + lanes.segments <= lanes.lengths[recording]


@given(playable_lanes(), st.data())
def test_every_window_plays_within_as_many_laps_as_a_chunk_has_windows(lanes, data):
    lane = data.draw(st.integers(0, lanes.count - 1))
    played = {
        (slot.recording, slot.first + place)
        for lap in laps_of(lanes, lane, lanes.segments)
        for slot in lap
        for place in range(lanes.segments)
    }
    whole = [number for number, length in enumerate(lanes.lengths) if length >= lanes.segments]
    assert played == {(number, window) for number in whole for window in range(lanes.lengths[number])}


@given(playable_lanes(random_share=0.5), st.data())
def test_a_slot_does_not_depend_on_what_was_asked_for_before(lanes, data):
    lane = data.draw(st.integers(0, lanes.count - 1))
    steps = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
    assert [lanes.slot(lane, step) for step in steps] == [replace(lanes).slot(lane, step) for step in steps]


@given(playable_lanes())
def test_state_starts_afresh_with_the_run_and_with_each_pass_only(lanes):
    for lane in range(lanes.count):
        slots = [lanes.slot(lane, step) for step in range(20)]
        assert slots[0].fresh
        assert [now.fresh for now in slots[1:]] == [
            now.pass_index != before.pass_index for before, now in pairwise(slots)
        ]


@given(playable_lanes(random_share=1.0), st.integers(0, 10**9))
def test_random_lanes_start_afresh_anywhere(lanes, step):
    for lane in range(lanes.count):
        slot = lanes.slot(lane, step)
        assert slot.fresh
        assert slot.pass_index == step
        assert 0 <= slot.first <= lanes.lengths[slot.recording] - lanes.segments


def test_random_lanes_reach_every_window_and_streams_stay_streams():
    lanes = Lanes((3, 7), segments=2, count=4, seed=0, random_share=0.5)
    seen = {lanes.slot(lane, step)[:2] for lane in (0, 1) for step in range(200)}
    assert seen == {(0, first) for first in range(2)} | {(1, first) for first in range(6)}
    streams = [lanes.slot(lane, step) for lane in (2, 3) for step in range(50)]
    assert not all(slot.fresh for slot in streams)


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
    dealt = balance_lanes(lengths, lanes)
    assert sorted(recording for lane in dealt for recording in lane) == list(range(len(lengths)))
    assert len(dealt) == min(lanes, len(lengths))
    sums = [sum(lengths[recording] for recording in lane) for lane in dealt]
    assert max(sums, default=0) - min(sums, default=0) <= max(lengths, default=0)


@pytest.mark.parametrize(("lengths", "dealt"), [([1, 2, 3, 4, 5], [[4, 1, 0], [3, 2]]), ([7], [[0]]), ([], [])])
def test_serpentine_goes_there_and_back(lengths, dealt):
    assert balance_lanes(lengths, 2) == dealt


@given(st.data(), st.integers(0, 2**40))
def test_random_chunks_end_where_they_may_and_everywhere_there(data, seed):
    segments = data.draw(st.integers(1, 4))
    lengths = tuple(data.draw(st.lists(st.integers(1, 12), min_size=1, max_size=4)))
    ends = tuple(np.array(sorted(data.draw(st.sets(st.integers(0, length - 1)))), np.int64) for length in lengths)
    lanes = Lanes(lengths, segments, 2, seed, 1.0, ends)
    allowed = {
        (number, max(0, int(end) - segments + 1))
        for number, each in enumerate(ends)
        for end in each
        if lengths[number] >= segments
    }
    assert lanes.playable == bool(allowed)
    if lanes.playable:
        slots = [lanes.slot(lane, step) for lane in range(2) for step in range(20)]
        assert {(slot.recording, slot.first) for slot in slots} <= allowed
        assert all(slot.fresh for slot in slots)


def test_random_chunks_reach_every_label_those_before_a_whole_chunk_as_well():
    ends = (np.array([0, 2, 6]), np.array([1]), np.array([0]))
    lanes = Lanes((8, 4, 2), segments=4, count=1, seed=0, random_share=1.0, ends=ends)
    slots = {lanes.slot(0, step)[:2] for step in range(200)}
    assert slots == {(0, 0), (0, 3), (1, 0)}


def test_all_ends_allowed_is_no_restriction():
    ends = (np.arange(9), np.arange(5))
    for step in range(50):
        slots = [Lanes((9, 5), 3, 2, 7, 1.0, each).slot(1, step) for each in (None, ends)]
        assert slots[0] == slots[1]


@given(st.integers(0, 40), st.integers(1, 9))
def test_processes_share_the_lanes(count, processes):
    shares = [lanes_of(count, (number, processes)) for number in range(processes)]
    assert [lane for share in shares for lane in share] == list(range(count))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_there_is_no_process_beyond_the_last():
    with pytest.raises(ValueError, match="shard 2 of 2"):
        lanes_of(8, (2, 2))


@given(st.integers(1, 40), st.integers(1, 9), st.integers(0, 2**40))
def test_what_is_shuffled_is_shown_once_in_each_lap_and_its_order_drawn_once(count, batch, seed):
    drawn, default_rng = [], np.random.default_rng
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np.random, "default_rng", lambda key: drawn.append(key) or default_rng(key))
        order = Shuffled(count, seed)
        shown = [[order[step * batch + row] for row in range(batch)] for step in range(3 * count)]
    flat = [each for batch in shown for each in batch]
    laps = [flat[first : first + count] for first in range(0, len(flat), count)]
    assert all(sorted(lap) == list(range(count)) for lap in laps)
    assert len(drawn) == len(laps)
    assert [Shuffled(count, seed)[position] for position in range(0, len(flat), 7)] == flat[::7]

"""Training batches, pure functions of (seed, step) for any number of workers and shards, and
evaluation batches.
"""

from dataclasses import asdict, replace
from functools import cache, partial
from itertools import groupby, pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from twins import opened

from tespec.core.boxes import make_boxes
from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Augmentation, Binning, Downsample, HistogramSpec, build
from tespec.datasets import batches
from tespec.datasets.augment import FlipZoom
from tespec.datasets.batches import (
    LabelledBatches,
    pad_boxes,
    stack_depths,
    stack_masks,
)
from tespec.datasets.folder import split_train_val
from tespec.datasets.lanes import Lanes, balance_lanes, lanes_of
from tespec.datasets.recording import LabelledRecording, contiguous_windows, cut_at_gaps
from tespec.events.histogram import Region
from tespec.runs.data import Data, settings_of

FLIP, NONE, ALWAYS = Augmentation(flip=1.0), Augmentation(), Augmentation(flip=0.5, zoom=1.0)


@cache
def labelled(task, collate, world, seed=0, shard=(0, 1), **changes):
    settings = settings_of(Data(world / task, "sample"), task, "recurrent")
    settings = replace(
        settings, **({"batch_size": 3, "segments": 5, "augmentation": NONE} | changes)
    )
    recordings = cut_at_gaps(opened(world / task, task).recordings("train"), settings.segments)
    return LabelledBatches(recordings, settings, seed, collate, shard)


with_masks, with_boxes = (
    partial(labelled, "ddd17", stack_masks),
    partial(labelled, "gen1", pad_boxes),
)


@cache
def unlabelled(world, seed=0, shard=(0, 1), **changes):
    settings = replace(
        pretraining_settings("tespec", "sample"), **({"batch_size": 3, "segments": 4} | changes)
    )
    division = split_train_val(world / "1mpx", settings.window_ms, settings.downsample)
    return batches.StepBatches(division.train, settings, seed, shard)


KINDS = pytest.mark.parametrize("make", [with_masks, with_boxes, unlabelled])


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@KINDS
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on
@pytest.mark.filterwarnings(
    "ignore:This DataLoader will create:UserWarning"
)  # more workers than processors
@pytest.mark.parametrize(
    ("workers", "start"), [pytest.param(1, "spawn", marks=pytest.mark.slow), (4, "fork")]
)
def test_batches_are_the_same_for_any_number_of_workers(tiny_world, make, workers, start):
    steps = make(tiny_world, augmentation=ALWAYS)
    options = {"num_workers": workers, "multiprocessing_context": start}
    loaded = list(DataLoader(steps, batch_size=None, sampler=range(2, 9), **options))
    assert all(same(batch, steps[step]) for step, batch in zip(range(2, 9), loaded, strict=True))
    assert not same(make(tiny_world, seed=1, augmentation=ALWAYS)[8], loaded[-1])


@KINDS
@pytest.mark.parametrize("shards", [2, 3])
def test_shards_together_are_the_whole_batch(tiny_world, make, shards):
    whole = make(tiny_world, augmentation=ALWAYS)
    for step in (0, 3, 8):
        parts = [
            make(tiny_world, shard=(number, shards), augmentation=ALWAYS)[step]
            for number in range(shards)
        ]
        most, lanes = max(batch["boxes"].shape[1] if "boxes" in batch else 0 for batch in parts), 0
        for batch in parts:
            if "label_position" in batch:
                batch["label_position"][:, 0] += lanes
            if "boxes" in batch:
                padding = (0, 0, 0, most - batch["boxes"].shape[1])
                batch["boxes"] = torch.nn.functional.pad(batch["boxes"], padding, value=-1)
            lanes += len(batch["is_first"])
        assert same(
            {name: torch.cat([batch[name] for batch in parts]) for name in parts[0]}, whole[step]
        )


@pytest.mark.parametrize("labels_per_chunk", [None, 1, 3, 99])
def test_labels_are_those_of_their_segments(tiny_world, labels_per_chunk):
    steps = with_masks(tiny_world, labels_per_chunk=labels_per_chunk)
    for step in range(4):
        batch = steps[step]
        for lane, slot in enumerate(steps._slots(step)):
            rows, recording = (
                batch["label_position"][:, 0] == lane,
                steps._recordings[slot.recording],
            )
            segments = batch["label_position"][rows, 1].tolist()
            assert segments == sorted(set(segments))
            assert (len(segments), segments[-1]) == (min(labels_per_chunk or 5, 5), 4)
            histograms = recording.histograms(slot.first, 5, Binning(10, "edges"))
            np.testing.assert_array_equal(batch["histograms"][lane], histograms)
            labels = [recording.labels[slot.first + segment] for segment in segments]
            np.testing.assert_array_equal(batch["labels"][rows], labels)


def test_labels_and_histograms_are_flipped_together(tiny_world):
    plain, flipped = with_masks(tiny_world)[2], with_masks(tiny_world, augmentation=FLIP)[2]
    assert same(flipped, plain | {name: plain[name].flip(-1) for name in ("histograms", "labels")})


def test_augmentation_is_drawn_once_for_each_recording_pass(tiny_world):
    steps, drawn = unlabelled(tiny_world, augmentation=ALWAYS, segments=2), {}
    for step in range(60):
        slots = steps._slots(step)
        for lane, (slot, flip_zoom) in enumerate(zip(slots, steps._flip_zooms(slots), strict=True)):
            drawn.setdefault((lane, slot.pass_index), set()).add(
                (flip_zoom.rows.tobytes(), flip_zoom.columns.tobytes())
            )
    assert all(len(each) == 1 for each in drawn.values())
    assert len(set.union(*drawn.values())) == len(drawn) > 6


def test_recordings_shorter_than_a_chunk_are_left_out_and_named(tiny_world):
    long, other = opened(tiny_world / "ddd17", "ddd17").recordings("train")
    short = replace(other.part(0, 4), name="short")
    settings = replace(
        finetuning_settings("ddd17", "recurrent", "sample"), segments=5, sampling="stream"
    )
    steps = LabelledBatches([short, long], settings, 0, stack_masks)
    assert (steps.left_out, len(steps[7]["histograms"])) == (("short",), settings.batch_size)
    assert {name for step in range(20) for name in steps.names(step)} == {long.name}
    with pytest.raises(
        UserError,
        match="no recording has the 5 windows of a chunk, the longest has 4; set segments",
    ):
        LabelledBatches([short], settings, 0, stack_masks)
    many = LabelledBatches([long.part(0, 6)], replace(settings, batch_size=9), 0, stack_masks)[1]
    assert many["histograms"].shape[:2] == (9, 5)
    assert many["is_first"].all()


PLAIN = FlipZoom(np.arange(2), np.arange(3))
FLIPPED = FlipZoom(np.arange(2), np.arange(3)[::-1], (1.0, -1.0), (0.0, 3.0))
MASK, DEPTH = (
    np.array([[0, 1, 255], [2, 2, 2]], np.uint8),
    np.array([[1, np.nan, 3], [4, 5, 6]], np.float32),
)


@pytest.mark.parametrize(("stack", "label"), [(stack_masks, MASK), (stack_depths, DEPTH)])
def test_images_of_labels_are_stacked_as_their_lane_sees_them(stack, label):
    labels = stack([(label, PLAIN), (label, FLIPPED)], (2, 3))["labels"].numpy()
    assert labels.dtype == label.dtype
    np.testing.assert_array_equal(labels, np.stack([label, label[:, ::-1]]))
    assert stack([], (2, 3))["labels"].shape == (0, 2, 3)


def test_boxes_of_each_label_are_filled_up_to_the_most():
    two = make_boxes(np.array([[0, 0, 1, 1], [1, 0, 2, 1]]), np.array([1, 0]))
    none, one = two.keep(np.array([False, False])), two.keep(np.array([True, False]))
    padded = pad_boxes([(two, PLAIN), (none, PLAIN), (one, FLIPPED)], (2, 3))["boxes"]
    padding = [-1] * 5
    assert padded.tolist() == [
        [[1, 0, 0, 1, 1], [0, 1, 0, 2, 1]],
        [padding] * 2,
        [[1, 1, 0, 2, 1], padding],
    ]
    assert padded.dtype == torch.float32
    assert pad_boxes([], (2, 3))["boxes"].shape == (0, 1, 5)


@st.composite
def playable_lanes(draw, random_fraction=0.0):
    segments = draw(st.integers(1, 5))
    lengths = draw(
        st.lists(st.integers(0, 25), min_size=1, max_size=6).filter(
            lambda found: max(found) >= segments
        )
    )
    return Lanes(
        tuple(lengths),
        segments,
        draw(st.integers(1, 9)),
        draw(st.integers(0, 2**40)),
        random_fraction,
    )


@settings(max_examples=30)
@given(playable_lanes())
def test_lanes_say_whether_any_state_is_ever_carried(lanes):
    fresh = {lanes.slot(lane, step).is_first for lane in range(lanes.count) for step in range(60)}
    assert lanes.has_no_continuation == (fresh == {True})
    assert not replace(lanes, random_fraction=1.0).has_no_continuation


@given(playable_lanes(), st.data())
def test_a_stream_goes_on_where_it_stopped_and_starts_afresh_with_the_run_and_each_pass_only(
    lanes, data
):
    lane, step = data.draw(st.integers(0, lanes.count - 1)), data.draw(st.integers(0, 10**9))
    now, then = lanes.slot(lane, step), lanes.slot(lane, step + 1)
    if now.first // lanes.segments == lanes.lengths[now.recording] // lanes.segments - 1:
        assert (then.first < lanes.segments, then.is_first) == (True, True)
        assert then.pass_index > now.pass_index
    else:
        assert then == (now.recording, now.first + lanes.segments, now.pass_index, False)
    assert lanes.slot(lane, 0).is_first


@given(playable_lanes(), st.data())
def test_an_epoch_plays_each_recording_once_in_a_row_and_several_every_window(lanes, data):
    lane, segments = data.draw(st.integers(0, lanes.count - 1)), lanes.segments
    chunks = [length // segments for length in lanes.lengths]
    slots = [lanes.slot(lane, step) for step in range((segments + 1) * sum(chunks))]
    epochs = [
        list(each) for _, each in groupby(slots, key=lambda slot: slot.pass_index // len(chunks))
    ]
    epochs = [each for each in epochs if len(each) == sum(chunks)][
        :segments
    ]  # without the partial epoch at the start
    for epoch in epochs:
        passes = [list(each) for _, each in groupby(epoch, key=lambda slot: slot.pass_index)]
        assert sorted(each[0].recording for each in passes) == [
            k for k, count in enumerate(chunks) if count
        ]
        for each in passes:
            recording, phase = each[0].recording, each[0].first
            assert [slot.first for slot in each] == [
                phase + c * segments for c in range(chunks[recording])
            ]
    played = {
        (slot.recording, slot.first + place)
        for epoch in epochs
        for slot in epoch
        for place in range(segments)
    }
    whole = [number for number, count in enumerate(chunks) if count]
    assert played == {
        (number, window) for number in whole for window in range(lanes.lengths[number])
    }


@given(playable_lanes(random_fraction=0.5), st.data())
def test_a_slot_does_not_depend_on_what_was_asked_for_before(lanes, data):
    lane = data.draw(st.integers(0, lanes.count - 1))
    steps = data.draw(st.lists(st.integers(0, 10**6), min_size=1, max_size=8))
    assert [lanes.slot(lane, step) for step in steps] == [
        replace(lanes).slot(lane, step) for step in steps
    ]


def test_random_lanes_reach_all_that_they_may_end_at_and_streams_stay_streams():
    ends = (np.array([0, 2, 6]), np.array([1]), np.array([0]))
    lanes = Lanes((8, 4, 2), segments=4, count=1, seed=0, random_fraction=1.0, ends=ends)
    assert {lanes.slot(0, step)[:2] for step in range(100)} == {(0, 0), (0, 3), (1, 0)}
    assert not replace(lanes, ends=(np.array([], int), np.array([], int), np.array([0]))).playable
    lanes = Lanes((3, 7), segments=2, count=4, seed=0, random_fraction=0.5)
    drawn = [lanes.slot(lane, step) for lane in (1, 3) for step in range(200)]
    assert {slot[:2] for slot in drawn} == {(0, first) for first in range(2)} | {
        (1, first) for first in range(6)
    }
    assert [(slot.pass_index, slot.is_first) for slot in drawn] == [
        (step, True) for step in range(200)
    ] * 2
    assert not all(lanes.slot(lane, step).is_first for lane in (0, 2) for step in range(50))


@given(st.integers(1, 6), st.integers(1, 6), st.sampled_from([0.0, 0.3, 0.5, 1.0]))
def test_every_part_of_a_batch_holds_as_many_random_lanes_as_the_others(lanes, parts, share):
    batch = Lanes((9,), segments=2, count=lanes * parts, seed=0, random_fraction=share)
    counts = [
        sum(batch.is_random(lane) for lane in lanes_of(batch.count, (part, parts)))
        for part in range(parts)
    ]
    assert sum(counts) == round(share * batch.count)
    assert max(counts) - min(counts) <= 1


def test_lanes_of_a_single_recording_and_seeds_differ():
    lanes = Lanes((800,), segments=2, count=8, seed=0)
    starts = sorted(lanes.slot(lane, 0).first for lane in range(8))
    assert all(later - earlier > 2 for earlier, later in pairwise(starts))
    orders = (Lanes((9,) * 12, 3, 1, seed) for seed in (0, 1, 2**33))
    assert len({tuple(each.slot(0, step).recording for step in range(36)) for each in orders}) == 3


@given(st.lists(st.integers(0, 1000), max_size=30), st.integers(1, 12))
def test_recordings_are_dealt_once_and_evenly(lengths, lanes):
    dealt = balance_lanes(lengths, lanes)
    assert sorted(recording for lane in dealt for recording in lane) == list(range(len(lengths)))
    assert len(dealt) == min(lanes, len(lengths))
    sums = [sum(lengths[recording] for recording in lane) for lane in dealt]
    assert max(sums, default=0) - min(sums, default=0) <= max(lengths, default=0)
    assert balance_lanes([1, 2, 3, 4, 5], 2) == [[4, 1, 0], [3, 2]]


# A network plays every chosen window once: in streams with their state, or at the end of clips.
LENGTHS = st.lists(st.integers(1, 20), min_size=1, max_size=6)
SMALL = st.integers(1, 7)
MODES = {"stream": False, "random": True}  # whether the state is reset


class Numbered(LabelledRecording):
    """Recording whose histograms encode its number, in place of a source, and the window."""

    def fill(self, out, first, binning, flip_zoom=None):
        assert (binning.bins, binning.rule, flip_zoom) == (1, "edges", None)
        out[:, 0, 0, 0] = 1 + self.source
        out[:, 0, 0, 1] = self.windows[first : first + len(out), 0]


def numbered(number, length, every):
    """Recording with a label every `every` windows."""
    labelled = np.arange(every - 1, length, every)
    labels, windows = (
        [(number, label) for label in range(len(labelled))],
        contiguous_windows(0, length, 1),
    )
    return Numbered("", number, Region(1, 2), windows, labels, labelled)


def test_the_spec_in_the_weights_of_earlier_versions_is_a_binning():
    stored = {
        "bins": 10,
        "rule": "rvt",
        "window_ms": 50.0,
        "downsample": {"factor": 2, "keep": "all", "to_width": None},
    }
    stored |= {"size": (64, 96), "segments": 5, "reset": False}
    spec = build(HistogramSpec, stored, "recipe")
    assert asdict(spec) == stored | {"representation": "histogram", "last_events": None}
    assert isinstance(spec, Binning)
    for name in stored:
        with pytest.raises(UserError, match=f"setting '{name}' is missing"):
            build(
                HistogramSpec,
                {key: value for key, value in stored.items() if key != name},
                "recipe",
            )


def evaluation(lengths, lanes, segments, mode="stream", every=1, shards=1):
    """Recordings, and the evaluation batches of all shards."""
    facts = {"window_ms": 50.0, "downsample": Downsample(1, "nearest"), "size": (1, 2)}
    spec = HistogramSpec(bins=1, rule="edges", segments=segments, reset=MODES[mode], **facts)
    recordings = [numbered(number, length, every) for number, length in enumerate(lengths)]
    shares = [
        batches.PlayBatches(spec, recordings, lanes, (number, shards)) for number in range(shards)
    ]
    return recordings, [share[step] for share in shares for step in range(len(share))]


@given(LENGTHS, SMALL, SMALL, st.sampled_from(sorted(MODES)), st.integers(1, 6), st.integers(1, 4))
def test_every_label_is_scored_once_at_its_window_and_padding_never(
    lengths, lanes, segments, mode, every, shards
):
    recordings, played = evaluation(lengths, lanes, segments, mode, every, shards)
    scored = [frame for batch in played for frame in batch.frames]
    assert sorted(scored) == [frame for each in recordings for frame in each.labels]
    for batch in played:
        assert batch.labels == batch.frames
        assert mode == "stream" or batch.is_first.all()
        for (number, label), (lane, segment) in zip(
            batch.frames, batch.label_position.tolist(), strict=True
        ):
            window = int(recordings[number].label_indices[label])
            before = (
                min(segments - 1, window) if mode == "random" else 0
            )  # windows that the state has seen
            assert mode != "random" or segment == before
            seen = batch.histograms[lane, segment - before : segment + 1, 0, 0].tolist()
            assert seen == [[1 + number, each] for each in range(window - before, window + 1)]
    if mode != "random" and every == 1:
        assert sum(int((batch.histograms[:, :, 0, 0, 0] > 0).sum()) for batch in played) == sum(
            lengths
        )


@given(LENGTHS, SMALL, SMALL)
def test_a_recording_is_played_in_order_on_one_lane_with_its_state(lengths, lanes, segments):
    _, played = evaluation(lengths, lanes, segments)
    for lane in range(len(played[0].histograms)):
        order = []
        for batch in played:
            chunk = [
                frame
                for frame, place in zip(batch.frames, batch.label_position, strict=True)
                if place[0] == lane
            ]
            assert batch.label_position[batch.label_position[:, 0] == lane, 1].tolist() == list(
                range(len(chunk))
            )
            assert bool(batch.is_first[lane]) == (bool(chunk) and chunk[0][1] == 0)
            order += chunk
        for (recording, label), following in pairwise(order):
            last = label == lengths[recording] - 1
            assert following == ((following[0], 0) if last else (recording, label + 1))


@pytest.mark.parametrize(("mode", "shape"), [("stream", (2, 3)), ("random", (5, 3))])
def test_more_lanes_than_there_is_to_play_are_not_made(mode, shape):
    _, (batch,) = evaluation([2, 3], lanes=50, segments=3, mode=mode)
    assert batch.histograms.shape == (*shape, 2, 1, 2)

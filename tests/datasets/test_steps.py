import copy
import dataclasses
from functools import cache

import numpy as np
import pytest
import torch
from ddd17_copies import open_ddd17
from torch.utils.data import DataLoader

from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Augmentation, Mask
from tespec.datasets.batches import LabelledBatches, PretrainBatches, pad_boxes, stack_masks
from tespec.datasets.folder import divide
from tespec.datasets.lanes import Lanes
from tespec.datasets.recording import cut_at_gaps
from tespec.runs.data import Data, settings_of
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset
from tespec.training.loading import MicroBatches

FLIP = Augmentation(1.0, 0.0, 0.0, (1.0, 1.0), (1.0, 1.0))
NONE = Augmentation(0.0, 0.0, 0.0, (1.0, 1.0), (1.0, 1.0))
ALWAYS = Augmentation(0.5, 1.0, 0.8, (1.0, 1.5), (1.0, 1.2))
CALM_FORK = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on


@cache
def labelled_recordings(world):
    return open_ddd17(world / "ddd17").recordings("train")


@cache
def labelled(world, seed=0, shard=(0, 1), **changes):
    settings = finetuning_settings("ddd17", "recurrent", "sample")
    settings = dataclasses.replace(settings, **({"batch_size": 3, "segments": 5, "augmentation": NONE} | changes))
    return LabelledBatches(labelled_recordings(world), settings, seed, stack_masks, shard)


@cache
def unlabelled(world, seed=0, shard=(0, 1), **changes):
    settings = pretraining_settings("tespec", "sample")
    settings = dataclasses.replace(settings, **({"batch_size": 3, "segments": 4} | changes))
    division = divide(world / "1mpx", settings.window_ms, settings.downsample)
    return PretrainBatches(division.train, settings, seed, shard, Mask(16, 0.5))


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_a_labelled_batch(tiny_world):
    batch = labelled(tiny_world, labels_per_chunk=2)[0]
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        "histograms": ((3, 5, 20, 64, 96), torch.uint8),
        "fresh": ((3,), torch.bool),
        "labels": ((6, 64, 96), torch.uint8),
        "label_place": ((6, 2), torch.int64),
    }
    assert batch["fresh"].all()


def test_an_unlabelled_batch(tiny_world):
    batch = unlabelled(tiny_world)[3]
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        "histograms": ((3, 4, 20, 64, 96), torch.uint8),
        "fresh": ((3,), torch.bool),
        "mask": ((3, 4, 6), torch.bool),
    }
    assert batch["mask"].flatten(1).sum(1).tolist() == [12, 12, 12]
    assert not torch.equal(batch["mask"], unlabelled(tiny_world)[4]["mask"])


@CALM_FORK
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more workers than processors
@pytest.mark.parametrize("make", [labelled, unlabelled])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_batches_are_the_same_for_any_number_of_workers(tiny_world, make, workers):
    steps = make(tiny_world, augmentation=ALWAYS)
    loader = DataLoader(steps, batch_size=None, sampler=range(2, 9), num_workers=workers)
    batches = list(loader)
    assert len(batches) == 7
    for step, batch in enumerate(batches, start=2):
        assert same(batch, steps[step])


@CALM_FORK
def test_workers_that_share_nothing_but_a_pickle_see_the_same(tiny_world):
    steps = labelled(tiny_world)
    context = torch.multiprocessing.get_context("spawn")
    loader = DataLoader(steps, batch_size=None, sampler=range(2), num_workers=1, multiprocessing_context=context)
    assert all(same(batch, steps[step]) for step, batch in enumerate(loader))


@pytest.mark.parametrize("make", [labelled, unlabelled])
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_together_see_what_one_sees(tiny_world, make, processes):
    whole = make(tiny_world, augmentation=ALWAYS)
    shards = [make(tiny_world, shard=(number, processes), augmentation=ALWAYS) for number in range(processes)]
    for step in (0, 3, 8):
        batches, lanes = [each[step] for each in shards], 0
        for batch in batches:
            if "label_place" in batch:
                batch["label_place"][:, 0] += lanes
            lanes += len(batch["fresh"])
        joined = {name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}
        assert same(joined, whole[step])


@pytest.mark.parametrize("make", [labelled, unlabelled])
def test_a_step_does_not_depend_on_the_steps_before(tiny_world, make):
    steps = make(tiny_world, augmentation=ALWAYS)
    reached = [steps[step] for step in range(12)][11]
    assert same(make(tiny_world, augmentation=ALWAYS)[11], reached)
    assert not same(make(tiny_world, seed=1, augmentation=ALWAYS)[11], reached)


@pytest.mark.parametrize("labels_per_chunk", [None, 1, 3, 99])
def test_labels_are_those_of_their_segments(tiny_world, labels_per_chunk):
    steps, recordings = labelled(tiny_world, labels_per_chunk=labels_per_chunk), labelled_recordings(tiny_world)
    lanes = Lanes(tuple(map(len, recordings)), 5, 3, 0, random_share=0.5)
    for step in range(4):
        batch = steps[step]
        for lane in range(3):
            rows = batch["label_place"][:, 0] == lane
            slot, segments = lanes.slot(lane, step), batch["label_place"][rows, 1].tolist()
            assert len(segments) == min(labels_per_chunk or 5, 5)
            assert segments == sorted(set(segments))
            assert segments[-1] == 4
            recording = recordings[slot.recording]
            expected = recording.histograms(slot.first, 5, 10, "edges")
            np.testing.assert_array_equal(batch["histograms"][lane].numpy(), expected)
            for label, segment in zip(batch["labels"][rows], segments, strict=True):
                np.testing.assert_array_equal(label.numpy(), recording.labels[slot.first + segment])


def test_labels_and_histograms_are_flipped_together(tiny_world):
    plain, flipped = labelled(tiny_world)[2], labelled(tiny_world, augmentation=FLIP)[2]
    for name in ("histograms", "labels"):
        assert torch.equal(flipped[name], plain[name].flip(-1)), name
    assert torch.equal(flipped["fresh"], plain["fresh"])


def test_augmentation_is_drawn_once_for_each_recording_pass(tiny_world):
    steps = unlabelled(tiny_world, augmentation=ALWAYS, segments=2)
    drawn = {}
    for step in range(60):
        slots = [steps._lanes.slot(lane, step) for lane in range(3)]
        for lane, (slot, maps) in enumerate(zip(slots, steps._views(slots), strict=True)):
            drawn.setdefault((lane, slot.pass_index), set()).add((maps.rows.tobytes(), maps.columns.tobytes()))
    assert all(len(each) == 1 for each in drawn.values())
    assert len(set.union(*drawn.values())) == len(drawn) > 6


def learned(steps, laps):
    """Recording and number of each label that reaches the head within some laps of the streams."""
    per_lap = sum(len(recording) // steps.segments for recording in steps._recordings)
    return {
        (slot.recording, label)
        for step in range((laps + 1) * per_lap)
        for slot in steps._slots(step)
        for label in steps._choose(steps._recordings[slot.recording].labels_in(slot.first, steps.segments), 0, step)
    }


@pytest.mark.parametrize("segments", [8, 13])
def test_every_label_is_learned_from_where_all_lanes_are_streams(tiny_world, segments):
    import_tasks()
    masks = labelled(tiny_world, segments=segments, batch_size=1, sampling="streams", labels_per_chunk=None)
    boxes = with_boxes(tiny_world, segments=segments, batch_size=1, sampling="streams", labels_per_chunk=None)
    assert any(len(each) % segments for each in masks._recordings)
    for steps in (masks, boxes):
        wanted = {(number, label) for number, each in enumerate(steps._recordings) for label in range(len(each.labels))}
        assert learned(steps, laps=segments) == wanted


def test_recordings_shorter_than_a_chunk_are_left_out_and_named(tiny_world):
    long, other = labelled_recordings(tiny_world)
    short = dataclasses.replace(other.part(0, 4), name="short")
    settings = dataclasses.replace(finetuning_settings("ddd17", "recurrent", "sample"), segments=5)
    steps = LabelledBatches([short, long], settings, 0, stack_masks)
    assert steps.left_out == ("short",)
    assert steps[7]["histograms"].shape[0] == settings.batch_size
    with pytest.raises(UserError, match="none has the 5 windows of a chunk, the longest has 4; set segments to 4"):
        LabelledBatches([short], settings, 0, stack_masks)


def test_many_lanes_play_one_short_recording(tiny_world):
    long, _ = labelled_recordings(tiny_world)
    short = long.part(0, 6)
    settings = dataclasses.replace(
        finetuning_settings("ddd17", "recurrent", "sample"), segments=5, batch_size=9, sampling="streams"
    )
    batch = LabelledBatches([short], settings, 0, stack_masks)[1]
    assert batch["histograms"].shape[:2] == (9, 5)
    assert batch["fresh"].all()


@cache
def with_boxes(world, seed=0, shard=(0, 1), **changes):
    data = Data(world / "gen1", "sample")
    settings = settings_of(data, "gen1", "recurrent")
    settings = dataclasses.replace(settings, **({"batch_size": 3, "segments": 5} | changes))
    recordings = cut_at_gaps(open_dataset(settings, data.root).recordings("train"), settings.segments)
    return LabelledBatches(recordings, settings, seed, pad_boxes, shard)


@CALM_FORK
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more workers than processors
@pytest.mark.parametrize("workers", [1, 4])
def test_boxes_are_the_same_for_any_number_of_workers(tiny_world, workers):
    import_tasks()
    steps = with_boxes(tiny_world, augmentation=ALWAYS)
    loader = DataLoader(steps, batch_size=None, sampler=range(2, 9), num_workers=workers)
    for step, batch in enumerate(loader, start=2):
        assert same(batch, steps[step])
    assert sum(int((steps[step]["boxes"][..., 0] >= 0).sum()) for step in range(9)) > 10


def test_boxes_of_two_processes_are_those_of_one(tiny_world):
    import_tasks()
    whole, shards = with_boxes(tiny_world, augmentation=ALWAYS), [
        with_boxes(tiny_world, shard=(number, 2), augmentation=ALWAYS) for number in range(2)
    ]  # fmt: skip
    for step in (0, 3, 8):
        batches = [shard[step] for shard in shards]
        second = batches[1]
        second["label_place"][:, 0] += len(batches[0]["fresh"])
        most = max(batch["boxes"].shape[1] for batch in batches)
        for batch in batches:
            batch["boxes"] = torch.nn.functional.pad(
                batch["boxes"], (0, 0, 0, most - batch["boxes"].shape[1]), value=-1
            )
        assert same({name: torch.cat([batch[name] for batch in batches]) for name in second}, whole[step])


@pytest.mark.parametrize("rule", ["edges", "rvt"])
@pytest.mark.parametrize("make", [labelled, unlabelled])
def test_batches_counted_on_the_device_are_those_counted_before(tiny_world, make, rule):
    wanted = make(tiny_world, augmentation=ALWAYS, rule=rule)
    steps = copy.copy(wanted)
    steps.count_on_device()
    for step in range(4):
        sent = steps[step]
        assert "histograms" not in sent
        assert sent["words"].dtype == torch.int32
        assert same(steps.arrived(sent), wanted[step])
    assert wanted.arrived(wanted[0])["histograms"].any()


def test_what_has_no_packed_events_is_not_counted_on_the_device(tiny_world):
    recordings = [dataclasses.replace(each, source=object()) for each in labelled_recordings(tiny_world)]
    settings = dataclasses.replace(finetuning_settings("ddd17", "recurrent", "sample"), batch_size=1)
    steps = LabelledBatches(recordings, settings, 0, stack_masks)
    with pytest.raises(UserError, match=r"--count-on-device: .* has no packed events; leave it out"):
        steps.count_on_device()
    with pytest.raises(UserError, match="--count-on-device: these batches hold no packed events; leave it out"):
        MicroBatches([torch.zeros(1)]).count_on_device()

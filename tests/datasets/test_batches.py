"""Batches of trainings: pure functions of (seed, step), the same for any workers and shards."""

import copy
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from ddd17_copies import open_ddd17
from torch.utils.data import DataLoader

from tespec.core.boxes import make_boxes
from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Augmentation, Mask
from tespec.datasets.augment import FlipZoom
from tespec.datasets.batches import LabelledBatches, PretrainBatches, pad_boxes, stack_depths, stack_masks
from tespec.datasets.folder import divide
from tespec.datasets.recording import cut_at_gaps
from tespec.runs.data import Data, settings_of
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset

FLIP, NONE, ALWAYS = Augmentation(flip=1.0), Augmentation(), Augmentation(flip=0.5, zoom=1.0)


@cache
def with_masks(world, seed=0, shard=(0, 1), **changes):
    settings = finetuning_settings("ddd17", "recurrent", "sample")
    settings = replace(settings, **({"batch_size": 3, "segments": 5, "augmentation": NONE} | changes))
    return LabelledBatches(open_ddd17(world / "ddd17").recordings("train"), settings, seed, stack_masks, shard)


@cache
def with_boxes(world, seed=0, shard=(0, 1), **changes):
    import_tasks()
    settings = settings_of(Data(world / "gen1", "sample"), "gen1", "recurrent")
    settings = replace(settings, **({"batch_size": 3, "segments": 5} | changes))
    recordings = cut_at_gaps(open_dataset(settings, world / "gen1").recordings("train"), settings.segments)
    return LabelledBatches(recordings, settings, seed, pad_boxes, shard)


@cache
def unlabelled(world, seed=0, shard=(0, 1), **changes):
    settings = pretraining_settings("tespec", "sample")
    settings = replace(settings, **({"batch_size": 3, "segments": 4} | changes))
    division = divide(world / "1mpx", settings.window_ms, settings.downsample)
    return PretrainBatches(division.train, settings, seed, shard, Mask(16, 0.5))


KINDS = pytest.mark.parametrize("make", [with_masks, with_boxes, unlabelled])


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def test_shapes(tiny_world):
    batch = with_masks(tiny_world, labels_per_chunk=2)[0] | {"mask": unlabelled(tiny_world)[3]["mask"]}
    assert {name: (tuple(value.shape), value.dtype) for name, value in batch.items()} == {
        "histograms": ((3, 5, 20, 64, 96), torch.uint8),
        "fresh": ((3,), torch.bool),
        "labels": ((6, 64, 96), torch.uint8),
        "label_place": ((6, 2), torch.int64),
        "mask": ((3, 4, 6), torch.bool),
    }
    assert batch["fresh"].all()
    assert batch["mask"].flatten(1).sum(1).tolist() == [12, 12, 12]
    assert not torch.equal(batch["mask"], unlabelled(tiny_world)[4]["mask"])


@KINDS
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on
@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")  # more workers than processors
@pytest.mark.parametrize(("workers", "start"), [(1, "spawn"), (4, "fork")])
def test_batches_are_the_same_for_any_number_of_workers(tiny_world, make, workers, start):
    steps = make(tiny_world, augmentation=ALWAYS)
    options = {"num_workers": workers, "multiprocessing_context": start}
    batches = list(DataLoader(steps, batch_size=None, sampler=range(2, 9), **options))
    assert len(batches) == 7
    assert all(same(batch, steps[step]) for step, batch in enumerate(batches, start=2))


@KINDS
@pytest.mark.parametrize("shards", [2, 3])
def test_shards_together_are_the_whole_batch(tiny_world, make, shards):
    whole = make(tiny_world, augmentation=ALWAYS)
    for step in (0, 3, 8):
        batches = [make(tiny_world, shard=(number, shards), augmentation=ALWAYS)[step] for number in range(shards)]
        most, lanes = max(batch["boxes"].shape[1] if "boxes" in batch else 0 for batch in batches), 0
        for batch in batches:
            if "label_place" in batch:
                batch["label_place"][:, 0] += lanes
            if "boxes" in batch:
                padding = (0, 0, 0, most - batch["boxes"].shape[1])
                batch["boxes"] = torch.nn.functional.pad(batch["boxes"], padding, value=-1)
            lanes += len(batch["fresh"])
        assert same({name: torch.cat([batch[name] for batch in batches]) for name in batches[0]}, whole[step])


@KINDS
def test_a_step_does_not_depend_on_the_steps_before(tiny_world, make):
    steps = make(tiny_world, augmentation=ALWAYS)
    reached = [steps[step] for step in range(12)][11]
    fresh = copy.copy(steps)
    fresh._lanes = replace(steps._lanes)
    assert same(fresh[11], reached)
    assert not same(make(tiny_world, seed=1, augmentation=ALWAYS)[11], reached)


@pytest.mark.parametrize("labels_per_chunk", [None, 1, 3, 99])
def test_labels_are_those_of_their_segments(tiny_world, labels_per_chunk):
    steps = with_masks(tiny_world, labels_per_chunk=labels_per_chunk)
    for step in range(4):
        batch = steps[step]
        for lane, slot in enumerate(steps._slots(step)):
            rows, recording = batch["label_place"][:, 0] == lane, steps._recordings[slot.recording]
            segments = batch["label_place"][rows, 1].tolist()
            assert len(segments) == min(labels_per_chunk or 5, 5)
            assert segments == sorted(set(segments))
            assert segments[-1] == 4
            expected = recording.histograms(slot.first, 5, 10, "edges")
            np.testing.assert_array_equal(batch["histograms"][lane].numpy(), expected)
            for label, segment in zip(batch["labels"][rows], segments, strict=True):
                np.testing.assert_array_equal(label.numpy(), recording.labels[slot.first + segment])


def test_labels_and_histograms_are_flipped_together(tiny_world):
    plain, flipped = with_masks(tiny_world)[2], with_masks(tiny_world, augmentation=FLIP)[2]
    for name in ("histograms", "labels"):
        assert torch.equal(flipped[name], plain[name].flip(-1)), name
    assert torch.equal(flipped["fresh"], plain["fresh"])


def test_augmentation_is_drawn_once_for_each_recording_pass(tiny_world):
    steps, drawn = unlabelled(tiny_world, augmentation=ALWAYS, segments=2), {}
    for step in range(60):
        slots = steps._slots(step)
        for lane, (slot, view) in enumerate(zip(slots, steps._views(slots), strict=True)):
            drawn.setdefault((lane, slot.pass_index), set()).add((view.rows.tobytes(), view.columns.tobytes()))
    assert all(len(each) == 1 for each in drawn.values())
    assert len(set.union(*drawn.values())) == len(drawn) > 6


def test_recordings_shorter_than_a_chunk_are_left_out_and_named(tiny_world):
    long, other = open_ddd17(tiny_world / "ddd17").recordings("train")
    short = replace(other.part(0, 4), name="short")
    settings = replace(finetuning_settings("ddd17", "recurrent", "sample"), segments=5)
    steps = LabelledBatches([short, long], settings, 0, stack_masks)
    assert steps.left_out == ("short",)
    assert steps[7]["histograms"].shape[0] == settings.batch_size
    with pytest.raises(UserError, match="none has the 5 windows of a chunk, the longest has 4; set segments to 4"):
        LabelledBatches([short], settings, 0, stack_masks)
    many = LabelledBatches([long.part(0, 6)], replace(settings, batch_size=9, sampling="streams"), 0, stack_masks)[1]
    assert many["histograms"].shape[:2] == (9, 5)
    assert many["fresh"].all()


PLAIN = FlipZoom(np.arange(2), np.arange(3))
FLIPPED = FlipZoom(np.arange(2), np.arange(3)[::-1], (1.0, -1.0), (0.0, 3.0))


@pytest.mark.parametrize(
    ("stack", "label"),
    [
        (stack_masks, np.array([[0, 1, 255], [2, 2, 2]], np.uint8)),
        (stack_depths, np.array([[1, np.nan, 3], [4, 5, 6]], np.float32)),
    ],
)
def test_images_of_labels_are_stacked_as_their_lane_sees_them(stack, label):
    labels = stack([(label, PLAIN), (label, FLIPPED)], (2, 3))["labels"].numpy()
    assert labels.dtype == label.dtype
    np.testing.assert_array_equal(labels, np.stack([label, label[:, ::-1]]))
    assert stack([], (2, 3))["labels"].shape == (0, 2, 3)


def test_boxes_of_each_label_are_filled_up_to_the_most():
    two = make_boxes(np.array([[0, 0, 1, 2], [1, 0, 3, 2]]), np.array([1, 0]))
    none, one = two.keep(np.array([False, False])), two.keep(np.array([True, False]))
    padded = pad_boxes([(two, PLAIN), (none, PLAIN), (one, FLIPPED)], (2, 3))["boxes"]
    assert padded.dtype == torch.float32
    assert padded.tolist() == [
        [[1, 0, 0, 1, 2], [0, 1, 0, 3, 2]],
        [[-1] * 5, [-1] * 5],
        [[1, 2, 0, 3, 2], [-1] * 5],
    ]
    assert pad_boxes([], (2, 3))["boxes"].shape == (0, 1, 5)

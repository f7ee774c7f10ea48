"""Recordings held out, played chunk by chunk."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from tespec.core.settings import Mask
from tespec.pretraining.held_out import HeldOut, held_out_losses


class Noise:
    """A recording of random events."""

    region = SimpleNamespace(height=64, width=96)

    def __init__(self, windows):
        self.content = np.random.default_rng(windows).integers(0, 4, (windows, 20, 64, 96), dtype=np.uint8)

    def __len__(self):
        return len(self.content)

    def histograms(self, first, count, bins, rule):
        return self.content[first : first + count]


class Counting:
    """An objective whose losses count the chunks that its memory holds and that its target has seen."""

    def eval(self):
        return self

    def loss(self, batch, state):
        memory, target = (None, None) if state is None or batch["fresh"].item() else state
        seen = (memory or 0) + 1, (target or 0) + 1
        return {"loss_masked": torch.tensor(1.0 / seen[0]), "loss_zero": torch.tensor(float(seen[1]))}, seen


def held_out(*windows, segments=2, **limits):
    settings = SimpleNamespace(segments=segments, bins=10, rule="edges")
    return HeldOut([Noise(each) for each in windows], settings, torch.device("cpu"), Mask(unit=32, ratio=0.5), **limits)


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_whole_chunks_of_the_first_recordings_are_played(segments):
    def played(**limits):
        return sum(chunk.batch["histograms"].shape[1] for chunk in held_out(13, 6, 7, segments=segments, **limits))

    assert played(most=(2, 6)) == 12
    assert played(most=(3, 100)) == sum(count // segments * segments for count in (13, 6, 7))
    assert sum(1 for _ in held_out(13, 6, segments=segments).glimpse(1)) == 2  # a chunk of each recording at least


def test_masks_are_the_same_each_time_and_others_in_each_chunk():
    first, again = ([chunk.batch["mask"] for chunk in held_out(8)] for _ in range(2))
    assert all(torch.equal(one, two) for one, two in zip(first, again, strict=True))
    assert first[0].shape == (1, 2, 3)
    assert len({tuple(mask.flatten().tolist()) for mask in first}) > 1


def test_memory_is_carried_or_zeroed_while_the_target_goes_on():
    losses = held_out_losses(Counting(), held_out(6, 4))  # three chunks of one recording, two of the other
    assert losses == {
        "loss_masked_carried": pytest.approx((1 + 1 / 2 + 1 / 3 + 1 + 1 / 2) / 5),
        "loss_masked_zeroed": 1.0,
        "loss_zero": pytest.approx((1 + 2 + 3 + 1 + 2) / 5),
    }

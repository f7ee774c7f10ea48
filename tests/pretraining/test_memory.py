"""The loss since the state was zeroed, on recordings without files."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from small_networks import backbone, own
from test_tespec import COLS, HEIGHT, ROWS, UNIT, WIDTH, objective

from baselines.cpc import PredictiveCoding
from tespec.core.settings import Mask
from tespec.pretraining.held_out import HeldOut, held_out_losses
from tespec.pretraining.memory import losses_since_zeroed, play_zeroed

CPU = torch.device("cpu")


class Noise:
    """A recording of events at random."""

    def __init__(self, name, windows, size=(HEIGHT, WIDTH)):
        self.name, self.region = name, SimpleNamespace(height=size[0], width=size[1])
        generator = np.random.default_rng(len(name))
        self.content = generator.integers(0, 4, (windows, 20, *size), dtype=np.uint8)

    def __len__(self):
        return len(self.content)

    def histograms(self, first, count, bins, rule):
        return self.content[first : first + count]


class AlikeMasked(HeldOut):
    """The same mask in every chunk, however long chunks are."""

    def _mask(self, recording, *numbers):
        return super()._mask(recording, 0, 0)


def held_out(windows=(12, 10), segments=2, window_ms=500.0, kind=HeldOut, size=(HEIGHT, WIDTH), **changes):
    """Windows of half a second: three seconds are few of them."""
    settings = SimpleNamespace(segments=segments, bins=10, rule="edges", window_ms=window_ms)
    recordings = [Noise("a" * number, count, size) for number, count in enumerate(windows, start=1)]
    return kind(recordings, settings, CPU, **({"mask": Mask(unit=UNIT, ratio=0.5)} | changes))


def remembering(**settings):
    """A network whose state counts from the start: that of a fresh one hardly does."""
    model = objective(**settings).eval()
    with torch.no_grad():
        for lstm in model.backbone.lstms:
            lstm.gates.weight.mul_(10)
    return model


@pytest.mark.parametrize("segments", [1, 2, 3])
def test_as_many_windows_are_played_whatever_a_chunk_holds(segments):
    def played(**limits):
        chunks = held_out(windows=(13, 6, 7), segments=segments, **limits)
        return sum(chunk.batch["histograms"].shape[1] for chunk in chunks)

    assert played(most=(2, 6)) == 12
    assert played(most=(3, 100)) == sum(count // segments * segments for count in (13, 6, 7))
    assert sum(1 for _ in held_out(segments=segments).glimpse(1)) == 2  # a chunk of each recording at least


def chunk_means(played, wanted):
    """Mean over chunks of the loss of the lane that `wanted` chooses by (number of the chunk, ages)."""
    return np.mean([float(each.losses[wanted(each)].mean()) for each in played])


@pytest.mark.parametrize("target", ["intensity", "high_pass", "uniform_decay", "histograms"])
def test_its_ends_are_the_zeroed_and_the_carried_loss(target):
    model = remembering(kind=target)
    today = held_out_losses(model, held_out())
    played = list(play_zeroed(model, held_out(), lanes=3))
    assert all((each.ages == 0).sum() == 1 for each in played if each.number)
    zeroed = chunk_means(played, lambda each: each.number % 3)
    assert zeroed == pytest.approx(today["loss_masked_zeroed"], rel=1e-5)
    # As many lanes as the longest recording has chunks: lane 0 is zeroed at its start alone.
    played = list(play_zeroed(model, held_out(), lanes=6))
    assert all(each.ages[0] == each.number for each in played)
    carried = chunk_means(played, lambda each: 0)
    assert carried == pytest.approx(today["loss_masked_carried"], rel=1e-5)
    assert carried != pytest.approx(zeroed, rel=1e-4)
    zero = np.mean([float(each.knowing_nothing[0].mean()) for each in played])
    assert zero == pytest.approx(today["loss_zero"], rel=1e-5)


def test_how_many_frames_are_computed_at_once_does_not_count():
    model = remembering()
    for one, many in zip(*(play_zeroed(model, held_out(), 5, frames) for frames in (1, 1000)), strict=True):
        torch.testing.assert_close(one.losses, many.losses, rtol=1e-5, atol=0)
        assert (one.ages == many.ages).all()


@pytest.mark.parametrize("name", ["masked", "cpc"])
def test_how_long_chunks_are_does_not_count(name):
    model, changes = network(name)

    def since_the_start(segments):
        chunks = held_out(windows=(9,), segments=segments, kind=AlikeMasked, **changes)
        return torch.cat([each.losses[0] for each in play_zeroed(model, chunks, lanes=8 // segments)])[:8]

    whole = since_the_start(4)
    assert len(whole) == 8
    for segments in (1, 2):
        torch.testing.assert_close(since_the_start(segments), whole, rtol=1e-5, atol=0)


def network(name):
    """A network, and what its recordings are."""
    if name == "masked":
        return remembering(), {}
    coding = PredictiveCoding(own("cpc", width=16, ahead=1, places=32), backbone(recurrent=True)).eval()
    return coding, {"mask": None, "ahead": 1, "size": (64, 96)}


def test_every_time_is_measured_on_the_same_moments():
    speeds = np.array([0.0, 5.0] * 6, np.float32)
    points = losses_since_zeroed(remembering(), held_out(), lambda recording: speeds[: len(recording)])
    assert [point["seconds"] for point in points] == [0.5, 1.0, 1.5, 2.0, 2.5, 3.0]
    # Three chunks of two windows are three seconds: of 6 and 5 chunks all but the first two count. The first window
    # of each chunk stands.
    assert [point.get("standing_count") for point in points] == [7, None] * 3
    assert [point.get("moving_count") for point in points] == [None, 7] * 3
    blind = [point["standing_knowing_nothing"] for point in points[::2]]
    assert blind == pytest.approx([blind[0]] * 3, rel=1e-12)
    assert len({point["standing"] for point in points[::2]}) == 3


def test_without_memory_the_line_is_flat():
    points = losses_since_zeroed(objective(recurrent=False), held_out(segments=1), lambda recording: None)
    losses = [point["all"] for point in points]
    assert len(losses) == 6
    assert losses == pytest.approx([losses[0]] * 6, rel=1e-6)


def test_recordings_that_are_too_short_give_no_points():
    assert losses_since_zeroed(objective(), held_out(windows=(4, 3)), lambda recording: None) == []


@torch.no_grad()
def test_the_contrast_of_one_segment_is_the_training_loss():
    model, changes = network("cpc")
    (chunk,) = held_out(windows=(2,), segments=1, **changes)
    losses, chance, _ = model.segment_losses(chunk.batch, None)
    trained, _ = model.loss(chunk.batch, None)  # its six places are compared with each other
    assert losses.item() == pytest.approx(trained["loss"].item(), rel=1e-5)
    assert chance.item() == pytest.approx(np.log(6))


def test_masks_cover_the_recordings_of_these_tests():
    assert next(iter(held_out())).batch["mask"].shape == (1, ROWS, COLS)

"""Validation of pre-training: choice of chunks, and weights of losses."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from baselines.ecddp import Ecddp
from tespec.core.settings import Binning
from tespec.pretraining.data import EventData
from tespec.pretraining.method import PretrainMethod
from tespec.runs.validation import validate

CPU = torch.device("cpu")


class Noise:
    def __init__(self, windows):
        self.content = np.random.default_rng(windows).integers(
            0, 4, (windows, 20, 64, 96), dtype=np.uint8
        )

    def __len__(self):
        return len(self.content)

    def histograms(self, first, count, binning):
        return self.content[first : first + count]


def held_out(*windows, segments=2, method=Ecddp, recurrent=True, batch_size=4):
    data = object.__new__(EventData)
    data.settings = SimpleNamespace(
        segments=segments, binning=Binning(10, "edges"), recurrent=recurrent, batch_size=batch_size
    )
    data.method = method
    data.held_out = [Noise(each) for each in windows]
    return data


def played(*windows, frames=None, **options):
    return list(held_out(*windows, **options).val_batches(CPU, frames))


@pytest.mark.parametrize(
    ("segments", "windows"), [(1, 13 + 2 + 6 * 3), (2, 12 + 2 + 6 * 2), (3, 12 + 7 * 3)]
)
def test_whole_chunks_of_the_first_eight_recordings_that_hold_one_are_played(segments, windows):
    batches = played(13, 2, *[3] * 9, segments=segments)
    assert sum(batch["histograms"].shape[1] for batch in batches) == windows
    assert sum(batch["is_first"].item() for batch in batches) == 8
    few = played(13, 6, segments=segments, frames=1)
    # at least one chunk of each recording
    assert [batch["is_first"].item() for batch in few] == [True, True]


@pytest.mark.parametrize(
    ("recurrent", "batch", "lanes", "smallest"),
    [
        (False, 4, [4, 4, 2], 1),
        (True, 4, [1] * 10, 1),
        (False, 1024, [10], 1),
        (False, 4, [4, 4], 3),
    ],
)
def test_every_window_is_scored_but_a_last_batch_that_is_too_small(
    monkeypatch, recurrent, batch, lanes, smallest
):
    monkeypatch.setattr(Ecddp, "min_batch_size", smallest)
    batches = played(10, segments=1, recurrent=recurrent, batch_size=batch)
    histograms = [batch["histograms"] for batch in batches]
    assert [len(batch) for batch in histograms] == lanes
    assert np.array_equal(torch.cat(histograms)[:, 0], Noise(10).content[: sum(lanes)])


class Drawing(PretrainMethod):
    """A method whose loss is a random number."""

    backbone = None

    def loss(self, batch, state):
        return {"loss": torch.rand(len(batch["histograms"])).mean()}, None


def test_random_draws_are_the_same_each_time_and_others_in_each_batch():
    def losses(windows):
        return validate(Drawing(), held_out(windows, method=Drawing), CPU)["loss"]

    assert losses(8) == losses(8)
    assert losses(8) != losses(2)


class Plain(PretrainMethod):
    backbone = None

    def loss(self, batch, state):
        return {"loss": batch["x"].mean()}, None


def test_losses_count_by_samples():
    batches = [{"x": each} for each in torch.tensor([1.0, 2.0, 3.0, 10.0]).split(3)]
    data = SimpleNamespace(val_batches=lambda device: batches)
    assert validate(Plain(), data, CPU) == {"loss": 4.0}

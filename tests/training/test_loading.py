import pytest
import torch

from tespec.core.errors import UserError
from tespec.training import loading
from tespec.training.loading import deal, enlarged, on_device


def test_batches_arrive_whole_and_in_order():
    batches = [{"x": torch.full((2,), float(number)), "y": torch.tensor(number)} for number in range(4)]
    arrived = list(on_device(iter(batches), torch.device("cpu")))
    assert [int(batch["y"]) for batch in arrived] == [0, 1, 2, 3]
    assert all(torch.equal(one["x"], other["x"]) for one, other in zip(batches, arrived, strict=True))


def test_at_most_one_batch_is_fetched_ahead():
    asked = []

    def endless():
        for number in range(100):
            asked.append(number)
            yield {"x": torch.tensor(number)}

    moving = on_device(endless(), torch.device("cpu"))
    next(moving)
    next(moving)
    assert len(asked) <= 3


def test_more_ranks_than_lanes_are_refused_or_enlarge_the_batch(monkeypatch):
    monkeypatch.setattr(loading, "world_size", lambda: 16)
    monkeypatch.setattr(loading, "rank", lambda: 5)
    said = r"8 lanes do not divide evenly among 16 processes .*; choose a multiple of 16, another --accumulate, or "
    with pytest.raises(UserError, match=said + "--enlarge-batch for 16 lanes"):
        deal(lambda seed, part: part, 0, 8, 1)
    assert [enlarged(8, accumulate) for accumulate in (1, 2, 3)] == [16, 32, 48]
    assert enlarged(64, 2) == 64
    assert deal(lambda seed, part: [part], 0, 32, 2)[1] == (11, 32)

import torch

from tespec.training.loading import on_device


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

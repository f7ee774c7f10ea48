import dataclasses

import pytest
import torch
from mmengine.hooks import Hook
from torch import nn

from tespec.config import finetuning_settings
from tespec.errors import UserError
from tespec.training.checkpoint import latest_checkpoint, save_checkpoint
from tespec.training.hooks import CurveHook
from tespec.training.loop import Loop

SETTINGS = dataclasses.replace(
    finetuning_settings("ddd17", "recurrent", "sample").optimisation, steps=12, warmup_steps=2, peak_lr=0.05
)
CPU = torch.device("cpu")


class Accumulator(nn.Module):
    """Predicts the running sum of its inputs: needs its state, and has dropout."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.5))
        self.dropout = nn.Dropout(0.3)

    def loss(self, batch, state):
        previous = torch.zeros(()) if state is None else state["sum"]
        total = previous + batch["x"].sum()
        loss = (self.dropout(self.weight * total) - batch["x"]).square().mean()
        return {"loss": loss, "loss_double": 2 * loss}, {"sum": total.detach(), "pair": (total.detach(), None)}


class Steps(torch.utils.data.Dataset):
    def __getitem__(self, step):
        return {"x": torch.sin(torch.arange(3.0) + step)}


class StopAt(Hook):
    def __init__(self, step):
        self.step = step

    def after_train_iter(self, loop, step, batch=None, outputs=None):
        if loop.step == self.step:
            raise KeyboardInterrupt


def make(hooks=(), settings=SETTINGS, **kwargs):
    torch.manual_seed(0)
    return Loop(Accumulator(), Steps(), settings, seed=3, device=CPU, hooks=hooks, **kwargs)


@pytest.mark.parametrize("stop", [1, 5, 11])
@pytest.mark.parametrize("workers", [0, 2])
def test_resumed_equals_uninterrupted(tmp_path, stop, workers):
    straight = make()
    straight.run()

    first = make(hooks=[StopAt(stop)], workers=workers)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    save_checkpoint(tmp_path, first.step, first.state_dict())

    second = make(workers=workers)
    torch.rand(17)
    second.load_state_dict(latest_checkpoint(tmp_path)[0])
    assert second.step == stop
    second.run()
    assert torch.equal(second.model.weight, straight.model.weight)
    assert torch.equal(second.state["sum"], straight.state["sum"])


def test_seed_decides_dropout():
    one, two = make(), make()
    one.run()
    two.run()
    assert torch.equal(one.model.weight, two.model.weight)
    other = Loop(Accumulator(), Steps(), SETTINGS, seed=4, device=CPU)
    other.run()
    assert not torch.equal(one.model.weight, other.model.weight)


def test_curve_holds_means_over_intervals():
    curve = CurveHook(interval=5)
    make(hooks=[curve]).run()
    assert [point["step"] for point in curve.curve] == [5, 10, 12]
    assert all(point["loss_double"] == pytest.approx(2 * point["loss"]) for point in curve.curve)


def test_a_loss_that_is_not_finite_stops_before_the_update():
    class Broken(Accumulator):
        def loss(self, batch, state):
            return {"loss": self.weight.sum() * float("nan")}, None

    loop = Loop(Broken(), Steps(), SETTINGS, seed=0, device=CPU)
    with pytest.raises(UserError, match="step 0: the loss is not finite"):
        loop.run()
    assert torch.equal(loop.model.weight, torch.full((3,), 0.5))


def test_gradients_are_clipped_by_value():
    class Steep(Accumulator):
        def loss(self, batch, state):
            return {"loss": 1e6 * self.weight.sum()}, None

    settings = dataclasses.replace(SETTINGS, steps=1)
    loop = Loop(Steep(), Steps(), settings, seed=0, device=CPU)
    gradients = []
    original = torch.optim.Adam.step

    def spy(optimizer, *args, **kwargs):
        gradients.append(loop.model.weight.grad.clone())
        return original(optimizer, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.Adam, "step", spy)
        loop.run()
    assert torch.equal(gradients[0], torch.ones(3))


def test_unknown_optimizer_is_named():
    with pytest.raises(UserError, match=r"optimisation\.optimizer: unknown value 'SGD'"):
        make(settings=dataclasses.replace(SETTINGS, optimizer="SGD"))

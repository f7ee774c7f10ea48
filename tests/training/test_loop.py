import copy
import dataclasses
import os
import signal
from pathlib import Path

import tespec.core.compat  # noqa: F401  # before mmengine

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loss_cases import CASES
from mmengine.hooks import Hook
from torch import nn

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.training.checkpoint import latest_checkpoint, save_checkpoint
from tespec.training.hooks import CurveHook
from tespec.training.loading import MicroBatches
from tespec.training.loop import Loop, NotFiniteError, not_finite

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


@pytest.mark.parametrize(("stop", "workers"), [(1, 0), (5, 2), (11, 0)])
def test_resumed_equals_uninterrupted(tmp_path, stop, workers):
    straight = make()
    straight.run()

    first = make(hooks=[StopAt(stop)], workers=workers)
    with pytest.raises(KeyboardInterrupt):
        first.run()
    state = first.state_dict()
    save_checkpoint(tmp_path, first.step, state.pop("model"), state)

    second = make(workers=workers)
    torch.rand(17)
    weights, rest, _ = latest_checkpoint(tmp_path)
    second.load_state_dict(rest | {"model": weights})
    assert second.step == stop
    second.run()
    assert torch.equal(second.model.weight, straight.model.weight)
    assert torch.equal(second.states[0]["sum"], straight.states[0]["sum"])


class Same(torch.utils.data.Dataset):
    """A batch, at every step."""

    def __init__(self, batch):
        self.batch = batch

    def __getitem__(self, step):
        return self.batch


OWN_STATE = ("tespec", "ecddp", "mem", "moby")  # targets, a teacher, phases, a queue


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case in OWN_STATE else pytest.mark.slow) for case in CASES]
)
def test_every_objective_and_task_goes_on_as_if_it_had_not_stopped(tmp_path, case):
    settings = dataclasses.replace(SETTINGS, steps=4, warmup_steps=1)

    def looped(*hooks):
        model, batch = CASES[case]()
        return Loop(model, Same(batch), settings, seed=3, device=CPU, hooks=hooks)

    straight, first, second = looped(), looped(StopAt(2)), looped()
    straight.run()
    with pytest.raises(KeyboardInterrupt):
        first.run()
    state = first.state_dict()
    save_checkpoint(tmp_path, 2, state.pop("model"), state)
    weights, rest, _ = latest_checkpoint(tmp_path)
    second.load_state_dict(rest | {"model": weights})
    second.run()
    assert flat(second.model.state_dict()) == flat(straight.model.state_dict())
    assert flat(second.states[0]) == flat(straight.states[0])


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
    with pytest.raises(NotFiniteError, match="step 0: the loss or a gradient is not finite"):
        loop.run()
    assert torch.equal(loop.model.weight, torch.full((3,), 0.5))


@pytest.mark.parametrize(("accumulate", "looked"), [(1, [16, 32, 40]), (3, [*range(5, 41, 5)]), (64, [*range(1, 41)])])
def test_a_gpu_is_waited_for_now_and_then(accumulate, looked):
    settings = dataclasses.replace(SETTINGS, steps=40)
    loop = Loop(Accumulator(), MicroBatches([Steps()] * accumulate), settings, seed=3, device=CPU)
    loop.device = torch.device("cuda")
    found = []
    for loop.step in range(1, 41):
        found += [loop.step] * loop.looks
    assert found == looked


class Faulty(Accumulator):
    """Goes wrong at some steps: in the loss, or in the gradients alone, where the loss is a number still."""

    def __init__(self, wrong, kind):
        super().__init__()
        self.wrong, self.kind, self.calls = wrong, kind, 0
        self.register_buffer("seen", torch.zeros(()))

    def loss(self, batch, state):
        losses, state = super().loss(batch, state)
        self.calls += 1
        self.seen += 1
        if self.calls - 1 in self.wrong:
            bad = self.weight.sum() * 0
            bad = torch.sqrt(bad) if self.kind == "gradient" else bad / bad
            losses = {"loss": losses["loss"] + bad}
            state = {"sum": torch.tensor(float("nan")), "pair": (None, None)}
        return losses, state


def faulty(wrong, kind, policy, steps=8):
    torch.manual_seed(0)
    settings = dataclasses.replace(SETTINGS, steps=steps, non_finite=policy)
    return Loop(Faulty(wrong, kind), Steps(), settings, seed=3, device=CPU)


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_numbers_gone_wrong_stop_the_run_at_their_step(kind):
    loop = faulty({5}, kind, "stop")
    with pytest.raises(NotFiniteError) as raised:
        loop.run()
    assert raised.value.step == 5
    assert torch.isfinite(loop.model.weight).all()
    before = faulty(set(), kind, "stop")
    stopped = faulty({5}, kind, "stop")
    for step in range(5):
        before.train_step(Steps()[step])
        before.step += 1
        stopped.train_step(Steps()[step])
        stopped.step += 1
    stopped.train_step(Steps()[5])
    assert torch.equal(before.model.weight, stopped.model.weight)
    # Whoever looks late finds the first such step, and nothing was trained on after it.
    stopped.step += 1
    stopped.states = before.states
    stopped.train_step(Steps()[6])
    assert torch.equal(before.model.weight, stopped.model.weight)
    with pytest.raises(NotFiniteError, match="step 5: "):
        stopped.require_finite()


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_step_passed_over_leaves_everything_as_it_was(kind):
    loop = faulty({5, 6}, kind, "skip")
    for step in range(5):
        loop.train_step(Steps()[step])
        loop.step += 1
    before = copy.deepcopy((loop.model.state_dict(), loop._wrapper.state_dict(), loop.states[0]))
    for step in (5, 6):
        loop.train_step(Steps()[step])
        loop.step += 1
    after = (loop.model.state_dict(), loop._wrapper.state_dict(), loop.states[0])
    assert flat(before) == flat(after)
    assert loop.skipped == 2
    loop.train_step(Steps()[7])
    assert loop.skipped == 2
    assert not torch.equal(before[0]["weight"], loop.model.weight)
    loop.require_finite()
    assert loop.state_dict()["skipped"] == 2


def flat(value):
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, dict):
        return {key: flat(item) for key, item in value.items() if key != "lr"}
    return [flat(item) for item in value] if isinstance(value, list | tuple) else value


@given(place=st.integers(0, 20), number=st.sampled_from([float("nan"), float("inf"), -float("inf")]))
def test_one_bad_number_among_many_is_found(place, number):
    parameters = [nn.Parameter(torch.zeros(7)) for _ in range(3)]
    for each in parameters:
        each.grad = torch.full((7,), 3e38)
    assert not_finite(torch.tensor(1.0), parameters) == 0
    parameters[place // 7].grad[place % 7] = number
    assert not_finite(torch.tensor(1.0), parameters) == 1
    assert not_finite(torch.tensor(number), []) == 1


@pytest.mark.parametrize("workers", [0, 2])
def test_data_that_vanish_are_named(workers):
    class Vanishing(Steps):
        def __getitem__(self, step):
            if step == 3:
                Path("/nowhere/dir1.dat").read_bytes()
            return super().__getitem__(step)

    loop = Loop(Accumulator(), Vanishing(), SETTINGS, seed=3, device=CPU, workers=workers)
    with pytest.raises(UserError, match=r"^/nowhere/dir1.dat: No such file or directory, at step 3; bring it back"):
        loop.run()
    assert loop.step == 3


@pytest.mark.parametrize("workers", [0, 2])
def test_what_data_say_is_said_as_it_is(workers):
    class Refusing(Steps):
        def __getitem__(self, step):
            raise UserError("a.dat", "is torn", "copy it again")

    loop = Loop(Accumulator(), Refusing(), SETTINGS, seed=3, device=CPU, workers=workers)
    with pytest.raises(UserError, match=r"^a.dat: is torn; copy it again$"):
        loop.run()


# torch hears of the death a second time where the signal arrives while it closes its iterator.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_worker_that_dies_is_named(tmp_path):
    class Deadly(Steps):
        def __getitem__(self, step):
            if step == 3:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().__getitem__(step)

    loop = Loop(Accumulator(), Deadly(), SETTINGS, seed=3, device=CPU, workers=1)
    with pytest.raises(UserError, match=r"--workers 1: a process that prepares batches died at step \d, as for want"):
        loop.run()

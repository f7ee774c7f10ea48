import dataclasses
import os
import signal
import subprocess
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from loss_cases import CASES
from torch import nn

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.runs.train import CurveHook
from tespec.training import loading
from tespec.training.checkpoint import newest_complete, read_checkpoint, save_checkpoint
from tespec.training.loading import choose_workers, load_batches
from tespec.training.trainer import Trainer, not_finite

CELL = finetuning_settings("ddd17", "recurrent", "sample")
SETTINGS = dataclasses.replace(CELL.optimisation, steps=12, warmup_steps=2, peak_lr=0.05)
CPU = torch.device("cpu")


class Accumulator(nn.Module):
    """Model with dropout and a carried state, which predicts the running sum of its inputs.

    At the steps `wrong`, the loss is not finite, or only the gradients are not (`kind="gradient"`).
    """

    def __init__(self, wrong=(), kind="loss"):
        super().__init__()
        self.weight = nn.Parameter(torch.full((3,), 0.5))
        self.dropout = nn.Dropout(0.3)
        self.wrong, self.kind = wrong, kind
        self.register_buffer("seen", torch.zeros(()))

    def loss(self, batch, state):
        total = (0 if state is None else state["sum"]) + batch["x"].sum(1)
        loss = (self.dropout(self.weight * total[:, None]) - batch["x"]).square().mean()
        if self.seen.item() in self.wrong:
            zero = self.weight.sum() * 0
            loss = loss + (torch.sqrt(zero) if self.kind == "gradient" else zero / zero)
            total = total * float("nan")
        self.seen += 1
        return {"loss": loss, "loss_double": 2 * loss}, {
            "sum": total.detach(),
            "pair": (total.detach(), None),
        }


class Steps(torch.utils.data.Dataset):
    """Batches of a sine, which call `fail` at step 3."""

    def __init__(self, fail=lambda: None):
        self.fail = fail

    def __getitem__(self, step):
        if step == 3:
            self.fail()
        return {"x": torch.sin(torch.arange(3.0) + step)[None]}


def make(*hooks, steps=None, wrong=(), kind="loss", seed=3, workers=0):
    torch.manual_seed(0)
    model = Accumulator(wrong, kind)
    return Trainer(
        model, steps or Steps(), SETTINGS, seed=seed, device=CPU, hooks=hooks, workers=workers
    )


def make_case(case, *hooks, workers=0):
    model, batch = CASES[case]()
    settings = dataclasses.replace(SETTINGS, steps=4, warmup_steps=1)
    return Trainer(model, [batch] * 4, settings, seed=3, device=CPU, hooks=hooks, workers=workers)


FORMS = [
    (lambda loss: loss, r"Mine\.loss: does not return losses by name and a state"),
    (lambda loss: ({"ce": loss}, None), 'returns no scalar tensor "loss"'),
    (lambda loss: ({"loss": loss.expand(2)}, None), 'returns no scalar tensor "loss"'),
    (lambda loss: ({"loss": loss, "lr": 0.1}, None), 'returns no scalar tensor "lr"'),
    (lambda loss: ({"loss": loss}, (loss, None)), "returns a state with gradients"),
    (lambda loss: ({"loss": loss}, loss.detach()), "a state with a tensor without an axis of lan"),
]


@pytest.mark.parametrize(("made", "message"), FORMS)
def test_a_loss_of_another_form_is_refused(made, message):
    model = type(
        "Mine", (Accumulator,), {"loss": lambda self, batch, state: made(self.weight.sum())}
    )()
    with pytest.raises(UserError, match=message):
        Trainer(model, Steps(), SETTINGS, seed=3, device=CPU).run()


def test_a_layer_that_an_attribute_of_its_class_hides_is_refused():
    with pytest.raises(UserError, match=r"Mine\.dropout: is also an attribute of its class"):
        Trainer(
            type("Mine", (Accumulator,), {"dropout": None})(), Steps(), SETTINGS, seed=3, device=CPU
        )


# targets, a teacher, a temperature, a queue
OWN_STATE = ("tespec", "ecddp", "mem-tokenizer", "moby")
RESUMED = [
    pytest.param(make, 5, 2, id="dropout and state, workers"),
    *(
        pytest.param(
            partial(make_case, case),
            2,
            0,
            id=case,
            marks=() if case in OWN_STATE else pytest.mark.slow,
        )
        for case in CASES
    ),
]


@pytest.mark.parametrize(("make", "stop", "workers"), RESUMED)
def test_resumed_equals_uninterrupted(tmp_path, make, stop, workers):
    def interrupt(trainer, *_):
        if trainer.step == stop:
            raise KeyboardInterrupt

    hook = SimpleNamespace(after_train_iter=interrupt)
    straight, first, second = make(), make(hook, workers=workers), make(workers=workers)
    straight.run()
    with pytest.raises(KeyboardInterrupt):
        first.run()
    save_checkpoint(tmp_path, stop, {"run": "a", "trainer": first.state_dict()})
    torch.rand(17)
    second.load_state_dict(read_checkpoint(newest_complete(tmp_path)[0], "a")["trainer"])
    assert second.step == stop
    second.run()
    resumed, uninterrupted = (
        (trainer.model.state_dict(), trainer.states) for trainer in (second, straight)
    )
    torch.testing.assert_close(resumed, uninterrupted, rtol=0, atol=0)


def test_seed_decides_dropout():
    one, other = make(seed=3), make(seed=4)
    one.run()
    other.run()
    assert not torch.equal(one.model.weight, other.model.weight)


def test_curve_holds_means_over_intervals():
    curve = CurveHook(interval=5)
    make(curve).run()
    assert [point["step"] for point in curve.curve] == [5, 10, 12]
    assert all(point["loss_double"] == pytest.approx(2 * point["loss"]) for point in curve.curve)


def advance(trainer, *steps):
    for step in steps:
        trainer.train_step(Steps()[step])
        trainer.step += 1


@pytest.mark.parametrize("kind", ["loss", "gradient"])
def test_a_step_that_is_not_finite_stops_the_run_before_the_update(kind):
    trainer = make(wrong={5}, kind=kind)
    with pytest.raises(match="step 5: the loss or a gradient is not finite"):
        trainer.run()
    before, late = make(), make(wrong={5}, kind=kind)
    advance(before, *range(5))
    advance(late, *range(6))
    assert torch.equal(before.model.weight, late.model.weight)
    # A late check reports the first such step, and no later step has changed the weights.
    late.states = before.states
    advance(late, 6)
    assert torch.equal(before.model.weight, late.model.weight)
    with pytest.raises(match="step 5: "):
        late.require_finite()


def test_large_gradients_are_finite():
    parameter = nn.Parameter(torch.zeros(7))
    parameter.grad = torch.full((7,), 3e38)
    assert not_finite(torch.tensor(1.0), [parameter]) == 0


@pytest.mark.parametrize(("precision", "backward"), [("bf16", "highest"), ("fp32", "high")])
def test_beside_half_precision_losses_are_exact_in_the_backward_pass_too(precision, backward):
    trainer, seen, before = make(), [], torch.get_float32_matmul_precision()
    trainer.settings = dataclasses.replace(trainer.settings, precision=precision)
    trainer.model.weight.register_hook(
        lambda gradient: seen.append(torch.get_float32_matmul_precision())
    )
    torch.set_float32_matmul_precision("high")
    try:
        advance(trainer, 0)
        assert (seen, torch.get_float32_matmul_precision()) == ([backward], "high")
    finally:
        torch.set_float32_matmul_precision(before)


VANISHED = r"^/nowhere/dir1.dat: No such file or directory, at step 3; restore it"
DATA_FAILURES = [
    (Path("/nowhere/dir1.dat").read_bytes, 0, VANISHED),
    (Path("/nowhere/dir1.dat").read_bytes, 2, VANISHED),
    (
        Mock(side_effect=UserError("a.dat", "is torn", "copy it again")),
        2,
        r"^a.dat: is torn; copy it again$",
    ),
    pytest.param(
        lambda: os.kill(os.getpid(), signal.SIGKILL),
        2,
        r"--workers 2: a worker process died at step \d",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.parametrize(("fail", "workers", "message"), DATA_FAILURES)
def test_data_that_fail_are_named(fail, workers, message):
    with pytest.raises(UserError, match=message):
        make(steps=Steps(fail), workers=workers).run()


WORKER = """
import os, subprocess, sys, time
from multiprocessing import Process
from tespec.training import loading

def work():
    loading._obey_parent(0)
    time.sleep(60)

worker = Process(target=work)
worker.start()
time.sleep(1)
subprocess.run(["kill", "-TERM", str(worker.pid)])  # as to a process group
worker.join(1)
survives = worker.is_alive()
worker.terminate()
worker.join(10)
sys.exit(0 if (survives, worker.exitcode) == (True, 0) else 1)
"""


@pytest.mark.slow
def test_a_worker_is_stopped_by_its_parent_alone():
    """Else a signal to the process group would end a training before it has saved."""
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    assert subprocess.run([sys.executable, "-c", WORKER], env=environment).returncode == 0


def test_a_data_set_keeps_its_batches():
    """They may be stored by the data set, and must then not move to the device."""
    batch = MappingProxyType({"x": torch.ones(1, 3)})
    make(steps=[batch] * SETTINGS.steps).run()


BATCH = {"x": torch.zeros(250_000)}  # 1 MB
CHOSEN = [
    # cores, MB of free shared memory, processes, workers
    (16, 10_000, 1, 8),
    (6, 10_000, 1, 5),
    (2, 10_000, 1, 0),
    (16, 12, 1, 3),
    (16, 3, 1, 0),
    (16, 10_000, 4, 3),
    (16, 40, 4, 2),
]


@pytest.mark.parametrize(("cores", "free", "processes", "workers"), CHOSEN)
def test_workers_follow_cores_and_shared_memory(
    monkeypatch, capsys, cores, free, processes, workers
):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", str(processes))
    monkeypatch.setattr(loading, "world_size", lambda: 64)  # on all machines
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(cores))
    monkeypatch.setattr(
        loading.shutil, "disk_usage", lambda path: SimpleNamespace(free=free * 1_000_000)
    )
    assert choose_workers(BATCH) == choose_workers((BATCH["x"], [])) == workers
    assert capsys.readouterr().err.startswith(f"workers: {workers} (")


def test_a_gpu_that_has_to_wait_for_its_batches_is_told_of(monkeypatch, capsys):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: range(2))
    monkeypatch.setattr(
        loading, "DataLoader", lambda steps, **options: [steps[0]] * (options["num_workers"] == 0)
    )
    for workers, said in ((0, "--workers 0: the GPU waits"), (None, "workers: 0 (2 cores, ")):
        assert list(load_batches([BATCH], 0, 1, workers, pin=True)) == [BATCH]
        assert capsys.readouterr().err.startswith(said)


@pytest.mark.parametrize(
    ("at_peak", "start"), [(0.0, "12 frames/s, loss "), (0.05, "12 frames/s, 10 % of peak, loss ")]
)
def test_progress_shows_the_share_of_a_known_peak(monkeypatch, at_peak, start):
    notes, seconds = [], iter(range(0, 99, 1))

    @contextmanager
    def progress(*_):
        yield lambda done, total, note: notes.append(note)

    clock = SimpleNamespace(monotonic=lambda: next(seconds) / 2)  # two steps per second
    monkeypatch.setattr("tespec.training.trainer.time", clock)
    monkeypatch.setattr("tespec.training.trainer.progress", progress)
    make().run(frames=6, step_seconds_at_peak=at_peak)
    assert len(notes) == SETTINGS.steps
    assert all(note.startswith(start) for note in notes)

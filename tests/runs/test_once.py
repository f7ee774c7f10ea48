"""Concurrent processes that need the same run: all succeed, and it is computed once."""

import errno
import json
import multiprocessing
import os
import queue
import signal
import time
from functools import partial
from unittest.mock import Mock

import pytest
from made_records import cell
from short_runs import setup_in

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.pretraining.method import find_method
from tespec.registry import register_methods
from tespec.runs import run as runs
from tespec.runs.run import Run, Trained, locked, run_or_load
from tespec.training.checkpoint import checkpoints

processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["tespec.runs.run"])  # its import takes seconds


def compute(folder, said, pause=None, **changes):
    """Run or load a run whose score is its process's id; `said` gets the log and the score."""
    register_methods()
    runs.log = said.put
    settings = finetuning_settings("ddd17", "feedforward", "smoke")
    run = Run(
        cell=cell("scratch", "feedforward"),
        row=find_method("scratch").row,
        settings=settings,
        config={},
        data={"x": "x"},
        seed=0,
        setup=setup_in(folder, **changes),
    )

    def train():
        said.put(f"trains, {len(checkpoints(run.folder))} there")
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "step-000000005.pt").touch()
        if pause:
            # as a data loader has
            child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
            child.start()
            said.put(f"paused beside {child.pid}")
            assert pause.wait(300)
            child.kill()
        return Trained(curve=[{"step": 5, "loss": 1.0}])

    outcome = {"protocol": {}, "metrics": {"by": float(os.getpid())}}
    said.put(f"score {run_or_load(run, lambda: outcome, train).metrics['by']:.0f}")


class Started:
    def __init__(self, folder, **how):
        self.said = processes.Queue()
        self.process = processes.Process(target=compute, args=(folder, self.said), kwargs=how)
        self.process.start()

    def said_until(self, wanted):
        """Log of the process up to the first line that contains `wanted`."""
        lines = []
        while not lines or wanted not in lines[-1]:
            lines.append(self.said.get(timeout=300))
        return "\n".join(lines)

    def number(self, name="score"):
        return int(self.said_until(f"{name} ").rpartition(" ")[2])


@pytest.fixture
def start(tmp_path):
    started = []

    def start(**how):
        started.append(Started(tmp_path, **how))
        return started[-1]

    yield start
    for each in started:
        each.process.kill()
        each.process.join()


@pytest.mark.slow
def test_who_waits_for_a_killed_maker_goes_on_from_its_checkpoint_while_a_child_of_the_maker_lives(
    start, tmp_path
):
    never = processes.Event()
    maker = start(pause=never)
    child = maker.number("beside")
    with locked(tmp_path / "runs", "another run") as nobody:
        assert nobody == ""
    waiter = start()
    holder = f"process {maker.process.pid} on {os.uname().nodename}"
    waits = f"waiting for {holder}, which is computing it, to use its result; Ctrl-C ends only the"
    assert waits in waiter.said_until("waiting")
    maker.process.kill()
    said = waiter.said_until("trains")
    os.kill(child, signal.SIGKILL)
    assert f"{holder} ended without a result; this process continues it" in said
    assert "trains, 1 there" in said
    assert waiter.number() == waiter.process.pid


@pytest.mark.slow
@pytest.mark.parametrize("overwrite", [False, True])
def test_two_at_once_compute_once_and_readers_of_an_older_result_do_not_wait(
    start, tmp_path, overwrite
):
    before = start().number() if overwrite else None
    go_on = processes.Event()
    maker = start(pause=go_on, overwrite=overwrite)
    maker.said_until("paused")
    if (
        overwrite
    ):  # the previous record stays readable, and the recomputing process keeps its checkpoints
        assert start().number() == before
        assert list(tmp_path.glob("runs/evaluation-*/step-*"))
    waiter = start(overwrite=overwrite)
    waiter.said_until("waiting")
    go_on.set()
    assert "trains" not in waiter.said_until("is already complete")
    assert waiter.number() == maker.number() == maker.process.pid


def test_a_damaged_record_is_refused_on_all_ranks_or_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "log", runs.log)  # `compute` replaces it
    compute_here = partial(compute, tmp_path, queue.SimpleQueue())
    compute_here()
    (record,) = tmp_path.glob("results/runs/*.json")
    whole, sent = record.read_text(), []
    record.write_text(whole[:100])
    refused = pytest.raises(
        UserError, match=r"not a record: .*; remove it, or run again with --overwrite$"
    )
    for is_first in (lambda: True, lambda: False):  # another rank gets what the first one sends
        with monkeypatch.context() as patch, refused:
            patch.setattr(runs, "is_first", is_first)
            patch.setattr(runs, "broadcast", lambda value: sent.append(value) or sent[0])
            compute_here()
    record.write_text(whole.replace('"format": 5', '"format": 4'))
    older = f"{record}: a record of another version; move it out of the results folder, and run"
    with pytest.raises(UserError, match=older):
        compute_here()
    compute_here(overwrite=True)
    assert json.loads(record.read_text())["metrics"] == json.loads(whole)["metrics"]


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_goes_on_with_one_line(tmp_path, monkeypatch, capsys, code):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(code, os.strerror(code))))
    with locked(tmp_path, "run") as nobody:
        assert nobody == ""
    problem = f"{tmp_path / '.locks'}: this file system does not support locks"
    expected = f"{problem}; start each command only once at a time\n"
    assert capsys.readouterr().err == expected

"""Concurrent processes that need the same run: all succeed, and it is computed once."""

import errno
import json
import multiprocessing
import os
import queue
import subprocess
import sys
from functools import partial
from unittest.mock import Mock

import pytest
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


def compute(folder, said, found, meet=None, pause=None, **changes):
    """Run or load a run whose score is the id of its process; `said` receives the log, `found` the score."""
    register_methods()
    runs.say = said.put
    settings = finetuning_settings("ddd17", "feedforward", "tiny")
    run = Run(
        kind="evaluation", method_name="scratch", method=find_method("scratch"), task="ddd17", settings=settings,
        config={}, overrides={}, data="sample", data_fingerprint="x", seed=0, setup=setup_in(folder, **changes),
    )  # fmt: skip

    def train():
        said.put(f"trains, {len(checkpoints(run.folder))} there")
        run.folder.mkdir(parents=True, exist_ok=True)
        (run.folder / "step-000000005.pt").touch()
        if pause:
            reached, go_on = pause
            reached.set()
            assert go_on.wait(300)
        return Trained(curve=[{"step": 5, "loss": 1.0}])

    if meet:
        meet.wait(300)
    outcome = {"protocol": {}, "metrics": {"by": float(os.getpid())}}
    found.put(run_or_load(run, lambda: outcome, train).metrics["by"])


class Started:
    """Process that computes the run; the fixture `start` kills it at the end of the test."""

    def __init__(self, folder, **how):
        self.said, self.found = processes.Queue(), processes.Queue()
        self.process = processes.Process(target=compute, args=(folder, self.said, self.found), kwargs=how, daemon=True)
        self.process.start()

    def said_until(self, wanted):
        """Log of the process up to the first line that contains `wanted`."""
        lines = []
        while not lines or wanted not in lines[-1]:
            lines.append(self.said.get(timeout=300))
        return "\n".join(lines)

    def score(self):
        return self.found.get(timeout=300)


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


def test_two_that_want_it_at_the_same_moment_compute_it_once(start):
    meet = processes.Barrier(2)
    first, second = start(meet=meet), start(meet=meet)
    assert first.score() == second.score() in (first.process.pid, second.process.pid)


def test_who_waits_for_a_killed_maker_goes_on_from_its_checkpoint(start):
    reached, never = processes.Event(), processes.Event()
    maker = start(pause=(reached, never))
    assert reached.wait(300)
    waiter = start()
    holder = f"process {maker.process.pid} on {os.uname().nodename}"
    assert f"waiting for {holder}, which is computing it" in waiter.said_until("waiting")
    maker.process.kill()
    said = waiter.said_until("trains")
    assert f"{holder} ended without a result; this process continues it" in said
    assert "trains, 1 there" in said
    assert waiter.score() == waiter.process.pid


def test_overwriting_twice_at_once_computes_once_and_readers_do_not_wait(start, tmp_path):
    before = start().score()
    reached, go_on = processes.Event(), processes.Event()
    maker = start(pause=(reached, go_on), overwrite=True)
    assert reached.wait(300)
    # The previous record stays readable, and the recomputing process keeps its checkpoints.
    assert start().score() == before
    assert list(tmp_path.glob("runs/evaluation-*/step-*"))
    waiter = start(overwrite=True)
    waiter.said_until("waiting")
    go_on.set()
    assert "trains" not in waiter.said_until("is already complete")
    assert waiter.score() == maker.score() == maker.process.pid


def test_a_damaged_record_is_refused_on_all_ranks_or_overwritten(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "say", runs.say)  # `compute` replaces it
    compute_here = partial(compute, tmp_path, queue.SimpleQueue(), queue.SimpleQueue())
    compute_here()
    (record,) = tmp_path.glob("results/runs/*.json")
    whole, sent = record.read_text(), []
    record.write_text(whole[:100])
    refused = pytest.raises(UserError, match=r"not a record: .*; remove it, or run again with --overwrite$")
    with monkeypatch.context() as patch, refused:
        patch.setattr(runs, "broadcast", lambda value: sent.append(value) or value)
        compute_here()
    with monkeypatch.context() as patch, refused:  # another rank
        patch.setattr(runs, "is_first", lambda: False)
        patch.setattr(runs, "broadcast", lambda value: sent[0])
        compute_here()
    compute_here(overwrite=True)
    assert json.loads(record.read_text())["metrics"] == json.loads(whole)["metrics"]


HOLD = """
import os, sys, time
from pathlib import Path
from tespec.runs.run import locked
with locked(Path(sys.argv[1]), "run"):
    if os.fork():
        time.sleep(60)
    print("held", flush=True)
    os.close(1)
    time.sleep(20)
"""


def test_children_of_a_killed_holder_do_not_keep_it(tmp_path):
    with subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with locked(tmp_path, "another run") as nobody:
            assert nobody == ""
        holder.kill()
        holder.wait()
        with locked(tmp_path, "run") as nobody:
            assert nobody == ""


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS])
def test_a_file_system_without_locks_goes_on_with_one_line(tmp_path, monkeypatch, capsys, code):
    monkeypatch.setattr("fcntl.flock", Mock(side_effect=OSError(code, os.strerror(code))))
    with locked(tmp_path, "run") as nobody:
        assert nobody == ""
    said = f"{tmp_path / '.locks'}: this file system does not support locks; start each command only once at a time\n"
    assert capsys.readouterr().err == said

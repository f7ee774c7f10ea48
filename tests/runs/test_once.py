"""Real processes that want the same run at the same moment: all of them end well, and it is computed once."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from once_runs import cell, paused, pretraining, rounds, waiting

from tespec.comparison.records import read_records
from tespec.core.paths import REPOSITORY
from tespec.core.registry import register_methods

ALONE = os.environ | {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY / "tests")}
spawn = multiprocessing.get_context("spawn")


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch):
    for name in ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS"):
        monkeypatch.setenv(name, "1")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def start():
    """Starts processes; those that still run at the end of the test are killed."""
    started = []

    def started_process(target, *arguments, **more):
        process = spawn.Process(target=target, args=arguments, kwargs=more, daemon=True)
        process.start()
        started.append(process)
        return process

    yield started_process
    for process in started:
        process.kill()
        process.join()


def at_once(start, work, world, folders, *each, **changes):
    """Two processes that do the work in each folder at the same moment; what each found, by folder."""
    barrier, found = spawn.Barrier(2), spawn.Queue()
    processes = [start(rounds, work, world, folders, one, changes, barrier, found) for one in each]
    results = {folder.name: [] for folder in folders}
    for _ in range(2 * len(folders)):
        name, *result = found.get(timeout=300)
        results[name].append(result)
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    return results


def kinds_of(folder):
    return sorted(record.kind for record in read_records(folder / "results")[0])


@pytest.mark.parametrize("times", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_two_cells_need_one_pretraining_at_the_same_moment(tiny_world, tmp_path, start, times):
    folders = [tmp_path / f"round{number}" for number in range(times)]
    results = at_once(start, cell, tiny_world, folders, ("recurrent",), ("feedforward",))
    scores = set()
    for folder in folders:
        (first, first_trained), (second, second_trained) = results[folder.name]
        trained = first_trained + second_trained
        assert sum(name.startswith("pretraining-") for name in trained) == 1
        assert len(trained) == len(set(trained)) == 3
        assert kinds_of(folder) == ["evaluation", "evaluation", "pretraining"]
        scores.add(json.dumps(sorted([first.name, first.metrics, second.name, second.metrics], key=str)))
    # Whoever came first, the results are the same.
    assert len(scores) == 1


@pytest.mark.slow
def test_who_waits_for_a_killed_maker_goes_on_from_its_checkpoint(tiny_world, tmp_path, start):
    register_methods()
    straight = pretraining(tiny_world, tmp_path / "straight")
    reached, go_on, made, said, found = spawn.Event(), spawn.Event(), spawn.Queue(), spawn.Queue(), spawn.Queue()
    maker = start(paused, tiny_world, tmp_path / "killed", 5, reached, go_on, made)
    assert reached.wait(300)
    start(waiting, tiny_world, tmp_path / "killed", said, found)
    holder = f"process {maker.pid} on {os.uname().nodename}"
    assert until(said, "waiting") == f"{run_of(tmp_path / 'killed')}: waiting for {holder}, which is computing it"
    maker.kill()
    assert until(said, "ended") == (
        f"{run_of(tmp_path / 'killed')}: {holder} ended without a result; this process goes on with it"
    )
    assert until(said, "resuming at") == "resuming at step 5 (--overwrite starts again)"
    _, sha256, trained = found.get(timeout=300)
    assert len(trained) == 1
    assert sha256 == straight


@pytest.mark.slow
def test_overwriting_twice_at_once_computes_once_and_readers_do_not_wait(tiny_world, tmp_path, start):
    register_methods()
    before = pretraining(tiny_world, tmp_path)
    reached, go_on, made, said, found = spawn.Event(), spawn.Event(), spawn.Queue(), spawn.Queue(), spawn.Queue()
    start(paused, tiny_world, tmp_path, 5, reached, go_on, made, overwrite=True)
    assert reached.wait(300)
    # The record and the weights of before are whole, and the checkpoints of who makes them again stay.
    assert pretraining(tiny_world, tmp_path) == before
    assert list((tmp_path / "runs" / run_of(tmp_path)).glob("step-*"))
    start(waiting, tiny_world, tmp_path, said, found, overwrite=True)
    until(said, "waiting")
    go_on.set()
    assert "is complete already" in until(said, "complete")
    _, sha256, trained = found.get(timeout=300)
    assert trained == []
    assert sha256 == made.get(timeout=300)[1] == before


@pytest.mark.slow
def test_processes_of_one_run_wait_for_longer_than_an_exchange_may_take(tmp_path):
    hold = (
        "import sys, time; from pathlib import Path; from tespec.runs.lock import locked\n"
        "with locked(Path(sys.argv[1]), 'run'):\n    print('held', flush=True); time.sleep(120)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "runs")], stdout=subprocess.PIPE, text=True, env=ALONE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        script = Path(__file__).with_name("once_runs.py")
        waiting_for = subprocess.Popen([*launcher, script, tmp_path], env=ALONE, stderr=subprocess.PIPE, text=True)
        assert waiting_for.stderr is not None
        lines = iter(waiting_for.stderr.readline, "")
        assert any(f"run: waiting for process {holder.pid}" in line for line in lines)
        time.sleep(5)  # more than twice as long as their exchanges may take
        holder.kill()
        _, said = waiting_for.communicate(timeout=120)
    assert waiting_for.returncode == 0, said
    waits = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in (0, 1)]
    assert all(seconds > 4 and holder_ == waits[0][1] for seconds, holder_ in waits)


def run_of(folder):
    (run,) = (path.name for path in (folder / "runs").iterdir() if path.name.startswith("pretraining-"))
    return run


def until(said, wanted):
    """The first line said that holds some words."""
    while True:
        line = said.get(timeout=300)
        if wanted in line:
            return line

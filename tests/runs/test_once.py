"""Real processes that want the same run at the same moment: all of them end well, and it is computed once."""

from __future__ import annotations

import multiprocessing
import os

import pytest
import torch
from once_runs import cell, paused, pretraining, said_until, trained_at_once, waiting

from tespec.comparison.records import read_records
from tespec.core.registry import register_methods

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


def run_of(folder):
    (run,) = (path.name for path in (folder / "runs").iterdir() if path.name.startswith("pretraining-"))
    return run


def test_two_cells_need_one_pretraining_at_the_same_moment(tiny_world, tmp_path, start):
    barrier, found = spawn.Barrier(2), spawn.Queue()
    for arch in ("recurrent", "feedforward"):
        start(trained_at_once, tiny_world, tmp_path, arch, barrier, found)
    trained = [name for _ in range(2) for name in found.get(timeout=300)]
    assert sum(name.startswith("pretraining-") for name in trained) == 1
    assert len(trained) == len(set(trained)) == 3
    made = {record.name: record for record in read_records(tmp_path / "results")[0]}
    assert sorted(record.kind for record in made.values()) == ["evaluation", "evaluation", "pretraining"]
    # Whoever came first, the results are the same.
    for arch in ("recurrent", "feedforward"):
        alone = cell(tiny_world, tmp_path / "alone", arch)
        assert made[alone.name].metrics == alone.metrics


@pytest.mark.slow
def test_who_waits_for_a_killed_maker_goes_on_from_its_checkpoint(tiny_world, tmp_path, start):
    register_methods()
    straight = pretraining(tiny_world, tmp_path / "straight")
    folder = tmp_path / "killed"
    reached, go_on, made, said, found = spawn.Event(), spawn.Event(), spawn.Queue(), spawn.Queue(), spawn.Queue()
    maker = start(paused, tiny_world, folder, 5, reached, go_on, made)
    assert reached.wait(300)
    start(waiting, tiny_world, folder, said, found)
    holder = f"process {maker.pid} on {os.uname().nodename}"
    assert said_until(said, "waiting") == f"{run_of(folder)}: waiting for {holder}, which is computing it"
    maker.kill()
    ended = f"{run_of(folder)}: {holder} ended without a result; this process goes on with it"
    assert said_until(said, "ended") == ended
    assert said_until(said, "resuming at") == "resuming at step 5 (--overwrite starts again)"
    sha256, trained = found.get(timeout=300)
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
    said_until(said, "waiting")
    go_on.set()
    assert "is complete already" in said_until(said, "complete")
    sha256, trained = found.get(timeout=300)
    assert trained == []
    assert sha256 == made.get(timeout=300) == before

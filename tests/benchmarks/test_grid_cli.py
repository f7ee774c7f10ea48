import json
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from benchmarks.cluster import Command, parameters, require_submitit
from tespec.core.errors import UserError

REPOSITORY = Path(__file__).parents[2]
GRID = [sys.executable, str(REPOSITORY / "benchmarks" / "grid.py")]
SHORT = [
    *("--set", "optimisation.steps=2", "--set", "optimisation.warmup_steps=1", "--set", "batch_size=2"),
    *("--set", "pretraining.optimisation.steps=2", "--set", "pretraining.optimisation.warmup_steps=1"),
]


def arguments(world, folder, *more):
    places = ["--data", str(world), "--results", str(folder / "results"), "--runs", str(folder / "runs")]
    return [*GRID, "--arch", "feedforward", *places, *SHORT, *more]


def grid(world, folder, *more):
    return subprocess.run(arguments(world, folder, *more), capture_output=True, text=True, timeout=300)


def found(folder):
    """What the records of a folder found, by their names."""
    records = [json.loads(path.read_text()) for path in (folder / "results" / "runs").glob("*.json")]
    return {record["name"]: (record["metrics"], record["recordings"], record["curve"]) for record in records}


def test_the_grid_runs_what_is_missing_and_says_what_failed(tiny_world, tmp_path):
    cells = ["--methods", "scratch", "--tasks", "ddd17", "mvsec"]
    status = grid(tiny_world, tmp_path, *cells, "--status")
    assert (status.returncode, "2 missing" in status.stdout) == (0, True)
    assert not (tmp_path / "results").exists()
    done = grid(tiny_world, tmp_path, *cells, "--processes", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 2 cells done" in done.stdout
    assert len(found(tmp_path)) == 2
    again = grid(tiny_world, tmp_path, *cells)
    assert "2 done" in again.stdout
    assert "running" not in again.stderr
    more = grid(tiny_world, tmp_path, *cells, "--seeds", "0", "1", "--dry-run")
    assert re.search(r"^2 done, 2 missing\nforecast: .* h for 2 runs, 1 at once", more.stdout, re.MULTILINE)
    assert len(re.findall(r"run.py --method scratch .* --seed 1 ", more.stdout)) == 2
    failing = grid(tiny_world, tmp_path, "--methods", "scratch", "--tasks", "mvsec", "--set", "head.min_depth=90.0")
    assert failing.returncode == 1
    assert "0 of 1 cells done\nfailed: scratch-mvsec-feedforward-s0: error: head.min_depth: 90 m" in failing.stdout
    known = grid(tiny_world, tmp_path, "--methods", "scratch", "--tasks", "mvsec", "--seeds", "0", "1",
                 "--set", "head.min_depth=90.0", "--status")  # fmt: skip
    assert "0/2 done, 1 failed" in known.stdout
    assert "1 failed, 1 missing" in known.stdout


@pytest.mark.slow
def test_two_grids_at_once_end_with_all_cells_each_computed_once(tiny_world, tmp_path):
    called = arguments(tiny_world, tmp_path, "--methods", "scratch", "tespec", "--tasks", "ddd17", "--processes", "2")
    grids = [subprocess.Popen(called, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [each.communicate(timeout=400) for each in grids]
    assert [each.returncode for each in grids] == [0, 0], said
    assert all("2 of 2 cells done" in out for out, _ in said)
    names = [path.name.partition("-")[0] for path in (tmp_path / "results" / "runs").iterdir()]
    assert sorted(names) == ["evaluation", "evaluation", "pretraining"]


MISTAKES = [
    (["--tasks", "kitti"], "--tasks kitti: no such task; choose from 1mpx"),
    (["--methods", "ecddp_resnet"], "--methods ecddp_resnet: has no weights to start from; give --checkpoints"),
    (["--checkpoints", "moby"], "--checkpoints moby: is not METHOD=FILE of a file that exists"),
    (["--slurm", "partition=gpu"], "--slurm goes with --cluster slurm"),
    (["--cluster", "slurm", "--gpus", "0"], "--gpus are this machine's; say --slurm gpus_per_node=1"),
    (["--methods", "rvt"], "the grid: is empty: no method has this architecture; ask for others"),
]


@pytest.mark.parametrize(("options", "message"), MISTAKES)
def test_mistakes_are_answered_in_one_line(tiny_world, tmp_path, options, message):
    done = grid(tiny_world, tmp_path, *options)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.slow
def test_a_killed_grid_goes_on_to_the_same_records(tiny_world, tmp_path):
    cells = ["--methods", "scratch", "moby", "--tasks", "ddd17", "mvsec"]
    straight, killed = tmp_path / "straight", tmp_path / "killed"
    assert grid(tiny_world, straight, *cells, "--processes", "2").returncode == 0
    stops = 0
    for sent in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = subprocess.Popen(arguments(tiny_world, killed, *cells), stderr=subprocess.PIPE, text=True)
        with process:
            assert process.stderr is not None
            for line in process.stderr:
                if line.startswith("done"):
                    process.send_signal(sent)
                    break
            process.wait(120)
        stops += process.returncode != 0
    assert stops == 3
    assert grid(tiny_world, killed, *cells).returncode == 0
    assert found(killed) == found(straight)


@pytest.mark.slow
def test_jobs_of_a_cluster_give_the_records_of_processes(tiny_world, tmp_path):
    pytest.importorskip("submitit")
    cells = ["--methods", "scratch", "--tasks", "ddd17"]
    planned = grid(tiny_world, tmp_path, *cells, "--cluster", "local", "--slurm", "cpus_per_task=2", "--dry-run")
    assert planned.returncode == 0, planned.stderr
    assert re.search(r"^jobs of local: .*cpus_per_task=2$", planned.stdout, re.MULTILINE)
    done = grid(tiny_world, tmp_path, *cells, "--cluster", "local", "--slurm", "cpus_per_task=2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "submitted: scratch-ddd17-feedforward-s0" in done.stderr
    failing = grid(tiny_world, tmp_path, *cells, "--cluster", "local", "--set", "head.dropout=7")
    assert failing.returncode == 2
    failing = grid(tiny_world, tmp_path, "--methods", "scratch", "--tasks", "mvsec", "--cluster", "local",
                   "--set", "head.min_depth=90.0")  # fmt: skip
    assert failing.returncode == 1
    assert "failed: scratch-mvsec-feedforward-s0: error: head.min_depth: 90 m" in failing.stdout
    straight = tmp_path / "straight"
    assert grid(tiny_world, straight, *cells).returncode == 0
    assert found(tmp_path) == found(straight)


def test_a_job_that_is_taken_away_saves_and_is_asked_for_again(tmp_path):
    pytest.importorskip("submitit")
    saved, log = tmp_path / "saved", tmp_path / "log"
    script = (
        "import signal, sys, time, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(saved)!r}).touch(), sys.exit(75)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    command = Command([sys.executable, "-c", script], log)
    codes = []
    running = threading.Thread(target=lambda: codes.append(command()))
    running.start()
    while not log.exists() or b"ready" not in log.read_bytes():
        time.sleep(0.02)
    again = command.checkpoint()
    running.join(30)
    assert saved.exists()
    assert codes == [75]
    assert again.function.arguments == command.arguments


def test_a_cluster_without_submitit_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"--cluster slurm: the package submitit is not installed; .* -m pip install"):
        require_submitit("slurm")


@pytest.mark.parametrize("given", ["partition", "=gpu"])
def test_job_parameters_are_pairs(given):
    pytest.importorskip("submitit")
    with pytest.raises(UserError, match="is not KEY=VALUE"):
        parameters("slurm", [given])


def test_job_parameters_are_submitits_or_sbatchs():
    pytest.importorskip("submitit")
    found_parameters = parameters("slurm", ["partition=gpu", "gpus_per_node=1", "timeout_min=90"])
    assert found_parameters == {"timeout_min": 90, "slurm_partition": "gpu", "gpus_per_node": 1}

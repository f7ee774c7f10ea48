"""Two processes compute the same as one for every task and objective, and resume a run of one process."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from together_runs import OBJECTIVES, TASKS, compute

from tespec.comparison.records import read_records
from tespec.core.errors import Preempted
from tespec.core.paths import REPOSITORY

SCRIPT = Path(__file__).with_name("together_runs.py")
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": f"{REPOSITORY}{os.pathsep}{REPOSITORY / 'tests'}"}
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def record_of(folder):
    records, problems = read_records(folder / "results")
    assert problems == []
    return max(records, key=lambda each: each.method == "mem")  # the other record is its tokenizer's


def compute_by_two(tiny_world, folder, *cases):
    command = [*TORCHRUN, SCRIPT, tiny_world, folder, *cases]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, timeout=500)
    assert ended.returncode == 0, ended.stderr[-3000:]


SOME = ["gen1, unlabelled", "mvsec, frozen", "ecddp"]
ALL = [*TASKS, *OBJECTIVES]


@pytest.mark.parametrize("cases", [SOME, pytest.param(ALL, marks=pytest.mark.slow)], ids=["some", "all"])
def test_two_processes_compute_what_one_computes(tiny_world, tmp_path, cases):
    compute_by_two(tiny_world, tmp_path / "two", *cases)
    for case in cases:
        compute(case, tiny_world, tmp_path / "one" / case)
        one, two = (record_of(tmp_path / processes / case) for processes in ("one", "two"))
        assert two.environment["processes"] == 2
        assert two.id == one.id or case == "mem", case  # the tokenizer's weights, a choice of "mem", differ by rounding
        curves = list(zip(one.curve, two.curve, strict=True))
        assert len(curves) == 4
        # After the first loss, Adam's first steps turn the rounding of nearly zero gradients into full steps; the size
        # of the effect depends on the processor.
        exact = 4 if "frozen" in case else 1
        for step, (ours, theirs) in enumerate(curves):
            relative, absolute = (1e-5, 1e-6) if step < exact else (5e-3, 5e-3)
            assert theirs == pytest.approx(ours, rel=relative, abs=absolute), case
        if "frozen" in case:
            assert two.metrics == pytest.approx(one.metrics, rel=1e-5), case
            assert two.recordings.keys() == one.recordings.keys()


@pytest.mark.slow
def test_a_run_goes_on_with_more_processes(tiny_world, tmp_path):
    cases = "mvsec", "tespec"
    for case in cases:
        compute(case, tiny_world, tmp_path / "straight" / case)
        with pytest.raises(Preempted):
            compute(case, tiny_world, tmp_path / "stopped" / case, stop=2)
    compute_by_two(tiny_world, tmp_path / "stopped", *cases)
    for case in cases:
        straight, resumed = (record_of(tmp_path / folder / case) for folder in ("straight", "stopped"))
        assert resumed.id == straight.id
        for ours, theirs in zip(straight.curve, resumed.curve, strict=True):
            assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-5), case


@pytest.mark.parametrize("case", ["tespec", pytest.param("dsec, no memory", marks=pytest.mark.slow)])
def test_gradient_accumulation_computes_what_one_batch_computes(tiny_world, tmp_path, case):
    compute(case, tiny_world, tmp_path / "whole")
    compute(case, tiny_world, tmp_path / "accumulated", accumulate=2)
    whole, accumulated = record_of(tmp_path / "whole"), record_of(tmp_path / "accumulated")
    assert accumulated.environment["accumulate"] == 2
    # The id differs: sums are rounded in another order, and batch statistics are those of a micro-batch.
    assert accumulated.id != whole.id
    tolerance = 1e-5 if case.startswith("tespec") else 0.2
    for ours, theirs in zip(whole.curve, accumulated.curve, strict=True):
        assert theirs == pytest.approx(ours, rel=tolerance, abs=tolerance)


def test_the_command_line_by_two_processes_and_a_stop(tiny_world, tmp_path):
    places = ["--data", tiny_world / "mvsec", "--results", tmp_path / "results", "--runs", tmp_path / "runs"]
    what = ["--method", "scratch", "--task", "mvsec", "--profile", "sample", "--launcher", "pytorch", "--device", "cpu"]
    changes = ["--set", "optimisation.steps=400", "--set", "batch_size=2", "--set", "segments=2"]
    command = [*TORCHRUN, REPOSITORY / "benchmarks" / "run.py", *what, *changes, *places]
    started = subprocess.Popen(command, env=ENVIRONMENT, stderr=subprocess.PIPE, text=True)
    assert any("training:" in line for line in iter(started.stderr.readline, ""))
    started.send_signal(signal.SIGTERM)
    _, said = started.communicate()
    assert started.returncode != 0
    (run,) = (tmp_path / "runs").glob("evaluation-*")
    assert "error" not in said.splitlines()[0]
    (checkpoint,) = run.glob("step-*")
    assert f"stopped after step {int(checkpoint.stem[5:])}" in said

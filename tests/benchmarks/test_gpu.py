"""The command for a machine with a GPU, on a CPU: what it checks, writes and says; never how fast anything was."""

import json
import subprocess
import sys

import pytest
import torch

from benchmarks import gpu
from tespec.cli.main import run
from tespec.core.paths import REPOSITORY

CPU = torch.device("cpu")


def call(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["gpu.py", *map(str, arguments)])
    return run(gpu.main)


@pytest.mark.slow
def test_without_a_gpu_all_stages_run_from_beginning_to_end(tmp_path):
    path = tmp_path / "gpu.json"
    command = [sys.executable, "benchmarks/gpu.py", "--device", "cpu", "--small", "--json", str(path)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(path.read_text())["rows"]
    assert {row["stage"] for row in rows} == set(gpu.STAGES)
    assert all("gradient_error" in row for row in rows if row["stage"] == "agreement")
    assert all(row["seconds"] > 0 for row in rows if row["stage"] == "step")


@pytest.mark.parametrize("name", gpu.TRAININGS)
def test_the_steps_that_are_compared_do_not_depend_on_random_numbers(name, tiny_world, monkeypatch):
    monkeypatch.setattr(gpu, "make_world", lambda *_, **__: tiny_world)
    loss, gradient = gpu.gradients(name, "fp32", CPU)
    training = gpu.training
    monkeypatch.setattr(gpu, "training", lambda *given: (*training(*given), torch.manual_seed(1))[:2])
    drawn = gpu.gradients(name, "fp32", CPU)
    assert drawn[0] == loss
    assert torch.equal(drawn[1], gradient)


@pytest.mark.parametrize("wrong", [(1.01, 1.0), (1.0, 1.05)])
def test_another_loss_or_other_gradients_fail_the_check(wrong, monkeypatch):
    def gradients(name, precision, device):
        loss, gradient = (1.0, 1.0) if device == CPU else wrong
        return loss, torch.full((3,), gradient)

    monkeypatch.setattr(gpu, "gradients", gradients)
    assert gpu.agreement("ddd17", "fp32", torch.device("meta"), True)["failed"]
    assert not gpu.agreement("ddd17", "fp32", CPU, True)["failed"]


def test_a_stage_that_fails_is_named_and_the_others_run(tmp_path, monkeypatch, capsys):
    def process(command, timeout):
        if "agreement" in command:
            raise subprocess.TimeoutExpired(command, timeout)
        return subprocess.CompletedProcess(command, -11)

    monkeypatch.setattr(gpu.subprocess, "run", process)
    monkeypatch.setattr(gpu, "save", lambda path, device, rows, load: path.write_text(json.dumps(rows)))
    assert call(monkeypatch, "--device", "cpu", "--small", "--json", tmp_path / "gpu.json") == 1
    assert "failed: agreement (whole stage), waits (whole stage), step (whole stage)" in capsys.readouterr().out
    notes = [row["note"] for row in json.loads((tmp_path / "gpu.json").read_text())]
    assert notes == ["stopped: all stages together had 8.5 minutes", *["ended with exit code -11"] * 2]


def test_a_step_that_raises_is_named_and_the_next_one_runs(monkeypatch, capsys):
    monkeypatch.setitem(gpu.STAGES, "step", lambda name, *_: {"note": "fine"} if name == "tespec" else 1 / 0)
    assert call(monkeypatch, "--only", "step", "--device", "cpu", "--small") == 1
    assert capsys.readouterr().out == (
        "step (ddd17, fp32): FAILED; note ZeroDivisionError: division by zero\nstep (tespec, fp32): ok; note fine\n"
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda:99"], "error: --device cuda:99: no such GPU; use --device cpu --small"),
        (["--only", "agrement"], 'error: Invalid value "agrement" for --only. Choose from: "agreement"'),
    ],
)
def test_mistakes_are_one_line(arguments, message, monkeypatch, capsys):
    assert call(monkeypatch, *arguments) == 2
    assert capsys.readouterr().err.startswith(message)

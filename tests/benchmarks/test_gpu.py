"""The command for a machine with a GPU, on a CPU: what it checks, writes and says; never how fast anything was."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

import benchmarks.gpu as gpu
from benchmarks.measure import checks
from benchmarks.measure.rows import Row
from tespec.cli.command import run
from tespec.core.paths import REPOSITORY

SMALL = ("--device", "cpu", "--small")


def call(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["gpu.py", *map(str, arguments)])
    try:
        return run(gpu.main)
    except SystemExit as ended:  # of argparse
        return int(ended.code or 0)


@pytest.mark.slow
def test_without_a_gpu_all_stages_run_from_beginning_to_end(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.json"
    command = [sys.executable, "benchmarks/gpu.py", *SMALL, "--minutes", "60", "--json", str(ledger)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    content = json.loads(ledger.read_text())
    assert not content["unfinished"]
    stages = {row["stage"] for row in content["rows"]}
    assert stages == {"training step" if stage == "step" else stage for stage in gpu.STAGES}
    for stage in ("agreement", "resume", "evaluation"):
        assert all(row["figures"] for row in content["rows"] if row["stage"] == stage)
    page = ledger.with_suffix(".md").read_text(encoding="utf-8")
    assert "benchmarks/gpu.py" in page
    assert "failed" not in page


def test_a_stage_that_fails_is_named_and_the_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stage(name: str, options: Any, file: Path, left: float) -> str:
        if name == gpu.STAGES[0]:
            return "ended with code -11"
        row = Row(name, "case", "cpu", failed=name == gpu.STAGES[1], note="why")
        file.write_text(json.dumps({"rows": [row.facts(None)], "limits": {}}))
        return ""

    monkeypatch.setattr(gpu, "_in_a_process", stage)
    ledger = tmp_path / "ledger.json"
    assert call(monkeypatch, *SMALL, "--json", ledger) == 1
    assert f"FAILED: {gpu.STAGES[1]} (case), stage {gpu.STAGES[0]}" in capsys.readouterr().out
    content = json.loads(ledger.read_text())
    assert content["unfinished"] == {gpu.STAGES[0]: "ended with code -11"}
    assert [row["stage"] for row in content["rows"]] == list(gpu.STAGES[1:])
    page = ledger.with_suffix(".md").read_text(encoding="utf-8")
    assert f"Stage {gpu.STAGES[0]} **did not finish**: ended with code -11" in page
    assert "1 of 9 rows **failed**" in page


def test_no_stage_begins_when_the_time_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = tmp_path / "ledger.json"
    assert call(monkeypatch, *SMALL, "--minutes", "0.01", "--json", ledger) == 1
    content = json.loads(ledger.read_text())
    assert set(content["unfinished"]) == set(gpu.STAGES)
    assert not content["rows"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--device", "cuda:99"], "error: --device cuda:99: no GPU is there; give --device cpu --small"),
        (["--only", "agrement"], "error: argument --only: unknown value 'agrement'; did you mean 'agreement'?"),
        (["--minutes", "0"], "error: --minutes: give more than 0"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(monkeypatch, *arguments) == 2
    assert capsys.readouterr().err.startswith(message)


def test_a_check_that_raises_is_a_failed_row() -> None:
    def check(row: Row) -> Row:
        raise RuntimeError("called a synchronizing CUDA operation")

    row = checks.guarded(Row("waits", "gen1", "cuda"), check)
    assert row.failed
    assert row.note == "RuntimeError: called a synchronizing CUDA operation"


def test_draws_of_other_devices_come_from_the_generator_of_the_cpu() -> None:
    def drawn(device: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        torch.manual_seed(0)
        return torch.rand(7, device=device), torch.randperm(9, device=device), torch.get_rng_state()

    rand, order, after = drawn("cpu")
    with checks.CpuDraws():
        here, there = drawn("cpu"), drawn("meta")
        kept = torch.nn.functional.dropout(torch.ones(5), 0.5)
    assert torch.equal(here[0], rand)
    assert torch.equal(here[1], order)
    assert (there[0].device.type, there[1].shape) == ("meta", (9,))
    assert torch.equal(there[2], after)
    assert kept.shape == (5,)

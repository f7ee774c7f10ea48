from __future__ import annotations

import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

import tespec.core.compat  # noqa: F401  # before mmengine

import pytest
import torch

from tespec.cli.options import setup_of
from tespec.runs.setup import Setup, check_places

OPTIONS = [
    *("device", "workers", "overwrite", "track", "profile", "threads"),
    *("deterministic", "recompute", "fused_attention", "compile", "enlarge_batch", "count_on_device"),
]


def command_of(monkeypatch: pytest.MonkeyPatch, *given: str, **said: Any) -> str:
    """What is recorded of a command line on a CPU with three threads."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    places: dict[str, Any] = {"results": Path(), "runs": Path(), "launcher": "none", "accumulate": 1, "variant": ""}
    return setup_of(
        Namespace(given=list(given), **(dict.fromkeys(OPTIONS) | places | {"device": "cpu"} | said)), "run"
    ).command


def test_a_recorded_command_leaves_out_what_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--task", "dsec", "--results", "/some/where", "--runs=/else", "--workers", "2", "--seed", "1"]
    command = command_of(monkeypatch, *given, "--set", "head.channels=8", "--overwrite", "--no-picture")
    assert command == "python benchmarks/run.py --task dsec --seed 1 --set head.channels=8 --threads 3"


def test_a_recorded_command_fixes_the_number_of_threads_once(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--task", "dsec", "--profile", "small"]
    assert command_of(monkeypatch, *given, profile="small") == "python benchmarks/run.py --task dsec --profile small"
    assert command_of(monkeypatch, *given[:2], "--threads", "2", threads=2).endswith("--task dsec --threads 2")
    assert command_of(monkeypatch, *given[:2], profile="sample").endswith("--task dsec --threads 3")


def test_a_recorded_command_names_no_place_of_this_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    made = [tmp_path / "runs" / "scratch-s0" / "model.safetensors", tmp_path / "cache" / "sample-v6-1-small" / "ddd17"]
    given = ["--task", "ddd17", "--checkpoint", str(made[0]), "--data", str(made[1])]
    command = command_of(monkeypatch, *given, profile="small", runs=tmp_path / "runs")
    assert str(tmp_path) not in command
    for variables, cache in (({}, "/home/me/.cache/tespec"), ({"TESPEC_CACHE": "/big disk"}, "/big disk")):
        shown = ["bash", "-c", f"printf '%s\\n' {command}"]
        found = subprocess.run(shown, env={"HOME": "/home/me"} | variables, capture_output=True, text=True, check=True)
        words = found.stdout.splitlines()
        assert words[words.index("--checkpoint") + 1] == "runs/scratch-s0/model.safetensors"
        assert words[words.index("--data") + 1] == f"{cache}/sample-v6-1-small/ddd17"
    joined = [f"--checkpoint={made[0]}", "--set", "head.channels=8"]
    assert command_of(monkeypatch, *joined, profile="small", runs=tmp_path / "runs").endswith(
        "--checkpoint=runs/scratch-s0/model.safetensors --set head.channels=8"
    )


def test_data_of_ones_own_stays_where_a_command_found_it(monkeypatch: pytest.MonkeyPatch) -> None:
    command = command_of(monkeypatch, "--task", "dsec", "--data", "/my data/dsec", profile="small")
    assert command == "python benchmarks/run.py --task dsec --data '/my data/dsec'"


def test_a_run_takes_the_threads_it_is_told(tmp_path: Path) -> None:
    before = torch.get_num_threads()
    setup = Setup(tmp_path, tmp_path, "cpu", 0, False, "", threads=before + 1)
    try:
        check_places(setup)
        assert torch.get_num_threads() == before + 1
        assert setup.facts()["threads"] == before + 1
    finally:
        torch.set_num_threads(before)

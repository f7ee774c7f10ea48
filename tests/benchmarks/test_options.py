from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

from benchmarks.options import setup_of


def test_a_recorded_command_leaves_out_what_decides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = ["--task", "dsec", "--results", "/some/where", "--runs=/else", "--resume", "--workers", "2", "--seed", "1"]
    monkeypatch.setattr(sys, "argv", ["run.py", *given, "--set", "head.channels=8", "--overwrite", "--no-picture"])
    switches = ["deterministic", "recompute", "fused_attention", "compile"]
    names = ["device", "workers", "resume", "overwrite", "track", *switches]
    options = Namespace(results=Path(), runs=Path(), launcher="none", accumulate=1, **dict.fromkeys(names))
    command = setup_of(options, "run.py").command
    assert command == "python benchmarks/run.py --task dsec --seed 1 --set head.channels=8"

"""docs/design.md lists the functions of `runs/` that `tespec run` enters before the first step."""

import ast
import inspect
import os
import re
import sys
from pathlib import Path

import pytest

from tespec.cli.main import main
from tespec.core.paths import REPOSITORY
from tespec.runs import train
from tespec.runs.cost import require_memory
from tespec.training.trainer import Trainer

RUNS = REPOSITORY / "tespec" / "runs"


class FirstStep(Exception):
    """The first training step begins."""


def is_property(function):
    names = {getattr(node, "id", "") for node in function.decorator_list}
    return bool(names & {"property", "cached_property"})


def properties():
    """File and name of every property in `runs/`."""
    for path in RUNS.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef) and is_property(node):
                yield path.name, node.name


def test_design_lists_the_functions_before_the_first_step(tiny_world, tmp_path, monkeypatch):
    def first_step(trainer, *arguments):
        sys.setprofile(None)
        raise FirstStep

    monkeypatch.setattr(Trainer, "train_step", first_step)
    monkeypatch.setattr(train, "require_memory", require_memory)  # which other tests skip
    entered = set()
    folder = f"{RUNS}{os.sep}"

    def trace(frame, event, argument):
        code = frame.f_code
        if event != "call" or not code.co_filename.startswith(folder):
            return
        function = (Path(code.co_filename).name, code.co_name)
        # "<": comprehensions, lambdas and modules; the body of a class optimises no local names
        if code.co_name[0] != "<" and code.co_flags & inspect.CO_OPTIMIZED:
            entered.add(function)

    words = ["run", "--method", "scratch", "--task", "ddd17", "--profile", "smoke"]
    folders = ["--results", str(tmp_path / "results"), "--runs", str(tmp_path / "runs")]
    sys.setprofile(trace)
    try:
        with pytest.raises(FirstStep):
            main([*words, "--data", str(tiny_world / "ddd17"), "--device", "cpu", *folders])
    finally:
        sys.setprofile(None)
    page = (REPOSITORY / "docs" / "design.md").read_text()
    section = page.partition("## From the command to the first step\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `([a-z]+\.py)` \| (.+) \|$", section, re.MULTILINE)
    listed = [(file, name) for file, names in rows for name in re.findall(r"`(\w+)", names)]
    entered -= set(properties())
    assert sorted(listed) == sorted(entered)
    assert len(entered) <= 25

"""docs/design.md lists the functions of `runs/` that `tespec run` enters before the first step."""

import inspect
import os
import re
import sys
from functools import cached_property
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
        owner = type(frame.f_locals.get("self"))
        attribute = inspect.getattr_static(owner, code.co_name, None)
        # "<": comprehensions, lambdas and modules; the body of a class optimises no local names
        is_function = code.co_name[0] != "<" and code.co_flags & inspect.CO_OPTIMIZED
        if is_function and not isinstance(attribute, property | cached_property):
            entered.add((Path(code.co_filename).name, code.co_name))

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
    assert sorted(listed) == sorted(entered)
    assert len(entered) <= 25

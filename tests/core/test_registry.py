"""Registered components are found by name, and nothing else is imported or run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from guides import forgotten_afterwards

from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.pretraining.method import find_method
from tespec.registry import (
    METHODS,
    PLUGIN,
    TASKS,
    find_registered,
    import_modules,
    register_methods,
    shipped_methods,
)


@pytest.mark.parametrize("name", ["", "this.d", "mmengine.hooks.Hook"])
def test_a_name_finds_what_is_registered_and_imports_nothing(name):
    import_modules("tespec.tasks")
    assert find_registered(TASKS, "depth", "kind").__name__ == "DepthTask"
    with pytest.raises(UserError, match=r"kind: unknown task .*; choose from depth"):
        find_registered(TASKS, name, "kind")
    assert "this" not in sys.modules


# imports modules next to it
HELPED = "import pathlib, sys\nsys.path.insert(0, str(pathlib.Path(__file__).parent))\n"
UNTITLED = """
from tespec.registry import METHODS
from tespec.pretraining.method import Method

@METHODS.register_module(name="untitled")
class Untitled(Method):
    pass
"""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, r"mine\.py: not an existing .py file; check the path given to --import"),
        ("def broken(:", r"mine\.py:1: cannot be imported \(SyntaxError: "),
        ("\n\nimport nothing", r"mine\.py:3: cannot be imported \(ModuleNotFoundError: No module"),
        ("import json\njson.loads('{')", r"mine\.py:2: cannot be imported \(JSONDecodeError: "),
        (
            "from tespec.core.settings import Pretraining\nPretraining(objective=None)",
            r"mine\.py:2: cannot be imported \(ValidationError: Pretraining: dataset: Field ",
        ),
        ("def broken(:", r"\(SyntaxError: invalid syntax\); fix the file$"),
        ("\nimport sys\nsys.exit(3)", r"mine\.py:3: cannot be imported \(SystemExit: 3\); fix"),
        (
            f"{HELPED}import helper_type",
            r"helper_type\.py:1: cannot be imported \(TypeError: .* has no len",
        ),
        (
            f"{HELPED}import helper_syntax",
            r"helper_syntax\.py:2: cannot be imported \(SyntaxError: ",
        ),
        (
            UNTITLED.replace("(Method)", ""),
            "--method untitled: Untitled is no method with a title; derive it from EventMethod",
        ),
        (
            UNTITLED,
            "--method untitled: Untitled is no method with a title; .* set Untitled.row = TableRow",
        ),
        (
            UNTITLED.replace("Method\n", "EventMethod\n")
            .replace("(Method)", "(EventMethod)")
            .replace("pass", 'min_batch_size = "two"'),
            r"mine\.py:6: cannot be imported \(TypeError: Untitled.min_batch_size is 'two', not ",
        ),
        (
            UNTITLED.replace("pass", 'architectures = "recurrent"'),
            "Untitled.architectures is 'recurrent', not of type tuple",
        ),
    ],
)
def test_a_file_that_holds_no_method_is_refused(tmp_path, monkeypatch, text, message):
    if text:
        (tmp_path / "mine.py").write_text(text)
    (tmp_path / "helper_type.py").write_text("len(5)")
    (tmp_path / "helper_syntax.py").write_text("\nimport os as")
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.chdir(tmp_path)
    with forgotten_afterwards(), pytest.raises(UserError, match=message):  # noqa: PT012  # at either of the two
        register_methods([Path("mine.py")])
        find_method("untitled")


def test_all_methods_are_known_without_importing_torch():
    register_methods()
    modules = {name: kind.__module__ for name, kind in METHODS.module_dict.items()}
    shipped = [name for name, module in modules.items() if not module.startswith(PLUGIN)]
    assert sorted(shipped) == shipped_methods()
    program = (
        "import sys; from tespec.cli.main import main\n"
        "try: main(['pretrain', '--method', 'tepsec'])\n"
        "finally: print('torch' in sys.modules)"
    )
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    ended = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert ended.stdout == "False\n", ended.stderr
    assert "--method tepsec: unknown method; did you mean 'tespec'" in ended.stderr

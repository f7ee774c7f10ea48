"""Registered components are found by name, and nothing else is imported or run."""

import sys

import pytest
from guides import forgotten_afterwards

from tespec.core.errors import UserError
from tespec.pretraining.method import find_method
from tespec.registry import TASKS, find_registered, import_modules, register_methods


@pytest.mark.parametrize("name", ["", "this.d", "mmengine.hooks.Hook"])
def test_a_name_finds_what_is_registered_and_imports_nothing(name):
    import_modules("tespec.tasks")
    assert find_registered(TASKS, "depth", "kind").__name__ == "DepthTask"
    with pytest.raises(UserError, match=r"kind: unknown task .*; choose from depth"):
        find_registered(TASKS, name, "kind")
    assert "this" not in sys.modules


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
        (
            UNTITLED,
            "--method untitled: has no title for its table row; set Untitled.row = TableRow",
        ),
    ],
)
def test_a_file_that_holds_no_method_is_refused(tmp_path, text, message):
    if text:
        (tmp_path / "mine.py").write_text(text)
    with forgotten_afterwards(), pytest.raises(UserError, match=message):  # noqa: PT012  # at either of the two
        register_methods([tmp_path / "mine.py"])
        find_method("untitled")

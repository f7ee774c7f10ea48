"""Short runs of tools/fuzz.py and tools/kills.py, which search for inputs and interruptions that break the harness."""

import runpy
import warnings
from pathlib import Path

import pytest
import torch

TOOLS = Path(__file__).parents[1] / "tools"


def test_damaged_files_are_refused_in_one_line_or_read(tiny_world):
    fuzz = runpy.run_path(str(TOOLS / "fuzz.py"))
    with warnings.catch_warnings():
        found = {name: fuzz["run"](name, 0, 20, 1, tiny_world) for name in fuzz["TARGETS"]}
    assert {name: set(each) - {"refused", "accepted"} for name, each in found.items()} == {
        name: set() for name in found
    }
    assert all(each.total() == 20 for each in found.values())


@pytest.mark.slow
def test_a_run_killed_anywhere_goes_on_as_if_it_had_not_been():
    torch.set_num_threads(1)  # a process that has started threads cannot be forked safely
    counts = runpy.run_path(str(TOOLS / "kills.py"))["soak"](20, minutes=3.0, seed=0)
    assert min(counts["kills"] - 19, counts["inside a file operation"], counts["at a random moment"]) > 0

"""Short runs of tools/fuzz.py and tools/kills.py, which search for inputs and interruptions that break the harness."""

import runpy

import pytest
import torch

from tespec.core.paths import REPOSITORY

TOOLS = REPOSITORY / "tools"


def test_damaged_files_are_refused_in_one_line_or_read(tiny_world):
    fuzz = runpy.run_path(str(TOOLS / "fuzz.py"))
    for name in fuzz["TARGETS"]:
        found = fuzz["run"](name, 0, 20, 1, tiny_world)
        assert (set(found) - {"refused", "accepted"}, found.total()) == (set(), 20), name


@pytest.mark.slow
def test_a_run_killed_anywhere_goes_on_as_if_it_had_not_been():
    torch.set_num_threads(1)  # a process that has started threads cannot be forked safely
    counts = runpy.run_path(str(TOOLS / "kills.py"))["soak"](20, minutes=3.0, seed=0)
    assert min(counts["kills"] - 19, counts["inside a file operation"], counts["at a random moment"]) > 0

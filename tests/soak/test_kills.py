from __future__ import annotations

import kills
import pytest
import torch


@pytest.mark.parametrize("number", [20, pytest.param(60, marks=pytest.mark.slow)])
def test_a_run_killed_anywhere_goes_on_as_if_it_had_not_been(number: int) -> None:
    threads = torch.get_num_threads()
    # A process that has started threads cannot be forked safely.
    torch.set_num_threads(1)
    try:
        counts = kills.soak(number, minutes=3.0, seed=0)
    finally:
        torch.set_num_threads(threads)
    assert counts["kills"] >= number
    assert counts["inside a file operation"] >= number // 3  # a checkpoint is one file
    assert counts["at a random moment"] >= number // 12
    assert counts["equal to the uninterrupted run"] == counts["runs"]

from __future__ import annotations

import kills
import torch

KILLS = 60


def test_a_run_killed_anywhere_goes_on_as_if_it_had_not_been() -> None:
    threads = torch.get_num_threads()
    # A process that has started threads cannot be forked safely.
    torch.set_num_threads(1)
    try:
        counts = kills.soak(KILLS, minutes=3.0, seed=0)
    finally:
        torch.set_num_threads(threads)
    assert counts["kills"] >= KILLS
    assert counts["inside a file operation"] >= KILLS // 2
    assert counts["at a random moment"] >= 5
    assert counts["equal to the uninterrupted run"] == counts["runs"]

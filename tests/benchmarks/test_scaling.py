"""The row of scaling at a size that takes no time: that both ways agree, and what is counted; never how fast it was."""

import pytest
import torch

from benchmarks.measure.conditions import NO_GPU, Conditions
from benchmarks.measure.networks import QUICK, objective_network
from benchmarks.measure.scaling import scaling


@pytest.mark.slow
def test_two_processes_compute_what_one_computes_and_exchange_the_gradients():
    row, missing = scaling(Conditions((torch.device("cpu"),), runs=1, quick=True))
    assert (row.failed, missing.note) == (False, NO_GPU)
    assert row.ratio is not None
    network, _ = objective_network("sample", QUICK.size)
    gradients = sum(each.nbytes for each in network.parameters() if each.requires_grad)
    assert gradients < row.figures["exchanged_bytes"] < gradients + 200

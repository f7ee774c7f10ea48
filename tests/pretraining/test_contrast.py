"""Momentum teachers, and Sinkhorn assignment; `tests/published` has values of the losses."""

import pytest
import torch
from torch.nn.functional import normalize

from tespec.pretraining.contrast import momentum_copy, momentum_update, sinkhorn

SAMPLES, PROTOTYPES = 40, 12
VECTORS = normalize(
    torch.randn(SAMPLES + PROTOTYPES, 6, generator=torch.Generator().manual_seed(0)), dim=1
)
COSINES = VECTORS[:SAMPLES] @ VECTORS[SAMPLES:].T


@pytest.mark.parametrize("temperature", [0.04, 0.07, 1.0])
def test_assignments_are_those_of_the_book(temperature):
    """Alg. 1 of SwAV in float64: normalise columns to 1 / K, rows to 1 / B."""
    shares = (COSINES.double() / temperature).exp()
    shares /= shares.sum()
    for _ in range(3):  # as in SwAV (facebookresearch/swav, main_swav.py, sinkhorn_iterations)
        shares /= shares.sum(0, keepdim=True) * PROTOTYPES
        shares /= shares.sum(1, keepdim=True) * SAMPLES
    found = sinkhorn(COSINES, temperature).double()
    torch.testing.assert_close(found, SAMPLES * shares, rtol=1e-4, atol=1e-7)


def test_a_teacher_takes_over_running_statistics():
    student = torch.nn.BatchNorm1d(2)
    teacher = momentum_copy(student)
    student.running_mean.fill_(5.0)
    momentum_update(teacher, student, 0.75, 0.0)
    assert teacher.running_mean.tolist() == [5.0, 5.0]

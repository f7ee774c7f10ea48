import pytest
import torch

from tespec.pretraining.momentum import ema_update_, momentum_at, momentum_copy


def test_momentum_rises_to_one():
    assert momentum_at(0.9, 0.0) == pytest.approx(0.9)
    assert momentum_at(0.9, 0.5) == pytest.approx(0.95)
    assert momentum_at(0.9, 1.0) == pytest.approx(1.0)
    student = torch.nn.Linear(2, 2)
    teacher = momentum_copy(student)
    with torch.no_grad():
        student.weight.add_(2.0)
    ema_update_(teacher, student, 0.75)
    torch.testing.assert_close(teacher.weight, student.weight - 1.5)

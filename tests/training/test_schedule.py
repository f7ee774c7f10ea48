import dataclasses

import pytest

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.training.optimizer import SCHEDULES, learning_rate

PAPER = finetuning_settings("ddd17", "recurrent", "paper").optimisation


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_starts_and_ends_relative_to_the_peak(schedule):
    settings = dataclasses.replace(PAPER, schedule=schedule)
    assert learning_rate(settings, 0) == pytest.approx(1e-4 / 25)
    assert learning_rate(settings, settings.warmup_steps) == pytest.approx(1e-4)
    assert learning_rate(settings, settings.steps - 1) == pytest.approx(1e-4 / 1000)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_rises_during_warmup_and_falls_afterwards(schedule):
    settings = dataclasses.replace(PAPER, schedule=schedule, steps=400, warmup_steps=50)
    rates = [learning_rate(settings, step) for step in range(settings.steps)]
    assert rates[:51] == sorted(rates[:51])
    assert rates[50:] == sorted(rates[50:], reverse=True)


def test_schedules_halve_differently():
    settings = dataclasses.replace(PAPER, steps=101, warmup_steps=0)
    middle = (settings.peak_lr + settings.peak_lr / 1000) / 2
    assert learning_rate(settings, 50) == pytest.approx(middle)
    assert learning_rate(settings, 25) > learning_rate(dataclasses.replace(settings, schedule="linear"), 25)


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_runs_shorter_than_the_warmup_stay_positive(steps):
    settings = dataclasses.replace(PAPER, steps=steps, warmup_steps=250)
    assert all(0 < learning_rate(settings, step) <= settings.peak_lr for step in range(steps))


def test_unknown_schedule_is_named():
    with pytest.raises(UserError, match=r"optimisation\.schedule: unknown value 'step'"):
        learning_rate(dataclasses.replace(PAPER, schedule="step"), 0)

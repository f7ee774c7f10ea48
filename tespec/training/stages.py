"""Trainings in stages, one after the other: each has parameters, a schedule and limits of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from tespec.core.settings import Optimisation


@runtime_checkable
class Staged(Protocol):
    """A network whose parts are trained one after the other, such as a tokenizer and then what names its tokens.

    Without `begin`, as after a training, it is in its last stage.
    """

    def stages(self, whole: Optimisation) -> Sequence[Optimisation]:
        """Settings of each stage, given those of the whole training, of whose steps each stage has some.

        Of a stage's settings count learning rate, schedule, steps, warm-up, clipping, and weight decay but for what is
        exempt; the rest is that of the whole training.
        """
        ...

    def begin(self, stage: int) -> None:
        """Be in this stage from now on: the parameters that it trains require gradients, and no others."""
        ...


def stages_of(network: Any, whole: Optimisation) -> tuple[Optimisation, ...]:
    """Settings of each stage; of most networks the only one."""
    return tuple(network.stages(whole)) if isinstance(network, Staged) else (whole,)


def begin(network: Any, stage: int) -> None:
    """Let a network that has stages begin one."""
    if isinstance(network, Staged):
        network.begin(stage)


def stage_at(stages: Sequence[Optimisation], step: int) -> tuple[int, int]:
    """Number of the stage in which a step of the whole training lies, and the step's number within it."""
    number = 0
    while step >= stages[number].steps and number < len(stages) - 1:
        step -= stages[number].steps
        number += 1
    return number, step

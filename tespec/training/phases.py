"""Trainings in phases, one after the other: each has parameters, a schedule and limits of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from tespec.core.settings import Optimisation


@runtime_checkable
class Phased(Protocol):
    """A network whose parts are trained one after the other, such as a tokenizer and then what names its tokens.

    Without `begin`, as after a training, it is in its last phase.
    """

    def phases(self, whole: Optimisation) -> Sequence[Optimisation]:
        """Settings of each phase, given those of the whole training, of whose steps each phase has some.

        Of a phase's settings count learning rate, schedule, steps, warm-up, clipping, and weight decay but for what is
        exempt; the rest is that of the whole training.
        """
        ...

    def begin(self, phase: int) -> None:
        """Be in this phase from now on: the parameters that it trains require gradients, and no others."""
        ...


def phases_of(network: Any, whole: Optimisation) -> tuple[Optimisation, ...]:
    """Settings of each phase; of most networks the only one."""
    return tuple(network.phases(whole)) if isinstance(network, Phased) else (whole,)


def begin(network: Any, phase: int) -> None:
    """Let a network that has phases begin one."""
    if isinstance(network, Phased):
        network.begin(phase)


def phase_at(phases: Sequence[Optimisation], step: int) -> tuple[int, int]:
    """Number of the phase in which a step of the whole training lies, and the step's number within it."""
    number = 0
    while step >= phases[number].steps and number < len(phases) - 1:
        step -= phases[number].steps
        number += 1
    return number, step

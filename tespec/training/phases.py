"""Trainings in phases, one after the other: each has parameters, a schedule and limits of its own, as MEM's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tespec.core.settings import Optimisation


def phases_of(network: Any, settings: Optimisation) -> tuple[Optimisation, ...]:
    """Settings of each phase, by the network's `phases(settings)`; of most networks the only one.

    Of a phase's settings count learning rate, schedule, steps, warm-up, clipping, and weight decay but for what is
    exempt; the rest is that of the whole training.
    """
    return tuple(network.phases(settings)) if hasattr(network, "phases") else (settings,)


def begin(network: Any, phase: int) -> None:
    """Let a network with phases begin one: `begin(phase)` requires gradients of what the phase trains, and no other."""
    if hasattr(network, "phases"):
        network.begin(phase)


def phase_at(phases: Sequence[Optimisation], step: int) -> tuple[int, int]:
    """Number of the phase in which a step of the whole training lies, and the step's number within it."""
    number = 0
    while step >= phases[number].steps and number < len(phases) - 1:
        step -= phases[number].steps
        number += 1
    return number, step

"""Verdicts that need one of their tasks are named."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tespec.comparison.claims import Claim, Comparison, Scores, decide, findings
from tespec.comparison.robustness import verdicts_without

NOISE = {0: -1.0, 1: 1.2, 2: -0.1}
GAIN = {0: 30.0, 1: 31.0, 2: 30.5}


def needed(claim: Claim, scores: Scores):
    return list(verdicts_without(claim, decide(findings(claim, scores)), scores))


def claim(*tasks: str) -> Claim:
    return Claim("one", "tespec is better", "nowhere", (Comparison("gain", ("a",), ("b",)),), tasks)


def scores(**gains: Mapping[int, float]):
    """Of cell a the gains by task, of cell b none."""
    return lambda cell, task: gains.get(task, {}) if cell == "a" else dict.fromkeys((0, 1, 2), 0.0)


def test_a_verdict_that_one_task_carries_names_it():
    ((task, others, verdict),) = needed(claim("dsec", "mvsec"), scores(dsec=NOISE, mvsec=GAIN))
    assert (task, verdict) == ("mvsec", "undecided")
    assert others.effect == pytest.approx(sum(NOISE.values()) / 3)


def test_a_verdict_that_all_tasks_share_names_none():
    assert not needed(claim("dsec", "mvsec"), scores(dsec=GAIN, mvsec=GAIN))


def test_a_loss_that_one_task_carries_is_named_as_well():
    losses = {seed: -gain for seed, gain in GAIN.items()}
    ((task, _, verdict),) = needed(claim("dsec", "mvsec"), scores(dsec=NOISE, mvsec=losses))
    assert (task, verdict) == ("mvsec", "undecided")


def test_what_is_undecided_rests_on_no_task():
    assert not needed(claim("dsec", "mvsec"), scores(dsec=NOISE, mvsec=NOISE))


def test_a_claim_of_one_task_or_measured_on_one_names_none():
    assert not needed(claim("mvsec"), scores(mvsec=GAIN))
    assert not needed(claim("dsec", "mvsec"), scores(mvsec=GAIN))

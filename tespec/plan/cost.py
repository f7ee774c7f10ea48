"""What the trainings of a plan, and their evaluations, would take of a GPU, counted before any of them runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from tespec.comparison.identity import TEST
from tespec.plan.jobs import EVALUATION, PRETRAINING, REFERENCE, Job, recipe_settings
from tespec.plan.states import Ledger

if TYPE_CHECKING:
    from tespec.core.settings import Finetuning, Pretraining
    from tespec.runs.cost import Cost, Evaluated, Gpu

TRAINED_REFERENCE = "frame"  # the other one is counted from labels


@dataclass(frozen=True)
class Total:
    """All trainings of some jobs on one kind of GPU.

    Attributes:
        trainings: number of them.
        evaluations: number of those whose length the data set's config says.
        hours: of all these, one after the other.
        memory: bytes of the one that needs the most.
        largest: its name.
        switches: those that trainings need to fit, with the number of these trainings.
        too_large: names of trainings that do not fit whatever the switches.
    """

    trainings: int
    evaluations: int
    hours: float
    memory: int
    largest: str
    switches: dict[str, int]
    too_large: tuple[str, ...]


def total_of(jobs: Sequence[Job], ledger: Ledger, gpu: Gpu, share: float) -> Total:
    """Count the trainings among the jobs; one that serves both splits counts once."""
    from tespec.runs.cost import planned

    evaluations, hours, too_large = 0, 0.0, list[str]()
    costs: dict[str, Cost] = {}
    switches: dict[str, int] = {}
    every = set(jobs)
    for job in [each for each in jobs if _trains(each) and not ledger.only_evaluates(each, every)]:
        settings = _settings(job, ledger)
        blueprint = planned(settings, job.task)
        cost, played = blueprint.fitting(gpu), _played(job, settings, ledger)
        if cost is None:
            too_large.append(job.name)
            continue
        costs[job.name] = cost
        hours += cost.hours(gpu, share)
        if played is not None:
            hours += blueprint.evaluation_hours(played, cost.way, gpu, share)
            evaluations += 1
        if cost.way.switches:
            switches[cost.way.switches] = switches.get(cost.way.switches, 0) + 1
    largest = max(costs, key=lambda name: costs[name].memory, default="")
    memory = costs[largest].memory if costs else 0
    return Total(len(costs) + len(too_large), evaluations, hours, memory, largest, switches, tuple(too_large))


def _trains(job: Job) -> bool:
    return job.kind in (EVALUATION, PRETRAINING) or (job.kind == REFERENCE and job.method == TRAINED_REFERENCE)


def _played(job: Job, settings: Finetuning | Pretraining, ledger: Ledger) -> Evaluated | None:
    """What the evaluation of a job plays of a data set's test recordings; None where that is not known."""
    from tespec.runs.cost import known_evaluation

    if job.kind == PRETRAINING or job.split != TEST or ledger.shop.data_of(job).is_sample:
        return None
    return known_evaluation(cast("Finetuning", settings), job.task)


def _settings(job: Job, ledger: Ledger) -> Finetuning | Pretraining:
    """Settings of a job; on a sample world, which need not be made yet, with the size of its sensor."""
    from tespec.sample.recordings import content_of

    shop = ledger.shop
    settings: Finetuning | Pretraining | None
    if job.kind == PRETRAINING:
        settings = recipe_settings(job.method, shop.profile(job.task), (*shop.recipe_changes, *job.changes))
        assert settings is not None
    else:
        settings = ledger.settings(job)
    world = shop.world(job)
    if world is None or settings.sensor_px:
        return settings
    sensor = content_of(world.size, job.task).sensor
    return replace(settings, sensor_px=f"{sensor.width}x{sensor.height}")


def in_words(total: Total, gpu: Gpu, share: float, at_once: int) -> list[str]:
    """Lines that say it."""
    if not total.trainings:
        return []
    each = f", {_hours(total.hours / at_once)} h with {at_once} of them" if at_once > 1 else ""
    plural = "s" if total.evaluations > 1 else ""
    played = f" and {total.evaluations} evaluation{plural}" if total.evaluations else ""
    lines = [
        f"on {gpu.title} at {100 * share:.0f} % of its peak: {_hours(total.hours)} GPU hours for {total.trainings} "
        f"trainings{played}{each}; up to {total.memory / 1e9:.3g} GB ({total.largest})"
    ]
    lines += [f"  {count} of them fit only with {switches}" for switches, count in total.switches.items()]
    lines += [f"  {name} does not fit even with --recompute and --accumulate" for name in total.too_large]
    return lines


def _hours(hours: float) -> str:
    return "under 0.1" if 0 < hours < 0.05 else f"{hours:,.1f}"

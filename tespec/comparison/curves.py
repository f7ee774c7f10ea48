"""Learning curves: what networks without pre-training score after how many steps, and how many they need."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, variance
from typing import Any

from tespec.comparison.basis import dotted, metric
from tespec.comparison.evidence import STANDING, matching_prior, of_split, sign_of, signed, with_and_without_state
from tespec.comparison.identity import canonical
from tespec.comparison.pretrained import last_stage_ranks
from tespec.comparison.published import Scheme, scheme_of
from tespec.comparison.records import Record, code_of
from tespec.comparison.table import Cell, Column, Group, Row, Table
from tespec.core.settings import most_labels

UNTRAINED = "scratch"
SPLIT = "val"  # on which budgets are settled
GROUPS = ("", "moving", STANDING)  # "": all frames
CLEAR = 3.0  # standard errors above the floor
OF_A_CURVE = ("steps", "warmup_steps")  # what the points of a curve differ in


@dataclass(frozen=True)
class Point:
    """What networks of one number of steps score.

    Attributes:
        steps: of training.
        scores: mean over seeds, by group of frames.
        errors: standard error of each mean; None where no number of steps was trained with two seeds. The variance is
            that of all points of the curve.
        seeds: number of them.
        rank: of the last stage's features after training, the lowest over seeds; None where a record does not say it.
        sources: names of the records.
        memory: by how much standing frames (all, where data does not say which stand) score better with the state
            carried than with it zeroed at each label, and the standard error of that; None where a record does not say
            it, as those of feed-forward networks do not.
    """

    steps: int
    scores: Mapping[str, float]
    errors: Mapping[str, float | None]
    seeds: int
    rank: float | None
    sources: tuple[str, ...]
    memory: tuple[float, float | None] | None = None


@dataclass(frozen=True)
class Curve:
    """Points by rising steps of one task, architecture and peak learning rate; all other settings are the same.

    Attributes:
        task: its name.
        arch: "recurrent" or "feedforward".
        peak_lr: peak learning rate.
        clips: played at each step, one on each lane.
        labels: that reach the head at each step, at most.
        points: at least one.
        floors: of the label prior, by group of frames, where it was measured.
        scheme: of the task's metric.
        settings: in which it differs from other curves of the same task, architecture and rate, in words.
        key: equal to `settings_of_curve` of every record with its settings.
        data: fingerprint of what it was scored on.
    """

    task: str
    arch: str
    peak_lr: float
    clips: int
    labels: int
    points: tuple[Point, ...]
    floors: Mapping[str, float]
    scheme: Scheme
    settings: str = ""
    key: str = ""
    data: str = ""


def learning_curves(records: Sequence[Record], split: str = SPLIT) -> list[Curve]:
    """The curves of evaluations without pre-training, by task, architecture and rate.

    Args:
        records: any; references give the floors.
        split: of the data; records of others take no part.
    """
    chosen = of_split(records, split)
    members: dict[str, list[Record]] = defaultdict(list)
    for record in chosen:
        if (record["kind"], record["method_name"]) == ("evaluation", UNTRAINED):
            members[canonical(_shared(record))].append(record)
    curves = [_curve(each, chosen, _differences(each[0], list(members.values()))) for each in members.values()]
    return sorted(curves, key=lambda curve: (curve.task, curve.arch != "recurrent", curve.peak_lr, curve.settings))


def without_repeats(records: Sequence[Record], split: str = SPLIT) -> list[Record]:
    """Records without those that measure a curve again, by other code or on other data of that name.

    Args:
        records: any; of the settings of a curve those are kept that are newest by one version of the code, on one
            version of the data. References stay, for the floors.
        split: of the data.
    """
    measured: dict[str, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    others = []
    for record in of_split(records, split):
        if (record["kind"], record["method_name"]) == ("evaluation", UNTRAINED):
            measured[settings_of_curve(record)][canonical(_shared(record))].append(record)
        else:
            others.append(record)

    def age(members: Sequence[Record]) -> str:
        return max(record["written"] for record in members)

    return others + [record for each in measured.values() for record in max(each.values(), key=age)]


def _shared(record: Record) -> dict[str, Any]:
    """What the records of a curve have in common."""
    optimisation = record["config"]["optimisation"]
    same = {name: value for name, value in optimisation.items() if name not in OF_A_CURVE}
    names = ("task", "arch", "data", "profile", "data_fingerprint", "protocol")
    shared = {name: dict(record)[name] for name in names}
    return shared | {"code": code_of(record), "config": {**record["config"], "optimisation": same}}


def settings_of_curve(record: Record) -> str:
    """Equal for records of the same settings but for the number of steps, whatever they are scored on."""
    config = _shared(record)["config"]
    trained_on = {name: names for name, names in config.get("splits", {}).items() if name != record["split"]}
    # Deviations say in words what other settings say in numbers.
    settings = {name: value for name, value in config.items() if name != "deviations"} | {"splits": trained_on}
    return canonical([record["task"], record["profile"], settings])


def _differences(record: Record, members: Sequence[Sequence[Record]]) -> str:
    """In which settings a record's curve differs from others of its task, architecture and rate, in words."""

    def named(each: Record) -> tuple[str, str, float]:
        return each["task"], each["arch"], each["config"]["optimisation"]["peak_lr"]

    alike = [dotted(_shared(each[0])) for each in members if named(each[0]) == named(record)]
    own = dotted(_shared(record))
    names = [key for key in own if key != "deviations" and any(own[key] != each.get(key) for each in alike)]
    # Code, data and protocol are named where settings do not tell curves apart.
    settings = [key for key in names if key in dotted(_shared(record)["config"])]
    if sum(all(own[key] == each.get(key) for key in settings) for each in alike) == 1:
        names = settings
    return ", ".join(f"{key} = {own[key]}" for key in names)


def _curve(members: Sequence[Record], records: Sequence[Record], settings: str) -> Curve:
    first = members[0]
    config, scheme = first["config"], scheme_of(first["task"], members)
    main = scheme.main.name
    of_steps: dict[int, dict[int, Record]] = defaultdict(dict)
    for record in sorted(members, key=lambda record: record["written"]):
        of_steps[record["config"]["optimisation"]["steps"]][record["seed"]] = record
    scores = {
        group: {steps: [metric(run, main, group) for run in runs.values()] for steps, runs in of_steps.items()}
        for group in GROUPS
    }
    # A group that a run lacks, as data without the camera's speed does, is not shown.
    known = {
        group: {steps: [value for value in values if value is not None] for steps, values in by_steps.items()}
        for group, by_steps in scores.items()
        if all(value is not None for values in by_steps.values() for value in values)
    }
    deviations = {group: _deviation(list(by_steps.values())) for group, by_steps in known.items()}
    memory = _memory(of_steps, scheme)
    points = tuple(
        Point(
            steps,
            {group: mean(by_steps[steps]) for group, by_steps in known.items()},
            {group: None if each is None else each / math.sqrt(len(runs)) for group, each in deviations.items()},
            len(runs),
            min(last_stage_ranks(list(runs.values())), default=None),
            tuple(run["name"] for run in runs.values()),
            memory.get(steps),
        )
        for steps, runs in sorted(of_steps.items())
    )
    most = most_labels(config["segments"], config.get("labels_per_chunk"), config["window_ms"], config["protocol"])
    rate, clips = config["optimisation"]["peak_lr"], config["batch_size"]
    floors = _floors(first, records, main)
    key = settings_of_curve(first)
    task, arch, data = first["task"], first["arch"], first["data_fingerprint"]
    return Curve(task, arch, rate, clips, clips * most, points, floors, scheme, settings, key, data)


def _memory(of_steps: Mapping[int, Mapping[int, Record]], scheme: Scheme) -> dict[int, tuple[float, float | None]]:
    """What the state carried is worth, by the number of steps, where every seed says it."""
    found = {steps: with_and_without_state(list(runs.values()), scheme)[1] for steps, runs in of_steps.items()}
    # Both are scores of one network: what spreads over seeds is their difference.
    gains = {
        steps: [carried - zeroed for carried, zeroed in pairs.values()]
        for steps, pairs in found.items()
        if len(pairs) == len(of_steps[steps])
    }
    deviation = _deviation(list(gains.values()))
    return {
        steps: (mean(each), None if deviation is None else deviation / math.sqrt(len(each)))
        for steps, each in gains.items()
    }


def _deviation(samples: Sequence[Sequence[float]]) -> float | None:
    """Standard deviation within samples, pooled over them; None where none has two values."""
    several = [sample for sample in samples if len(sample) > 1]
    if not several:
        return None
    squares = sum(variance(sample) * (len(sample) - 1) for sample in several)
    return math.sqrt(squares / sum(len(sample) - 1 for sample in several))


def _floors(first: Record, records: Sequence[Record], main: str) -> dict[str, float]:
    """Scores of the label prior by group of frames."""
    prior = matching_prior(first, records)
    if prior is None:
        return {}
    return {group: value for group in GROUPS if (value := metric(prior, main, group)) is not None}


def budget(curve: Curve, floor: float | None, group: str = "") -> int | None:
    """The fewest steps from which on a curve is clear of a floor: better by more than three standard errors.

    Args:
        curve: of one architecture.
        floor: score of the label prior; None where it was not measured.
        group: of frames, "" for all.

    Returns:
        None where no number of steps is clear of it, where that cannot be known without a floor or a second seed, or
        where the longest training is at the floor again.
    """
    if floor is None:
        return None
    sign, least = sign_of(curve.scheme.main), None
    for point in reversed(curve.points):
        error = point.errors.get(group)
        if error is None or not sign * (point.scores[group] - floor) > CLEAR * error:
            break
        least = point.steps
    return least


def leading(curves: Sequence[Curve], taken: Collection[str] = ()) -> list[Curve]:
    """Of each task and architecture one curve, in their order: that with the best last score.

    Args:
        curves: any.
        taken: keys of curves that come before all others.
    """

    def worth(curve: Curve) -> tuple[bool, float]:
        return curve.key in taken, sign_of(curve.scheme.main) * curve.points[-1].scores[""]

    best: dict[tuple[str, str], Curve] = {}
    for curve in curves:
        other = best.get((curve.task, curve.arch))
        if other is None or worth(curve) > worth(other):
            best[curve.task, curve.arch] = curve
    return [curve for curve in curves if curve is best[curve.task, curve.arch]]


def why_unclear(curve: Curve, group: str) -> str:
    """Why `budget` finds no number of steps, where it finds none: "no floor", "one seed" or "never"."""
    if curve.floors.get(group) is None:
        return "no floor"
    return "one seed" if curve.points[-1].errors.get(group) is None else "never"


NOTE = (
    "Means over seeds ± standard error, with one variance for all points of a curve. It is clear of the floor, the "
    "label prior, from the number of steps on from which all of its points are better by more than three standard "
    "errors. Networks of both kinds see unequal numbers of clips and labels at a step: they are to be compared at as "
    "many labels and, beside it, at as many clips. What the state is worth: by how much standing frames (all, where "
    "data does not say which stand) score better with the state carried than with it zeroed at each label."
)
TEXTS = ("Task", "Metric", "network")


def curves_table(records: Sequence[Record], split: str = SPLIT) -> Table:
    """The learning curves as a table: a row for each number of steps."""
    curves = learning_curves(records, split)
    shown = [group for group in GROUPS if any(group in point.scores for curve in curves for point in curve.points)]
    names = [(*TEXTS, "peak rate", "steps", "clips", "labels"), *((group or "all frames",) for group in shown)]
    headers = [name for each in names for name in each] + ["what the state is worth", "seeds", "last-stage rank"]
    columns = tuple(Column((name,), name, number=name not in TEXTS) for name in headers)
    groups = tuple(Group(_heading(curve), tuple(_rows(curve, shown))) for curve in curves)
    where = f"Scored on the {'validation' if split == 'val' else split} split."
    lines = tuple(line for curve in curves for line in _lines(curve))
    return Table("Learning curves without pre-training", columns, groups, notes=(NOTE, where), lines=lines)


def _lines(curve: Curve) -> list[dict[str, Any]]:
    """A line for each point and group of frames, for the long CSV."""
    main = curve.scheme.main
    return [
        {
            "task": curve.task, "arch": curve.arch, "settings": curve.settings, "peak_lr": curve.peak_lr,
            "steps": point.steps, "clips": point.steps * curve.clips, "labels": point.steps * curve.labels,
            "metric": main.name, "unit": main.unit, "frames": group or "all",
            "value": value, "standard_error": point.errors[group], "seeds": point.seeds,
            "floor": curve.floors.get(group), "last_stage_rank": point.rank,
            "gain_of_state": point.memory and point.memory[0],
            "gain_of_state_standard_error": point.memory and point.memory[1],
            "records": " ".join(point.sources),
        }
        for point in curve.points for group, value in point.scores.items()
    ]  # fmt: skip


def _heading(curve: Curve) -> str:
    decimals, said = curve.scheme.decimals, []
    for group in GROUPS:
        if group not in curve.points[0].scores:
            continue
        frames = f"{group or 'all'} frames"
        floor, least = curve.floors.get(group), budget(curve, curve.floors.get(group), group)
        if floor is None:
            said.append(f"{frames}: floor not measured")
        else:
            lone = why_unclear(curve, group) == "one seed"
            unclear = "which one seed cannot be clear of" if lone else "not clear of it"
            cleared = f"clear of it from {least:,} steps on" if least else unclear
            said.append(f"{frames}: floor {floor:.{decimals}f}, {cleared}")
    settings = f" ({curve.settings})" if curve.settings else ""
    return (
        f"{curve.scheme.title_of(curve.task)}, {curve.arch}, peak rate {curve.peak_lr:g}{settings}. {'; '.join(said)}"
    )


def rank_cell(point: Point) -> Cell:
    """The last stage's rank at a point."""
    return Cell() if point.rank is None else Cell(f"{point.rank:.1f}", point.rank)


def memory_cell(point: Point, decimals: int) -> Cell:
    """By how much the state carried is better than the state zeroed at each label."""
    if point.memory is None:
        return Cell()
    gain, error = point.memory
    spread = "" if error is None else f" ± {error:.{decimals}f}"
    return Cell(signed(gain, decimals) + spread, gain, runs=point.seeds, sources=point.sources)


def _rows(curve: Curve, shown: Sequence[str]) -> list[Row]:
    rows, scheme = [], curve.scheme
    for point in curve.points:
        counts = (point.steps, point.steps * curve.clips, point.steps * curve.labels)
        cells = [Cell(scheme.title_of(curve.task)), Cell(scheme.main.title), Cell(curve.arch)]
        cells += [Cell(f"{curve.peak_lr:g}", curve.peak_lr), *(Cell(f"{count:,}", count) for count in counts)]
        for group in shown:
            value, error = point.scores.get(group), point.errors.get(group)
            if value is None:
                cells.append(Cell())
                continue
            text = f"{value:.{scheme.decimals}f}" + ("" if error is None else f" ± {error:.{scheme.decimals}f}")
            cells.append(Cell(text, value, runs=point.seeds, sources=point.sources))
        cells += [memory_cell(point, scheme.decimals), Cell(str(point.seeds), point.seeds), rank_cell(point)]
        rows.append(Row(tuple(cells), facts={"task": curve.task, "arch": curve.arch}))
    return rows

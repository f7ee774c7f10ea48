"""Controls of the instrument: whether a comparison of these records could see what is there, and sees nothing else.

They are decided by the rule of the claims (`tespec.comparison.contrasts`), all controls of a page as one family.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tespec.comparison.basis import Basis, bases, metric, row_key
from tespec.comparison.contrasts import (
    ARCHITECTURES,
    HOLDS,
    NOT_MEASURED,
    UNDECIDED,
    Comparison,
    Decision,
    Evidence,
    Part,
    decide,
    part_of,
)
from tespec.comparison.evidence import (
    bases_by_age,
    effect_cells,
    evidence_of,
    floor_of,
    newest_bases,
    of_split,
    probability,
    sign_of,
    with_and_without_state,
)
from tespec.comparison.pretrained import LEAST_RANK, last_stage_ranks
from tespec.comparison.published import Scheme, scheme_of
from tespec.comparison.records import Record, code_of
from tespec.comparison.statistics import fit
from tespec.comparison.table import Cell, Column, Group, Row, Table

UNTRAINED, LABELS = "scratch", "labels"
SPLIT = "val"  # on which controls are measured where nothing else is said: before any method is compared
SEEDS = 8  # that a cell needs to be split into halves
RESAMPLINGS = 20
DECIDED = 1  # of them that may tell the halves apart
GENERATOR = 20  # seed of the halves

PRETRAINING, MEMORY, NEGATIVE, FEATURES = "pretraining", "memory", "negative", "features"
TITLES = {
    PRETRAINING: "Positive for pre-training: labels of other streets against none",
    MEMORY: "Positive for memory: one network with its state carried, and zeroed at each label",
    NEGATIVE: "Negative: no pre-training against no pre-training, on two halves of the seeds",
    FEATURES: "Features: the last stage of networks without pre-training, after their training",
}
MUST = {
    PRETRAINING: "the backbone that has learned labels of other streets is better",
    MEMORY: "the state carried is better",
    NEGATIVE: f"no significant difference in at least {RESAMPLINGS - DECIDED} of {RESAMPLINGS} random splits",
    FEATURES: f"a rank above {LEAST_RANK:g} in every network",
}
FOLLOWS = {
    PRETRAINING: "Where the control of pre-training failed, these budgets did not show a pre-training at work.",
    MEMORY: "Where the memory control failed, it is not shown that recurrent networks use their state where the camera "
    "stands, and nothing is decided between them and feed-forward ones.",
    NEGATIVE: "The negative control failed: differences reported here may be false positives.",
    FEATURES: "Where the last stage's features collapsed in training, networks score by their other stages.",
}
PASSED = {True: "passed", False: "failed", None: NOT_MEASURED}


@dataclass(frozen=True)
class Control:
    """A control and what came out.

    Attributes:
        kind: "pretraining", "memory", "negative" or "features".
        task: on which it was measured; "" where nothing was.
        passed: whether it did; None where it was not measured.
        reason: of the verdict, one short sentence.
        part: the comparison, with its effect and seeds; without an effect of a negative control and of features.
        p: adjusted for all controls; None where there was no test.
        detectable: the effect that these seeds would have shown with a probability of 80 %; None without a test.
        scheme: of the task's metric; None where nothing was measured.
        sources: names of the records that it stands on.
    """

    kind: str
    task: str
    passed: bool | None
    reason: str
    part: Part
    p: float | None = None
    detectable: float | None = None
    scheme: Scheme | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class _Asked:
    """A positive control before it is decided."""

    kind: str
    task: str
    scheme: Scheme
    part: Part
    sources: tuple[str, ...] = field(default=())


def controls(records: Sequence[Record], split: str = SPLIT) -> list[Control]:
    """All controls, decided.

    Args:
        records: any; evaluations are judged, references give the floors.
        split: of the data; records of others take no part.

    Returns:
        For each task with an evaluation: pre-training by architecture, and memory; then the negative one, and features
        by task and architecture. Of a kind that no task has, one that says so.
    """
    chosen = of_split(records, split)
    asked = _positive_ones(newest_bases(chosen), chosen)
    decisions = decide([[each.part] for each in asked])
    found = [_positive(each, decision) for each, decision in zip(asked, decisions, strict=True)]
    lacking = [
        Control(kind, "", None, "no evaluation of such a network", Part(TITLES[kind]))
        for kind in (PRETRAINING, MEMORY)
        if all(each.kind != kind for each in found)
    ]
    ordered = sorted([*found, *lacking], key=lambda each: list(TITLES).index(each.kind))
    return [*ordered, _negative(chosen, [[each.part] for each in asked]), *_of_features(chosen)]


def memory_passed(records: Sequence[Record], found: Mapping[str, Basis]) -> dict[str, bool]:
    """Whether the control of memory passed, by task, in networks that were trained as those of a basis.

    Where it was measured of several such, the newest count; runs by other settings or on other data do not.

    Args:
        records: any, of all splits.
        found: the basis of each task.
    """
    chosen = of_split(records, SPLIT)
    of_task, there = newest_bases(chosen), set[str]()
    for basis in bases_by_age([record for record in chosen if record["kind"] == "evaluation"]):
        other = found.get(basis.task)
        if other is None or not _trained_alike(basis, other):
            continue
        if any(not each.part.lacking for each in _of_memory(basis.task, basis, chosen)):
            of_task[basis.task] = basis
            there.add(basis.task)
    asked = _positive_ones(of_task, chosen)
    decisions = decide([[each.part] for each in asked])
    return {
        each.task: decision.verdict == HOLDS
        for each, decision in zip(asked, decisions, strict=True)
        if each.kind == MEMORY and each.task in there
    }


def _trained_alike(basis: Basis, other: Basis) -> bool:
    """Whether recurrent networks without pre-training were trained alike on two bases, which are of two splits.

    Records of one training say so. Where no seed is on both, or a record does not say its training, the data, the
    profile and the description of the training recordings have to be the same.
    """
    one, two = _trainings(basis), _trainings(other)
    if seeds := one.keys() & two.keys():
        return all(one[seed] == two[seed] for seed in seeds)
    first, second = basis.records[0], other.records[0]
    same = all(dict(first)[name] == dict(second)[name] for name in ("data", "profile"))
    return same and first["protocol"].get("train") == second["protocol"].get("train")


def _trainings(basis: Basis) -> dict[int, str]:
    """By seed what determined the training of the network without pre-training, but for the code."""
    runs = [record for record in basis.records if row_key(record)[:2] == (UNTRAINED, "recurrent")]
    return {each["seed"]: each["training"].removesuffix(f"-{code_of(each)}") for each in runs if each["training"]}


def _positive_ones(found: Mapping[str, Basis], records: Sequence[Record]) -> list[_Asked]:
    asked: list[_Asked] = []
    for task, basis in sorted(found.items()):
        asked += _of_pretraining(task, basis, records)
        asked += _of_memory(task, basis, records)
    return asked


def _of_pretraining(task: str, basis: Basis, records: Sequence[Record]) -> list[_Asked]:
    scheme, asked = scheme_of(task, basis.records), []
    for arch in ARCHITECTURES:
        more, less = f"{LABELS}/{arch}", f"{UNTRAINED}/{arch}"
        sources = _names(basis, {(LABELS, arch), (UNTRAINED, arch)})
        if sources:
            comparison = Comparison(f"{arch} network", (more,), (less,))
            part = part_of(comparison, evidence_of(basis, records, comparison.cells))
            asked.append(_Asked(PRETRAINING, task, scheme, part, sources))
    return asked


def _names(basis: Basis, rows: set[tuple[str, str]]) -> tuple[str, ...]:
    return tuple(record["name"] for record in basis.records if row_key(record)[:2] in rows)


def _of_memory(task: str, basis: Basis, records: Sequence[Record]) -> list[_Asked]:
    runs = [record for record in basis.records if row_key(record)[:2] == (UNTRAINED, "recurrent")]
    if not runs:
        return []
    scheme = scheme_of(task, basis.records)
    group, both = with_and_without_state(runs, scheme)
    frames = f"{group} frames" if group else "all frames"
    names = "state carried", "state zeroed"
    comparison = Comparison(frames, names[:1], names[1:])
    if both:
        scores = {name: {seed: pair[place] for seed, pair in both.items()} for place, name in enumerate(names)}
        floor, sign = floor_of(basis, records, scheme, group), sign_of(scheme.main)
        part = part_of(comparison, Evidence(fit(scores), {name: name for name in names}, floor, sign, scheme.decimals))
    else:
        part = Part(frames, lacking=NOT_MEASURED, cells=("state zeroed (evaluate_without_state: true)",))
    return [_Asked(MEMORY, task, scheme, part, tuple(record["name"] for record in runs))]


def _positive(asked: _Asked, decision: Decision) -> Control:
    return Control(
        asked.kind,
        asked.task,
        None if asked.part.lacking else decision.verdict == HOLDS,
        decision.reason,
        asked.part,
        decision.p,
        decision.detectable,
        asked.scheme,
        asked.sources,
    )


def _negative(records: Sequence[Record], page: Sequence[Sequence[Part]]) -> Control:
    """The negative control on the cell without pre-training that has the most seeds, beside the questions of a page."""
    cells = [
        (basis, key, {record["seed"]: record for record in members})
        for basis in bases([record for record in records if record["kind"] == "evaluation"])
        for key, members in sorted(basis.cells().items())
        if key[0] == UNTRAINED
    ]
    basis, key, runs = max(cells, key=lambda cell: len(cell[2]), default=(None, ("", "", ""), {}))
    if basis is None or len(runs) < SEEDS:
        reason = f"no network without pre-training was trained with {SEEDS} seeds"
        return Control(NEGATIVE, "", None, reason, Part(TITLES[NEGATIVE]))
    scheme = scheme_of(basis.task, basis.records)
    gains = [
        sign_of(scheme.main) * value for run in runs.values() if (value := metric(run, scheme.main.name)) is not None
    ]
    parts = [_halves(gains, number) for number in range(RESAMPLINGS)]
    shown = Part(f"{key[1]} network", seeds=len(gains))
    sources = tuple(run["name"] for run in runs.values())
    if lacking := next((part.lacking for part in parts if part.lacking), ""):
        return Control(NEGATIVE, basis.task, None, lacking, shown, scheme=scheme, sources=sources)
    undecided = Counter(decide([*page, [part]])[-1].verdict for part in parts)[UNDECIDED]
    reason = f"undecided in {undecided} of {RESAMPLINGS}"
    passed = undecided >= RESAMPLINGS - DECIDED
    return Control(NEGATIVE, basis.task, passed, reason, shown, scheme=scheme, sources=sources)


def _of_features(records: Sequence[Record]) -> list[Control]:
    found = []
    for task, basis in sorted(newest_bases(records).items()):
        for arch in ARCHITECTURES:
            runs = [record for record in basis.records if row_key(record)[:2] == (UNTRAINED, arch)]
            if not runs:
                continue
            last = last_stage_ranks(runs)
            reason = f"ranks from {min(last):.1f} to {max(last):.1f}" if last else "not every record says the ranks"
            found.append(
                Control(
                    FEATURES,
                    task,
                    min(last) > LEAST_RANK if last else None,
                    reason,
                    Part(f"{arch} network", seeds=len(last)),
                    scheme=scheme_of(task, basis.records),
                    sources=tuple(record["name"] for record in runs),
                )
            )
    lacking = "no network without pre-training says it"
    return found or [Control(FEATURES, "", None, lacking, Part(TITLES[FEATURES]))]


def _halves(gains: Sequence[float], number: int) -> Part:
    """Resampling `number` of a cell: one half of its seeds against the other, as if they were two methods.

    There is no floor: equal methods are to be taken for equal wherever they stand.
    """
    import numpy as np

    order = np.random.default_rng([GENERATOR, number]).permutation(len(gains)).tolist()
    half = len(gains) // 2
    names = "one half", "the other half"
    scores = {
        name: {place: gains[index] for place, index in enumerate(order[first : first + half])}
        for name, first in zip(names, (0, half), strict=True)
    }
    evidence = Evidence(fit(scores), {name: name for name in names}, -math.inf)
    return part_of(Comparison("one half against the other", names[:1], names[1:]), evidence)


RULE = (
    "A control is decided like a claim of one comparison: tests are one-sided, in the task's own metric; Holm's rule "
    "corrects for all controls of the page (family-wise error 5 %), and each resampling of the negative one is decided "
    "as one more of them. Effects are positive in the control's favour; p is adjusted. Detectable: the effect that "
    "these seeds would have shown with a probability of 80 %."
)
TEXTS = ("Task", "Metric", "network or frames", "verdict", "95 % interval", "why")
COLUMNS = (*TEXTS[:4], "effect", "95 % interval", "seeds", "p", "detectable", "why")


def controls_table(records: Sequence[Record], split: str = SPLIT) -> Table:
    """The controls of records on one split of the data, as a table."""
    found = controls(records, split)
    groups = []
    for kind, title in TITLES.items():
        members = [each for each in found if each.kind == kind]
        counts = Counter(each.passed for each in members)
        said = ", ".join(f"{word} {counts[passed]}" for passed, word in PASSED.items() if counts[passed])
        groups.append(Group(f"{title}. It must show: {MUST[kind]}. {said}", tuple(map(_row, members))))
    columns = tuple(
        Column((name,), name, number=name not in TEXTS, facts={"source": "measured"} if name == "effect" else {})
        for name in COLUMNS
    )
    failed = [FOLLOWS[kind] for kind in TITLES if any(each.kind == kind and each.passed is False for each in found)]
    where = f"Measured on the {'validation' if split == 'val' else split} split."
    lines = tuple(map(_line, found))
    return Table("Controls of the comparison", columns, tuple(groups), notes=(RULE, *failed, where), lines=lines)


def _row(control: Control) -> Row:
    part, scheme, detected = control.part, control.scheme, control.detectable
    decimals = scheme.decimals if scheme else 3
    return Row(
        (
            Cell(scheme.title_of(control.task) if scheme else "-"),
            Cell(scheme.main.title if scheme else "-"),
            Cell(part.title if scheme else "-"),
            Cell(PASSED[control.passed]),
            *effect_cells(part, decimals, measured=control.passed is not None),
            Cell(str(part.seeds), part.seeds) if part.seeds else Cell(),
            Cell() if control.p is None else Cell(probability(control.p), control.p),
            Cell() if detected is None else Cell(f"{detected:.{decimals}f}", detected),
            Cell(control.reason),
        ),
        facts={"control": control.kind, "task": control.task, "verdict": PASSED[control.passed]},
    )


def _line(control: Control) -> dict[str, Any]:
    """A line of the long CSV."""
    estimate, main = control.part.estimate, control.scheme.main if control.scheme else None
    interval = None if estimate is None else estimate.interval()
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    return {
        "control": control.kind,
        "task": control.task,
        "network_or_frames": control.part.title if control.scheme else "",
        "metric": main.name if main else "",
        "unit": main.unit if main else "",
        "effect": None if estimate is None else estimate.effect,
        "low_95": low,
        "high_95": high,
        "seeds": control.part.seeds or None,
        "p": control.p,
        "detectable": control.detectable,
        "verdict": PASSED[control.passed],
        "reason": control.reason,
        "records": " ".join(control.sources),
    }

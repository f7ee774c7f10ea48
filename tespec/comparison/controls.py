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
from tespec.comparison.evidence import effect_cells, evidence_of, floor_of, newest_bases, of_split, probability, sign_of
from tespec.comparison.pretrained import LEAST_RANK, last_stage_ranks
from tespec.comparison.published import Scheme, scheme_of
from tespec.comparison.records import Record
from tespec.comparison.statistics import fit
from tespec.comparison.table import Cell, Column, Group, Row, Table
from tespec.core.scores import without_state

UNTRAINED, LABELS = "scratch", "labels"
SPLIT = "val"  # on which controls are measured where nothing else is said: before any method is compared
STANDING = "standing"
SEEDS = 8  # that a cell needs to be split into halves
RESAMPLINGS = 20
DECIDED = 1  # of them that may tell the halves apart
GENERATOR = 20  # seed of the halves

PRETRAINING, MEMORY, NEGATIVE, FEATURES = "pretraining", "memory", "negative", "features"
TITLES = {
    PRETRAINING: "Positive for pre-training: labels of other streets against none",
    MEMORY: "Positive for memory: one network with its state carried, and zeroed at each label",
    NEGATIVE: "Negative: no pre-training against no pre-training with other seeds",
    FEATURES: "Features: the last stage of networks without pre-training, after their training",
}
MUST = {
    PRETRAINING: "the backbone that has learned labels of other streets is better",
    MEMORY: "the state carried is better",
    NEGATIVE: f"undecided in at least {RESAMPLINGS - DECIDED} of {RESAMPLINGS} resamplings into two halves",
    FEATURES: f"a rank above {LEAST_RANK:g} in every network",
}
FOLLOWS = {
    PRETRAINING: "Where the control of pre-training failed, these budgets could not show a pre-training at work.",
    MEMORY: "Where the control of memory failed, recurrent networks have not learned to use it, and nothing is decided "
    "between them and feed-forward ones.",
    NEGATIVE: "The negative control failed: what these pages call a difference may be none.",
    FEATURES: "Where the last stage died in training, what a pre-training had given it was lost with it.",
}
PASSED = {True: "passed", False: "failed", None: NOT_MEASURED}


@dataclass(frozen=True)
class Control:
    """A control and what came out.

    Attributes:
        kind: "pretraining", "memory", "negative" or "features".
        task: on which it was measured; "" where nothing was.
        title: what is held against what.
        must: what it must show.
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
    title: str
    must: str
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
    asked: list[_Asked] = []
    for task, basis in sorted(newest_bases(chosen).items()):
        asked += _of_pretraining(task, basis, chosen)
        asked += _of_memory(task, basis, chosen)
    decisions = decide([[each.part] for each in asked])
    found = [_positive(each, decision) for each, decision in zip(asked, decisions, strict=True)]
    lacking = [
        Control(kind, "", TITLES[kind], MUST[kind], None, "no evaluation of such a network", Part(TITLES[kind]))
        for kind in (PRETRAINING, MEMORY)
        if all(each.kind != kind for each in found)
    ]
    ordered = sorted([*found, *lacking], key=lambda each: list(TITLES).index(each.kind))
    return [*ordered, _negative(chosen, [[each.part] for each in asked]), *_of_features(chosen)]


def memory_passed(records: Sequence[Record], found: Mapping[str, Basis]) -> dict[str, bool]:
    """Whether the control of memory passed, by task, in networks trained on the data of a basis, under its profile.

    Args:
        records: any, of all splits.
        found: the basis of each task.
    """
    named = {record["name"]: record for record in records}
    return {
        each.task: each.passed
        for each in controls(records)
        if each.kind == MEMORY
        and each.passed is not None
        and each.task in found
        and _trained_alike(named[each.sources[0]], found[each.task].records[0])
    }


def _trained_alike(record: Record, other: Record) -> bool:
    """Whether two networks learned from the same data under the same profile; splits have fingerprints of their own."""
    same = all(dict(record)[name] == dict(other)[name] for name in ("data", "profile"))
    return same and record["protocol"].get("train") == other["protocol"].get("train")


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
    sign, main = sign_of(scheme.main), scheme.main.name
    group = STANDING if any(STANDING in record["groups"] for record in runs) else ""
    frames = f"{group} frames" if group else "all frames"
    carried, zeroed = (
        {record["seed"]: sign * value for record in runs if (value := metric(record, main, name)) is not None}
        for name in (group, without_state(group))
    )
    both = carried.keys() & zeroed.keys()
    names = "state carried", "state zeroed"
    comparison = Comparison(frames, names[:1], names[1:])
    if both:
        scores = {names[0]: {seed: carried[seed] for seed in both}, names[1]: {seed: zeroed[seed] for seed in both}}
        floor = floor_of(basis, records, scheme, group)
        part = part_of(comparison, Evidence(fit(scores), {name: name for name in names}, floor, sign, scheme.decimals))
    else:
        part = Part(frames, lacking=NOT_MEASURED, cells=("state zeroed (evaluate_without_state: true)",))
    return [_Asked(MEMORY, task, scheme, part, tuple(record["name"] for record in runs))]


def _positive(asked: _Asked, decision: Decision) -> Control:
    return Control(
        asked.kind,
        asked.task,
        f"{TITLES[asked.kind]}, {asked.part.title}",
        MUST[asked.kind],
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
    title, must = TITLES[NEGATIVE], MUST[NEGATIVE]
    cells = [
        (basis, key, {record["seed"]: record for record in members})
        for basis in bases([record for record in records if record["kind"] == "evaluation"])
        for key, members in sorted(basis.cells().items())
        if key[0] == UNTRAINED
    ]
    basis, key, runs = max(cells, key=lambda cell: len(cell[2]), default=(None, ("", "", ""), {}))
    if basis is None or len(runs) < SEEDS:
        reason = f"no network without pre-training was trained with {SEEDS} seeds"
        return Control(NEGATIVE, "", title, must, None, reason, Part(title))
    scheme = scheme_of(basis.task, basis.records)
    gains = [
        sign_of(scheme.main) * value for run in runs.values() if (value := metric(run, scheme.main.name)) is not None
    ]
    parts = [_halves(gains, number) for number in range(RESAMPLINGS)]
    shown = Part(f"{key[1]} network", seeds=len(gains))
    sources = tuple(run["name"] for run in runs.values())
    if lacking := next((part.lacking for part in parts if part.lacking), ""):
        return Control(NEGATIVE, basis.task, title, must, None, lacking, shown, scheme=scheme, sources=sources)
    undecided = Counter(decide([*page, [part]])[-1].verdict for part in parts)[UNDECIDED]
    reason = f"undecided in {undecided} of {RESAMPLINGS}"
    passed = undecided >= RESAMPLINGS - DECIDED
    return Control(NEGATIVE, basis.task, title, must, passed, reason, shown, scheme=scheme, sources=sources)


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
                    f"{TITLES[FEATURES]}, {arch} network",
                    MUST[FEATURES],
                    min(last) > LEAST_RANK if last else None,
                    reason,
                    Part(f"{arch} network", seeds=len(last)),
                    scheme=scheme_of(task, basis.records),
                    sources=tuple(record["name"] for record in runs),
                )
            )
    lacking = "no network without pre-training says it"
    nothing = Control(FEATURES, "", TITLES[FEATURES], MUST[FEATURES], None, lacking, Part(TITLES[FEATURES]))
    return found or [nothing]


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

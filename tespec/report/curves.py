"""Training curves: a small chart for each method of a task, or each setting of a pre-training, with all its runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tespec.comparison.basis import bases, dotted
from tespec.comparison.records import Record
from tespec.report.breakdown import headings
from tespec.report.charts import (
    ARCHITECTURES,
    WORDS,
    Curve,
    Picture,
    bounds_of,
    line_chart,
    preference,
    title_of,
)

CHANGES = 4  # named of a run's settings


@dataclass(frozen=True)
class CurveSet:
    """Charts with the same axes and one legend: what they are of, and which architectures they show."""

    heading: str
    charts: tuple[Picture, ...]
    architectures: tuple[str, ...]


def finetuning_curves(records: Sequence[Record]) -> list[CurveSet]:
    """Training losses of the runs in the tables: a set for each task, data and profile, a chart for each method."""
    found = bases([record for record in records if record["kind"] == "evaluation"])
    sets = []
    for basis, where in zip(found, headings(found), strict=True):
        charts: dict[str, list[Record]] = {}
        for record in sorted(basis.records, key=lambda record: preference(record["method_name"])):
            charts.setdefault(record["method_name"], []).append(record)
        named = [(title_of(members[0]), members) for members in charts.values()]
        sets.append(_set(f"Fine-tuning, {where}", where, named))
    return [each for each in sets if each.charts]


def pretraining_curves(records: Sequence[Record]) -> list[CurveSet]:
    """Losses of pre-trainings: a set for each method, data and profile, a chart for each way it was set."""
    chosen = [record for record in records if record["kind"] == "pretraining"]
    changes = _changes(chosen)
    sets: dict[tuple[str, str, str], dict[str, list[Record]]] = {}
    for record in sorted(chosen, key=lambda record: (preference(record["method_name"]), record["name"])):
        key = record["method_name"], record["data"], record["profile"]
        sets.setdefault(key, {}).setdefault(changes[record["name"]], []).append(record)
    found = []
    for (_, data, profile), charts in sets.items():
        title = title_of(next(iter(charts.values()))[0])
        named = [(f"{title}{', ' * bool(change)}{change}", charts[change]) for change in sorted(charts)]
        where = f"pre-training on {'the sample world' if data == 'sample' else data}"
        found.append(_set(f"{title}, {where}, profile {profile}", where, named))
    return [each for each in found if each.charts]


def _set(heading: str, where: str, charts: Sequence[tuple[str, Sequence[Record]]]) -> CurveSet:
    shown = [(title, kept) for title, members in charts if (kept := [each for each in members if each["curve"]])]
    bounds = bounds_of([_curve(record) for _, members in shown for record in members])
    drawn = tuple(
        line_chart(f"{title}, {where}: {_runs(members)}", [*map(_curve, members)], "training step", "loss", bounds)
        for title, members in shown
    )
    used = {record["arch"] for _, members in shown for record in members}
    return CurveSet(heading, drawn, tuple(arch for arch in ARCHITECTURES if arch in used))


def _curve(record: Record) -> Curve:
    points = [(each["step"], each["loss"]) for each in record["curve"] if {"step", "loss"} <= each.keys()]
    return Curve(record["name"], points, ARCHITECTURES[record["arch"]], record["arch"] != "recurrent")


def _runs(records: Sequence[Record]) -> str:
    """Architectures and seeds of runs, in words."""
    seeds: dict[str, set[int]] = {}
    for record in records:
        seeds.setdefault(record["arch"], set()).add(record["seed"])
    return "; ".join(
        f"{WORDS[arch]}, seed{'s' * (len(seeds[arch]) > 1)} {', '.join(map(str, sorted(seeds[arch])))}"
        for arch in ARCHITECTURES
        if arch in seeds
    )


def _changes(records: Sequence[Record]) -> dict[str, str]:
    """By a record's name, the settings in which it is not as most runs of its method, architecture and profile are."""
    found: dict[str, str] = {}
    alike: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        alike.setdefault((record["method_name"], record["arch"], record["profile"]), []).append(record)
    for members in alike.values():
        settings = {record["name"]: dotted(record["config"]) for record in members}
        usual = Counter(pair for each in settings.values() for pair in each.items())
        for name, each in settings.items():
            most = {key: count for (key, _), count in reversed(usual.most_common())}
            pairs = [f"{key} = {value}" for key, value in each.items() if usual[key, value] < most[key]]
            short = [pair for pair in pairs if len(pair) <= 60]
            found[name] = ", ".join(short[:CHANGES]) + (", …" if len(short) > CHANGES else "")
    return found

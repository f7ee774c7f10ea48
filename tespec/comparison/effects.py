"""A table of what methods gain over a named baseline, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

from tespec.comparison.basis import Basis, bases, metric
from tespec.comparison.published import Named, Scheme, read_scheme
from tespec.comparison.records import Record
from tespec.comparison.statistics import Effect, Interval, paired_effect
from tespec.comparison.table import Cell, Column, Group, Row, Table
from tespec.core.errors import UserError

NOTE = (
    "Gain: mean over the seeds that both have of the paired difference, positive where the method is better. Seeds: "
    "95 % Student-t interval of it. Recordings: 95 % percentile bootstrap (10,000 resamples of recordings, not frames) "
    "of the mean gain of a recording, averaged over seeds; of few recordings it is little more than their range."
)


def effects_table(name: str, records: Sequence[Record], baseline: str) -> Table:
    """What every method gains over `baseline` with the same architecture, on the same basis.

    Args:
        name: one of `schemes`.
        records: any records.
        baseline: registered name of the method that the others are compared with.

    """
    scheme = read_scheme(name, records)
    tasks = [task.name for task in scheme.tasks]
    fitting = [record for record in records if record["kind"] == "evaluation" and record["task"] in tasks]
    measure = scheme.main
    groups = tuple(
        Group(_heading(scheme, basis), tuple(_rows(basis, baseline, scheme)))
        for task in tasks
        for basis in bases(fitting)
        if basis.task == task
    )
    columns = [Column((title,), title, number=False) for title in ("Method", "Recurrent")]
    columns += [
        Column((title,), key, number=number, facts={"metric": measure.name, "source": key} if number else {})
        for title, key, number in (
            (f"gain in {measure.title}", "gain", True),
            ("95 % over seeds", "over seeds", False),
            ("95 % over recordings", "over recordings", False),
            ("seeds", "seeds", True),
            ("recordings", "recordings", True),
        )
    ]
    kept = tuple(group for group in groups if group.rows)
    return Table(f"{scheme.title}: against {baseline}", tuple(columns), kept, notes=(NOTE,))


def require_baseline(records: Sequence[Record], baseline: str) -> None:
    """Refuse a baseline that nothing could be compared with.

    Raises:
        UserError: no evaluation of it is among the records.
    """
    there = sorted({record["method_name"] for record in records if record["kind"] == "evaluation"})
    if baseline not in there:
        raise UserError(f"--baseline {baseline}", "has no record", f"choose from {', '.join(there) or 'none yet'}")


def _heading(scheme: Scheme, basis: Basis) -> str:
    data = "the sample world" if basis.data == "sample" else basis.data
    settings = f", {basis.differs}" if basis.differs else ""
    return f"{scheme.title_of(basis.task)}, on {data}, profile {basis.profile}{settings}"


def _rows(basis: Basis, baseline: str, scheme: Scheme) -> list[Row]:
    rows = []
    cells = basis.cells()
    if not any(key[0] == baseline for key in cells):
        return []
    for (method, arch, backbone), ours in sorted(cells.items()):
        theirs = [record for key, each in cells.items() if key[:2] == (baseline, arch) for record in each]
        if method == baseline:
            continue
        found = effect_of(ours, theirs, scheme.main)
        title = " ".join(ours[0]["method"]["title"].split())
        several = len({key[2] for key in cells if key[:2] == (method, arch)}) > 1
        labels = [Cell(f"{title} ({backbone})" if several else title), Cell("Yes" if arch == "recurrent" else "No")]
        facts = {"method": method, "arch": arch, "title": title, "backbone": backbone}
        facts |= {"task": basis.task, "data": basis.data, "profile": basis.profile}
        rows.append(Row((*labels, *_cells(found, scheme.decimals)), facts=facts))
    return rows


def effect_of(ours: Sequence[Record], theirs: Sequence[Record], main: Named) -> Effect | None:
    """What some records gain over others in one metric; positive is better whichever way the metric points."""
    sign, name = -1.0 if main.better == "lower" else 1.0, main.name
    return paired_effect(
        _overall(ours, name, sign),
        _overall(theirs, name, sign),
        _of_recordings(ours, name, sign),
        _of_recordings(theirs, name, sign),
    )


def _overall(records: Sequence[Record], name: str, sign: float) -> dict[int, float]:
    numbers = {record["seed"]: metric(record, name) for record in records}
    return {seed: sign * value for seed, value in numbers.items() if value is not None}


def _of_recordings(records: Sequence[Record], name: str, sign: float) -> dict[int, dict[str, float]]:
    return {
        record["seed"]: {title: sign * each[name] for title, each in record["recordings"].items() if name in each}
        for record in records
    }


def _cells(found: Effect | None, decimals: int) -> list[Cell]:
    if found is None:
        return [Cell() for _ in range(5)]
    ends = None if found.over_seeds is None else (found.over_seeds.low, found.over_seeds.high)
    return [
        Cell(f"{found.value:+.{decimals}f}", found.value, runs=found.seeds, interval=ends),
        interval_cell(found.over_seeds, decimals),
        interval_cell(found.over_recordings, decimals),
        Cell(str(found.seeds), found.seeds),
        Cell(str(found.recordings), found.recordings),
    ]


def interval_cell(interval: Interval | None, decimals: int) -> Cell:
    """An interval as text, "-" where there is none."""
    return Cell() if interval is None else Cell(f"[{interval.low:+.{decimals}f}, {interval.high:+.{decimals}f}]")

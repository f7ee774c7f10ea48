"""Numbers of classes and of recordings, as bars."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import mean

from tespec.comparison.basis import Basis, bases
from tespec.comparison.effects import PRIMARY
from tespec.comparison.records import Record
from tespec.comparison.references import read_reference
from tespec.report.charts import bar_chart, legend
from tespec.report.curves import method_colours

RECORDINGS = 12  # shown at most


def bars(records: Sequence[Record]) -> str:
    """Two charts for each basis and architecture: means over seeds of each class, and of each recording."""
    metrics = {task.name: metric for table, metric in PRIMARY.items() for task in read_reference(table).tasks}
    evaluations = [record for record in records if record["kind"] == "evaluation" and record["task"] in metrics]
    if not evaluations:
        return ""
    colours = method_colours(evaluations)
    parts, found = [], bases(evaluations)
    for basis, where in zip(found, _headings(found), strict=True):
        for arch in ("recurrent", "feedforward"):
            parts += _of_basis(basis, f"{where}, {arch}", arch, metrics[basis.task], colours)
    titles = {record["method_name"]: str(record["method"]["title"]) for record in evaluations}
    keys = legend([(titles[name], each, False) for name, each in colours.items()])
    return f'{keys}<div class="charts">{"".join(parts)}</div>'


def _headings(found: Sequence[Basis]) -> list[str]:
    """Task and data of each basis; profiles and numbers, which are those of the tables, where they tell them apart."""
    named = [(basis.task, basis.data, basis.profile) for basis in found]
    headings = []
    for index, (task, data, profile) in enumerate(named):
        count = named.count((task, data, profile))
        number = f" ({named[:index].count((task, data, profile)) + 1})" if count > 1 else ""
        profiles = {each[2] for each in named if each[:2] == (task, data)}
        told = f", {profile}" if len(profiles) > 1 else ""
        headings.append(task + ("" if data == task else f" on {data}") + told + number)
    return headings


def _of_basis(basis: Basis, where: str, arch: str, metric: str, colours: Mapping[str, str]) -> list[str]:
    cells = {key[0]: records for key, records in sorted(basis.cells().items()) if key[1] == arch}
    if not cells:
        return []
    used = [colours[name] for name in cells]
    classes = _table(cells, lambda record: record["classes"])
    recordings = _table(
        cells, lambda record: {name: each[metric] for name, each in record["recordings"].items() if metric in each}
    )
    some = dict(list(recordings.items())[:RECORDINGS])
    cut = f", {RECORDINGS} of {len(recordings)}" if len(recordings) > RECORDINGS else ""
    charts = [(f"{where}: classes", classes), (f"{where}: {metric} of recordings{cut}", some)]
    return [bar_chart(title, values, used, _top(values)) for title, values in charts if values]


def _table(
    cells: Mapping[str, Sequence[Record]], numbers: Callable[[Record], Mapping[str, float]]
) -> dict[str, list[float | None]]:
    """Mean over seeds by label, for each method in order; None where a seed lacks it."""
    labels = dict.fromkeys(label for records in cells.values() for record in records for label in numbers(record))
    table: dict[str, list[float | None]] = {}
    for label in labels:
        row = [[numbers(record).get(label) for record in records] for records in cells.values()]
        table[label] = [mean(filter_none(each)) if None not in each else None for each in row]
    return table


def filter_none(values: Sequence[float | None]) -> list[float]:
    """The numbers among them."""
    return [value for value in values if value is not None]


def _top(values: Mapping[str, Sequence[float | None]]) -> float:
    """The longest bar's number."""
    return max((number for row in values.values() for number in filter_none(row)), default=1.0) or 1.0

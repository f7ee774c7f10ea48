"""The picture of a comparison: per task a dot for each method and architecture, with intervals, floor and reference."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.comparison.basis import Average, average, metric
from tespec.comparison.claims import newest_bases, primary, table_of
from tespec.comparison.records import Record
from tespec.comparison.references import read_reference
from tespec.comparison.references_table import of_references
from tespec.core.files import whole_file
from tespec.report.charts import COLOURS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ARCHITECTURES = ("recurrent", "feedforward")
PREFERRED = ("tespec", "ecddp", "ecdp", "moby", "imagenet", "scratch")
APART = 0.16  # of a row, between the dots of one method


def draw_reproduction(records: Sequence[Record], path: Path) -> None:
    """Draw all tasks of `records` beside each other as a PNG."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = newest_bases(records)
    tasks = [task for task in ("dsec", "ddd17", "gen1", "1mpx", "mvsec") if task in chosen]
    found = {record["method_name"] for task in tasks for record in chosen[task].records}
    methods = sorted(found, key=lambda name: (PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), name))
    titles = {
        record["method_name"]: " ".join(record["method"]["title"].split())
        for task in tasks
        for record in chosen[task].records
    }
    figure = Figure(figsize=(2.7 * len(tasks) + 1.4, 0.55 * len(methods) + 1.8), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        _draw_task(panel, task, chosen[task].records, methods, records)
    panels[0].set_yticks(range(len(methods)), [titles[name] for name in methods])
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower center", ncols=min(len(labels), len(tasks)), frameon=False, fontsize=8
    )
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=130, format="png", metadata={"Software": None})


def _draw_task(
    panel: Axes, task: str, members: Sequence[Record], methods: Sequence[str], records: Sequence[Record]
) -> None:
    name, better = primary(task)
    reference = read_reference(table_of(task))
    title = next(each.title for each in reference.tasks if each.name == task)
    unit = next(each.title for each in reference.metrics if each.name == name)
    for side, (arch, colour) in enumerate(zip(ARCHITECTURES, COLOURS, strict=False)):
        places, values, low, high = [], [], [], []
        for row, method in enumerate(methods):
            runs = [each for each in members if (each["method_name"], each["arch"]) == (method, arch)]
            each = average([metric(record, name) for record in runs])
            if each is None:
                continue
            places.append(row + (2 * side - 1) * APART)
            values.append(each.value)
            low.append(each.value - _ends(each)[0])
            high.append(_ends(each)[1] - each.value)
        label = "recurrent" if arch == "recurrent" else "feed-forward"
        panel.errorbar(values, places, xerr=[low, high], fmt="o", color=colour, capsize=2, ms=4, lw=1, label=label)
    for method, style, label in (("prior", ":", "floor: prior of the labels"), ("frame", "--", "true grey frame")):
        runs = [each for each in of_references(records) if (each["task"], each["method_name"]) == (task, method)]
        found = average([metric(record, name) for record in runs])
        if found is not None:
            panel.axvline(found.value, color="0.4", ls=style, lw=1, label=label)
    panel.set_title(title, fontsize=10)
    panel.set_xlabel(unit, fontsize=9)
    panel.tick_params(labelsize=8)
    panel.grid(axis="x", color="0.9")
    panel.set_axisbelow(True)
    if better == "lower":
        panel.invert_xaxis()


def _ends(found: Average) -> tuple[float, float]:
    """Of the 95 % interval; the value itself where there is none."""
    return (found.value, found.value) if found.interval is None else (found.interval.low, found.interval.high)

"""The figure of a comparison: all tasks side by side, a dot for each method and architecture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from tespec.comparison.basis import Average, Basis, average, metric
from tespec.comparison.evidence import newest_bases, of_split
from tespec.comparison.identity import TEST
from tespec.comparison.published import scheme_of
from tespec.comparison.records import Record
from tespec.comparison.references import of_references
from tespec.core.files import whole_file
from tespec.report.charts import ARCHITECTURES, WORDS, preference, title_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TASKS = ("dsec", "ddd17", "gen1", "1mpx", "mvsec")  # those of the paper come first
APART = 0.16  # of a row, between the dots of one method


def draw_comparison(records: Sequence[Record], path: Path) -> None:
    """Draw a PNG of all tasks beside each other: a dot for each method and architecture, intervals, floor, ceiling.

    Records of the test split are drawn.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    records = of_split(records, TEST)
    chosen = newest_bases(records)
    tasks = sorted(chosen, key=lambda task: (TASKS.index(task) if task in TASKS else len(TASKS), task))
    titles = {record["method_name"]: title_of(record) for task in tasks for record in chosen[task].records}
    methods = sorted(titles, key=preference)
    figure: Figure = Figure(figsize=(2.7 * len(tasks) + 1.8, 0.55 * len(methods) + 2.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(tasks), sharey=True, squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        _draw_task(panel, chosen[task], methods, of_references(records, chosen[task]))
    panels[0].set_yticks(range(len(methods)), [titles[name] for name in methods])
    panels[0].set_ylim(len(methods) - 0.5, -0.5)
    # Of all panels: a task may lack its floor, or networks of one kind.
    said = {label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    figure.legend(said.values(), said, loc="outside lower center", ncols=2, frameon=False, fontsize=11)
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=130, format="png", metadata={"Software": None})


def _draw_task(panel: Axes, basis: Basis, methods: Sequence[str], references: Sequence[Record]) -> None:
    members, scheme = basis.records, scheme_of(basis.task, basis.records)
    for side, (arch, colour) in enumerate(ARCHITECTURES.items()):
        places, values, low, high = [], [], [], []
        for row, method in enumerate(methods):
            runs = [each for each in members if (each["method_name"], each["arch"]) == (method, arch)]
            each = average([metric(record, scheme.main.name) for record in runs])
            if each is None:
                continue
            places.append(row + (2 * side - 1) * APART)
            values.append(each.value)
            low.append(each.value - _ends(each)[0])
            high.append(_ends(each)[1] - each.value)
        label = WORDS[arch]
        # Marks tell them apart without colours.
        panel.errorbar(
            values, places, xerr=[low, high], fmt="os"[side], color=colour, mfc=(colour, "white")[side],
            capsize=3, ms=6, lw=1.5, label=label,
        )  # fmt: skip
    for method, style, label in (("prior", ":", "floor: prior of the labels"), ("frame", "--", "true grey frame")):
        found = average([metric(each, scheme.main.name) for each in references if each["method_name"] == method])
        if found is not None:
            panel.axvline(found.value, color="0.4", ls=style, lw=1, label=label)
    panel.set_title(scheme.title_of(basis.task), fontsize=13)
    panel.set_xlabel(scheme.main.title, fontsize=12)
    panel.tick_params(labelsize=11)
    panel.grid(axis="x", color="0.9")
    panel.set_axisbelow(True)
    if scheme.main.better == "lower":
        panel.invert_xaxis()


def _ends(found: Average) -> tuple[float, float]:
    """Of the 95 % interval; the value itself where there is none."""
    return (found.value, found.value) if found.interval is None else (found.interval.low, found.interval.high)

"""The figure of learning curves: what networks without pre-training score after how much training."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tespec.comparison.curves import Curve
from tespec.pictures.panels import save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Full and hollow marks, dark and light: to be told apart in grey as well.
COLOURS = {"recurrent": "#0072b2", "feedforward": "#e69f00"}
WORDS = {"recurrent": "recurrent", "feedforward": "feed-forward"}
FRAMES = {"": ("-", "o"), "standing": ("--", "s")}  # line and mark of all frames and of some
FLOORS = {"": "-", "standing": ":"}
# Networks of both kinds see unequal numbers of clips and of labels at a step: each is compared.
AXES: dict[str, Callable[[Curve], int]] = {
    "steps": lambda curve: 1,
    "clips": lambda curve: curve.clips,
    "labels": lambda curve: curve.labels,
}


def draw_learning_curves(curves: Sequence[Curve], path: Path) -> None:
    """Write a PNG with a row for each task: scores by steps, by clips and by labels seen; bars are standard errors of
    points of several seeds.

    Args:
        curves: at least one, and one of each task and architecture.
        path: of the PNG.
    """
    tasks = list(dict.fromkeys(curve.task for curve in curves))
    figure = Figure(figsize=(4.0 * len(AXES) + 1.0, 3.2 * len(tasks) + 1.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(tasks), len(AXES), squeeze=False, sharey="row")
    for row, task in zip(panels, tasks, strict=True):
        of_task = [curve for curve in curves if curve.task == task]
        for panel, (seen, per_step) in zip(row, AXES.items(), strict=True):
            for curve in of_task:
                _draw(panel, curve, per_step(curve))
            _draw_floors(panel, of_task)
            panel.set_xscale("log")
            places = sorted({point.steps * per_step(curve) for curve in of_task for point in curve.points})
            panel.set_xticks(places, [f"{place:,}" for place in places])
            panel.minorticks_off()
            panel.set_xlabel(seen if seen == "steps" else f"{seen} seen", fontsize=12)
            panel.tick_params(labelsize=10)
            panel.grid(color="0.9")
            panel.set_axisbelow(True)
        scheme = of_task[0].scheme
        row[0].set_ylabel(f"{scheme.title_of(task)}: {scheme.main.title}", fontsize=12)
        if scheme.main.better == "lower":
            row[0].invert_yaxis()
    every = [panel.get_legend_handles_labels() for panel in panels[:, 0]]
    said = {label: handle for found in every for handle, label in zip(*found, strict=True)}
    figure.legend(said.values(), said, loc="outside lower center", ncols=3, fontsize=11, frameon=False, handlelength=3)
    save_figure(figure, path, dpi=110)


def _draw(panel: Axes, curve: Curve, per_step: int) -> None:
    for group, (line, mark) in FRAMES.items():
        points = [point for point in curve.points if group in point.scores]
        if not points:
            continue
        panel.errorbar(
            [point.steps * per_step for point in points],
            [point.scores[group] for point in points],
            yerr=[(point.errors[group] or 0.0) if point.seeds > 1 else 0.0 for point in points],
            color=COLOURS[curve.arch],
            linestyle=line,
            marker=mark,
            markersize=6,
            markerfacecolor=COLOURS[curve.arch] if curve.arch == "recurrent" else "white",
            linewidth=1.6,
            capsize=3,
            label=f"{WORDS[curve.arch]}, {group or 'all'} frames",
        )


def _draw_floors(panel: Axes, curves: Sequence[Curve]) -> None:
    for group, line in FLOORS.items():
        known = {curve.floors[group] for curve in curves if group in curve.floors}
        for number, floor in enumerate(sorted(known)):
            label = f"floor, {group or 'all'} frames" if number == 0 else None
            panel.axhline(floor, color="0.45", linestyle=line, linewidth=1, label=label)

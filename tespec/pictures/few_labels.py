"""The figure of few labels: scores by the share of labels that networks learn from."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tespec.comparison.few_labels import LabelCurve
from tespec.pictures.memory import LOOKS
from tespec.pictures.panels import save_figure

FLOOR = "floor: prior of all labels"


def draw_few_labels(curves: Sequence[LabelCurve], path: Path) -> None:
    """Write a PNG with a panel for each task and a line for each network; bars are 95 % intervals over seeds.

    Args:
        curves: at least one.
        path: of the PNG.
    """
    tasks = list(dict.fromkeys(curve.task for curve in curves))
    names = list(dict.fromkeys(_name(curve) for curve in curves))
    size = (3.7 * max(len(tasks), 2), 3.8 + 0.25 * (len(names) // 2))
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(1, len(tasks), squeeze=False)[0]
    for panel, task in zip(panels, tasks, strict=True):
        _draw(panel, [curve for curve in curves if curve.task == task], names)
    # Of all panels: a method may have been run on some tasks alone.
    said = {label: handle for panel in panels for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
    said |= {label: said.pop(label) for label in [FLOOR] if label in said}  # behind the networks
    figure.legend(said.values(), said, loc="outside lower center", ncols=2, fontsize=12, frameon=False, handlelength=3)
    save_figure(figure, path, dpi=130)


def _name(curve: LabelCurve) -> str:
    return f"{curve.title}, {curve.arch}"


def _draw(panel: Axes, curves: Sequence[LabelCurve], names: Sequence[str]) -> None:
    scheme, shares = curves[0].scheme, sorted({share for curve in curves for share in curve.points})
    for curve in curves:
        place = names.index(_name(curve))
        colour, dashes, marker = LOOKS[place % len(LOOKS)]
        found = [(share, score) for share in shares if (score := curve.score(share)) is not None]
        lengths = [0.0 if each.interval is None else each.interval.high - each.value for _, each in found]
        # Beside each other, not on one another.
        panel.errorbar(
            [share * (1 + 0.03 * place) for share, _ in found], [each.value for _, each in found], yerr=lengths,
            color=colour, linestyle=dashes, marker=marker, markersize=6, linewidth=2, capsize=3, label=_name(curve),
        )  # fmt: skip
    floor = curves[0].floor
    if floor is not None and abs(floor) < float("inf"):
        panel.axhline(floor, color="0.4", linewidth=1, linestyle=(0, (2, 2)), label=FLOOR)
    panel.set_xscale("log")
    panel.set_xticks(shares, [f"{share:.0%}" for share in shares])
    panel.minorticks_off()
    panel.set_title(f"{scheme.title_of(curves[0].task)}: {scheme.main.title}", fontsize=13)
    panel.set_xlabel("share of the labels", fontsize=12)
    panel.tick_params(labelsize=11)
    panel.grid(color="0.9")
    panel.set_axisbelow(True)
    if scheme.main.better == "lower":
        panel.invert_yaxis()

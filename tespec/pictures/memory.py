"""The figure of what memory is worth: loss against the time since the state was zeroed."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from statistics import mean, stdev

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from tespec.comparison.identity import canonical
from tespec.comparison.pretrained import GROUPS, SINCE_ZEROED, learned, relative_losses
from tespec.comparison.records import Record
from tespec.core.errors import UserError
from tespec.pictures.panels import save_figure

TITLES = {"moving": "camera moving", "standing": "camera standing", "all": "all moments"}
Look = tuple[str, str | tuple[int, tuple[int, ...]], str]
# Colours of different lightness with dashes and markers of their own, to be told apart in grey as well.
LOOKS: tuple[Look, ...] = (
    ("#000000", "-", "o"),
    ("#d55e00", "--", "s"),
    ("#56b4e9", "-.", "^"),
    ("#009e73", ":", "D"),
    ("#cc79a7", (0, (5, 1, 1, 1, 1, 1)), "v"),
    ("#e69f00", (0, (1, 1)), "P"),
)
ORDER = ("intensity, Eq. 7", "intensity, Eq. 6", "intensity, uniform decay", "histograms", "CPC")

Line = list[tuple[float, list[float]]]


def memory_figure(records: Sequence[Record], path: Path) -> None:
    """Write a PNG with a panel for moving and one for standing moments, and a line for each target or objective.

    A line is the mean over seeds of the loss, as a share of that of one who knows nothing, chunk by chunk, and its band
    the standard error, where there are two seeds or more. Other settings or data are a line of their own. Objectives
    that rebuild nothing have losses of another kind, and panels of their own below.

    Args:
        records: of any kind; pre-trainings that measured it are drawn.
        path: of the PNG.

    Raises:
        UserError: none measured it.
    """
    members = _lines(records)
    shown = [group for group in GROUPS if any(_mean_line(runs, group) for runs in members.values())]
    if not shown:
        remedy = "pre-train a recurrent network on recordings of 3 s or more"
        raise UserError("memory figure", "no record holds the loss since the state was zeroed", remedy)
    rows = _by_kind_of_loss(members)
    size = 3.7 * max(len(shown), 2), (4.3 if len(rows) == 1 else 6.4) + 0.25 * (len(members) // 2)
    figure = Figure(figsize=size, layout="constrained")
    FigureCanvasAgg(figure)
    ratios = [2, 1][: len(rows)]
    grid = figure.subplots(len(rows), len(shown), sharex=True, sharey="row", squeeze=False, height_ratios=ratios)
    looks = dict(zip(members, cycle(LOOKS)))
    for panels, (loss, names) in zip(grid, rows.items(), strict=True):
        for panel, group in zip(panels, shown, strict=True):
            _draw(panel, group, {name: members[name] for name in names}, looks)
        panels[0].set_ylabel(loss, fontsize=12)
    for panel, group in zip(grid[0], shown, strict=True):
        panel.set_title(TITLES[group], fontsize=13)
    for panel in grid[-1]:
        panel.set_xlabel("seconds since the state was zeroed", fontsize=12)
    figure.supylabel("relative to knowing nothing", fontsize=12)
    found = [panels[0].get_legend_handles_labels() for panels in grid]
    handles, labels = ([each for row in found for each in row[index]] for index in (0, 1))
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=12, frameon=False, handlelength=3.2)
    save_figure(figure, path, dpi=130)


def _by_kind_of_loss(members: dict[str, list[Record]]) -> dict[str, list[str]]:
    """Names of lines by what their loss is of: hidden patches that are rebuilt, or what an objective has of its own."""
    rows: dict[str, list[str]] = {}
    for name, runs in members.items():
        rebuilds = runs[0]["config"].get("objective", {}).get("target") is not None
        rows.setdefault("loss of hidden patches" if rebuilds else "own loss", []).append(name)
    return rows


def _lines(records: Sequence[Record]) -> dict[str, list[Record]]:
    """Records of each line, by its name."""
    groups: dict[tuple[str, str], list[Record]] = defaultdict(list)
    for record in records:
        if record["kind"] == "pretraining" and record["curves"].get(SINCE_ZEROED):
            made_of = {"config": record["config"], "fingerprint": record["data_fingerprint"]}
            groups[learned(record), canonical(made_of)].append(record)
    lines: dict[str, list[Record]] = {}
    for (name, _), members in sorted(groups.items(), key=lambda each: (_place(each[0][0]), each[0])):
        number = sum(other.split(" (")[0] == name for other in lines) + 1
        lines[name if number == 1 else f"{name} ({number})"] = members
    return lines


def _place(name: str) -> int:
    return ORDER.index(name) if name in ORDER else len(ORDER)


def _mean_line(runs: Sequence[Record], group: str) -> Line:
    """(seconds, the shares of all seeds) at the times that all of them have."""
    each = [dict(relative_losses(record, group)) for record in runs]
    return [(seconds, [run[seconds] for run in each]) for seconds in each[0] if all(seconds in run for run in each)]


def _draw(panel: Axes, group: str, members: dict[str, list[Record]], looks: dict[str, Look]) -> None:
    for name, runs in members.items():
        line = _mean_line(runs, group)
        colour, dashes, marker = looks[name]
        seconds, means = [each[0] for each in line], [mean(each[1]) for each in line]
        panel.plot(
            seconds, means, color=colour, linestyle=dashes, marker=marker, markersize=5,
            linewidth=2, label=name,
        )  # fmt: skip
        if len(runs) > 1:
            errors = [stdev(each[1]) / len(runs) ** 0.5 for each in line]
            low, high = ([place + sign * error for place, error in zip(means, errors, strict=True)] for sign in (-1, 1))
            panel.fill_between(seconds, low, high, color=colour, alpha=0.2, linewidth=0)
    panel.axhline(1.0, color="0.5", linewidth=1)
    panel.set_xlim(0, None)
    panel.tick_params(labelsize=11)
    panel.grid(color="0.9")
    panel.set_axisbelow(True)

"""Charts as SVG, drawn from numbers alone: lines over steps, and bars."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from tespec.comparison.basis import Average, Basis, average, bases, metric
from tespec.comparison.claims import newest_bases, primary, table_of
from tespec.comparison.effects import PRIMARY
from tespec.comparison.published import read_reference
from tespec.comparison.records import Record
from tespec.comparison.references_table import of_references
from tespec.core.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Distinct for colour-blind readers as well (Wong, Nature Methods 2011), then lighter ones.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#17becf", "#bcbd22")
WIDTH, HEIGHT = 360, 220  # px
LEFT, RIGHT, TOP, BOTTOM = 46, 16, 24, 30
LETTERS = 20  # of a label
TINY = 1e-12  # below it a range is no range
HUGE = 1e100  # above it a number of a curve is not drawn
DASHED = ' stroke-dasharray="4 3"'
BAR, GAP, LABEL = 11, 8, 140  # px


@dataclass(frozen=True)
class Line:
    """One curve: its name and its points (x, y) in order; dashed ones are told apart in print."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


def colour(number: int) -> str:
    """The colour of the n-th thing; repeats after ten."""
    return COLOURS[number % len(COLOURS)]


def line_chart(title: str, lines: Sequence[Line], x_title: str) -> str:
    """Curves in one frame from the lowest to the highest value, steps from 0; without any, an empty frame."""
    points = [point for line in lines for point in line.points if _drawn(point)]
    xs, ys = [x for x, _ in points] or [0.0], [y for _, y in points] or [0.0]
    x_ticks, y_ticks = ticks(min(0, *xs), max(0, *xs)), ticks(min(ys), max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + (WIDTH - LEFT - RIGHT) * _share(x, x_ticks[0], x_ticks[-1]),
            HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * _share(y, y_ticks[0], y_ticks[-1]),
        )

    parts = [f'<text class="title" x="{WIDTH / 2:.0f}" y="14">{escape(title)}</text>']
    for tick in y_ticks:
        _, y = place(0, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 4}" y="{y + 3.5:.1f}">{_number(tick)}</text>')
    for tick in x_ticks:
        x, _ = place(tick, 0)
        parts.append(f'<text class="tick" x="{x:.1f}" y="{HEIGHT - BOTTOM + 13}">{_number(tick)}</text>')
    parts.append(f'<text class="tick" x="{WIDTH / 2:.0f}" y="{HEIGHT - 3}">{escape(x_title)}</text>')
    for line in lines:
        path = " ".join("{:.1f},{:.1f}".format(*place(x, y)) for x, y in filter(_drawn, line.points))
        dash = DASHED if line.dashed else ""
        parts.append(
            f'<polyline fill="none" stroke="{line.colour}" stroke-width="1.4"{dash} points="{path}">'
            f"<title>{escape(line.name)}</title></polyline>"
        )
    return _svg(WIDTH, HEIGHT, title, parts)


def bar_chart(title: str, bars: Mapping[str, Sequence[float | None]], colours: Sequence[str], top: float) -> str:
    """Horizontal bars from zero to `top`: for each label one for each series, none where there is no number."""
    count = max((len(values) for values in bars.values()), default=1)
    row = count * BAR + GAP
    height = 26 + len(bars) * row
    parts = [f'<text class="title" x="{WIDTH / 2:.0f}" y="14">{escape(title)}</text>']
    for index, (label, values) in enumerate(bars.items()):
        y = 24 + index * row
        shown = label if len(label) <= LETTERS else label[: LETTERS - 1] + "…"
        parts.append(
            f'<text class="tick end" x="{LABEL - 6}" y="{y + count * BAR / 2 + 3.5:.1f}">'
            f"<title>{escape(label)}</title>{escape(shown)}</text>"
        )
        for number, value in enumerate(values):
            if value is None or not math.isfinite(value):
                continue
            length = (WIDTH - LABEL - 44) * min(1.0, max(0.0, value / top if top > 0 else 0.0))
            at = y + number * BAR
            parts.append(
                f'<rect x="{LABEL}" y="{at}" width="{length:.1f}" height="{BAR - 2}" fill="{colours[number]}"/>'
                f'<text class="value" x="{LABEL + length + 3:.1f}" y="{at + BAR - 3}">{_number(value)}</text>'
            )
    return _svg(WIDTH, height, title, parts)


def legend(entries: Sequence[tuple[str, str, bool]]) -> str:
    """Names beside their colours: (name, colour, dashed)."""
    items = []
    for name, each, dashed in entries:
        dash = DASHED if dashed else ""
        sample = f'<line x1="0" x2="22" y1="5" y2="5" stroke="{each}" stroke-width="4"{dash}/>'
        items.append(f'<li><svg width="22" height="10" aria-hidden="true">{sample}</svg> {escape(name)}</li>')
    return f'<ul class="legend">{"".join(items)}</ul>'


def ticks(low: float, high: float) -> list[float]:
    """Two to six round numbers, the first not above `low` and the last not below `high`."""
    if high - low <= max(TINY, 1e-9 * abs(low)):
        half = abs(low) / 2 if abs(low) > TINY else 0.5
        low, high = low - half, high + half
    step = 10.0 ** math.floor(math.log10(high - low))
    for factor in (0.2, 0.5, 1.0, 2.0, 5.0):
        first, last = math.floor(low / (step * factor)), math.ceil(high / (step * factor))
        if last - first <= 5:
            return [number * step * factor for number in range(first, last + 1)]
    return [low, high]


def _drawn(point: tuple[float, float]) -> bool:
    return all(abs(number) < HUGE for number in point)


def _share(value: float, low: float, high: float) -> float:
    return (value - low) / (high - low)


def _number(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def _svg(width: int, height: int, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}">'
        + "".join(parts)
        + "</svg>"
    )


def curves(records: Sequence[Record]) -> str:
    """Charts of all runs that have a curve; the lowest seed of each method and architecture."""
    return _finetuning(records) + _pretraining(records)


def _finetuning(records: Sequence[Record]) -> str:
    chosen = first_seeds([record for record in records if record["kind"] == "evaluation" and record["curve"]])
    if not chosen:
        return ""
    every = method_colours([record for record in records if record["kind"] == "evaluation"])
    colours = {name: every[name] for name in sorted({record["method_name"] for record in chosen})}
    charts = []
    for task, data, profile in sorted({(each["task"], each["data"], each["profile"]) for each in chosen}):
        of_task = [each for each in chosen if (each["task"], each["data"], each["profile"]) == (task, data, profile)]
        lines = [
            Line(
                f"{each['method']['title']} ({each['arch']})",
                points(each),
                colours[each["method_name"]],
                each["arch"] != "recurrent",
            )
            for each in of_task
        ]
        where = "" if data == task else f" on {data}"
        charts.append(line_chart(f"{task}{where}, {profile}: training loss", lines, "step"))
    titles = {each["method_name"]: str(each["method"]["title"]) for each in chosen}
    entries = [(titles[name], each, False) for name, each in colours.items()]
    return (
        f"<h3>Fine-tuning</h3>{legend([*entries, ('feed-forward', '#777777', True)])}"
        f'<div class="charts">{"".join(charts)}</div>'
    )


def _pretraining(records: Sequence[Record]) -> str:
    chosen = [record for record in records if record["kind"] == "pretraining" and record["curve"]]
    charts = []
    for number, record in enumerate(sorted(chosen, key=lambda record: record["name"])):
        objective = record["config"].get("objective", {})
        kind = objective.get("type", "") if isinstance(objective, dict) else str(objective)
        target = objective.get("target") if isinstance(objective, dict) else None
        kind += f" ({target['kind']})" if isinstance(target, dict) and "kind" in target else ""
        title = f"{record['method_name']}, {record['arch']}, seed {record['seed']}: {kind}"
        charts.append(line_chart(title, [Line(record["name"], points(record), colour(number))], "step"))
    return f'<h3>Pre-training</h3><div class="charts">{"".join(charts)}</div>' if charts else ""


def points(record: Record) -> list[tuple[float, float]]:
    """(step, loss) of a record's curve."""
    return [(each["step"], each["loss"]) for each in record["curve"] if {"step", "loss"} <= each.keys()]


def first_seeds(records: Sequence[Record]) -> list[Record]:
    """The lowest seed of each method, task, architecture, data and profile; the newest where there are several."""
    found: dict[tuple[str, ...], Record] = {}
    for record in sorted(records, key=lambda record: (-record["seed"], record["written"])):
        key = (record["method_name"], record["task"], record["arch"], record["data"], record["profile"])
        found[key] = record
    return sorted(found.values(), key=lambda record: record["name"])


def method_colours(records: Sequence[Record]) -> dict[str, str]:
    """A colour for each method, the same in all charts."""
    names = sorted({record["method_name"] for record in records})
    return {name: colour(number) for number, name in enumerate(names)}


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

"""Charts from records, drawn by matplotlib: the same records give the same bytes with the same matplotlib."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING

from tespec.comparison.basis import Average, Basis, average, bases, flat, metric
from tespec.comparison.published import scheme_of
from tespec.comparison.records import Record
from tespec.comparison.references import of_references
from tespec.comparison.shown import newest_bases
from tespec.core.errors import one_line
from tespec.core.files import whole_file

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Distinct for colour-blind readers as well (Wong, Nature Methods 2011), then lighter ones.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f", "#8c564b", "#17becf", "#bcbd22")
STYLE = {
    "svg.fonttype": "none",  # text stays text
    "svg.hashsalt": "tespec",  # names of elements are the same each time
    "text.parse_math": False,  # a name with two $ is no formula
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}
DPI = 96
WIDTH = 4.4  # inches
RECORDINGS = 12  # shown at most
LETTERS = 24  # of a label
HUGE = 1e100  # above it a number is not drawn
CHANGES = 4  # named of a run's settings
ARCHITECTURES = ("recurrent", "feedforward")
WORDS = {"recurrent": "recurrent", "feedforward": "feed-forward"}
PREFERRED = ("tespec", "ecddp", "ecdp", "moby", "imagenet", "scratch")
TASKS = ("dsec", "ddd17", "gen1", "1mpx", "mvsec")  # those of the paper come first
APART = 0.16  # of a row, between the dots of one method


@dataclass(frozen=True)
class Picture:
    """A picture inside the page: its title, its bytes as a `data:` address, and its size in px."""

    title: str
    source: str
    width: int
    height: int
    chart: bool = False


@dataclass(frozen=True)
class Curve:
    """One curve: its name and its points (x, y) in order; dashed ones are told apart in print."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str
    dashed: bool = False


def line_chart(title: str, curves: Sequence[Curve], x_title: str, y_title: str) -> Picture:
    """Curves in one frame; points beyond all bounds are left out."""

    def draw(panel: Axes) -> None:
        for curve in curves:
            points = [point for point in curve.points if all(abs(number) < HUGE for number in point)]
            style = "--" if curve.dashed else "-"
            panel.plot([x for x, _ in points], [y for _, y in points], style, color=curve.colour, lw=1.2)
        panel.set(xlabel=x_title, ylabel=y_title)
        panel.grid(color="0.9")

    names = [(curve.name, curve.colour, curve.dashed) for curve in curves] if len(curves) > 1 else []
    return _chart(title, draw, 2.4, names)


def bar_chart(
    title: str, bars: Mapping[str, Sequence[float | None]], series: Sequence[tuple[str, str]], x_title: str
) -> Picture:
    """Horizontal bars from zero: for each label one for each series (name, colour), none where there is no number."""
    count = max(len(series), 1)
    thick = 0.8 / count

    def draw(panel: Axes) -> None:
        for number, (_, colour) in enumerate(series):
            values = [row[number] for row in bars.values()]
            there = [(index, value) for index, value in enumerate(values) if value is not None and abs(value) < HUGE]
            places = [index + (number - (count - 1) / 2) * thick for index, _ in there]
            drawn = panel.barh(places, [value for _, value in there], thick * 0.9, color=colour)
            panel.bar_label(drawn, fmt="%.3g", fontsize=6.5, padding=2)
        panel.set_yticks(range(len(bars)), [_label(name) for name in bars])
        panel.set_ylim(len(bars) - 0.5, -0.5)
        panel.set_xlabel(x_title)
        panel.margins(x=0.1)

    return _chart(title, draw, 0.5 + len(bars) * (0.12 * count + 0.08), [(*each, False) for each in series])


def _chart(
    title: str, draw: Callable[[Axes], None], height: float, legend: Sequence[tuple[str, str, bool]] = ()
) -> Picture:
    """What is drawn on one panel, `height` inches high, above its legend of names, colours and dashes."""
    import matplotlib.style
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    lines = (len(legend) + 1) // 2
    with matplotlib.style.context(["default", STYLE]):
        figure = Figure(figsize=(WIDTH, height + 0.17 * lines + 0.1 * bool(lines)), layout="constrained")
        FigureCanvasSVG(figure)
        draw(figure.subplots())
        if legend:
            keys = [Line2D([], [], color=colour, lw=3, ls="--" if dashed else "-") for _, colour, dashed in legend]
            names = [_label(name, 2 * LETTERS) for name, _, _ in legend]
            figure.legend(keys, names, loc="outside lower left", ncols=2, frameon=False, fontsize=7.5)
        data = io.BytesIO()
        figure.savefig(data, format="svg", metadata={"Date": None, "Creator": None})
        width, tall = (round(inches * DPI) for inches in figure.get_size_inches())
    source = f"data:image/svg+xml;base64,{base64.b64encode(data.getvalue()).decode()}"
    return Picture(title, source, width, tall, chart=True)


def _label(name: str, letters: int = LETTERS) -> str:
    shown = one_line(name)
    shown = shown if len(shown) <= letters else f"{shown[: letters - 1]}…"
    # Matplotlib leaves names that begin so out of legends.
    return f" {shown}" if shown.startswith("_") else shown


def method_colours(records: Iterable[Record]) -> dict[str, str]:
    """A colour for each method, the same in all charts; they repeat after ten."""
    names = sorted({record["method_name"] for record in records})
    return {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(names)}


def title_of(record: Record) -> str:
    """A method's title on one line."""
    return " ".join(str(record["method"]["title"]).split())


def first_seeds(records: Sequence[Record]) -> list[Record]:
    """The lowest seed of each method, task, architecture, data and profile; the newest where there are several."""
    found: dict[tuple[str, ...], Record] = {}
    for record in sorted(records, key=lambda record: (-record["seed"], record["written"])):
        key = (record["method_name"], record["task"], record["arch"], record["data"], record["profile"])
        found[key] = record
    return sorted(found.values(), key=lambda record: record["name"])


def finetuning_curves(records: Sequence[Record]) -> list[Picture]:
    """Training losses of evaluations, a chart for each task, data and profile: the first seed of each method."""
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    colours = method_colours(evaluations)
    chosen: dict[tuple[str, str, str], list[Record]] = {}
    for each in first_seeds([record for record in evaluations if record["curve"]]):
        chosen.setdefault((each["task"], each["data"], each["profile"]), []).append(each)
    charts = []
    for (task, data, profile), members in sorted(chosen.items()):
        curves = [
            Curve(
                f"{title_of(each)}, {WORDS[each['arch']]}",
                _points(each),
                colours[each["method_name"]],
                each["arch"] != "recurrent",
            )
            for each in members
        ]
        where = "" if data == task else f" on {data}"
        charts.append(line_chart(f"{task}{where}, {profile}: training loss", curves, "step", "loss"))
    return charts


def pretraining_curves(records: Sequence[Record]) -> list[Picture]:
    """The loss of each pre-training, under a title that no other one has."""
    chosen = [record for record in records if record["kind"] == "pretraining" and record["curve"]]
    changes = _changes(chosen)
    charts = []
    for record in sorted(chosen, key=lambda record: record["name"]):
        title = f"{title_of(record)}, {WORDS[record['arch']]}, on {record['data']}, {record['profile']}"
        title += f", seed {record['seed']}" + (f": {changes[record['name']]}" if changes[record["name"]] else "")
        charts.append((title, record))
    count = Counter(title for title, _ in charts)
    return [
        line_chart(
            title if count[title] == 1 else f"{title} ({record['id']})",
            [Curve(title, _points(record), COLOURS[0])],
            "step",
            "loss",
        )
        for title, record in charts
    ]


def _changes(records: Sequence[Record]) -> dict[str, str]:
    """By a record's name, the settings in which it is not as most runs of its method, architecture and profile are."""
    found: dict[str, str] = {}
    alike: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        alike.setdefault((record["method_name"], record["arch"], record["profile"]), []).append(record)
    for members in alike.values():
        settings = {record["name"]: flat(record["config"]) for record in members}
        usual = Counter(pair for each in settings.values() for pair in each.items())
        for name, each in settings.items():
            most = {key: count for (key, _), count in reversed(usual.most_common())}
            pairs = [f"{key} = {value}" for key, value in each.items() if usual[key, value] < most[key]]
            short = [pair for pair in pairs if len(pair) <= 60]
            found[name] = ", ".join(short[:CHANGES]) + (", …" if len(short) > CHANGES else "")
    return found


def _points(record: Record) -> list[tuple[float, float]]:
    return [(each["step"], each["loss"]) for each in record["curve"] if {"step", "loss"} <= each.keys()]


def class_and_recording_bars(records: Sequence[Record]) -> list[Picture]:
    """Two charts for each basis and architecture: means over seeds of each class, and of each recording."""
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    colours, found = method_colours(evaluations), bases(evaluations)
    charts = []
    for basis, where in zip(found, _headings(found), strict=True):
        scheme = scheme_of(basis.task, evaluations)
        for arch in ARCHITECTURES:
            cells = {key[0]: members for key, members in sorted(basis.cells().items()) if key[1] == arch}
            series = [(title_of(members[0]), colours[name]) for name, members in cells.items()]
            classes = _means(cells, lambda record: record["classes"])
            recordings = _means(cells, partial(_of_recordings, name=scheme.main.name))
            some = dict(list(recordings.items())[:RECORDINGS])
            cut = f", {RECORDINGS} of {len(recordings)}" if len(recordings) > RECORDINGS else ""
            heading = f"{where}, {WORDS[arch]}"
            for title, values in ((f"{heading}: classes", classes), (f"{heading}: recordings{cut}", some)):
                charts += [bar_chart(title, values, series, scheme.main.title)] if values else []
    return charts


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


def _of_recordings(record: Record, name: str) -> dict[str, float]:
    return {title: each[name] for title, each in record["recordings"].items() if name in each}


def _means(
    cells: Mapping[str, Sequence[Record]], numbers: Callable[[Record], Mapping[str, float]]
) -> dict[str, list[float | None]]:
    """Mean over seeds by label, for each method in order; None where a seed lacks it."""
    labels = dict.fromkeys(label for members in cells.values() for record in members for label in numbers(record))
    table: dict[str, list[float | None]] = {}
    for label in labels:
        rows = [[numbers(record).get(label) for record in members] for members in cells.values()]
        table[label] = [mean(each) if None not in each else None for each in rows]  # type: ignore[type-var]
    return table


def draw_reproduction(records: Sequence[Record], path: Path) -> None:
    """Draw a PNG of all tasks beside each other: a dot for each method and architecture, intervals, floor, ceiling."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    chosen = newest_bases(records)
    tasks = sorted(chosen, key=lambda task: (TASKS.index(task) if task in TASKS else len(TASKS), task))
    titles = {record["method_name"]: title_of(record) for task in tasks for record in chosen[task].records}
    methods = sorted(titles, key=lambda name: (PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), name))
    figure: Figure = Figure(figsize=(2.7 * len(tasks) + 1.4, 0.55 * len(methods) + 1.8), layout="constrained")
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
    scheme = scheme_of(task, records)
    for side, (arch, colour) in enumerate(zip(ARCHITECTURES, COLOURS, strict=False)):
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
        panel.errorbar(values, places, xerr=[low, high], fmt="o", color=colour, capsize=2, ms=4, lw=1, label=label)
    for method, style, label in (("prior", ":", "floor: prior of the labels"), ("frame", "--", "true grey frame")):
        runs = [each for each in of_references(records) if (each["task"], each["method_name"]) == (task, method)]
        found = average([metric(record, scheme.main.name) for record in runs])
        if found is not None:
            panel.axvline(found.value, color="0.4", ls=style, lw=1, label=label)
    panel.set_title(scheme.title_of(task), fontsize=10)
    panel.set_xlabel(scheme.main.title, fontsize=9)
    panel.tick_params(labelsize=8)
    panel.grid(axis="x", color="0.9")
    panel.set_axisbelow(True)
    if scheme.main.better == "lower":
        panel.invert_xaxis()


def _ends(found: Average) -> tuple[float, float]:
    """Of the 95 % interval; the value itself where there is none."""
    return (found.value, found.value) if found.interval is None else (found.interval.low, found.interval.high)

"""Report as a single HTML file: summary of the runs, tables, score figures and pictures of reconstructions."""

import base64
import io
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from matplotlib import rc_context
from matplotlib.figure import Figure
from PIL import Image

from tespec.comparison.export import to_html
from tespec.comparison.frame import ROW, SETTING, machine, select, to_frame
from tespec.comparison.records import Record, read_records
from tespec.comparison.statistics import paired_gain, scores_by_pretraining, spread_of
from tespec.comparison.tables import make_tables
from tespec.core.errors import UserError
from tespec.core.files import write_all

ARCHITECTURES: dict[Any, str] = {"recurrent": "recurrent", "feedforward": "feed-forward"}
# Okabe and Ito's colours, which colour-blind readers can distinguish
MARKERS: tuple[dict[str, Any], ...] = (
    {"marker": "o", "color": "#0072b2"},
    {"marker": "s", "color": "#d55e00", "mfc": "none"},
)
APART = 0.14  # offset of a point from the centre of its row, in rows
WIDTH = 4.6  # inches: text stays readable on a phone
LOOK: dict[Any, Any] = {
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.axisbelow": True,
    "path.simplify_threshold": 0.5,
    "text.parse_math": False,  # names may hold "$"
    "svg.fonttype": "none",  # text stays text, in the reader's font
    "svg.hashsalt": "tespec",  # the same figure gives the same bytes
}
# Scores that share all of these are drawn in one figure.
FIGURE = ["task", "data", "data_fingerprint", "profile", "split", "results_version", "task_version"]
MOST = 8  # reconstructions at most, to keep the page small
WIDEST = 1000  # px, maximum width of a picture
QUALITY = 75  # WebP quality


class Picture(NamedTuple):
    """Image on the page: title, source (a data URI), and a line below it."""

    title: str
    source: str
    note: str = ""


def write_report(results: Path, out: Path) -> tuple[int, list[str]]:
    """Write the report of a results folder to `out`, a page without external resources or scripts.

    Pictures of reconstructions are in `results/pictures/<record name>.png`. Returns the number of
    records, and one line for each file that is not a record.
    """
    records, problems = read_records(results)
    if not records:
        what = "; ".join(["holds no records", *problems])
        raise UserError(f"--results {results}", what, "give the --results folder of your runs")
    frame = to_frame(records)
    # then published and measured numbers are not comparable
    is_sample = bool((frame.data == "sample").all())
    left_out = [*problems]
    try:
        tables = [
            (table.title, Markup(to_html(table)))
            for table in make_tables(frame, measured=is_sample)
        ]
    except UserError as error:  # for instance only pre-trainings, or no results on the test split
        tables = []
        left_out.append(str(error))
    figures = {"Reconstructions": reconstructions(frame, results / "pictures", left_out)}
    environment = Environment(
        loader=PackageLoader("tespec.report", ""), autoescape=True, undefined=StrictUndefined
    )
    shown = {
        "facts": facts(records),
        "left_out": left_out,
        "is_sample": is_sample,
        "tables": tables,
    }
    page = environment.get_template("report.html").render(
        shown, figures={"Scores": score_figures(frame)} | figures
    )
    write_all({out: page})
    return len(records), problems


def facts(records: Sequence[Record]) -> dict[str, str]:
    """Summarise the runs: kinds, data, seeds, versions and machines, each with its number of records."""
    made = [record.environment for record in records]
    packages = [{**each.get("packages", {}), "python": each.get("python")} for each in made]
    names = dict.fromkeys(name for each in packages for name in each)
    versions = {name: counted(each.get(name) for each in packages) for name in names}
    written = sorted(record.written for record in records)
    return {
        "records": counted(record.kind for record in records),
        "data": counted(
            f"{record.data}, {record.profile} profile, {record.split} split" for record in records
        ),
        "seeds": counted(record.seed for record in records),
        "written": f"{written[0]:%Y-%m-%d} to {written[-1]:%Y-%m-%d}",
        "results version": counted(record.results_version for record in records),
        "tespec": counted(
            f"{each.get('tespec', '')} at {str(each.get('revision', ''))[:10]}"
            + (" with uncommitted changes" if each.get("modified") else "")
            for each in made
        ),
        "packages": "; ".join(f"{name} {version}" for name, version in versions.items() if version),
        "machines": counted(machine(record) for record in records),
    }


def counted(values: Iterable[object]) -> str:
    """List all values, most frequent first, with their counts if there are multiple values."""
    found = Counter(str(value) for value in values if value not in ("", None)).most_common()
    return "; ".join(f"{value} ({count})" if len(found) > 1 else value for value, count in found)


def reconstructions(frame: pd.DataFrame, folder: Path, left_out: list[str]) -> list[Picture]:
    """Load the picture of the first seed of each pre-training as downscaled WebP, at most `MOST`.

    `left_out` is extended by one line per unreadable picture.
    """
    shown = with_labels(frame[frame.kind == "pretraining"]).sort_values(
        ["variant", "label", "seed"]
    )
    shown = shown[[(folder / f"{name}.png").is_file() for name in shown.name]]
    shown = shown.drop_duplicates(["task", "data", "profile", "label", "arch"])
    found = []
    for row in shown.head(MOST).itertuples():
        file = io.BytesIO()
        try:
            with Image.open(folder / f"{row.name}.png", formats=("PNG",)) as opened:
                picture = opened.convert("RGBA").convert("RGB")  # a palette may hold transparency
            picture.thumbnail((WIDEST, 16_000))
            picture.save(file, "WEBP", quality=QUALITY)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            left_out.append(f"{row.name}.png: cannot be read ({type(error).__name__})")
            continue
        title = f"{row.task}: {row.label}, {ARCHITECTURES[row.arch]}, seed {row.seed}"
        found.append(Picture(title, _data_uri("webp", file.getvalue())))
    return found


def with_labels(frame: pd.DataFrame) -> pd.DataFrame:
    """Add a column `label` to the frame: the method's title and backbone, its variant and its changed settings."""
    title = frame.title.where(frame.title != "", frame.method)
    shared = frame.groupby(title)["method"].transform("nunique") > 1
    title = title.mask(shared, title + " (" + frame.method + ")")
    parts = zip(
        title,
        frame.backbone,
        frame.variant,
        frame.overrides,
        frame.pretraining_overrides,
        strict=True,
    )
    return frame.assign(label=[", ".join(filter(None, texts)) for texts in parts])


def score_points(frame: pd.DataFrame) -> pd.DataFrame:
    """Compute mean main scores with 95 % Student-t intervals that account for pre-trainings (`paired_gain`).

    Returns:
        One row per label prior, and per row of a table and changed settings in each `FIGURE`, as
        the tables select them (`select`). Columns: `FIGURE`, `ROW`, `SETTING`, label, metric_title,
        unit, better, mean (NaN if a score is not finite), low, high (NaN also for one seed or a
        missing run) and n, the number of seeds.
    """
    shown, _ = select(
        frame, {}, free=("split", "overrides", "pretraining_overrides", "results_version")
    )
    shown = with_labels(
        shown[shown.main & ((shown.kind == "evaluation") | (shown.method == "prior"))]
    )
    keys = [*dict.fromkeys([*FIGURE, *ROW, *SETTING]), "label", "metric_title", "unit", "better"]
    groups = dict(list(shown.groupby(keys)))
    cells = {key: scores_by_pretraining(runs) for key, runs in groups.items()}
    rows = []
    for key, cell in cells.items():
        place, pretrainings = key[: len(FIGURE)], cell.shape[1]
        spread = spread_of(each for other, each in cells.items() if other[: len(FIGURE)] == place)
        found = paired_gain(
            cell.mean(axis=1, skipna=False).tolist(), spread, (pretrainings > 1) / pretrainings
        )
        rows.append([*key, groups[key].value.mean(skipna=False), found.low, found.high, len(cell)])
    return pd.DataFrame(rows, columns=[*keys, "mean", "low", "high", "n"])


def score_figures(frame: pd.DataFrame) -> list[Picture]:
    """Draw a figure per task and setting, with a point and interval per method and architecture, best on top."""
    points = score_points(frame)
    figures = []
    for place, shown in points[points.kind == "evaluation"].groupby(FIGURE):
        prior = points[(points.kind == "reference") & (points[FIGURE] == list(place)).all(axis=1)]
        task, data, fingerprint, profile, split, version, task_version = place
        seeds = " to ".join(f"{count}" for count in sorted({shown.n.min(), shown.n.max()}))
        note = f"Mean and 95 % t interval over {seeds} fine-tuning seeds. Data {fingerprint}, results version {version}"
        note += f", task version {task_version}."
        figures.append(
            Picture(
                f"{task}: data {data}, profile {profile}, {split} split",
                _scores(shown, prior),
                note,
            )
        )
    return figures


def _scores(points: pd.DataFrame, prior: pd.DataFrame) -> str:
    metric, unit, better = points.iloc[0][["metric_title", "unit", "better"]]
    best = points.groupby("label")["mean"].agg("min" if better == "lower" else "max")
    order = best.sort_values(ascending=better == "lower").index.tolist()
    with rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, 1.3 + 0.36 * len(order)), layout="constrained")
        panel = figure.subplots()
        for arch, side, style in zip(ARCHITECTURES, (-APART, APART), MARKERS, strict=True):
            each = points[points.arch == arch]
            if len(each):
                places = [order.index(label) + side for label in each.label]
                margins = (each.high - each["mean"]).fillna(0)
                title = ARCHITECTURES[arch]
                panel.errorbar(
                    each["mean"], places, xerr=margins, capsize=3, ms=5, ls="", label=title, **style
                )
                for place in np.array(places)[each["mean"].isna()]:
                    where = panel.get_yaxis_transform()
                    panel.text(
                        0.5, place, "not finite", va="center", color=style["color"], transform=where
                    )
        for value in prior["mean"]:
            panel.axvline(value, color="black", ls=":", lw=1, label="label prior")
        panel.set_yticks(range(len(order)), [fill(label, 24) for label in order])
        panel.set_ylim(len(order) - 0.5, -0.5)
        name = metric.rstrip(" ↑↓")
        panel.set_xlabel(
            f"{name}{f' ({unit})' if unit else ''}{f', {better} is better' if better else ''}"
        )
        panel.grid(axis="x", alpha=0.25)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        file = io.BytesIO()
        figure.savefig(
            file, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
        return _data_uri("svg+xml", file.getvalue())


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

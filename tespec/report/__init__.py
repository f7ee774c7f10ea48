"""Report as a single HTML file: summary of the runs, tables, scores and reconstructions."""

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
    """Write the report of a results folder, a page without external resources or scripts.

    Args:
        results: results folder; `pictures/<record name>.png` in it are the reconstructions.
        out: path of the page.

    Returns:
        Number of records, and one line for each file that is not a record.

    Raises:
        UserError: the folder holds no records, or is not a results folder.
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
    page = environment.get_template("report.html").render(
        facts=facts(records),
        left_out=left_out,
        is_sample=is_sample,
        tables=tables,
        figures={"Scores": score_figures(frame)} | figures,
    )
    write_all({out: page})
    return len(records), problems


def facts(records: Sequence[Record]) -> dict[str, str]:
    """Summarise kinds, data, seeds, versions and machines of runs, with numbers of records."""
    environments = [record.environment for record in records]
    packages = [{**env.get("packages", {}), "python": env.get("python")} for env in environments]
    names = dict.fromkeys(name for installed in packages for name in installed)
    versions = {name: counted(installed.get(name) for installed in packages) for name in names}
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
            f"{env.get('tespec', '')} at {str(env.get('revision', ''))[:10]}"
            + (" with uncommitted changes" if env.get("modified") else "")
            for env in environments
        ),
        "packages": "; ".join(f"{name} {version}" for name, version in versions.items() if version),
        "machines": counted(machine(record) for record in records),
    }


def counted(values: Iterable[object]) -> str:
    """List all values, most frequent first, with their counts if they differ.

    >>> counted(["cpu", "gpu", "gpu", ""])
    'gpu (2); cpu (1)'
    """
    counts = Counter(str(value) for value in values if value not in ("", None)).most_common()
    return "; ".join(f"{value} ({count})" if len(counts) > 1 else value for value, count in counts)


def reconstructions(frame: pd.DataFrame, folder: Path, left_out: list[str]) -> list[Picture]:
    """Load the picture of the first seed of each pre-training as downscaled WebP, at most `MOST`.

    Args:
        frame: DataFrame from `tespec.results`.
        folder: holds `<record name>.png`.
        left_out: is extended by one line per unreadable picture.
    """
    runs = with_labels(frame[frame.kind == "pretraining"]).sort_values(["variant", "label", "seed"])
    runs = runs[[(folder / f"{name}.png").is_file() for name in runs.name]]
    runs = runs.drop_duplicates(["task", "data", "profile", "label", "arch"])
    pictures = []
    for row in runs.head(MOST).itertuples():
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
        pictures.append(Picture(title, _data_uri("webp", file.getvalue())))
    return pictures


def with_labels(frame: pd.DataFrame) -> pd.DataFrame:
    """Add a column `label`: the method's title and backbone, variant and changed settings."""
    title = frame.title.where(frame.title != "", frame.method)
    shared = frame.groupby(title)["method"].transform("nunique") > 1
    columns = frame[["title", "backbone", "variant", "overrides", "pretraining_overrides"]]
    columns = columns.assign(title=title.mask(shared, title + " (" + frame.method + ")"))
    return frame.assign(label=[", ".join(filter(None, texts)) for texts in columns.to_numpy()])


def score_points(frame: pd.DataFrame) -> pd.DataFrame:
    """Compute mean main scores with 95 % Student-t intervals, as `paired_gain`.

    Returns:
        One row per label prior, and per row of a table and changed settings in each `FIGURE`, as
        the tables select them (`select`). Columns: `FIGURE`, `ROW`, `SETTING`, label, metric_title,
        unit, better, mean (NaN if a score is not finite), low, high (NaN also for one seed or a
        missing run) and n, the number of seeds.
    """
    chosen, _ = select(
        frame, {}, free=("split", "overrides", "pretraining_overrides", "results_version")
    )
    is_scored = (chosen.kind == "evaluation") | (chosen.method == "prior")
    chosen = with_labels(chosen[chosen.main & is_scored])
    keys = [*dict.fromkeys([*FIGURE, *ROW, *SETTING]), "label", "metric_title", "unit", "better"]
    rows = []
    for _, of_figure in chosen.groupby(FIGURE):
        groups = [*of_figure.groupby(keys)]
        cells = [scores_by_pretraining(runs) for _, runs in groups]
        spread = spread_of(cells)
        for (key, runs), cell in zip(groups, cells, strict=True):
            count = cell.shape[1]
            means = cell.mean(axis=1, skipna=False).tolist()
            gain = paired_gain(means, spread, 1 / count if count > 1 else 0.0)
            rows.append([*key, runs.value.mean(skipna=False), gain.low, gain.high, len(cell)])
    return pd.DataFrame(rows, columns=[*keys, "mean", "low", "high", "n"])


def score_figures(frame: pd.DataFrame) -> list[Picture]:
    """Draw a figure per task and setting, with a point and interval per method, best on top."""
    points = score_points(frame)
    figures = []
    for key, scores in points[points.kind == "evaluation"].groupby(FIGURE):
        prior = points[(points.kind == "reference") & (points[FIGURE] == list(key)).all(axis=1)]
        task, data, fingerprint, profile, split, version, task_version = key
        seeds = " to ".join(f"{count}" for count in sorted({scores.n.min(), scores.n.max()}))
        figures.append(
            Picture(
                f"{task}: data {data}, profile {profile}, {split} split",
                _scores(scores, prior),
                f"Mean and 95 % t interval over {seeds} fine-tuning seeds. Data {fingerprint}, "
                f"results version {version}, task version {task_version}.",
            )
        )
    return figures


def _scores(points: pd.DataFrame, prior: pd.DataFrame) -> str:
    metric, unit, better = points.iloc[0][["metric_title", "unit", "better"]]
    best = points.groupby("label")["mean"].agg("min" if better == "lower" else "max")
    order = best.sort_values(ascending=better == "lower").index.tolist()
    with rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, 1.3 + 0.36 * len(order)), layout="constrained")
        axes = figure.subplots()
        for arch, offset, style in zip(ARCHITECTURES, (-APART, APART), MARKERS, strict=True):
            scores = points[points.arch == arch]
            if scores.empty:
                continue
            y = np.array([order.index(label) + offset for label in scores.label])
            margins = (scores.high - scores["mean"]).fillna(0)
            axes.errorbar(
                scores["mean"], y, xerr=margins, capsize=3, ms=5, ls="", label=ARCHITECTURES[arch],
                **style,
            )  # fmt: skip
            for position in y[scores["mean"].isna()]:
                axes.text(
                    0.5, position, "not finite", va="center", color=style["color"],
                    transform=axes.get_yaxis_transform(),
                )  # fmt: skip
        for value in prior["mean"]:
            axes.axvline(value, color="black", ls=":", lw=1, label="label prior")
        axes.set_yticks(range(len(order)), [fill(label, 24) for label in order])
        axes.set_ylim(len(order) - 0.5, -0.5)
        name = metric.rstrip(" ↑↓")
        axes.set_xlabel(
            f"{name}{f' ({unit})' if unit else ''}{f', {better} is better' if better else ''}"
        )
        axes.grid(axis="x", alpha=0.25)
        figure.legend(loc="outside lower center", ncols=3, frameon=False)
        file = io.BytesIO()
        figure.savefig(
            file, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )
        return _data_uri("svg+xml", file.getvalue())


def _data_uri(kind: str, content: bytes) -> str:
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"

"""Report as a single HTML file: runs, pre-trainings, tables, scores and reconstructions."""

import base64
import io
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

from tespec.comparison.cell import SAMPLE
from tespec.comparison.export import to_html
from tespec.comparison.frame import OF_EVALUATION, notes_on, remarks, select, setting_name
from tespec.comparison.frame import results as read_results
from tespec.comparison.published import NONE
from tespec.comparison.tables import make_tables
from tespec.core.errors import UserError, one_line
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
PRETRAINING = "pretraining"
COMMON_NOTES = ("Not shown", "Skipped")  # first words of notes that the page has once
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
    frame = read_results(results)
    problems = frame.attrs["left_out"]
    if frame.empty:
        what = "; ".join(["holds no records", *problems])
        raise UserError(f"--results {results}", what, "give the --results folder of your runs")
    is_sample = bool((frame.data == SAMPLE).all())  # then published numbers are not comparable
    by = "evaluation" if frame["evaluation"].nunique() > 1 else ""
    notes = notes_on(frame, select(frame, {}, by)[1])
    tables = []
    try:
        for table in make_tables(frame, measured=is_sample, by=by):
            kept = tuple(note for note in table.notes if not note.startswith(COMMON_NOTES))
            tables.append(Markup(to_html(table._replace(notes=kept))))
    except UserError as error:  # for instance only pre-trainings, or no results on the test split
        notes.append(str(error))
    main = frame[frame.main].sort_values(["task", "title", "arch", "seed", "name"])
    is_pretraining = main.kind == PRETRAINING
    pictures, unreadable = reconstructions(main[is_pretraining], results / "pictures")
    environment = Environment(
        loader=PackageLoader("tespec.report", ""),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda text: one_line(text) if type(text) is str else text,
    )
    page = environment.get_template("report.html").render(
        notes=[*notes, *unreadable],
        is_sample=is_sample,
        runs=[*map(run_facts, main[~is_pretraining].to_dict("records"))],
        pretrainings=[*map(run_facts, main[is_pretraining].to_dict("records"))],
        tables=tables,
        scores=score_figures(frame),
        pictures=pictures,
    )
    write_all({out: page})
    return frame["name"].nunique(), problems


def run_facts(row: dict[Any, Any]) -> dict[str, Any]:
    """Describe a record in words.

    Args:
        row: of the frame, with the record's main number.

    Returns:
        name, what (the cell in words), seed, score, hours, machine and revision, date.
    """
    start = f"from {row['start']}" if row["start"] else ""
    words = [row["title"], row["network"], ARCHITECTURES[row["arch"]], start, row["mark"]]
    words += remarks([row["status"]], row["tta"])
    score = NONE if pd.isna(row["value"]) else f"{row['value']:.4g} {row['unit']}"
    hours = row["training_hours"]
    return {
        "name": row["name"],
        "what": f"{', '.join(filter(None, words))}; {row['task']}: {setting_name(row)}",
        "seed": row["seed"],
        "score": f"{row['metric']} {score}",
        "hours": NONE if pd.isna(hours) else f"{hours:.3g}",
        "machine": f"{row['machine']}; {row['revision'][:10]}",
        "date": f"{row['written']:%Y-%m-%d}",
    }


def reconstructions(runs: pd.DataFrame, folder: Path) -> tuple[list[Picture], list[str]]:
    """Load the picture of the first seed of each pre-training as downscaled WebP, at most `MOST`.

    Args:
        runs: rows of the frame, one for each pre-training.
        folder: holds `<record name>.png`.

    Returns:
        Pictures, and one line for each unreadable one.
    """
    runs = runs[[(folder / f"{name}.png").is_file() for name in runs.name]]
    pictures = []
    unreadable = []
    for row in runs.drop_duplicates("cell").head(MOST).to_dict("records"):
        file = io.BytesIO()
        try:
            with Image.open(folder / f"{row['name']}.png", formats=("PNG",)) as opened:
                picture = opened.convert("RGBA").convert("RGB")  # a palette may hold transparency
            picture.thumbnail((WIDEST, 16_000))
            picture.save(file, "WEBP", quality=QUALITY)
        except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
            unreadable.append(f"{row['name']}.png: cannot be read ({type(error).__name__})")
            continue
        title = f"{run_facts(row)['what']}, seed {row['seed']}"
        pictures.append(Picture(title, _data_uri("webp", file.getvalue()), row["name"]))
    return pictures, unreadable


def score_figures(frame: pd.DataFrame) -> list[Picture]:
    """Draw the main scores of each column of the tables, best method on top."""
    runs, _ = select(frame, {}, free=["split", *OF_EVALUATION])
    runs = runs[runs.main]
    rows = runs["label"] + ", " + runs["network"] + ", " + runs["pretraining_data"]
    runs = runs.assign(row=rows.str.removesuffix(", -").map(one_line))
    figures = []
    for (task, column), scores in runs[runs.kind == "evaluation"].groupby(["task", "column"]):
        is_prior = (runs.kind == "reference") & (runs.task == task) & (runs.column == column)
        counts = scores.groupby(["row", "arch"]).size()
        count = " to ".join(map(str, sorted({counts.min(), counts.max()})))
        note = f"Small points: runs ({count} of each method); large ones: their mean."
        figures.append(Picture(f"{task}: {column}", _scores(scores, runs[is_prior]), note))
    return figures


def _scores(scores: pd.DataFrame, priors: pd.DataFrame) -> str:
    """Draw each run as a small point and the mean of each row and architecture as a large one."""
    metric, unit, better = scores.iloc[0][["metric_title", "unit", "better"]]
    means = scores.groupby(["row", "arch"]).value.agg(lambda values: values.mean(skipna=False))
    best = means.groupby("row").agg("min" if better == "lower" else "max")
    order = best.sort_values(ascending=better == "lower").index.tolist()
    with rc_context(LOOK):
        figure = Figure(figsize=(WIDTH, 1.3 + 0.36 * len(order)), layout="constrained")
        axes = figure.subplots()
        for arch, offset, style in zip(ARCHITECTURES, (-APART, APART), MARKERS, strict=True):
            of_arch = scores[scores.arch == arch]
            if of_arch.empty:
                continue
            y = [order.index(row) + offset for row in of_arch.row]
            axes.plot(of_arch.value, y, ls="", ms=2, alpha=0.5, **style)
            mean = means.xs(arch, level="arch")
            y = [order.index(row) + offset for row in mean.index]
            axes.plot(mean, y, ls="", ms=6, label=ARCHITECTURES[arch], **style)
            for position in np.array(y)[mean.isna()]:
                axes.text(
                    0.5, position, "not finite", va="center", color=style["color"],
                    transform=axes.get_yaxis_transform(),
                )  # fmt: skip
        for value in priors.value:
            axes.axvline(value, color="black", ls=":", lw=1, label="label prior")
        axes.set_yticks(range(len(order)), [fill(row, 30) for row in order])
        axes.set_ylim(len(order) - 0.5, -0.5)
        name = one_line(metric).rstrip(" ↑↓")
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

"""The report: one HTML file with what was run, the tables, figures of results, and pictures of networks at work."""

from __future__ import annotations

import base64
import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from urllib.parse import quote

import pandas as pd
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from tespec.comparison.export import to_html
from tespec.comparison.frame import machine, to_frame
from tespec.comparison.records import Record, read_records
from tespec.comparison.tables import make_tables
from tespec.core.errors import UserError
from tespec.core.files import write_whole
from tespec.report.figures import ARCHITECTURES, Picture, loss_figures, loss_points, score_figures, with_labels

LARGEST = 950_000  # bytes of a page; pictures beyond are links
WIDEST = 1000  # px of an embedded picture
QUALITY = 75  # of WebP
MOST = 6  # values of a fact


def write_report(results: Path, out: Path) -> tuple[int, list[str]]:
    """Write the page of a results folder, which loads nothing and runs no script.

    Args:
        results: holds `runs/*.json` or `records.jsonl.gz`, and `pictures/<name of a record>.png` if there are any.
        out: the file.

    Returns:
        The number of records, and one line for each file that is no record.

    Raises:
        UserError: the folder holds no record.
    """
    records, problems = read_records(results)
    if not records:
        raise UserError(f"--results {results}", "holds no records", "name the --results folder of your runs")
    frame = to_frame(records)
    left_out = list(problems)
    is_sample = bool((frame.data == "sample").all())  # then the paper's numbers say nothing about the measured ones
    try:
        tables = [(table.title, Markup(to_html(table))) for table in make_tables(frame, measured=is_sample)]
    except UserError as error:  # such as pre-trainings alone, or another split than the test split
        tables = []
        left_out.append(str(error))
    scores, losses = score_figures(frame), loss_figures(loss_points(records, frame))
    room = LARGEST - 30_000 - sum(len(text.encode()) for _, text in tables)
    room -= sum(len(figure.source) for figure in (*scores, *losses))
    loader = PackageLoader("tespec.report", "")
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("report.html")
    page = template.render(
        facts=facts(records),
        left_out=left_out,
        is_sample=is_sample,
        tables=tables,
        galleries={"Scores": scores, "Training losses": losses},
        pictures=pictures(frame, results / "pictures", out.parent, room),
    )
    write_whole(out, page)
    return len(records), problems


def facts(records: Sequence[Record]) -> dict[str, str]:
    """What was run, in words: kinds, data, seeds, versions and machines, each with the number of its records."""
    versions = [
        record.environment.get("packages", {}) | {"python": record.environment.get("python")} for record in records
    ]
    packages = {name: counted(each.get(name) for each in versions) for each in versions for name in each}
    written = sorted(record.written for record in records)
    return {
        "records": counted(record.kind for record in records),
        "data": counted(f"{record.data}, {record.profile} profile, {record.split} split" for record in records),
        "seeds": counted(record.seed for record in records),
        "written": f"{written[0]:%Y-%m-%d} to {written[-1]:%Y-%m-%d}",
        "results version": counted(record.results_version for record in records),
        "tespec": counted(_code(record) for record in records),
        "packages": "; ".join(f"{name} {text}" for name, text in packages.items() if text),
        "machines": counted(machine(record) for record in records),
    }


def _code(record: Record) -> str:
    made = record.environment
    changed = " with changed files" if made.get("modified") else ""
    return f"{made.get('tespec', '')} at {str(made.get('revision', ''))[:10]}{changed}"


def counted(values: Iterable[object]) -> str:
    """The most frequent values, with their numbers where there are several."""
    found = Counter(str(value) for value in values if value not in ("", None)).most_common()
    named = [f"{value} ({count})" if len(found) > 1 else value for value, count in found[:MOST]]
    return "; ".join([*named, *[f"{len(found) - MOST} more"] * (len(found) > MOST)])


def pictures(frame: pd.DataFrame, folder: Path, page: Path, room: int) -> dict[str, list[Picture]]:
    """Pictures of the first seed of each cell, by section: embedded as long as there is room, then as links.

    Args:
        frame: of `tespec.results`.
        folder: of the pictures.
        page: folder of the page, which links start from.
        room: bytes.
    """
    cell = ["kind", "task", "data", "profile", "split", "label", "arch"]
    order = ["arch", "variant", "label", "seed"]
    shown = with_labels(frame).sort_values(order, ascending=[False, True, True, True]).drop_duplicates("name")
    shown = shown[[(folder / f"{name}.png").is_file() for name in shown.name]].drop_duplicates(cell)
    # The first of each task come before the second: there is no room for many.
    shown = shown.assign(turn=shown.groupby(["kind", "task"]).cumcount())
    shown = shown.sort_values(["kind", "turn", "task"], ascending=[False, True, True])
    found: dict[str, list[Picture]] = {}
    for row in shown.itertuples():
        path = folder / f"{row.name}.png"
        source, note = embedded(path)
        if len(source) > room:
            source, note = "", "not embedded, which keeps the page small"
        room -= len(source)
        link = quote(Path(os.path.relpath(path, page)).as_posix())
        section = "Reconstructions" if row.kind == "pretraining" else "Predictions"
        title = f"{row.task}: {row.label}, {ARCHITECTURES[row.arch]}, seed {row.seed}"
        found.setdefault(section, []).append(Picture(title, source or link, note))
    return found


def embedded(path: Path) -> tuple[str, str]:
    """A picture as a data URI of a smaller WebP; or "" and why not."""
    try:
        with Image.open(path, formats=("PNG",)) as opened:
            picture = opened.convert("RGBA").convert("RGB")  # a palette is not converted at once
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        return "", f"cannot be read ({type(error).__name__})"
    picture.thumbnail((WIDEST, 16_000))
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}", ""

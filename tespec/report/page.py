"""The report: one HTML file with what was run, the tables, figures of results, and pictures of networks at work."""

from __future__ import annotations

import base64
import io
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

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

SECTIONS = {"pretraining": "Reconstructions", "evaluation": "Predictions"}  # of pictures, by the kind of their run
MOST = 8  # pictures of a section, which keeps the page small
WIDEST = 1000  # px of a picture
QUALITY = 75  # of WebP


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
    figures = {"Scores": score_figures(frame), "Training losses": loss_figures(loss_points(records, frame))}
    figures |= pictures(frame, results / "pictures", left_out)
    loader = PackageLoader("tespec.report", "")
    template = Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("report.html")
    page = template.render(
        facts=facts(records), left_out=left_out, is_sample=is_sample, tables=tables, figures=figures,
        wide=SECTIONS.values(),
    )  # fmt: skip
    write_whole(out, page)
    return len(records), problems


def facts(records: Sequence[Record]) -> dict[str, str]:
    """What was run, in words: kinds, data, seeds, versions and machines, each with the number of its records."""
    made = [record.environment for record in records]
    packages = [{**each.get("packages", {}), "python": each.get("python")} for each in made]
    names = dict.fromkeys(name for each in packages for name in each)
    versions = {name: counted(each.get(name) for each in packages) for name in names}
    written = sorted(record.written for record in records)
    return {
        "records": counted(record.kind for record in records),
        "data": counted(f"{record.data}, {record.profile} profile, {record.split} split" for record in records),
        "seeds": counted(record.seed for record in records),
        "written": f"{written[0]:%Y-%m-%d} to {written[-1]:%Y-%m-%d}",
        "results version": counted(record.results_version for record in records),
        "tespec": counted(_code(each) for each in made),
        "packages": "; ".join(f"{name} {version}" for name, version in versions.items() if version),
        "machines": counted(machine(record) for record in records),
    }


def _code(made: Mapping[str, Any]) -> str:
    changed = " with changed files" if made.get("modified") else ""
    return f"{made.get('tespec', '')} at {str(made.get('revision', ''))[:10]}{changed}"


def counted(values: Iterable[object]) -> str:
    """All values, the most frequent first, with their numbers where there are several."""
    found = Counter(str(value) for value in values if value not in ("", None)).most_common()
    return "; ".join(f"{value} ({count})" if len(found) > 1 else value for value, count in found)


def pictures(frame: pd.DataFrame, folder: Path, left_out: list[str]) -> dict[str, list[Picture]]:
    """Pictures of the first seed of each cell, at most `MOST` of each section: one of every task before a second one.

    Args:
        frame: of `tespec.results`.
        folder: of the pictures.
        left_out: takes a line for each picture that cannot be read.
    """
    shown = with_labels(frame).sort_values(["arch", "variant", "label", "seed"], ascending=[False, True, True, True])
    shown = shown.drop_duplicates("name")
    shown = shown[[(folder / f"{name}.png").is_file() for name in shown.name]]
    shown = shown.drop_duplicates(["kind", "task", "data", "profile", "split", "label", "arch"])
    shown = shown.assign(turn=shown.groupby(["kind", "task"]).cumcount()).sort_values(["turn", "task"])
    found: dict[str, list[Picture]] = {}
    for kind, section in SECTIONS.items():
        for row in shown[shown.kind == kind].head(MOST).itertuples():
            path = folder / f"{row.name}.png"
            title = f"{row.task}: {row.label}, {ARCHITECTURES[row.arch]}, seed {row.seed}"
            try:
                found.setdefault(section, []).append(Picture(title, embedded(path)))
            except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
                left_out.append(f"{path.name}: cannot be read ({type(error).__name__})")
    return found


def embedded(path: Path) -> str:
    """A picture as a data URI of a smaller WebP."""
    with Image.open(path, formats=("PNG",)) as opened:
        picture = opened.convert("RGBA").convert("RGB")  # a palette is not converted at once
    picture.thumbnail((WIDEST, 16_000))
    file = io.BytesIO()
    picture.save(file, "WEBP", quality=QUALITY)
    return f"data:image/webp;base64,{base64.b64encode(file.getvalue()).decode()}"

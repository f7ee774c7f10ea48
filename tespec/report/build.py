"""The report: what stands on the page, as sections of tables, pictures and runs; `report.html` draws it."""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup
from PIL import Image

from tespec.comparison.ablations import ablations, measured_rows, measured_table
from tespec.comparison.published import plain_tables, schemes
from tespec.comparison.records import Record
from tespec.comparison.references import references_table
from tespec.comparison.render import html_table, html_templates
from tespec.comparison.shown import baseline_table, claims_table
from tespec.comparison.side_by_side import of_older_code, published_table
from tespec.comparison.table import Table, only_measured
from tespec.report.charts import (
    Picture,
    class_and_recording_bars,
    finetuning_curves,
    first_seeds,
    pretraining_curves,
    title_of,
)
from tespec.report.runs import RunFacts, anchor, entries, hover, moment, run_times

HERE = Path(__file__).parent
TITLE = "Pre-training for event cameras, compared"
STRIPS = 4  # of each task
PREFERRED = ("tespec", "scratch")  # the methods whose pictures come first
WIDEST = 1200  # px of a picture
QUALITY = 82


@dataclass(frozen=True)
class Part:
    """A part of a section.

    Attributes:
        heading: above it, "" for none.
        table: what is shown first.
        apart: its groups are sorted one by one; see `html_table`.
        pictures: what is shown next.
        notes: lines below.
    """

    heading: str = ""
    table: Table | None = None
    apart: bool = False
    pictures: tuple[Picture, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A section of the page: its anchor, its heading, and its parts, or what is known of runs."""

    anchor: str
    title: str
    parts: tuple[Part, ...]
    runs: tuple[RunFacts, ...] = ()


def report(records: Sequence[Record], pictures: Path, notes: Sequence[str] = (), baseline: str | None = None) -> str:
    """The page: one file, nothing loaded from elsewhere, no script but its own.

    Args:
        records: all that were found.
        pictures: folder of `<record's name>.png`.
        notes: what a reader has to know of what was left out.
        baseline: method that gains are reckoned over, None for no such tables.

    Raises:
        UserError: there is no record of the baseline.
    """
    by_name = {record["name"]: record for record in records}

    def tip(names: tuple[str, ...]) -> tuple[str, str]:
        return hover([by_name[name] for name in names]), anchor(names[0])

    def shown(part: Part) -> Markup:
        return Markup(html_table(part.table, tip, apart=part.apart)) if part.table else Markup()

    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    sections = [section for section in _sections(records, pictures, baseline) if section.parts or section.runs]
    return (
        html_templates("tespec.report")
        .get_template("report.html")
        .render(
            title=TITLE,
            lead=[*filter(None, [of_older_code(records)]), *_lead(records), *notes],
            sections=sections,
            shown=shown,
            style=Markup(style),
            script=Markup(script),
            policy=_policy(style, script),
        )
        + "\n"
    )


def _policy(style: str, script: str) -> str:
    """What a browser may do with the page: show its own pictures and style, run its own script, load nothing."""
    looks, own = (base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (style, script))
    return (
        f"default-src 'none'; img-src data:; style-src 'sha256-{looks}'; script-src 'sha256-{own}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _sections(records: Sequence[Record], pictures: Path, baseline: str | None) -> list[Section]:
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    tables = {name: only_measured(published_table(name, evaluations)) for name in schemes(evaluations)}
    references = references_table(records)
    claims = only_measured(claims_table(records)) if evaluations else None
    curves = [
        Part("Fine-tuning", pictures=tuple(finetuning_curves(records))),
        Part("Pre-training", pictures=tuple(pretraining_curves(records))),
    ]
    bars = class_and_recording_bars(records)
    return [
        *(Section(name, table.title, (Part(table=table),)) for name, table in tables.items()),
        *_gains(records, baseline),
        Section("contrasts", "What was shown", (Part(table=claims, apart=True),) if claims else ()),
        Section("references", "Floor and upper reference", (Part(table=references),) if references else ()),
        Section("ablations", "Ablations", _ablations(records)),
        Section("curves", "Training curves", tuple(part for part in curves if part.pictures)),
        Section("bars", "Classes and recordings", (Part(pictures=tuple(bars)),) if bars else ()),
        Section("predictions", "What the networks predict", _strips(evaluations, pictures)),
        Section("pretraining", "What pre-training sees and rebuilds", _pretraining(records, pictures)),
        Section("times", "Run times", (*_times(records), *_plain(runtime=True))),
        Section("facts", "Sizes and settings of the paper", _plain(runtime=False)),
        Section("runs", "Runs", (), tuple(entries(records))),
    ]


def _lead(records: Sequence[Record]) -> list[str]:
    if not records:
        return ["The paper's numbers; nothing was measured yet."]
    newest = max(record["written"] for record in records)
    codes = ", ".join(sorted({record["code"] for record in records}))
    lead = [
        f"{len(records)} runs, the newest of {moment(newest)}; code {codes}. A measured number shows its commands and "
        "hashes where the pointer rests on it, and leads to its run. A click on a header sorts."
    ]
    if any(record["data"] == "sample" for record in records):
        lead.append(
            "Numbers of the sample world, a small synthetic driving world, compare methods at small scale. They are no "
            "measurement of the data sets and not comparable with the paper's."
        )
    return lead


def _gains(records: Sequence[Record], baseline: str | None) -> list[Section]:
    if baseline is None:
        return []
    table = baseline_table(records, baseline)
    return [Section("gains", f"Gains over {baseline}", (Part(table=table, apart=True),) if table.rows else ())]


def _ablations(records: Sequence[Record]) -> tuple[Part, ...]:
    parts = []
    for ablation in ablations().values():
        measured = measured_rows(ablation, records)
        tables = [measured_table(ablation, each) for each in measured] or [measured_table(ablation, None)]
        parts += [Part(table.title, only_measured(table)) for table in tables]
    return tuple(parts)


def _strips(records: Sequence[Record], folder: Path) -> tuple[Part, ...]:
    parts = []
    chosen = [each for each in first_seeds(records) if (folder / f"{each['name']}.png").is_file()]
    for task in sorted({record["task"] for record in chosen}):
        of_task = sorted((each for each in chosen if each["task"] == task), key=_preference)
        more = f"{len(of_task) - STRIPS} more in the folder of pictures."
        parts.append(_pictured(of_task[:STRIPS], folder, f"{task}: ", [more] if len(of_task) > STRIPS else []))
    return tuple(parts)


def _preference(record: Record) -> tuple[int, bool, str]:
    name = record["method_name"]
    return PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), record["arch"] != "recurrent", name


def _pretraining(records: Sequence[Record], folder: Path) -> tuple[Part, ...]:
    chosen = [record for record in records if record["kind"] == "pretraining"]
    there = [record for record in chosen if (folder / f"{record['name']}.png").is_file()]
    return (_pictured(there[:STRIPS], folder, "", []),) if there else ()


def _pictured(records: Sequence[Record], folder: Path, where: str, notes: Sequence[str]) -> Part:
    found = [
        picture(
            folder / f"{record['name']}.png",
            f"{where}{title_of(record)}, {record['arch']}, on {record['data']}, seed {record['seed']}",
        )
        for record in records
    ]
    shown = tuple(each for each in found if isinstance(each, Picture))
    return Part(pictures=shown, notes=(*(each for each in found if isinstance(each, str)), *notes))


def picture(path: Path, title: str) -> Picture | str:
    """A picture file; a line in its place where the file cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Other formats hide behind the name as well, and some are handed to programs outside.
            with Image.open(path, formats=("PNG",)) as opened:
                shown = opened.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return f"{path.name} cannot be shown ({type(error).__name__})."
    if shown.width > WIDEST:
        shown = shown.resize((WIDEST, max(1, round(shown.height * WIDEST / shown.width))))
    data = io.BytesIO()
    shown.save(data, "WEBP", quality=QUALITY)
    source = f"data:image/webp;base64,{base64.b64encode(data.getvalue()).decode()}"
    return Picture(title, source, shown.width, shown.height)


def _times(records: Sequence[Record]) -> tuple[Part, ...]:
    ours = run_times(records)
    return (Part(ours.title, ours),) if ours else ()


def _plain(*, runtime: bool) -> tuple[Part, ...]:
    tables: Mapping[str, Table] = plain_tables()
    chosen = (table for name, table in tables.items() if name.startswith("runtime") == runtime)
    return tuple(Part(table.title, table, apart=True) for table in chosen)

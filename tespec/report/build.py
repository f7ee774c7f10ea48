"""The report: all sections from records, tables and pictures."""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image

from tespec.comparison.ablations import ablations, measured_rows, measured_table
from tespec.comparison.claims import claims_table
from tespec.comparison.effects import effects_table, require_baseline
from tespec.comparison.published import TABLES, plain_tables, published_table, read_reference
from tespec.comparison.records import Record
from tespec.comparison.references_table import references_table
from tespec.comparison.render import Tip, html_table
from tespec.comparison.side_by_side import of_older_code
from tespec.comparison.table import Table
from tespec.report.charts import bars, curves, first_seeds
from tespec.report.runs import anchor, hover, moment, run_times, runs_list

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Section:
    """A part of the report: its anchor, its heading, and its content as HTML, escaped already."""

    anchor: str
    title: str
    html: str


def page(title: str, lead: Sequence[str], sections: Sequence[Section]) -> str:
    """The whole page; sections without content are left out."""
    style = (HERE / "style.css").read_text(encoding="utf-8")
    script = (HERE / "script.js").read_text(encoding="utf-8")
    shown = [section for section in sections if section.html]
    contents = "".join(f'<li><a href="#{each.anchor}">{escape(each.title)}</a></li>' for each in shown)
    return (
        "\n".join(
            [
                "<!doctype html>",
                '<html lang="en"><head><meta charset="utf-8">',
                f'<meta http-equiv="Content-Security-Policy" content="{_policy(style, script)}">',
                '<meta name="viewport" content="width=device-width, initial-scale=1">',
                f"<title>{escape(title)}</title><style>{style}</style></head><body>",
                f"<h1>{escape(title)}</h1>",
                *(f'<p class="lead">{escape(line)}</p>' for line in lead),
                f"<nav><ul>{contents}</ul></nav>",
                *(
                    f'<section id="{each.anchor}"><h2>{escape(each.title)}</h2>\n{each.html}\n</section>'
                    for each in shown
                ),
                f"<script>{script}</script></body></html>",
            ]
        )
        + "\n"
    )


def _policy(style: str, script: str) -> str:
    """What a browser may do with the page: show its own pictures and style, run its own script, load nothing."""
    return (
        f"default-src 'none'; img-src data:; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


WIDEST = 1200  # px
QUALITY = 82


def figure(path: Path, caption: str) -> str:
    """A picture file with its caption; a line in its place where the file cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            # Other formats hide behind the name as well, and some are handed to programs outside.
            with Image.open(path, formats=("PNG",)) as picture:
                shown = picture.convert("RGB")
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        return f'<p class="notes">{escape(path.name)} cannot be shown ({escape(type(error).__name__)}).</p>'
    if shown.width > WIDEST:
        shown = shown.resize((WIDEST, max(1, round(shown.height * WIDEST / shown.width))))
    data = io.BytesIO()
    shown.save(data, "WEBP", quality=QUALITY)
    source = base64.b64encode(data.getvalue()).decode()
    return (
        f'<figure><img src="data:image/webp;base64,{source}" width="{shown.width}" height="{shown.height}" '
        f'alt="{escape(caption)}" loading="lazy"><figcaption>{escape(caption)}</figcaption></figure>'
    )


TITLE = "Pre-training for event cameras, compared"
STRIPS = 4  # of each task
PREFERRED = ("tespec", "scratch")  # the methods whose pictures come first


def report(records: Sequence[Record], pictures: Path, notes: Sequence[str] = (), baseline: str | None = None) -> str:
    """The page.

    Args:
        records: all that were found.
        pictures: folder of `<record's name>.png`.
        notes: what a reader has to know of what was left out.
        baseline: method that gains are reckoned over, None for no such tables.

    Raises:
        UserError: there is no record of the baseline.
    """
    tip = _tip({record["name"]: record for record in records})
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    return page(
        TITLE,
        [*filter(None, [of_older_code(records)]), *_lead(records), *notes],
        [
            *(_section(name, published_table(name, evaluations), tip) for name in TABLES),
            *_gains(evaluations, baseline, tip),
            Section("claims", "Claims, comparison by comparison", _claims(evaluations, tip)),
            Section("references", "Floor and upper reference", _references(records, tip)),
            Section("ablations", "Ablations", _ablations(records, tip)),
            Section("curves", "Training curves", curves(records)),
            Section("bars", "Classes and recordings", bars(records)),
            Section("predictions", "What the networks say", _strips(evaluations, pictures)),
            Section("pretraining", "What pre-training sees and rebuilds", _pretraining(records, pictures)),
            Section("times", "Run times", _times(records, tip)),
            Section("facts", "Sizes and settings of the paper", _facts(tip)),
            Section("runs", "Runs", runs_list(records)),
        ],
    )


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


def _tip(records: Mapping[str, Record]) -> Tip:
    def tip(names: tuple[str, ...]) -> tuple[str, str]:
        return hover([records[name] for name in names]), anchor(names[0])

    return tip


def _section(name: str, table: Table, tip: Tip) -> Section:
    return Section(name, table.title, html_table(table, tip))


def _titled(table: Table, tip: Tip, *, apart: bool = False) -> str:
    return f"<h3>{escape(table.title)}</h3>\n{html_table(table, tip, apart=apart)}"


def _gains(records: Sequence[Record], baseline: str | None, tip: Tip) -> list[Section]:
    if baseline is None:
        return []
    require_baseline(records, baseline)
    tasks = {record["task"] for record in records}
    there = [name for name in TABLES if tasks & {task.name for task in read_reference(name).tasks}]
    tables = [effects_table(name, records, baseline) for name in there]
    html = "".join(_titled(table, tip) for table in tables if table.groups)
    return [Section("gains", f"Gains over {baseline}", html)]


def _claims(records: Sequence[Record], tip: Tip) -> str:
    return html_table(claims_table(records), tip, apart=True) if records else ""


def _references(records: Sequence[Record], tip: Tip) -> str:
    table = references_table(records)
    return "" if table is None else html_table(table, tip)


def _ablations(records: Sequence[Record], tip: Tip) -> str:
    parts = []
    for ablation in ablations().values():
        measured = measured_rows(ablation, records)
        tables = [measured_table(ablation, each) for each in measured] or [measured_table(ablation, None)]
        parts += [_titled(table, tip) for table in tables]
    return "".join(parts)


def _strips(records: Sequence[Record], pictures: Path) -> str:
    parts = []
    chosen = [each for each in first_seeds(records) if (pictures / f"{each['name']}.png").is_file()]
    for task in sorted({record["task"] for record in chosen}):
        of_task = sorted((each for each in chosen if each["task"] == task), key=_preference)
        for record in of_task[:STRIPS]:
            caption = (
                f"{task}: {record['method']['title']}, {record['arch']}, on {record['data']}, seed {record['seed']}"
            )
            parts.append(figure(pictures / f"{record['name']}.png", caption))
        if len(of_task) > STRIPS:
            parts.append(f'<p class="notes">{len(of_task) - STRIPS} more in the folder of pictures.</p>')
    return "".join(parts)


def _preference(record: Record) -> tuple[int, bool, str]:
    name = record["method_name"]
    return PREFERRED.index(name) if name in PREFERRED else len(PREFERRED), record["arch"] != "recurrent", name


def _pretraining(records: Sequence[Record], pictures: Path) -> str:
    chosen = [record for record in records if record["kind"] == "pretraining"]
    there = [record for record in chosen if (pictures / f"{record['name']}.png").is_file()]
    return "".join(
        figure(
            pictures / f"{record['name']}.png",
            f"{record['method']['title']}, {record['arch']}, on {record['data']}, seed {record['seed']}",
        )
        for record in there[:STRIPS]
    )


def _times(records: Sequence[Record], tip: Tip) -> str:
    papers = [table for name, table in plain_tables().items() if name.startswith("runtime")]
    ours = run_times(records)
    measured = _titled(ours, tip) if ours else ""
    return measured + "".join(_titled(table, tip, apart=True) for table in papers)


def _facts(tip: Tip) -> str:
    tables = [table for name, table in plain_tables().items() if not name.startswith("runtime")]
    return "".join(_titled(table, tip, apart=True) for table in tables)

"""The report: what stands on the page, as sections of tables, pictures and runs; `report.html` draws it."""

from __future__ import annotations

import base64
import hashlib
import io
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup
from PIL import Image

from tespec.comparison.ablations import ablations, measured_rows, measured_table
from tespec.comparison.basis import is_default, learns_all
from tespec.comparison.identity import TEST
from tespec.comparison.published import plain_tables, schemes
from tespec.comparison.records import Record
from tespec.comparison.render import html_table, html_templates
from tespec.comparison.shown import baseline_table, claims_table
from tespec.comparison.side_by_side import of_older_code, published_table
from tespec.comparison.table import Row, Table, only_measured
from tespec.report.breakdown import class_and_recording_bars
from tespec.report.charts import WORDS, Picture, preference, title_of
from tespec.report.curves import finetuning_curves, pretraining_curves
from tespec.report.runs import RunFacts, anchor, date_of, entries, hover, run_times

HERE = Path(__file__).parent
TITLE = "Pre-training for event cameras, compared"
STRIPS = 4  # of each task
CONTRASTED = ("tespec", "scratch")  # the methods whose pictures come first
WIDEST = 1200  # px of a picture
QUALITY = 82


@dataclass(frozen=True)
class Block:
    """What stands under one heading of a section.

    Attributes:
        heading: above it, "" for none.
        table: what is shown first.
        apart: its groups are sorted one by one; see `html_table`.
        pictures: what is shown next.
        architectures: whose lines are in the pictures, for their legend.
        notes: lines below.
    """

    heading: str = ""
    table: Table | None = None
    apart: bool = False
    pictures: tuple[Picture, ...] = ()
    architectures: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Section:
    """A section of the page: its anchor, its heading, and its blocks, or what is known of runs."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]
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

    def shown(block: Block) -> Markup:
        return Markup(html_table(block.table, tip, apart=block.apart)) if block.table else Markup()

    style, script = ((HERE / name).read_text(encoding="utf-8") for name in ("style.css", "script.js"))
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    tables = {name: published_table(name, records) for name in schemes(evaluations)}
    sections = [section for section in _sections(records, tables, pictures, baseline) if section.blocks or section.runs]
    return (
        html_templates("tespec.report")
        .get_template("report.html")
        .render(
            title=TITLE,
            lead=[*filter(None, [of_older_code(records)]), *_lead(records, tables.values()), *notes],
            sections=sections,
            shown=shown,
            words=WORDS,
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


def _sections(
    records: Sequence[Record], tables: Mapping[str, Table], pictures: Path, baseline: str | None
) -> list[Section]:
    evaluations = [record for record in records if record["kind"] == "evaluation"]
    kept = {name: told_apart(only_measured(table)) for name, table in tables.items() if not records or _measured(table)}
    claims = only_measured(claims_table(records)) if evaluations else None
    curves = (
        Block(each.heading, pictures=each.charts, architectures=each.architectures)
        for each in (*finetuning_curves(records), *pretraining_curves(records))
    )
    bars = class_and_recording_bars(records)
    return [
        *(Section(name, table.title, (Block(table=table),)) for name, table in kept.items()),
        *_gains(records, baseline),
        Section("contrasts", "What was shown", (Block(table=claims, apart=True),) if claims else ()),
        Section("ablations", "Ablations", _ablations(evaluations)),
        Section("curves", "Training curves", tuple(curves)),
        Section("bars", "Classes and recordings", (Block(pictures=tuple(bars)),) if bars else ()),
        Section("predictions", "What the networks predict", _strips(evaluations, pictures)),
        Section("pretraining", "What pre-training sees and rebuilds", _pretraining(records, pictures)),
        Section("times", "Run times", _times(records)),
        Section("facts", "Sizes, times and settings of the paper", () if records else _paper()),
        Section("runs", "Runs", (), tuple(entries(records))),
    ]


def told_apart(table: Table) -> Table:
    """The table with the architecture behind a method's name where another row has the same name.

    Names stay where they are when a table is moved sideways; what tells their rows apart does not.
    """
    count = Counter(row.cells[0].text for row in table.rows)

    def named(row: Row) -> Row:
        first, word = row.cells[0], WORDS.get(row.facts.get("arch", ""), "")
        if count[first.text] < 2 or not word:
            return row
        return replace(row, cells=(replace(first, text=f"{first.text}, {word}"), *row.cells[1:]))

    groups = tuple(replace(group, rows=tuple(map(named, group.rows))) for group in table.groups)
    return replace(table, groups=groups)


def _measured(table: Table) -> int:
    """Number of rows of which something was measured."""
    return sum(any(cell.runs is not None for cell in row.cells) for row in table.rows)


def _lead(records: Sequence[Record], tables: Iterable[Table]) -> list[str]:
    if not records:
        return ["The paper's numbers; nothing was measured yet."]
    newest = max(record["written"] for record in records)
    codes = ", ".join(sorted({record["code"] for record in records}))
    rows, measured = map(sum, zip(*((len(table.rows), _measured(table)) for table in tables), strict=True))
    lead = [
        f"{len(records)} runs, the newest of {date_of(newest)}; code {codes}. A measured number shows its commands and "
        "hashes where the pointer rests on it, and leads to its run. A click on a header sorts.",
        f"Only what was measured is shown: {measured} rows. {rows - measured} rows of the paper's tables have no "
        "measurement.",
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
    return [Section("gains", f"Gains over {baseline}", (Block(table=table, apart=True),) if table.rows else ())]


def _ablations(records: Sequence[Record]) -> tuple[Block, ...]:
    blocks = []
    for ablation in ablations().values():
        measured = measured_rows(ablation, records)
        tables = [measured_table(ablation, each) for each in measured]
        tables += [] if records else [measured_table(ablation, None)]
        blocks += [Block(table.title, only_measured(table)) for table in tables]
    return tuple(blocks)


def first_seeds(records: Sequence[Record]) -> list[Record]:
    """The lowest seed of each method, task, architecture, data and profile, by its own recipe and of all labels.

    Of several those of the test split come first, then the newest.
    """
    found: dict[tuple[str, ...], Record] = {}
    own = [record for record in records if learns_all(record) and is_default(record)]
    for record in sorted(own, key=lambda each: (-each["seed"], each["split"] == TEST, each["written"])):
        key = (record["method_name"], record["task"], record["arch"], record["data"], record["profile"])
        found[key] = record
    return sorted(found.values(), key=lambda record: record["name"])


def _strips(records: Sequence[Record], folder: Path) -> tuple[Block, ...]:
    blocks = []
    chosen = first_seeds([each for each in records if (folder / f"{each['name']}.png").is_file()])
    for task in sorted({record["task"] for record in chosen}):
        of_task = sorted((each for each in chosen if each["task"] == task), key=_preference)
        more = f"{len(of_task) - STRIPS} more in the folder of pictures."
        blocks.append(_pictured(of_task[:STRIPS], folder, f"{task}: ", [more] if len(of_task) > STRIPS else []))
    return tuple(blocks)


def _preference(record: Record) -> tuple[bool, tuple[int, str], bool]:
    name = record["method_name"]
    return name not in CONTRASTED, preference(name), record["arch"] != "recurrent"


def _pretraining(records: Sequence[Record], folder: Path) -> tuple[Block, ...]:
    chosen = [record for record in records if record["kind"] == "pretraining"]
    there = [record for record in chosen if (folder / f"{record['name']}.png").is_file()]
    return (_pictured(there[:STRIPS], folder, "", []),) if there else ()


def _pictured(records: Sequence[Record], folder: Path, where: str, notes: Sequence[str]) -> Block:
    found = [
        picture(
            folder / f"{record['name']}.png",
            f"{where}{title_of(record)}, {WORDS[record['arch']]}, on {record['data']}, seed {record['seed']}",
        )
        for record in records
    ]
    shown = tuple(each for each in found if isinstance(each, Picture))
    return Block(pictures=shown, notes=(*(each for each in found if isinstance(each, str)), *notes))


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


def _times(records: Sequence[Record]) -> tuple[Block, ...]:
    ours = run_times(records)
    return (Block(ours.title, ours),) if ours else ()


def _paper() -> tuple[Block, ...]:
    return tuple(Block(table.title, table, apart=True) for table in plain_tables().values())

"""The report: all sections from records, tables and pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from tespec.comparison.ablation_runs import measured_rows, measured_table
from tespec.comparison.ablations import ablations
from tespec.comparison.claims_table import claims_table
from tespec.comparison.effects import effects_table, require_baseline
from tespec.comparison.notes import of_older_code
from tespec.comparison.published import TABLES, plain_tables, published_table
from tespec.comparison.records import Record
from tespec.comparison.references import read_reference
from tespec.comparison.references_table import references_table
from tespec.comparison.render_html import Tip, html_table
from tespec.comparison.table import Table
from tespec.report.bars import bars
from tespec.report.curves import curves, first_seeds
from tespec.report.page import Section, page
from tespec.report.pictures import figure
from tespec.report.runs import anchor, hover, moment, run_times, runs_list

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

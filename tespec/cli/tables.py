"""Print and write the comparison tables: the paper's numbers with the measured ones beside them.

python benchmarks/tables.py
python benchmarks/tables.py --only depth --columns measured --data sample
python benchmarks/tables.py --baseline scratch
python benchmarks/tables.py --contrasts
python benchmarks/tables.py --rates --results results/sample-small/rates
python benchmarks/tables.py --controls
python benchmarks/tables.py --curves
python benchmarks/tables.py --check
python benchmarks/tables.py --audit
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from tespec.cli.command import Parser
from tespec.cli.options import add_own, bring_in
from tespec.comparison.ablations import Ablation, Measured, ablations, measured_rows, measured_table
from tespec.comparison.archive import holds_records
from tespec.comparison.audit import render_audit
from tespec.comparison.controls import controls_table
from tespec.comparison.curves import curves_table, leading, learning_curves
from tespec.comparison.deviations import deviations
from tespec.comparison.evidence import of_split
from tespec.comparison.identity import SPLITS
from tespec.comparison.published import COMPARED, OWN, TABLES, edited, plain_tables, schemes
from tespec.comparison.rates import rates_table
from tespec.comparison.records import Record, read_records
from tespec.comparison.render import FORMS, print_table
from tespec.comparison.shown import baseline_table, claims_table
from tespec.comparison.side_by_side import COLUMNS, of_older_code, published_table
from tespec.comparison.table import Table
from tespec.core.errors import UserError
from tespec.core.files import write_all
from tespec.core.paths import RESULTS

ENDINGS = """exit codes: 0 all is well; 1 a record was left out, a published number was edited, or with --check a
number leaves its tolerance (tables are written all the same); 2 a mistake, nothing written"""

ABLATIONS = ablations()
PLAIN = plain_tables()
ALL = (*TABLES, *(f"ablation_{name}" for name in ABLATIONS), *PLAIN)
PAGES = {"contrasts": claims_table, "controls": controls_table, "curves": curves_table}  # in place of the tables
WARNED = 1


class Names(tuple[str, ...]):
    """Names of tables; which tasks of one's own there are is known once records are read."""

    def __contains__(self, name: object) -> bool:
        return str(name).startswith(OWN) or super().__contains__(name)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the tables; 1 if something was left out of them or leaves its tolerance.

    Raises:
        UserError: no record fits what was asked for.
    """
    parser = Parser(verb="tables", description=__doc__, epilog=ENDINGS)
    parser.add_argument(
        "--only",
        choices=Names(ALL),
        metavar="NAME",
        help=f"one of {', '.join(ALL)}, or {OWN}NAME for a task of one's own (default: all)",
    )
    parser.add_argument("--columns", choices=COLUMNS, default="both", help="whose numbers (default: both)")
    parser.add_argument("--data", metavar="NAME", help="measured on this data alone, e.g. sample or ddd17")
    parser.add_argument("--profile", metavar="NAME", help="measured under this profile alone, e.g. paper or sample")
    parser.add_argument("--baseline", metavar="METHOD", help="also which methods are shown to beat this one, by task")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="folder that holds runs/")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the files (default: tables/ in --results)")
    parser.add_argument(
        "--check", action="store_true", help="hold measured numbers against the paper's; print no table"
    )
    parser.add_argument("--contrasts", action="store_true", help="what was shown of the paper's claims, by task")
    parser.add_argument("--rates", action="store_true", help="which peak rate each pre-training takes, of those tried")
    parser.add_argument("--controls", action="store_true", help="whether such runs could show what there is to see")
    parser.add_argument("--curves", action="store_true", help="scores without pre-training by steps, with a figure")
    parser.add_argument("--audit", action="store_true", help="the gains that the paper names, and its contradictions")
    parser.add_argument(
        "--split",
        choices=SPLITS,
        help="what --contrasts and --baseline (default: test), --controls and --curves (default: val) look at",
    )
    add_own(parser)
    options = parser.parse_args(arguments)
    alone = [name for name in (*PAGES, "rates", "audit", "check") if getattr(options, name)]
    if len(alone) > 1:
        parser.error(f"--{alone[0]} and --{alone[1]} are two pages: ask for one")
    for name in ("only", "baseline"):
        if alone and getattr(options, name):
            parser.error(f"--{name} goes with the tables, and --{alone[0]} is a page of its own")
    pages = [name for name in alone if name in PAGES]
    before = options.controls or options.curves  # any method is compared
    options.split = options.split or ("val" if before else "test")
    bring_in(options, only_given=True)

    if options.audit:
        sys.stdout.write(render_audit())
        return 0
    if not holds_records(options.results):
        raise UserError(f"--results {options.results}", "no such folder", "name one that holds runs/")
    folder, out = options.results / "runs", options.out or options.results / "tables"
    records, notes = found_in(folder)
    wanted = {"data": options.data, "profile": options.profile}
    if options.rates:
        write_tables([("rates", annotated(rates_table(narrowed(records, wanted, folder, "pretraining")), notes))], out)
        return WARNED if notes else 0
    chosen = narrowed([record for record in records if record["kind"] in COMPARED], wanted, folder)
    evaluations = [record for record in chosen if record["kind"] == "evaluation"]
    if evaluations and (pages or options.baseline) and not of_split(evaluations, options.split):
        raise UserError(f"--split {options.split}", f"no such evaluation in {folder}", "name the other split")
    if options.check:
        return check(chosen, folder) or (WARNED if notes else 0)
    if not evaluations and (pages or options.columns == "measured"):
        raise UserError(
            folder, "holds no record of an evaluation", "run benchmarks/run.py first, or leave the option out"
        )
    if not evaluations and options.columns == "both":
        sys.stderr.write(f"no evaluation in {folder}: the paper's numbers alone\n")
    if options.curves and not learning_curves(chosen, options.split):
        raise UserError(folder, "holds no evaluation without pre-training", "run.py --method scratch makes them")
    found = [(name, PAGES[name](chosen, options.split)) for name in pages] or tables(options, chosen)
    if options.curves:
        draw_curves(chosen, options.split, out / "learning_curves.png")
    if options.baseline and not pages:
        only = schemes(chosen).get(options.only or "")
        compared = [each for each in chosen if only is None or each["task"] in {task.name for task in only.tasks}]
        shown = baseline_table(compared, options.baseline, options.split)
        if shown.rows:
            found.append((f"against_{options.baseline}", shown))
        else:
            sys.stderr.write(f"nothing to compare with {options.baseline}: no other method with its architecture\n")
    write_tables([(name, annotated(dated(table, chosen), notes)) for name, table in found], out)
    return WARNED if notes else 0


def draw_curves(records: Sequence[Record], split: str, path: Path) -> None:
    """Draw the learning curves of records."""
    from tespec.pictures.learning_curves import draw_learning_curves

    draw_learning_curves(leading(learning_curves(records, split)), path)
    print(f"Written: {path}")


def found_in(folder: Path) -> tuple[list[Record], list[str]]:
    """All records of a folder, and notes on files that are none and on published numbers that were edited.

    What is wrong with each of them is printed as well.
    """
    records, problems = read_records(folder)
    notes = [f"Edited: results/paper/{name} is not the file that was shipped." for name in edited()]
    for line in (*(f"left out: {problem}" for problem in problems), *notes):
        sys.stderr.write(f"{line}\n")
    if problems:
        files = f"{len(problems)} file{'s' if len(problems) > 1 else ''}"
        notes.insert(0, f"{files} left out: {' | '.join(problems)}.")
    return records, notes


def tables(options: argparse.Namespace, records: Sequence[Record]) -> list[tuple[str, Table]]:
    """The tables asked for, by the names of their files.

    Raises:
        UserError: there is no such table.
    """
    every = schemes(records if options.columns != "paper" else ())
    wanted = [options.only] if options.only else [*ALL, *every]
    if options.only and options.only not in (*ALL, *every):
        there = ", ".join(name for name in every if name.startswith(OWN)) or "none yet"
        raise UserError(f"--only {options.only}", "no evaluation of such a task", f"choose from {there}")
    found = [(name, published_table(name, records, options.columns)) for name in every if name in wanted]
    found = [(name, table) for name, table in found if table.groups or options.only]
    for name, ablation in ABLATIONS.items():
        if f"ablation_{name}" in wanted:
            measured = measured_rows(ablation, records) if options.columns != "paper" else []
            if measured or (ablation.has_published and options.columns != "measured"):
                found += ablation_files(ablation, measured)
            elif options.only:
                remedy = "run the plan `ablations` first: python benchmarks/plan.py ablations"
                raise UserError(f"--only {options.only}", "nothing was measured of it", remedy)
    found += [(name, table) for name, table in PLAIN.items() if name in wanted and options.columns != "measured"]
    return found


def ablation_files(ablation: Ablation, measured: Sequence[Measured]) -> list[tuple[str, Table]]:
    """An ablation on each basis it was measured on, numbered from the second on."""
    name = f"ablation_{ablation.name}"
    if not measured:
        return [(name, measured_table(ablation, None))]
    return [
        (name if index == 1 else f"{name}_{index}", measured_table(ablation, each))
        for index, each in enumerate(measured, start=1)
    ]


def check(records: Sequence[Record], folder: Path) -> int:
    """Print how far measured numbers are from the paper's; 1 if one leaves its tolerance.

    Raises:
        UserError: there is none that could be compared.
    """
    found = deviations(records)
    if not found:
        raise UserError(
            folder,
            "holds nothing to check: no evaluation on real data under the profile paper",
            "run benchmarks/run.py --data ROOT --profile paper first",
        )
    for each in found:
        print(each)
    outside = sum(not each.within for each in found)
    print(f"{len(found) - outside} of {len(found)} numbers within their tolerance")
    return WARNED if outside else 0


def dated(table: Table, records: Sequence[Record]) -> Table:
    """The table; where it holds measured numbers of older code, that comes first among its notes."""
    measured = any(column.facts.get("source", "paper") != "paper" for column in table.columns)
    note = of_older_code(records) if measured else ""
    return replace(table, notes=(note, *table.notes)) if note else table


def annotated(table: Table, notes: Sequence[str]) -> Table:
    """The table with further notes behind its own."""
    return replace(table, notes=(*table.notes, *notes))


def write_tables(found: Sequence[tuple[str, Table]], out: Path) -> None:
    """Write tables in all forms, all of them or none, and print them."""
    named = [(name, replace(table, name=name)) for name, table in found]
    files = [{out / f"{name}{end}": render(table) for end, render in FORMS.items()} for name, table in named]
    write_all({path: text for each in files for path, text in each.items()})
    console = Console(highlight=False, soft_wrap=True)
    for (_, table), written in zip(named, files, strict=True):
        print_table(table, console)
        console.print(f"\nWritten: {', '.join(map(str, written))}", markup=False)


def narrowed(
    records: Sequence[Record], wanted: Mapping[str, str | None], folder: Path, kind: str = "evaluation"
) -> list[Record]:
    """Records that agree with what is wanted; None agrees with all.

    Raises:
        UserError: none of a kind does, although the choice was narrowed.
    """
    chosen = list(records)
    for name, value in wanted.items():
        there = sorted({str(dict(record)[name]) for record in chosen if record["kind"] == kind})
        chosen = [record for record in chosen if value is None or dict(record)[name] == value]
        if value is not None and value not in there:
            remedy = f"choose from {', '.join(there)}" if there else f"there is no {kind} yet"
            raise UserError(f"--{name} {value}", f"no such {kind} in {folder}", remedy)
    return chosen

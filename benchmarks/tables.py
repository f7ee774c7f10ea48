"""Print and write the comparison tables: the paper's numbers with the measured ones beside them.

python benchmarks/tables.py
python benchmarks/tables.py --only depth --columns measured --data sample
python benchmarks/tables.py --audit
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.cli import Parser, run
from tespec.comparison.ablations import ablation_table, ablations
from tespec.comparison.audit import render_audit
from tespec.comparison.published import TABLES, published_table
from tespec.comparison.records import Record, read_records
from tespec.comparison.render_csv import render_csv, render_long_csv
from tespec.comparison.render_html import render_html
from tespec.comparison.render_latex import render_latex
from tespec.comparison.render_markdown import render_markdown
from tespec.comparison.render_text import render_text
from tespec.comparison.side_by_side import COLUMNS
from tespec.comparison.table import Table, without_empty
from tespec.errors import UserError
from tespec.paths import RESULTS

FILES: dict[str, Callable[[Table], str]] = {
    "{name}.csv": render_csv,
    "{name}_long.csv": render_long_csv,
    "{name}.tex": render_latex,
    "{name}.md": render_markdown,
    "{name}.html": render_html,
}


ABLATIONS = ablations()


def main(arguments: Sequence[str] | None = None) -> None:
    """Print and write the tables.

    Raises:
        UserError: no record fits what was asked for.
    """
    parser = Parser(description=__doc__)
    parser.add_argument("--only", choices=[*sorted(TABLES), *ABLATIONS], metavar="NAME",
                        help=f"one of {', '.join([*sorted(TABLES), *ABLATIONS])} (default: all)")  # fmt: skip
    parser.add_argument("--columns", choices=COLUMNS, default="both", help="whose numbers (default: both)")
    parser.add_argument("--data", metavar="NAME", help="measured on this data alone, e.g. sample or ddd17")
    parser.add_argument("--profile", metavar="NAME", help="measured under this profile alone, e.g. paper or sample")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="folder that holds runs/")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the files (default: tables/ in --results)")
    parser.add_argument("--audit", action="store_true", help="recompute the gains that the paper's text names")
    options = parser.parse_args(arguments)

    if options.audit:
        sys.stdout.write(render_audit())
        return
    folder, out = options.results / "runs", options.out or options.results / "tables"
    records, problems = read_records(folder)
    for problem in problems:
        sys.stderr.write(f"left out: {problem}\n")
    chosen = choose(records, {"data": options.data, "profile": options.profile}, folder)
    if options.columns == "measured" and not chosen:
        raise UserError(
            folder, "holds no record of an evaluation", "run benchmarks/run.py first, or leave --columns out"
        )
    if not chosen and options.columns == "both":
        sys.stderr.write(f"no evaluation in {folder}: the paper's numbers alone\n")
    for name in [options.only] if options.only else TABLES:
        if name in ABLATIONS:
            continue
        table = published_table(name, chosen, options.columns)
        if problems:
            table = replace(table, notes=(*table.notes, left_out(problems)))
        publish(name, table, out)
    if options.only in ABLATIONS or (not options.only and not chosen):
        for name in [options.only] if options.only else ABLATIONS:
            table = ablation_table(ABLATIONS[name], {}, compared=False)
            publish(f"ablation_{name}_paper", without_empty(table), out)


def publish(name: str, table: Table, out: Path) -> None:
    """Print a table and write it in all forms."""
    written = [write(out / file.format(name=name), render(table)) for file, render in FILES.items()]
    sys.stdout.write(f"{render_text(table)}\nWritten: {', '.join(map(str, written))}\n")


def choose(records: Sequence[Record], wanted: dict[str, str | None], folder: Path) -> list[Record]:
    """Evaluations that agree with what is wanted; None agrees with all.

    Raises:
        UserError: none does, although the choice was narrowed.
    """
    chosen = [record for record in records if record["kind"] == "evaluation"]
    for name, value in wanted.items():
        there = sorted({str(dict(record)[name]) for record in chosen})
        chosen = [record for record in chosen if value is None or dict(record)[name] == value]
        if value is not None and not chosen:
            remedy = f"choose from {', '.join(there)}" if there else "run benchmarks/run.py first"
            raise UserError(f"--{name} {value}", f"no such evaluation in {folder}", remedy)
    return chosen


def left_out(problems: Sequence[str]) -> str:
    """Note on files that are no records."""
    return f"{len(problems)} file{'s' if len(problems) > 1 else ''} left out: {' | '.join(problems)}."


def write(path: Path, text: str) -> Path:
    """Write a file in one step and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, path)
    return path


if __name__ == "__main__":
    sys.exit(run(main))

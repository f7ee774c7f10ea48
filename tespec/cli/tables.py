"""Print and write the comparison tables: the paper's numbers with the measured ones beside them.

python benchmarks/tables.py
python benchmarks/tables.py --measured --only depth --data sample
python benchmarks/tables.py --by label_fraction --where method=tespec
python benchmarks/tables.py --gains scratch
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from tespec.cli.command import Parser
from tespec.comparison.records import SPLITS, read_records
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS

ENDINGS = """Without filters, tables show the test split, all labels, default settings and the newest results version.
exit codes: 0 written; 2 a mistake, or no readable record: nothing written"""
FILTERS = ("data", "profile", "split", "label_fraction", "frozen")  # with an option of their own

BRIEF = ("Measured on different machines", "Not shown", "p:")  # beginnings of the notes that are printed


def main(arguments: Sequence[str] | None = None) -> int:
    """Print and write the tables.

    Raises:
        UserError: no record can be read, or none fits what was asked for.
    """
    parser = Parser(verb="tables", description=__doc__, epilog=ENDINGS)
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these tables, e.g. segmentation")
    parser.add_argument("--measured", action="store_true", help="measured rows and columns alone")
    parser.add_argument("--gains", metavar="BASELINE", help="one table of gains over this method, paired by seed")
    parser.add_argument("--data", metavar="NAME", help="measured on this data, e.g. sample")
    parser.add_argument("--profile", metavar="NAME", help="measured under this profile, e.g. paper")
    parser.add_argument("--split", choices=SPLITS, help="measured on this split (default: test)")
    parser.add_argument("--label-fraction", metavar="SHARE", help="trained on this share of labels (default: 1)")
    parser.add_argument("--frozen", action="store_const", const="True", help="trained on a frozen backbone")
    parser.add_argument("--where", action="append", default=[], metavar="KEY=VALUE", help="other columns of the frame")
    parser.add_argument("--by", default="", metavar="COLUMN", help="a column for each value of it, e.g. label_fraction")
    parser.add_argument("--results", type=Path, default=RESULTS, metavar="DIR", help="folder that holds runs/")
    parser.add_argument("--out", type=Path, metavar="DIR", help="folder of the files (default: tables/ in --results)")
    options = parser.parse_args(arguments)
    if options.gains and (options.only or options.measured or options.by):
        parser.error("--gains is a table of its own, without --only, --measured and --by")
    where = {name: getattr(options, name) for name in FILTERS if getattr(options, name) is not None}
    for text in options.where:
        key, equals, value = text.partition("=")
        if not equals or key in where:
            parser.error(f"--where {text}: {'given twice' if equals else 'write KEY=VALUE'}")
        where[key] = value

    records, problems = read_records(options.results)
    for problem in problems:
        sys.stderr.write(f"left out: {problem}\n")
    if problems and not records:
        raise UserError(options.results, "holds no readable record", "remove the damaged files or run again")
    # Half a second, which a mistake need not wait for.
    from tespec.comparison.export import print_table, write_tables
    from tespec.comparison.frame import to_frame
    from tespec.comparison.published import modified_files
    from tespec.comparison.tables import gains_table, make_tables

    for name in modified_files():
        sys.stderr.write(f"edited: results/paper/{name} is not the file that was shipped\n")
    frame = to_frame(records)
    if options.gains:
        tables = [gains_table(frame, options.gains, where)]
    else:
        tables = make_tables(frame, only=options.only, measured=options.measured, where=where, by=options.by)
    written = write_tables(tables, options.out or options.results / "tables")
    quiet, unmeasured = [], frame.empty
    for table in tables:
        whole = options.gains or options.only or (unmeasured and not table.name.startswith("ablation_"))
        shown = table if whole else table.measured(alone=options.measured)
        if shown is None:
            quiet.append(table.name)
        else:
            print_table(shown, whole=bool(options.only))
    if quiet:
        print(f"Nothing measured: {', '.join(quiet)} (the paper's numbers: --only NAME)")
    for note in dict.fromkeys(note for table in tables for note in table.notes if note.startswith(BRIEF)):
        print(note)
    print(f"Written: {len(written)} files in {written[0].parent}")
    return 0

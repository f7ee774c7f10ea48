"""Simulate pages of claims, and print how often the rule is wrong and what it finds.

python benchmarks/power.py               # minutes; the tables of docs/tables.md
python benchmarks/power.py --pages 200   # a first look
"""

from __future__ import annotations

import sys

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.command import Parser, run


def main() -> int:
    """Simulate and print."""
    parser = Parser(description=__doc__)
    parser.add_argument("--pages", type=int, default=2000, help="simulated pages for each share of errors (2000)")
    parser.add_argument("--seed", type=int, default=0, help="of the simulation (0)")
    options = parser.parse_args()
    if options.pages < 1 or options.seed < 0:
        parser.error("--pages: give 1 or more, and a --seed from 0")
    from benchmarks.measure.power import table

    print(table(options.pages, options.seed))
    return 0


if __name__ == "__main__":
    sys.exit(run(main))

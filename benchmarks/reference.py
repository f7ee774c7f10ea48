"""Measure what a task's numbers can lie between: the prior of its labels, and a network that sees the true frame.

python benchmarks/reference.py prior --task ddd17
python benchmarks/reference.py frame --task ddd17      # on the sample world, whose frames are known
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.command import Parser, run

REFERENCES = ("frame", "prior")


def parse() -> argparse.Namespace:
    """Read the command line."""
    from tespec.cli.options import add_run_options

    parser = Parser(description=__doc__)
    parser.add_argument("reference", choices=REFERENCES, help="the upper reference, or the floor")
    parser.add_argument("--task", required=True, help="what it is measured on; run.py --list names them")
    parser.add_argument("--data", type=Path, metavar="ROOT", help="the task's data (default: ./data/<task>)")
    add_run_options(parser)
    options = parser.parse_args()
    if options.dry_run:
        parser.error("--dry-run: run.py --method scratch --arch feedforward --dry-run prints what such a run costs")
    return options


def main() -> None:
    """Measure, record, print."""
    options = parse()
    from benchmarks.run import print_result
    from tespec.cli.options import setup_of
    from tespec.core.progress import say
    from tespec.core.registry import register_methods
    from tespec.runs.data import find_data, settings_of
    from tespec.runs.references import reference

    register_methods(options.plugins)
    data = find_data(options.task, options.data)
    if data.notice:
        say(data.notice)
    settings = settings_of(data, options.task, "feedforward", options.profile, options.set)
    setup = setup_of(options, "reference.py")
    print_result(reference(options.reference, settings, data, options.seed, setup))


if __name__ == "__main__":
    sys.exit(run(main))

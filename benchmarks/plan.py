"""Run what is missing of a set of runs: the door of a checkout to `tespec/cli/plan.py`."""

import sys

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["plan", *sys.argv[1:]]))

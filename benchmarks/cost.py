"""Say what trainings would take of a GPU: the door of a checkout to `tespec/cli/cost.py`."""

import sys

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["cost", *sys.argv[1:]]))

"""Fine-tune and evaluate one cell of the tables: the door of a checkout to `tespec/cli/run.py`."""

import sys

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["run", *sys.argv[1:]]))

"""Print and write the comparison tables: the door of a checkout to `tespec/cli/tables.py`."""

import sys

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["tables", *sys.argv[1:]]))

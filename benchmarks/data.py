"""Look after data sets: the door of a checkout to `tespec/cli/data.py`."""

import sys

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["data", *sys.argv[1:]]))

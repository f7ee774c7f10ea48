"""Look at weights files, convert them, pass them on: the door of a checkout to `tespec/cli/weights.py`."""

import sys

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["weights", *sys.argv[1:]]))

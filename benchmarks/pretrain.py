"""Pre-train a backbone without labels: the door of a checkout to `tespec/cli/pretrain.py`."""

import sys

if not __package__:
    import installed  # noqa: F401  # before the harness

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["pretrain", *sys.argv[1:]]))

"""Run `python -m tespec.cli VERB ...`, same as `tespec VERB ...`, if the command is not on the path."""

import sys

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

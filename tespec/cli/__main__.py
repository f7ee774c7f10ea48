"""`python -m tespec.cli VERB ...` is `tespec VERB ...`, where the command is not on the path."""

import sys

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

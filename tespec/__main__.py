"""`python -m tespec` is the command `tespec`."""

import sys

from tespec.cli.__main__ import main

if __name__ == "__main__":
    sys.exit(main())

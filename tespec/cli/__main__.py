"""`python -m tespec.cli VERB ...`: the command `tespec` where it is not on the path."""

import sys

from tespec.cli.main import main

if __name__ == "__main__":
    sys.exit(main())

"""The command `tespec VERB ...`, also as `python -m tespec.cli VERB ...`."""

import signal
import sys


def main() -> int:
    """Run `tespec` with the arguments of the process; returns the exit code."""
    # Ctrl-C ends the imports below without a traceback; then `run` handles it.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from tespec.cli.main import main

    return main()


if __name__ == "__main__":
    sys.exit(main())

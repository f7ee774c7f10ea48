"""Run the code of this checkout, whichever one is installed; every script imports this first."""

import importlib.util
import os
import signal
import sys
from pathlib import Path

# Ctrl-C ends the imports without a traceback; then `tespec.cli.main.run` handles it.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
CHECKOUT = str(Path(__file__).resolve().parents[1])
sys.path.insert(0, CHECKOUT)
# for the processes that a plan starts
os.environ["PYTHONPATH"] = os.pathsep.join(
    [CHECKOUT, *filter(None, [os.environ.get("PYTHONPATH")])]
)
if importlib.util.find_spec("torch") is None:
    sys.stderr.write(
        f"error: {sys.executable}: the harness is not installed for this Python; "
        "run `make setup`, then activate .venv or call .venv/bin/python\n"
    )
    sys.exit(2)


def call(verb: str) -> None:
    """Run a verb of `tespec` with the script's arguments, and exit."""
    from tespec.cli.main import main

    sys.exit(main([verb, *sys.argv[1:]]))

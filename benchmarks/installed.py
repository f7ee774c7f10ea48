"""Exit with instructions if this Python lacks the harness; every script imports this module first."""

import importlib.util
import sys

if any(importlib.util.find_spec(name) is None for name in ("tespec", "torch")):
    sys.stderr.write(
        f"error: {sys.executable}: the harness is not installed for this Python; "
        "run `make setup`, then activate .venv or call .venv/bin/python\n"
    )
    sys.exit(2)


def call(verb: str) -> None:
    """Run a verb of `tespec` with the script's arguments, and exit."""
    from tespec.cli.main import main

    sys.exit(main([verb, *sys.argv[1:]]))

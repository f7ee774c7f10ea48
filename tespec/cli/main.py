"""The command `tespec VERB ...`; the scripts in benchmarks/ call it with their verb."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

import tespec
from tespec.cli.command import MISTAKE, VERBS, run, suggestion

USAGE = "usage: tespec VERB ...  (tespec VERB --help tells more)"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments begin with; returns the exit code.

    Only the module of that verb is imported.
    """
    given = list(sys.argv[1:] if arguments is None else arguments)
    verb, rest = (given[0], given[1:]) if given else ("--help", [])
    if verb in ("-h", "--help"):
        lines = [f"  {name:9} {what}" for name, what in VERBS.items()]
        sys.stdout.write("\n".join([USAGE, "", tespec.__doc__ or "", "", *lines]) + "\n")
        return 0
    if verb == "--version":
        sys.stdout.write(f"tespec {tespec.__version__}\n")
        return 0
    if verb not in VERBS:
        advice = suggestion(verb, list(VERBS)) or f"; choose from {', '.join(VERBS)}"
        sys.stderr.write(f"error: unknown verb {verb!r}{advice}\n")
        return MISTAKE
    return run(lambda: import_module(f"tespec.cli.{verb}").main(rest))

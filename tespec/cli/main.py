"""The command `tespec VERB ...`; the scripts in benchmarks/ call it with their verb."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tespec
from tespec.cli.command import VERBS, call, new_app, run
from tespec.core.errors import UserError
from tespec.core.settings import suggest

lines = [f"  {name:9} {what}" for name, what in VERBS.items()]
app = new_app(
    "tespec", f"{tespec.__doc__}\n\n" + "\n".join(lines), usage="tespec VERB ...  (tespec VERB --help tells more)"
)
for name in VERBS:
    app.command(f"tespec.cli.{name}:app", name=name, show=False)  # imported when it is called


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb that the arguments begin with; returns the exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]

    def called() -> int | None:
        if given[0] not in VERBS and not given[0].startswith("-"):
            raise UserError(given[0][:100], "unknown verb", suggest(given[0], VERBS))
        return call(app, given)

    return run(called)

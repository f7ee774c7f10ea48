"""What every command line of the harness shares: one-line errors and exit codes."""

from __future__ import annotations

import argparse
import difflib
import errno
import io
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from tespec.core.errors import Preempted, UserError, one_line
from tespec.core.paths import INSTALLED
from tespec.core.progress import say

MISTAKE = 2
INTERRUPTED = 130
PREEMPTED = 75  # EX_TEMPFAIL: try again
VERBS = {
    "run": "fine-tune and evaluate one cell of the tables",
    "pretrain": "pre-train a backbone without labels",
    "plan": "run what is missing of a set of runs, several at once",
    "tables": "print and write the comparison tables",
    "report": "write all results as one HTML page",
    "data": "check, pack and look at data sets",
    "weights": "inspect, convert, export weights",
}
SCRIPTS = re.compile(rf"(?:python )?benchmarks/({'|'.join(VERBS)})\.py")
HARNESS = ("tespec", "baselines", "benchmarks")
OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)


def by_installed_command() -> bool:
    """Whether this program was started as `tespec VERB`, and not by a script of a checkout."""
    return INSTALLED or Path(sys.argv[0]).stem == "tespec"


def as_started(text: str) -> str:
    """A text that names scripts of a checkout, with `tespec VERB` in their place where that is how one starts them."""
    return SCRIPTS.sub(r"tespec \1", text) if by_installed_command() else text


def run(main: Callable[[], int | None]) -> int:
    """Run a command line and return its exit code.

    That of `main`, 2 after a mistake, 130 after Ctrl-C, 75 where a scheduler took the machine away.

    A `UserError`, or an `OSError` that is no defect of the harness, becomes one line `error: ...` on stderr. Other
    exceptions pass through. Signs that the terminal cannot show are replaced. A reader that has seen enough (`| head`)
    ends the program silently.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # What is still buffered has nowhere to go, also when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UserError as error:
        say(f"error: {as_started(one_line(str(error)))}")
        return MISTAKE
    except OSError as error:
        if error.filename is None and error.errno not in OF_THE_MACHINE:
            raise
        where = error.filename or "writing"
        say(f"error: {where}: {error.strerror}; name another place or fix this one")
        return MISTAKE
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in HARNESS:
            raise
        say(f"error: {sys.executable}: the package {error.name} is not installed; run `make setup`")
        return MISTAKE
    except KeyboardInterrupt as interruption:
        if message := one_line(str(interruption)):
            say(message)
        return PREEMPTED if isinstance(interruption, Preempted) else INTERRUPTED
    return code or 0


class Parser(argparse.ArgumentParser):
    """`ArgumentParser` that answers a mistake in one line, with the nearest spelling where there is one.

    Options cannot be abbreviated: a script that relies on an abbreviation breaks when an option is added. The parsed
    options hold the arguments themselves as `given`.
    """

    def __init__(self, **settings: Any) -> None:
        if verb := settings.pop("verb", ""):
            settings["prog"] = as_started(f"benchmarks/{verb}.py").removeprefix("benchmarks/")
        settings["description"] = as_started(settings.get("description") or "") or None
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        settings.setdefault("allow_abbrev", False)
        super().__init__(**settings)

    # argparse declares one overload for each kind of namespace; all of them end here.
    def parse_args(self, args: Sequence[str] | None = None) -> Any:  # type: ignore[override]
        """Parse all arguments; an unknown one ends the program with exit code 2 and names the nearest option."""
        given = list(sys.argv[1:] if args is None else args)
        options, unknown = self.parse_known_args(given)
        if unknown:
            self.error(f"unknown argument {unknown[0]!r}{self._nearest_option(unknown[0])}; see --help")
        options.given = given
        return options

    def error(self, message: str) -> NoReturn:
        """End the program with exit code 2 and one line on stderr."""
        self.exit(MISTAKE, f"error: {as_started(one_line(message))}\n")

    def _nearest_option(self, given: str) -> str:
        for action in self._actions:
            if action.option_strings and given in (action.choices or ()):
                return f"; did you mean '{action.option_strings[-1]} {given}'?"
        return suggestion(given.partition("=")[0], list(self._option_string_actions))

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            choices = [str(choice) for choice in action.choices]
            advice = suggestion(str(value), choices) or f"; choose from {', '.join(choices)}"
            raise argparse.ArgumentError(action, f"unknown value {str(value)!r}{advice}")


def suggestion(given: str, known: Sequence[str]) -> str:
    """The known name nearest to what was given, as the end of a sentence; "" where none is near."""
    close = difflib.get_close_matches(given, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else ""

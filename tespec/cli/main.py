"""The command `tespec VERB ...` and features of all verbs: help on one screen, one-line errors, exit codes."""

import errno
import io
import os
import sys
from collections.abc import Callable, Sequence
from typing import Any

from cyclopts import App, CycloptsError, Group, Parameter, UnusedCliTokensError

import tespec
from tespec.core.errors import Preempted, UserError, one_line
from tespec.core.progress import say
from tespec.core.settings import suggest

MISTAKE = 2
INTERRUPTED = 130
PREEMPTED = 75  # EX_TEMPFAIL
VERBS = {
    "run": "fine-tune and evaluate one cell of the tables",
    "pretrain": "pre-train a backbone without labels",
    "plan": "run the missing runs of a plan in parallel",
    "tables": "print and write the comparison tables",
    "report": "write all results as one HTML page",
    "data": "check, pack and preview data sets",
    "weights": "inspect and convert weights",
}
HARNESS = ("tespec", "baselines", "benchmarks")
OF_THE_MACHINE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
WIDTH = 120  # of help, when stdout is not a terminal


def new_app(name: str, text: str = "", **more: Any) -> App:
    """Create a cyclopts app; `text` replaces the docstring of its function as the description."""
    return App(
        name=name,
        help=text or None,
        version=f"tespec {tespec.__version__}",
        help_format="plaintext",
        help_formatter="plain",
        group_parameters=Group("Options", sort_key=0),
        default_parameter=Parameter(
            negative=(),
            show_default=lambda value: None if value is False or value in ((), "") else value,
        ),
        **more,
    )


def call(app: App, given: Sequence[str]) -> int | None:
    """Parse a command line and call its function; a parameter `given` receives the unparsed arguments."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else WIDTH
    command, bound, ignored = app.parse_args(
        given, console=Console(width=width, file=sys.stdout), exit_on_error=False, print_error=False
    )
    result: int | None = command(
        *bound.args, **bound.kwargs, **({"given": given} if "given" in ignored else {})
    )
    return result


def run(main: Callable[[], int | None]) -> int:
    """Run a command and return its exit code: that of `main`, 2 after a mistake, 130 after Ctrl-C, 75 if preempted.

    Mistakes on the command line, a `UserError`, a missing package, or an `OSError` of a file or the
    machine print one line `error: ...` to stderr; other exceptions propagate. A closed pipe (`|
    head`) ends the command silently.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        code = main()
        sys.stdout.flush()
        return code or 0
    except BrokenPipeError:
        # Redirect buffered output to /dev/null, or Python raises again when it exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except CycloptsError as error:
        what = one_line(str(error)).rstrip(".")
        if isinstance(error, UnusedCliTokensError):
            what = f"unexpected {' '.join(error.unused_tokens or ())!r}"
        mistake = what if "?" in what else f"{what}; see --help"
    except UserError as error:
        mistake = str(error)
    except OSError as error:
        if error.filename is None and error.errno not in OF_THE_MACHINE:
            raise
        mistake = (
            f"{error.filename or 'writing'}: {error.strerror}; choose another path or fix this one"
        )
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in HARNESS:
            raise
        mistake = f"{sys.executable}: the package {error.name} is not installed; run `make setup`"
    except KeyboardInterrupt as interruption:
        if message := one_line(str(interruption)):
            say(message)
        return PREEMPTED if isinstance(interruption, Preempted) else INTERRUPTED
    say(f"error: {one_line(mistake)}")
    return MISTAKE


def refuse(wrong: bool, what: str) -> None:
    """Raise a `CycloptsError` with message `what` if options are wrong or contradict each other."""
    if wrong:
        raise CycloptsError(msg=what)


lines = [f"  {name:9} {what}" for name, what in VERBS.items()]
app = new_app(
    "tespec",
    f"{tespec.__doc__}\n\n" + "\n".join(lines),
    usage="tespec VERB ...  (see tespec VERB --help)",
)
for name in VERBS:
    place = {"pretrain": "run:pretrain_app", "report": "tables:report_app"}.get(name, f"{name}:app")
    app.command(f"tespec.cli.{place}", name=name, show=False)  # imported lazily


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the verb in the first argument and return the exit code; scripts in benchmarks/ pass their own verb."""
    given = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]

    def called() -> int | None:
        if given[0] not in VERBS and not given[0].startswith("-"):
            raise UserError(given[0][:100], "unknown verb", suggest(given[0], VERBS))
        return call(app, given)

    return run(called)

"""The command `tespec VERB ...`: its verbs, help, one-line errors and exit codes."""

import errno
import io
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, TextIO

from cyclopts import App, CycloptsError, Group, Parameter

import tespec
from tespec.core.errors import Preempted, UserError, one_line
from tespec.core.progress import log

MISTAKE = 2
INTERRUPTED = 130
CLOSED_PIPE = 141  # as of a process that SIGPIPE ends
PREEMPTED = 75  # EX_TEMPFAIL
# app in this package, and what it does
VERBS = {
    "run": ("run:app", "fine-tune and evaluate one cell of the tables"),
    "pretrain": ("run:pretrain_app", "pre-train a backbone without labels"),
    "plan": ("plan:app", "run the missing runs of a plan in parallel"),
    "tables": ("tables:app", "print and write the comparison tables"),
    "report": ("tables:report_app", "write all results as one HTML page"),
    "data": ("data:app", "check, pack and preview data sets"),
    "weights": ("weights:app", "inspect and convert weights"),
}
LISTED = Group("Verbs", show=False)  # in the help's text
HARNESS = ("tespec", "baselines", "benchmarks")
MACHINE_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
PICTURES = (".png", ".jpg", ".jpeg", ".pdf", ".svg")
FOLDER = ""  # in place of a suffix
HELP_WIDTH = 120  # columns, if stdout is not a terminal


def examples(*commands: str) -> str:
    """Format the commands that a verb's help shows below its options."""
    return "\n".join(["Examples:", *(f"  tespec {command}" for command in commands)])


def new_app(name: str, text: str = "", **options: Any) -> App:
    """Create a cyclopts app with the style of all commands.

    Args:
        name: the verb.
        text: description; default: the docstring of the app's function.
        options: other arguments of `cyclopts.App`.
    """
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
        **options,
    )


def call(app: App, words: Sequence[str]) -> int | None:
    """Parse a command line and call its function.

    Args:
        app: the command.
        words: its arguments; a function with a parameter `given` receives them unparsed.

    Returns:
        The function's result: an exit code, or None for success.
    """
    from rich.console import Console

    text = io.StringIO()  # of the help; rich ends a program whose output is closed
    console = Console(width=None if sys.stdout.isatty() else HELP_WIDTH, file=text)
    command, bound, ignored = app.parse_args(
        words, console=console, exit_on_error=False, print_error=False
    )
    unparsed = {"given": words} if "given" in ignored else {}
    result: int | None = command(*bound.args, **bound.kwargs, **unparsed)
    print(text.getvalue(), end="")
    return result


def run(main: Callable[[], int | None]) -> int:
    """Run a command, and print expected errors as one line `error: ...` on stderr.

    Expected are mistakes on the command line, a `UserError`, a missing package, and an `OSError` of
    a file or the machine; other exceptions propagate. A closed pipe (`| head`) ends the command
    silently; what is printed to a closed stdout or stderr (`>&-`) is lost.

    Returns:
        Exit code: that of `main`, 2 after an error, 130 after Ctrl-C, 141 after a closed pipe, 75
        if preempted.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("stdout", "stderr"):
        output = getattr(sys, name)
        if output is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif isinstance(output, io.TextIOWrapper):
            output.reconfigure(errors="replace")
    try:
        return _exit_code(main)
    except BrokenPipeError:
        broken = [output for output in (sys.stdout, sys.stderr) if _has_no_reader(output)]
        if not broken:
            raise
        # Redirect buffered output to /dev/null, or Python raises again when it exits.
        for output in broken:
            os.dup2(os.open(os.devnull, os.O_WRONLY), output.fileno())
        return CLOSED_PIPE


def print_defect(
    kind: type[BaseException], error: BaseException, trace: TracebackType | None
) -> None:
    """Print the traceback of an error, if the user's own code failed, from there on.

    Args:
        kind: type of the error.
        error: the error.
        trace: its traceback.
    """
    from tespec.registry import is_user_code

    part = trace
    while part and not is_user_code(part.tb_frame.f_code.co_filename):
        part = part.tb_next
    traceback.print_exception(kind, error, part or trace)


def _has_no_reader(output: TextIO) -> bool:
    poll = select.poll()
    poll.register(output, 0)  # for POLLERR and POLLHUP alone
    return bool(poll.poll(0))


def _exit_code(main: Callable[[], int | None]) -> int:
    try:
        code = main()
        sys.stdout.flush()
        return code or 0
    except CycloptsError as error:
        message = one_line(str(error)).rstrip(".")
        if "?" not in message:
            message += "; see --help"
    except UserError as error:
        message = str(error)
    except OSError as error:
        if error.filename is None and error.errno not in MACHINE_ERRORS:
            raise
        path = error.filename or "writing"
        message = f"{path}: {error.strerror}; choose another path or fix this one"
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] in HARNESS:
            raise
        message = f"{sys.executable}: the package {error.name} is not installed; run `make setup`"
    except KeyboardInterrupt as interruption:
        if message := one_line(str(interruption)):
            log(message)
        return PREEMPTED if isinstance(interruption, Preempted) else INTERRUPTED
    log(f"error: {one_line(message)}")
    return MISTAKE


def output(*suffixes: str) -> Parameter:
    """Refuse an output that is not a file with one of these suffixes, or a folder with `FOLDER`."""

    def check(kind: Any, path: Path | None) -> None:
        if path is None:
            return
        has_format = path.suffix[1:].isalpha()  # unlike the folder results-1.0
        suffix = path.suffix.lower() if has_format and not path.is_dir() else FOLDER
        if suffix not in suffixes or (suffix == FOLDER and path.is_file()):
            raise ValueError(f"Allowed: {', '.join(suffix or 'a folder' for suffix in suffixes)}.")

    return Parameter(validator=check)


def refuse(wrong: bool, message: str) -> None:
    """Raise a `CycloptsError` with this message if options are wrong or contradictory."""
    if wrong:
        raise CycloptsError(msg=message)


verbs = [f"  {name:9} {text}" for name, (_, text) in VERBS.items()]
app = new_app(
    "tespec",
    "Benchmark harness for self-supervised pre-training on event cameras.\n\n" + "\n".join(verbs),
    usage="Usage: tespec VERB ...  (see tespec VERB --help)",
    help_epilogue=examples("plan demo", "run --method tespec --task ddd17"),
)
for name, (target, _) in VERBS.items():
    app.command(f"tespec.cli.{target}", name=name, group=LISTED)  # imported when it is called


def main(arguments: Sequence[str] | None = None) -> int:
    """Run `tespec` with these arguments, by default those of the process; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments) or ["--help"]
    sys.excepthook = print_defect
    return run(lambda: call(app, words))

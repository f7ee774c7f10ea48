"""Progress of anything that takes longer than two seconds: rate and time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

SECONDS_BETWEEN_LINES = 5.0

Advance = Callable[[int, int | None, str], None]


@contextmanager
def progress(label: str, unit: str, start: int = 0) -> Iterator[Advance]:
    """A bar on a terminal, a line every few seconds elsewhere; yields `advance(done, total or None, note)`.

    Of several processes the first one shows it.

    Args:
        label: what is being done.
        unit: name of one unit of work, for the rate.
        start: units that were done before.
    """
    if not _speaks():
        yield lambda done, total, note: None
        return
    began = time.monotonic()

    def rate(done: int) -> float:
        return (done - start) / max(time.monotonic() - began, 1e-9)

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[note]}"), TimeRemainingColumn())
        with Progress(TextColumn("{task.description}"), *columns, console=Console(stderr=True)) as bar:
            task = bar.add_task(label, total=None, completed=start, note="")
            yield lambda done, total, note: bar.update(
                task, completed=done, total=total, note=f"{rate(done):.3g} {unit}/s {note}"
            )
        return

    last = began

    def write_line(done: int, total: int | None, note: str) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last < SECONDS_BETWEEN_LINES and (total is None or done < total or last == began):
            return
        last = now
        of, left = (
            ("", "") if total is None else (f"/{total}", f", {(total - done) / max(rate(done), 1e-9):.0f} s left")
        )
        text = f"{label}: {done}{of} {unit}, {rate(done):.3g} {unit}/s{left} {note}"
        sys.stderr.write(text.rstrip() + "\n")
        sys.stderr.flush()

    yield write_line


def say(text: str) -> None:
    """One line for the user, beside the progress display; of several processes the first one speaks."""
    if _speaks():
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


def _speaks() -> bool:
    """Whether this process is the first of its run; one that has not imported torch is alone."""
    if "torch" not in sys.modules:
        return True
    from tespec.core.distributed import is_first

    return is_first()

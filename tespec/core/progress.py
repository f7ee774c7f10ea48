"""Progress bars, with rate and remaining time, for work that takes longer than two seconds."""

import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tqdm import tqdm

SECONDS_BETWEEN_LINES = 5.0
LINE = "{desc}: {n_fmt}/{total_fmt}{unit}, {rate_noinv_fmt}, {remaining} left{postfix}"
COUNT = "{desc}: {n_fmt}{unit}, {rate_noinv_fmt}{postfix}"  # the total is unknown

tqdm.set_lock(threading.RLock())  # tqdm's default lock would fix multiprocessing's start method
tqdm.monitor_interval = 0  # no monitor thread, as worker processes are forked

Advance = Callable[[int, "int | None", str], None]


@contextmanager
def progress(label: str, unit: str, start: int = 0) -> Iterator[Advance]:
    """Show a progress bar on a terminal, else a line every 5 s, on rank 0.

    Args:
        label: the work; "" shows nothing.
        unit: name of what is counted, in the plural.
        start: number of units done before.

    Returns:
        Context that yields `advance(done, total, note)`; `total` is None if it is unknown.
    """
    is_terminal = sys.stderr.isatty()
    with (
        open(os.devnull, "w", encoding="utf-8") as devnull,
        tqdm(
            desc=label, unit=f" {unit}", initial=start, delay=2, miniters=1, smoothing=0,
            disable=not (label and _is_first()), bar_format=None if is_terminal else LINE,
            file=sys.stderr if is_terminal else devnull,
        ) as bar,
    ):  # fmt: skip
        started = last = time.monotonic()

        def advance(done: int, total: int | None, note: str) -> None:
            nonlocal last
            bar.total = total
            bar.set_postfix_str(note, refresh=False)
            bar.update(done - bar.n)
            now = time.monotonic()
            is_due = now - last >= SECONDS_BETWEEN_LINES or (done == total and last != started)
            if is_due and not (is_terminal or bar.disable):
                last = now
                bar.bar_format = LINE if total else COUNT
                sys.stderr.write(f"{bar}\n")
                sys.stderr.flush()

        yield advance


def log(text: str) -> None:
    """Print one line to stderr without breaking a progress bar; only rank 0 prints."""
    if _is_first():
        with tqdm.external_write_mode(file=sys.stderr):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _is_first() -> bool:
    """Whether this process is rank 0; a process that has not imported torch runs alone."""
    if "torch" not in sys.modules:
        return True
    from tespec.core.distributed import is_first

    return is_first()

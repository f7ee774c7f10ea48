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
    """Show a progress bar on a terminal, else a line every 5 s; yields `advance(done, total or None, note)`.

    Only rank 0 shows it, and nobody one without a label. `unit` is plural; `start` is the number of
    units done before.
    """
    shown = sys.stderr.isatty()
    with (
        open(os.devnull, "w", encoding="utf-8") as nowhere,
        tqdm(
            desc=label, unit=f" {unit}", initial=start, delay=2, miniters=1, smoothing=0,
            disable=not (label and _speaks()), bar_format=None if shown else LINE,
            file=sys.stderr if shown else nowhere,
        ) as bar,
    ):  # fmt: skip
        began = last = time.monotonic()

        def advance(done: int, total: int | None, note: str) -> None:
            nonlocal last
            bar.total = total
            bar.set_postfix_str(note, refresh=False)
            bar.update(done - bar.n)
            now = time.monotonic()
            due = now - last >= SECONDS_BETWEEN_LINES or (done == total and last != began)
            if due and not (shown or bar.disable):
                bar.bar_format, last = LINE if total else COUNT, now
                sys.stderr.write(f"{bar}\n")
                sys.stderr.flush()

        yield advance


def say(text: str) -> None:
    """Print one line to stderr without breaking a progress bar; only rank 0 prints."""
    if _speaks():
        with tqdm.external_write_mode(file=sys.stderr):
            sys.stderr.write(text + "\n")
            sys.stderr.flush()


def _speaks() -> bool:
    """Whether this process is rank 0; a process that has not imported torch runs alone."""
    if "torch" not in sys.modules:
        return True
    from tespec.core.distributed import is_first

    return is_first()

"""Reader of the `.bin` files of N-MNIST and N-Caltech101: 5 bytes an event, without a header.

The bytes hold x, y, and the polarity in one bit before 23 bits of the time in us, big-endian. An entry with y = 240 is
no event: the times from it on are 8192 us later. Source: gorchard/event-Python, eventvision.py, `read_dataset`.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, read_rows, read_start, resolve_size

ENTRY = np.dtype([("x", "u1"), ("y", "u1"), ("high", "u1"), ("middle", "u1"), ("low", "u1")])
OVERFLOW_ROW, OVERFLOW_US = 240, 1 << 13
BLOCK = 1 << 18  # entries per chunk
FEWEST = 10  # entries; fewer could be anything
CHECKED = 1000  # entries at the start of a file, by which it is told from other `.bin` files
MOST_STEPS_BACK = 0.01  # of the checked entries; half of them in random bytes


def reads(path: Path) -> bool:
    """Whether a `.bin` file consists of entries of 5 bytes, with rows up to 240 and times that rise at its start."""
    if path.suffix.lower() != ".bin" or not path.is_file() or path.stat().st_size % ENTRY.itemsize:
        return False
    entries = np.frombuffer(read_start(path, CHECKED * ENTRY.itemsize), ENTRY)
    if len(entries) < FEWEST or entries["y"].max() > OVERFLOW_ROW:
        return False
    times = _times(entries)
    return bool(times[-1] > times[0] and np.mean(np.diff(times) < 0) <= MOST_STEPS_BACK)


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.bin` file, which does not name its sensor; see `tespec.events.readers`."""
    size = resolve_size(path, sensor, default=default)
    count = path.stat().st_size // ENTRY.itemsize

    def chunks() -> Iterator[Events]:
        later = 0
        for entries in read_rows(path, ENTRY, 0, count, BLOCK):
            overflows = entries["y"] == OVERFLOW_ROW
            times = _times(entries) + later
            later += OVERFLOW_US * int(np.count_nonzero(overflows))
            polarity = entries["high"] >> 7
            x, y, t, p = (column[~overflows] for column in (entries["x"], entries["y"], times, polarity))
            yield Events(x.astype(np.uint16), y.astype(np.uint16), t, p)

    return Reader(path, *size, count, chunks)


def _times(entries: NDArray[Any]) -> NDArray[np.int64]:
    """Times of entries (N,) in us, with the overflows among them."""
    high, middle, low = (entries[name].astype(np.int64) for name in ("high", "middle", "low"))
    return ((high & 127) << 16 | middle << 8 | low) + OVERFLOW_US * np.cumsum(entries["y"] == OVERFLOW_ROW)

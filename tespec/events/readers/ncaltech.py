"""Reader of the `.bin` files of N-MNIST and N-Caltech101: 5 bytes an event, without a header.

The bytes hold x, y, and the polarity in one bit before 23 bits of the time in us, big-endian. An
entry with y = 240 is no event: the times from it on are 8192 us later. Source:
gorchard/event-Python, eventvision.py, `read_dataset`.
"""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, record_reader, resolve_size, rises

ENTRY = np.dtype([("x", "u1"), ("y", "u1"), ("high", "u1"), ("low", ">u2")])
OVERFLOW_ROW, OVERFLOW_US = 240, 1 << 13
CHECKED = 1000  # entries at the start of a file, by which it is recognised


def reads(path: Path) -> bool:
    """Whether a `.bin` file has entries of 5 bytes that start with rising times, rows up to 240."""
    if path.suffix.lower() != ".bin" or not path.is_file() or path.stat().st_size % ENTRY.itemsize:
        return False
    entries = np.fromfile(path, ENTRY, CHECKED)
    return bool((entries["y"] <= OVERFLOW_ROW).all()) and rises(
        _decode(entries, np.zeros(1, np.int64)).t
    )


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a `.bin` file, which does not name its sensor.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    size = resolve_size(path, sensor, default=default)
    return record_reader(path, size, ENTRY, 0, _decode, [0])


def _decode(entries: NDArray[Any], state: NDArray[np.int64]) -> Events:
    """Convert entries (N,) to events; their times are later than stored by the `state` in us."""
    overflows = entries["y"] == OVERFLOW_ROW
    t = (entries["high"].astype(np.int64) & 127) << 16 | entries["low"]
    t += state[0] + OVERFLOW_US * np.cumsum(overflows)
    state += OVERFLOW_US * np.count_nonzero(overflows)
    polarity = (entries["high"] >> 7).astype(np.uint8)
    events = Events(entries["x"].astype(np.uint16), entries["y"].astype(np.uint16), t, polarity)
    return Events(*(column[~overflows] for column in events))

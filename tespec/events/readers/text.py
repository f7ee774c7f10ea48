"""Reader of events in text files: CSV with a header of names, and published layouts without one.

Without a header, only two layouts are read, which cannot be confused:

- t x y p with times in seconds, as `events.txt` of RPG's event-camera data set
  (rpg.ifi.uzh.ch/davis_data.html) and of E2VID, whose first line is the sensor's width and height
  (uzh-rpg/rpg_e2vid, utils/event_readers.py).
- x,y,p,t with times in us, as Metavision writes them (prophesee-ai/openeb, metavision_file_to_csv).
"""

import io
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import BLOCK, OFF_SENSOR, Events, Reader, resolve_size, rises
from tespec.events.readers.arrays import COPY_AGAIN, as_events, find_columns

SUFFIXES = (".csv", ".txt")
HEAD = 1 << 14  # bytes at the start of a file, by which its layout is recognised
HEADER = (
    "give it a first line with the names of its columns, as x,y,t,p "
    "(t: integers in us, or decimal seconds)"
)
DAMAGED = (ValueError, LookupError, OverflowError, MemoryError)


def reads(path: Path) -> bool:
    """Whether a text file has events, judging by its first lines."""
    try:
        is_text = path.suffix.lower() in SUFFIXES and path.is_file()
        return is_text and bool(open_recording(path, default=(1, 1)))
    except (UserError, OSError):
        return False


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a text file, which is refused unless its layout is certain.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    with path.open("rb") as file:
        head = file.read(HEAD)
    complete = head[: head.rfind(b"\n") + 1] if len(head) == HEAD else head
    lines = re.split(r"\r\n|\n|\r", complete.decode("utf-8-sig", "replace"))
    names, size, skipped = _read_preamble(lines)
    rows = [line for line in lines[skipped:] if line.strip() and line[0] != "#"]
    try:
        columns, unit, options = _find_layout(path, names, rows)
    except (UserError, *DAMAGED) as error:
        reason = getattr(error, "what", error)
        raise UserError(path, f"holds no events in a known layout ({reason})", HEADER) from error
    size = resolve_size(path, sensor, size, default)
    count = path.stat().st_size * len(rows) // len(complete)

    def chunks() -> Iterator[Events]:
        try:
            with pd.read_csv(path, skiprows=skipped, chunksize=BLOCK, **options) as tables:
                for table in tables:
                    yield as_events(
                        path, *(table[column].to_numpy() for column in columns), unit=unit
                    )
        except DAMAGED as error:
            raise UserError(path, f"has a line that is no event ({error})", COPY_AGAIN) from error

    return Reader(path, *size, count, chunks)


def _read_preamble(lines: list[str]) -> tuple[list[str], Size | None, int]:
    """Return names of columns, sensor size (height, width), number of lines before the events."""
    names: list[str] = []
    size = None
    for number, line in enumerate(lines):
        text = line.strip().lstrip("#% ")
        # Metavision, E2VID
        sides = re.fullmatch(r"%geometry:(\d{1,6}),(\d{1,6})|(\d{1,6}) (\d{1,6})", line.strip())
        fields = _split(re.sub(r"@\d+", "", text))
        if sides and size is None:
            width, height = filter(None, sides.groups())
            size = int(height), int(width)
        elif not names and find_columns(fields):
            names = fields
            if named := re.search(r"x@(\d{1,6}),y@(\d{1,6})", text):  # faery
                size = int(named[2]), int(named[1])
        elif text and line.strip()[0] not in "#%":
            return names, size, number
    return names, size, len(lines)


def _split(line: str) -> list[str]:
    return [field.strip(" \t\"'") for field in line.split("," if "," in line else None)]


def _find_layout(
    path: Path, names: list[str], rows: list[str]
) -> tuple[list[int], float | None, dict[str, Any]]:
    """Find the columns of the first lines of events.

    Args:
        path: the file, for messages.
        names: names of the columns in the header; without any, a published layout is recognised.
        rows: the first lines of events.

    Returns:
        The positions of x, y, t and p, the microseconds in one unit of t if its name gives the
        unit, and arguments of `pandas.read_csv`.

    Raises:
        ValueError, UserError: If the lines are no events, or their layout is not certain.
    """
    if not rows or len(_split(rows[0])) != len(names or "txyp"):
        raise ValueError("its columns are not as many as their names")
    options: dict[str, Any] = {
        "sep": "," if "," in rows[0] else r"\s+",
        "header": None,
        "comment": "#",
        "skipinitialspace": True,
        "encoding_errors": "replace",
        "low_memory": False,  # one dtype for each column of a chunk
    }
    table = pd.read_csv(io.StringIO("\n".join(rows)), **options)
    kinds = [dtype.kind for dtype in table.dtypes]
    order = names
    if not names and kinds[0] == "f":
        order = ["t", "x", "y", "p"]
    elif not names and options["sep"] == ",":
        order = ["x", "y", "p", "t"]
    named_columns = find_columns(order)
    if named_columns is None:
        raise ValueError("its columns have no names")
    xytp, unit = named_columns
    columns = [order.index(name) for name in xytp]
    if unit is None:
        times = [_split(row)[columns[2]] for row in rows]
        if len({re.fullmatch(r"-?\d+", time) is not None for time in times}) == 2:
            raise ValueError("integer and decimal times are mixed")
    if not names:
        x, y, t, _ = as_events(path, *(table[column].to_numpy() for column in columns))
        if max(x.max(), y.max()) == OFF_SENSOR or not rises(t):
            raise ValueError("its values are no events")
    options["dtype"] = {columns[2]: np.int64 if kinds[columns[2]] in "iu" else np.float64}
    return columns, unit, options

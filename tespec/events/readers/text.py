"""Reader of events in text files: CSV with a header of names, and published layouts without one.

Without a header, only two layouts are read, which cannot be confused:

- t x y p with times in seconds, as the `events.txt` of RPG's event-camera data set (rpg.ifi.uzh.ch/davis_data.html) and
  of E2VID, whose first line is the sensor's width and height (uzh-rpg/rpg_e2vid, utils/event_readers.py).
- x,y,p,t with times in us, as Metavision writes them (prophesee-ai/openeb, metavision_file_to_csv).
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import OFF_SENSOR, Events, Reader, read_start, resolve_size
from tespec.events.readers.arrays import AGAIN, as_events, find_columns

SUFFIXES = (".csv", ".txt")
HEAD = 1 << 14  # bytes at the start of a file, by which its layout is recognised
FEWEST = 10  # lines of events without a header; fewer could be anything
MOST_STEPS_BACK = 0.01  # of the times in these lines; half of them in a column that is not time
SEPARATORS = (",", ";")  # else spaces or tabs
WHOLE = r"[+-]?\d+"
BLOCK = 1 << 18  # events per chunk
HEADER = "give it a first line with the names of its columns, as x,y,t,p (t: integers in us, or decimal seconds)"
DAMAGED = (ValueError, OverflowError, MemoryError)


class Layout(NamedTuple):
    """How a text file stores events."""

    columns: list[int]  # positions of x, y, t and p
    width: int  # number of columns
    separator: str  # for `pandas.read_csv`
    skipped: int  # lines before the first event
    whole_times: bool  # whether times are written as integers
    unit: float | None  # microseconds in one unit of the times; None: in us if they are integers, else in s
    size: Size | None  # (height, width) in px, if the file names its sensor
    line_bytes: float  # mean length of a line


def reads(path: Path) -> bool:
    """Whether a text file has events, judging by its first lines."""
    return path.suffix.lower() in SUFFIXES and path.is_file() and _find_layout(path) is not None


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a text file; see `tespec.events.readers`."""
    layout = _find_layout(path)
    if layout is None:
        raise UserError(path, "holds no events in a known layout", HEADER)
    size = resolve_size(path, sensor, layout.size, default)

    def chunks() -> Iterator[Events]:
        try:
            with pd.read_csv(
                path,
                sep=layout.separator,
                header=None,
                names=range(layout.width),
                usecols=layout.columns,
                dtype={layout.columns[2]: np.int64 if layout.whole_times else np.float64},
                skiprows=layout.skipped,
                chunksize=BLOCK,
                comment="#",
                skipinitialspace=True,
                encoding_errors="replace",
                low_memory=False,
            ) as tables:
                for table in tables:
                    columns = (table[column].to_numpy() for column in layout.columns)
                    yield as_events(path, *columns, unit=layout.unit)
        except DAMAGED as error:
            raise UserError(path, f"has a line that is no event ({error})", AGAIN) from error

    return Reader(path, *size, int(path.stat().st_size / layout.line_bytes), chunks)


def _find_layout(path: Path) -> Layout | None:
    """Recognise the layout of a text file by its first lines; None unless it is certain."""
    head = read_start(path, HEAD)
    lines = re.split(r"\r\n|\n|\r", head.decode("utf-8-sig", "replace"))
    if len(head) == HEAD:
        lines.pop()  # it may be cut
    names, size, skipped = _read_preamble(lines)
    events = [line for line in lines[skipped:] if line.strip() and line.strip()[0] != "#"]
    rows = [_split(line) for line in events]
    if not rows or any(len(row) != len(rows[0]) for row in rows) or (names and len(names) != len(rows[0])):
        return None
    separator = next((mark for mark in SEPARATORS if mark in events[0]), r"\s+")
    names = names or _published_names(rows, separator)
    found = find_columns(names)
    if found is None:
        return None
    columns = [names.index(name) for name in found[0]]
    whole_times = all(re.fullmatch(WHOLE, row[columns[2]]) for row in rows)
    line_bytes = sum(map(len, events)) / len(events) + 1
    return Layout(columns, len(names), separator, skipped, whole_times, found[1], size, line_bytes)


def _read_preamble(lines: list[str]) -> tuple[list[str], Size | None, int]:
    """Names of the columns, sensor size (height, width), and number of lines before the first event."""
    names: list[str] = []
    size = None
    for number, line in enumerate(lines):
        text = line.strip()
        bare = text.lstrip("#% ")
        fields = _split(re.sub(r"@\d+", "", bare))
        sides = re.fullmatch(r"geometry:(\d{1,6}),(\d{1,6})|(\d{1,6}) (\d{1,6})", bare)  # Metavision, E2VID
        if sides and size is None:
            width, height = filter(None, sides.groups())
            size = int(height), int(width)
        elif not names and find_columns(fields):
            names = fields
            named = dict(re.findall(r"\b([xy])@(\d{1,6})", bare))  # t,x@640,y@480,on of faery
            size = (int(named["y"]), int(named["x"])) if len(named) == 2 else size
        elif text and text[0] not in "#%":
            return names, size, number
    return names, size, len(lines)


def _split(line: str) -> list[str]:
    separator = next((mark for mark in SEPARATORS if mark in line), None)
    return [field.strip(" \t\"'") for field in line.strip().split(separator)]


def _published_names(rows: list[list[str]], separator: str) -> list[str]:
    """Names of the columns of a file without a header, none unless it certainly has a published layout."""
    if len(rows) < FEWEST or len(rows[0]) != 4:
        return []
    whole_first, whole_last = (all(re.fullmatch(WHOLE, row[column]) for row in rows) for column in (0, 3))
    if not whole_first:
        names = ["t", "x", "y", "p"]
    elif whole_last and separator == ",":
        names = ["x", "y", "p", "t"]
    else:
        return []
    try:
        values = np.array(rows, np.float64)
    except ValueError:
        return []
    x, y, t, p = (values[:, names.index(name)] for name in "xytp")
    pixels = np.stack([x, y])
    on_sensor = ((pixels >= 0) & (pixels < OFF_SENSOR) & (pixels == np.rint(pixels))).all()
    polar = np.isin(p, (0, 1)).all() or np.isin(p, (-1, 1)).all()
    rising = t[-1] > t[0] and np.mean(np.diff(t) < 0) <= MOST_STEPS_BACK
    return names if on_sensor and polar and rising else []

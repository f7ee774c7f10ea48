"""What `.dat` and `.raw` files share: a text header of lines that start with `%`, then words of fixed size."""

import re
from pathlib import Path

import numpy as np
from numba import njit

from tespec.core.errors import UserError
from tespec.core.settings import Size

LONGEST_HEADER = 1 << 16  # bytes; real headers have a few hundred
BLOCK = 1 << 16  # events or words per read, which stay in the CPU cache


def read_header(path: Path) -> tuple[dict[str, str], Size | None, int]:
    """Read a header: fields by lower-case name, sensor (height, width) in px if named, and its own size in bytes."""
    with path.open("rb") as file:
        head = file.read(LONGEST_HEADER)
    if head[:1] != b"%":
        what = "does not start with a header (lines that start with %)" if head else "the file is empty"
        raise UserError(path, what, "copy it again, or give a Prophesee recording")
    fields: dict[str, str] = {}
    offset, line = 0, ""
    while head[offset : offset + 1] == b"%" and line != "end":
        end = head.find(b"\n", offset)
        if end < 0:
            raise UserError(path, "its header is incomplete", "copy it again")
        line = head[offset + 1 : end].decode("ascii", "replace").strip()
        name, _, value = line.partition(" ")
        fields[name.lower()] = value.strip()
        offset = end + 1
    # Recorders write the size in three notations.
    sides = dict(re.findall(r"\b(height|width)=(\d+)\b", fields.get("format", "")))
    if geometry := re.fullmatch(r"(\d+)x(\d+)", fields.get("geometry", "")):
        sides |= {"width": geometry[1], "height": geometry[2]}
    sides |= {side: fields[side] for side in ("height", "width") if side in fields}
    named = len(sides) == 2 and all(re.fullmatch(r"[0-9]{1,9}", text) for text in sides.values())
    return fields, (int(sides["height"]), int(sides["width"])) if named else None, offset


def number_of(path: Path, begin: int, size: int) -> int:
    """Number of events or words of `size` bytes from byte `begin` of a file to its end."""
    count, rest = divmod(path.stat().st_size - begin, size)
    if rest:
        raise UserError(path, f"truncated: {rest} bytes after the last complete event or word", "copy it again")
    return count


@njit(cache=True, nogil=True)
def empty_events(count):  # type: ignore[no-untyped-def]
    """Columns x, y, t, p (count,) to be filled."""
    return np.empty(count, np.uint16), np.empty(count, np.uint16), np.empty(count, np.int64), np.empty(count, np.uint8)


@njit(cache=True, nogil=True)
def unwrap(value, latest, values):  # type: ignore[no-untyped-def]
    """Unwrap a counter that restarts after `values`: return the candidate closest to `latest`."""
    return latest + (value - latest + values // 2) % values - values // 2

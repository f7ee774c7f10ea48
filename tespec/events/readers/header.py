"""The text header of Prophesee files, lines that begin with `%`: its fields, and the sensor that they name."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tespec.core.errors import UserError

LONGEST = 1 << 16  # bytes; real headers have a few hundred


class Header(NamedTuple):
    """Fields of the header by lower-case name, and the offset of the first byte after it."""

    fields: dict[str, str]
    size: int


def read_header(path: Path) -> Header:
    """Header of a `.dat` or `.raw` file.

    Raises:
        UserError: the file cannot be read, is empty, has no header, or one without end.
    """
    try:
        with path.open("rb") as file:
            head = file.read(LONGEST)
    except OSError as error:
        raise UserError(path, f"cannot be read ({error.strerror})", "check the path") from error
    if not head:
        raise UserError(path, "the file is empty", "copy it again")
    if head[:1] != b"%":
        raise UserError(path, "does not begin with a header (lines that begin with %)", "give a Prophesee recording")
    fields: dict[str, str] = {}
    offset = 0
    while head[offset : offset + 1] == b"%":
        end = head.find(b"\n", offset)
        if end < 0:
            raise UserError(path, "its header does not end", "copy the file again")
        line = head[offset + 1 : end].decode("ascii", "replace").strip()
        offset = end + 1
        if line == "end":
            break
        name, _, value = line.partition(" ")
        fields[name.lower()] = value.strip()
    return Header(fields, offset)


def sensor_size(header: Header) -> tuple[int, int] | None:
    """(height, width) in px that the header names, in any of the three ways that recorders use."""
    fields = header.fields
    # Of a number without end Python makes none.
    if all(re.fullmatch(r"\d{1,9}", fields.get(side, "")) for side in ("height", "width")):
        return int(fields["height"]), int(fields["width"])
    geometry = re.fullmatch(r"(\d{1,9})x(\d{1,9})", fields.get("geometry", ""))
    if geometry:
        return int(geometry[2]), int(geometry[1])
    described = dict(re.findall(r"\b(height|width)=(\d{1,9})\b", fields.get("format", "")))
    if len(described) == 2:
        return int(described["height"]), int(described["width"])
    return None

"""The text header of Prophesee files: lines that begin with `%`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from tespec.errors import UserError

LONGEST = 1 << 16  # bytes; real headers have a few hundred


class Header(NamedTuple):
    """Fields of the header by lower-case name, and the offset of the first byte after it."""

    fields: dict[str, str]
    size: int


def read_header(path: Path) -> Header:
    """Header of a `.dat` or `.raw` file.

    Raises:
        UserError: the file is empty, has no header, or one without end.
    """
    with path.open("rb") as file:
        head = file.read(LONGEST)
    if not head:
        raise UserError(path, "the file is empty", "copy it again")
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
    """(height, width) in px where the header names them, in any of the three ways that recorders use."""
    fields = header.fields
    if {"height", "width"} <= fields.keys() and fields["height"].isdigit() and fields["width"].isdigit():
        return int(fields["height"]), int(fields["width"])
    geometry = re.fullmatch(r"(\d+)x(\d+)", fields.get("geometry", ""))
    if geometry:
        return int(geometry[2]), int(geometry[1])
    described = dict(re.findall(r"(height|width)=(\d+)", fields.get("format", "")))
    if len(described) == 2:
        return int(described["height"]), int(described["width"])
    return None


def resolve_size(path: Path, header: Header, height: int | None, width: int | None) -> tuple[int, int]:
    """(height, width) of the sensor: as given, else from the header.

    Raises:
        UserError: neither says it.
    """
    if height is not None and width is not None:
        return height, width
    found = sensor_size(header)
    if found is None:
        raise UserError(path, "its header does not name the sensor's size", "give height and width")
    return found

"""Header and sensor sizes of Prophesee's formats; lines of the header start with `%`."""

import re
from collections.abc import Mapping
from pathlib import Path

from tespec.core.errors import UserError
from tespec.core.settings import Size

LONGEST_HEADER = 1 << 16  # bytes; real headers have a few hundred
INTEGRATOR = "Prophesee"
INTEGRATORS = "integrator_name", "plugin_integrator_name", "camera_integrator_name"


# Formats of cameras by system id (prophesee-ai/openeb, psee_raw_file_header.cpp and
# device_system_id.h).
GEN3 = 0x15, 0x17, 0x19, 0x1C, 0x1D, 0x21, 0x22, 0x23, 0x29, 0x97, 0x99, 0xA1, 0xA2
SYSTEMS: dict[int | None, str] = {
    **dict.fromkeys(GEN3, "EVT2;height=480;width=640"),
    0x28: "EVT3;height=480;width=640",
    **dict.fromkeys((0x1A, 0x1F, 0x27), "EVT2;height=720;width=1280"),
    **dict.fromkeys((0x1E, 0x2E, 0x30, 0x31, 0x32), "EVT3;height=720;width=1280"),
}


def read_header(path: Path) -> tuple[dict[str, str], int]:
    """Read the header of a `.dat` or `.raw` file.

    Header lines begin with "% "; the data begin after the line "% end" (GenericHeader of
    prophesee-ai/openeb). Older headers have no such line: there, the data begin at the first line
    that is not printable text.

    Returns:
        The fields by lower-case name, and the size of the header in bytes.

    Raises:
        UserError: the file is empty, or has no complete header.
    """
    with path.open("rb") as file:
        head = file.read(LONGEST_HEADER)
    if not head.startswith(b"% "):
        raise UserError(
            path,
            "does not start with a header (lines that start with %)"
            if head
            else "the file is empty",
            "copy it again, or give a Prophesee recording",
        )
    fields: dict[str, str] = {}
    name = ""
    offset = 0
    end = head.find(b"\n% end")
    while head.startswith(b"% ", offset) and name != "end":
        line, newline, _ = head[offset:].partition(b"\n")
        text = line.decode("utf-8", "replace").strip().replace("\t", " ")
        if offset > end and not (text.isprintable() and "\N{REPLACEMENT CHARACTER}" not in text):
            break
        if not newline:
            raise UserError(path, "its header is incomplete", "copy it again")
        name, _, value = text[1:].strip().partition(" ")
        fields[name.lower()] = value.strip()
        offset += len(line) + 1
    return fields, offset


def system_id(fields: Mapping[str, str]) -> int | None:
    """Return the system id in a header, -1 without one, None for cameras of other companies."""
    if {fields[name] for name in INTEGRATORS if name in fields} - {INTEGRATOR}:
        return None
    number = fields.get("system_id", "")
    return int(number) if re.fullmatch(r"[0-9]{1,9}", number) else -1


def sensor_size(fields: Mapping[str, str]) -> Size | None:
    """Return the sensor's (height, width) in px by a header's size or system id, or None."""
    # Recorders write the size in three notations; later ones replace earlier ones.
    formats = f"{SYSTEMS.get(system_id(fields))};{fields.get('format')}"
    sides = dict(re.findall(r"\b(height|width)=(\d+)\b", formats))
    if geometry := re.fullmatch(r"(\d+)x(\d+)", fields.get("geometry", "")):
        sides |= {"width": geometry[1], "height": geometry[2]}
    sides |= {side: fields[side] for side in ("height", "width") if side in fields}
    named = len(sides) == 2 and all(re.fullmatch(r"[0-9]{1,9}", text) for text in sides.values())
    return (int(sides["height"]), int(sides["width"])) if named else None

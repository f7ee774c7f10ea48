"""How large a recording's sensor is: as the user says, as the file says, or as the `dataset.json` above it says."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_json
from tespec.core.settings import LARGEST, Size, is_size

FILE = "dataset.json"
LEVELS = 5  # folders above a recording that are looked at
AGAIN = "write its sensor again, or remove the file"
REMEDIES = (
    "give --sensor WIDTHxHEIGHT, or name the size in the file's header (% geometry WIDTHxHEIGHT), or write "
    f'{{"sensor": {{"width": WIDTH, "height": HEIGHT}}}} into a {FILE} beside it'
)


def resolve_size(
    path: Path, height: int | None, width: int | None, named: Size | None = None, default: Size | None = None
) -> Size:
    """(height, width) of a recording's sensor in px: as given, else as its file names it, else as described above it.

    Args:
        path: of the recording.
        height: rows that the user gives, together with `width`.
        width: columns, likewise.
        named: what the file itself says.
        default: where nobody says anything, for cameras of one size.

    Raises:
        UserError: nobody says it, user and file contradict each other, or it is no size of a sensor.
    """
    if named is not None and not is_size(named):
        raise UserError(path, f"names a sensor of {named[1]}x{named[0]} px", "copy it again, or mend its header")
    if height is not None and width is not None:
        if not is_size((height, width)):
            raise UserError(path, f"cannot have a sensor of {width}x{height} px", f"give 1 to {LARGEST} px a side")
        if named not in (None, (height, width)):
            raise UserError(path, f"its sensor is {named[1]}x{named[0]} px, not {width}x{height}", "leave --sensor out")
        return height, width
    found = named or described_size(path) or default
    if found is None:
        raise UserError(path, "does not name the sensor's size", REMEDIES)
    return found


def described_size(path: Path) -> Size | None:
    """(height, width) in px that the nearest `dataset.json` above `path` names; None where it or the file says nothing.

    Raises:
        UserError: the file cannot be read, or names no size of a sensor.
    """
    facts = next((folder / FILE for folder in islice(path.parents, LEVELS) if (folder / FILE).is_file()), None)
    if facts is None:
        return None
    try:
        content = read_json(facts)
        if "sensor" not in content:
            return None
        height, width = int(content["sensor"]["height"]), int(content["sensor"]["width"])
    except (*UNREADABLE, KeyError, TypeError, OverflowError) as error:
        raise UserError(facts, "does not name the sensor's size", AGAIN) from error
    if not is_size((height, width)):
        raise UserError(facts, f"names a sensor of {width}x{height} px", AGAIN)
    return height, width

"""The size of a recording's sensor: given by the user, stated by the file, or by a `dataset.json` above it."""

from __future__ import annotations

from pathlib import Path

from tespec.core.description import FILE, described_size
from tespec.core.errors import UserError
from tespec.core.settings import LARGEST, Size, is_size

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

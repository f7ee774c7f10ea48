"""`dataset.json`, which describes a data set next to or above its recordings.

Official archives have none.
"""

import os
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path, PurePath
from typing import Annotated, Any, NamedTuple

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_json
from tespec.core.settings import LARGEST, Size

FILE = "dataset.json"
LEVELS_ABOVE = 5  # number of folders that are searched above a recording
LONGEST_NAME = 200  # bytes; names of files have at most 255, with the endings of recordings
Side = Annotated[int, Field(ge=1, le=LARGEST)]  # px


def _within_folder(name: str) -> str:
    path = PurePath(name)
    is_long = any(len(part.encode()) > LONGEST_NAME for part in path.parts)
    if not name.isprintable() or not name or is_long or path.is_absolute() or ".." in path.parts:
        raise ValueError(f"{name[:LONGEST_NAME]!r} is not a valid recording name")
    return name


class Sensor(NamedTuple):
    """Size of a sensor in px."""

    height: Side
    width: Side


class Description(BaseModel):
    """Content of a `dataset.json`; every field is optional."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sensor: Sensor | None = None  # for recordings that do not store their size
    # names of the recordings
    splits: dict[str, tuple[Annotated[str, AfterValidator(_within_folder)], ...]] = {}
    classes: tuple[str, ...] = ()  # in order of their indices; a task with other classes is refused
    label_rows: int | None = None  # number of rows with labels, from the top of the sensor
    data: str = ""  # name of the data set in records
    # size and seed of the sample world that the data set belongs to
    world: dict[str, int | str] = {}
    dataset: str = ""  # layout of the data set in the sample world; not used
    frame_rate: float | None = None  # images per second in the sample world; not used

    def overrides(self) -> dict[str, Any]:
        """Task settings by the data, which override the task's config; the user's override them."""
        splits = {"splits": {split: list(names) for split, names in self.splits.items()}}
        protocol = {"protocol": {"rows": self.label_rows}}
        return (splits if self.splits else {}) | (protocol if self.label_rows is not None else {})


def read_description(folder: Path) -> Description:
    """Read the `dataset.json` of a folder; without one, the description is empty."""
    path = folder / FILE
    if not path.is_file():
        return Description()
    file = path.stat()
    return _read(path, file.st_mtime_ns, file.st_size)


@lru_cache
def _read(path: Path, *state: int) -> Description:
    """Read a description once for each state of its file: every recording below it asks for it."""
    try:
        return Description.model_validate(read_json(path))
    except UNREADABLE as error:
        reason = str(error)
        if isinstance(error, ValidationError):
            first = error.errors()[0]
            reason = f"{'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']}"
        raise UserError(
            path, f"not a valid data set description ({reason})", "correct or remove it"
        ) from error


def descriptions_above(path: Path, root: Path | None = None) -> Iterator[tuple[Path, Description]]:
    """Search the folders at and above a path for a `dataset.json`.

    Args:
        path: where the search starts.
        root: the search goes `LEVELS_ABOVE` up, or further if the folders are inside this one.

    Returns:
        Each folder that has one, nearest first, and its description.
    """
    path = Path(os.path.abspath(path))
    top = Path(os.path.abspath(root or path))
    for level, folder in enumerate((path, *path.parents)):
        if level > LEVELS_ABOVE and not folder.is_relative_to(top):
            return
        if (folder / FILE).is_file():
            yield folder, read_description(folder)


def described_size(path: Path) -> Size | None:
    """Sensor size (height, width) in px by the nearest `dataset.json` above `path` that has one."""
    sizes = (description.sensor for _, description in descriptions_above(path))
    return next(filter(None, sizes), None)

"""`dataset.json`: what a data set states of itself, beside or above its recordings. Official archives have none.

A file of this name that is not such a description is a `UserError`.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_json
from tespec.core.settings import LARGEST, Size

FILE = "dataset.json"
LEVELS = 5  # folders above a recording that are searched
Side = Annotated[int, Field(ge=1, le=LARGEST)]  # px


def _within_folder(name: str) -> str:
    """The name of a recording, which is looked for below the folder and must not lead out of it."""
    if not name or not name.isprintable() or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise ValueError(f"{name!r} is no name of a recording")
    return name


class Sensor(BaseModel):
    """Rows and columns of a sensor in px."""

    height: Side
    width: Side


class Description(BaseModel):
    """Content of a `dataset.json`, of which every part may be missing.

    Attributes:
        sensor: its size, for recordings that do not name it.
        splits: names of the recordings of each split.
        classes: names of the classes, by number; a task that names others is refused.
        label_rows: upper rows of the sensor that carry labels.
        data: name of the data in records.
        world: size and seed of the sample world it belongs to.
    """

    model_config = ConfigDict(frozen=True)

    sensor: Sensor | None = None
    splits: dict[str, tuple[Annotated[str, AfterValidator(_within_folder)], ...]] = {}
    classes: tuple[str, ...] = ()
    label_rows: int | None = None
    data: str = ""
    world: dict[str, int | str] = {}

    def overrides(self) -> dict[str, Any]:
        """Settings of a task that follow from the data: they win over its config, and the user's over them."""
        splits = {"splits": {split: list(names) for split, names in self.splits.items()}} if self.splits else {}
        return splits | ({} if self.label_rows is None else {"protocol": {"rows": self.label_rows}})


def read_description(folder: Path) -> Description:
    """The `dataset.json` of a folder; an empty description where there is none."""
    path = folder / FILE
    try:
        return Description.model_validate(read_json(path)) if path.is_file() else Description()
    except (*UNREADABLE, ValidationError) as error:
        first = error.errors()[0] if isinstance(error, ValidationError) else None
        where = f" ({'.'.join(map(str, first['loc'])) or 'content'}: {first['msg']})" if first else ""
        raise UserError(path, f"not a description of a data set{where}", "correct or remove it") from error


def descriptions_above(path: Path, root: Path | None = None) -> Iterator[tuple[Path, Description]]:
    """Each `dataset.json` in a recording's folder and in those above it, the nearest first, with its folder.

    Five folders are searched, and those up to `root`.
    """
    for level, folder in enumerate((path, *path.parents)):
        if level > LEVELS and not (root is not None and folder.is_relative_to(root)):
            return
        if (folder / FILE).is_file():
            yield folder, read_description(folder)


def described_size(path: Path) -> Size | None:
    """(height, width) in px that the nearest `dataset.json` above a recording states, None where none does."""
    sensors = (description.sensor for _, description in descriptions_above(path))
    return next(((sensor.height, sensor.width) for sensor in sensors if sensor is not None), None)

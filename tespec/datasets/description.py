"""The `dataset.json` that data sets made by the harness, and others that want it, hold beside their recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_json

FILE = "dataset.json"


@dataclass(frozen=True)
class Description:
    """What a data set says about itself; official archives say nothing.

    Attributes:
        splits: names of the recordings of each split.
        classes: names of the classes by number, if it names them.
        label_rows: upper rows of the sensor that carry labels, if it says so.
        data: what records call the data, "" where it does not say.
        world: size and seed of the sample world it belongs to, if it does.
    """

    splits: dict[str, tuple[str, ...]]
    classes: tuple[str, ...] | None = None
    label_rows: int | None = None
    data: str = ""
    world: dict[str, int | str] = field(default_factory=dict)

    def overrides(self) -> dict[str, Any]:
        """Settings of a task that follow from the data: they win over its config, and the user's over them."""
        settings: dict[str, Any] = {}
        if self.splits:
            settings["splits"] = {split: list(names) for split, names in self.splits.items()}
        if self.label_rows is not None:
            settings["protocol"] = {"rows": self.label_rows}
        return settings


def read_description(root: Path) -> Description:
    """Read the description in folder `root`; an empty one where there is none.

    Raises:
        UserError: it is not a description.
    """
    path = root / FILE
    if not path.is_file():
        return Description({})
    try:
        return of_facts(read_json(path))
    except (*UNREADABLE, TypeError, AttributeError, KeyError, OverflowError) as error:
        raise UserError(path, "not a description of a data set", "remove it or copy it again") from error


def of_facts(facts: Mapping[str, Any]) -> Description:
    """The description that the content of such a file gives; of wrong content, any of the usual errors."""
    classes, label_rows = facts.get("classes"), facts.get("label_rows")
    return Description(
        {str(split): tuple(map(_name, names)) for split, names in facts.get("splits", {}).items()},
        None if classes is None else tuple(map(str, classes)),
        None if label_rows is None else int(label_rows),
        str(facts.get("data", "")),
        {name: facts["world"][name] for name in ("size", "seed")} if "world" in facts else {},
    )


def _name(value: Any) -> str:
    """Name of a recording, which is looked for below the folder and must not lead out of it."""
    name = str(value)
    if not name.isprintable() or not name or PurePath(name).is_absolute() or ".." in PurePath(name).parts:
        raise ValueError(f"{name!r} is no name of a recording")
    return name

"""Whether what a weights file says of its network can be: a network is built from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tespec.errors import UserError

LARGEST_SIDE = 2048  # px of a sensor
LARGEST = {"bins": 512, "in_channels": 1024}


def require_recipe(path: Path, recipe: Mapping[str, Any]) -> None:
    """Refuse settings of another type or size than any network has; those that are missing stay so.

    Raises:
        UserError: names the setting.
    """
    for name, value in recipe.items():
        if not _possible(name, value):
            said = repr(value)[:60]
            raise UserError(path, f"the recipe in it has {name} {said}", "write the file again")


def _possible(name: str, value: Any) -> bool:
    if name in LARGEST:
        return (value is None and name == "in_channels") or _whole(value, LARGEST[name])
    if name == "sensor":
        return isinstance(value, list) and len(value) == 2 and all(_whole(side, LARGEST_SIDE) for side in value)
    if name == "width":
        return isinstance(value, str)
    return name != "recurrent" or isinstance(value, bool)


def _whole(value: Any, largest: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= largest

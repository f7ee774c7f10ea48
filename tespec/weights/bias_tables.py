"""Tables of relative position biases of windows of one size, for windows of another."""

from __future__ import annotations

from itertools import product
from typing import Any

from torch import Tensor

from tespec.errors import UserError
from tespec.models.event_swin import WINDOW
from tespec.models.padding import padded_size
from tespec.models.resizing import BIAS_TABLE, window_of
from tespec.models.resizing import resize_table as resize


def resize_table(name: str, table: Tensor, img_size: tuple[int, int], recipe: dict[str, Any], where: object) -> Tensor:
    """Table ((2h-1)(2w-1), heads) of windows (h, w), interpolated over offsets to the windows of a padded image.

    The file's windows follow from its sensor, where the recipe names it, else from the number of rows.

    Raises:
        UserError: they follow from neither.
    """
    old = window_of(padded_size(*recipe["sensor"]), name) if "sensor" in recipe else _window_of_rows(len(table))
    if old is None or (2 * old[0] - 1) * (2 * old[1] - 1) != len(table):
        raise UserError(
            where, f"{name} has {len(table)} rows, which no windows up to {WINDOW}x{WINDOW} explain", "export again"
        )
    return resize(table, old, window_of(img_size, name))


def same_windows(name: str, img_size: tuple[int, int], recipe: dict[str, Any]) -> bool:
    """Whether a tensor means the same at another image size; tables of 3x5 and 5x3 windows have one shape.

    True for what is no table, and where the recipe does not name the sensor.
    """
    if not name.endswith(BIAS_TABLE) or "sensor" not in recipe:
        return True
    return window_of(padded_size(*recipe["sensor"]), name) == window_of(img_size, name)


def _window_of_rows(count: int) -> tuple[int, int] | None:
    sides = range(1, WINDOW + 1)
    fitting = [window for window in product(sides, sides) if (2 * window[0] - 1) * (2 * window[1] - 1) == count]
    return fitting[0] if len(fitting) == 1 else None

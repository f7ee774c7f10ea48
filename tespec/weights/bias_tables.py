"""Tables of relative position biases of windows of one size, for windows of another."""

from __future__ import annotations

from itertools import product
from typing import Any

from torch import Tensor
from torch.nn.functional import interpolate

from tespec.errors import UserError
from tespec.models.event_swin import PATCH, WINDOW
from tespec.models.padding import padded_size

BIAS_TABLE = "relative_position_bias_table"


def resize_table(name: str, table: Tensor, img_size: tuple[int, int], recipe: dict[str, Any], where: object) -> Tensor:
    """Table ((2h-1)(2w-1), heads) of windows (h, w), interpolated over offsets to the windows of a padded image.

    The file's windows follow from its sensor, where the recipe names it, else from the number of rows.

    Raises:
        UserError: they follow from neither.
    """
    stage = int(name.split(".")[2])
    old = _window(padded_size(*recipe["sensor"]), stage) if "sensor" in recipe else _window_of_rows(len(table))
    if old is None or (2 * old[0] - 1) * (2 * old[1] - 1) != len(table):
        raise UserError(
            where, f"{name} has {len(table)} rows, which no windows up to {WINDOW}x{WINDOW} explain", "export again"
        )
    sides, wanted = ([2 * side - 1 for side in window] for window in (old, _window(img_size, stage)))
    offsets = table.T.reshape(1, -1, *sides)
    return interpolate(offsets, size=wanted, mode="bicubic", align_corners=False).flatten(2)[0].T.contiguous()


def same_windows(name: str, img_size: tuple[int, int], recipe: dict[str, Any]) -> bool:
    """Whether a tensor means the same at another image size; tables of 3x5 and 5x3 windows have one shape.

    True for what is no table, and where the recipe does not name the sensor.
    """
    if not name.endswith(BIAS_TABLE) or "sensor" not in recipe:
        return True
    stage = int(name.split(".")[2])
    return _window(padded_size(*recipe["sensor"]), stage) == _window(img_size, stage)


def _window(img_size: tuple[int, int], stage: int) -> tuple[int, int]:
    """Window of a stage in tokens: timm shrinks it to the map where the map is smaller."""
    rows, columns = (min(WINDOW, side // (PATCH << stage)) for side in img_size)
    return rows, columns


def _window_of_rows(count: int) -> tuple[int, int] | None:
    sides = range(1, WINDOW + 1)
    fitting = [window for window in product(sides, sides) if (2 * window[0] - 1) * (2 * window[1] - 1) == count]
    return fitting[0] if len(fitting) == 1 else None

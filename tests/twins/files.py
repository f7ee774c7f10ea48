"""Small ways to spoil files."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that twins are compressed with
import numpy as np
import numpy.typing as npt
from PIL import Image


@dataclass(frozen=True)
class Way:
    """One way to break a twin.

    Attributes:
        spoil: does it, in the dataset's folder.
        outcome: part of the sentence that refuses it; "" where it is handled.
        handled: what is done instead, in words.
    """

    spoil: Callable[[Path], object]
    outcome: str = ""
    handled: str = ""


def cut(path: Path, share: float) -> None:
    """Keep the first part of a file."""
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def other_filter(path: Path) -> None:
    """The number of the compression filter becomes that of one that does not exist."""
    known, unknown = (number.to_bytes(2, "little") for number in (32001, 32766))
    path.write_bytes(path.read_bytes().replace(known, unknown))


def rewrite(path: Path, name: str, change: Callable[[npt.NDArray[Any]], npt.NDArray[Any] | None]) -> None:
    """Replace a dataset of an HDF5 file by what `change` makes of it; None removes it."""
    with h5py.File(path, "a") as file:
        values = change(file[name][()])
        del file[name]
        if values is not None:
            file.create_dataset(name, data=values, track_times=False)


def stepping_back(times: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Times one of which, in the middle, is later than those after it."""
    changed = times.copy()
    changed[len(changed) // 2] = changed[3 * len(changed) // 4]
    return changed


def repeating(times: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Times the middle half of which are one and the same."""
    changed = times.copy()
    changed[len(changed) // 4 : 3 * len(changed) // 4] = changed[len(changed) // 4]
    return changed


def first_with(value: Any) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """Sets the first entry."""

    def change(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        changed = np.array(values)
        changed.reshape(-1)[0] = value
        return changed

    return change


def negative_for_0(polarities: npt.NDArray[Any]) -> npt.NDArray[np.int8]:
    """Polarities 0 and 1 coded as -1 and 1."""
    return 2 * polarities.astype(np.int8) - 1


def with_colours(mask: Image.Image) -> Image.Image:
    """The mask with a palette, as label tools save it: pixels keep their classes, viewers show colours."""
    coloured = mask.copy()
    coloured.putpalette(np.random.default_rng(0).integers(0, 256, 3 * 256).tolist())
    return coloured

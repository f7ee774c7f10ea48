"""Small ways to spoil files; each is a function of a path."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that twins are compressed with
import numpy as np
from numpy.typing import NDArray
from PIL import Image

Spoil = Callable[[Path], object]
Find = Callable[[Path], Path]
Change = Callable[[NDArray[Any]], Any]


@dataclass(frozen=True)
class Way:
    """One way to break a twin.

    Attributes:
        spoil: does it, in the dataset's folder.
        outcome: part of the sentence that refuses it, or several between bars; "" where it is handled.
        handled: what is done instead, in words.
    """

    spoil: Spoil
    outcome: str = ""
    handled: str = ""


def at(find: Find, spoil: Spoil) -> Spoil:
    """Spoils the file or folder that `find` finds in the dataset's folder."""
    return lambda root: spoil(find(root))


def cut(share: float) -> Spoil:
    """Keep the first part of a file."""

    def spoil(path: Path) -> None:
        content = path.read_bytes()
        path.write_bytes(content[: int(share * len(content))])

    return spoil


def other_filter(path: Path) -> None:
    """The number of the compression filter becomes that of one that does not exist."""
    known, unknown = (number.to_bytes(2, "little") for number in (32001, 32766))
    path.write_bytes(path.read_bytes().replace(known, unknown))


def hdf5(name: str, change: Change) -> Spoil:
    """Replace a dataset of an HDF5 file by what `change` makes of it; None removes it."""

    def spoil(path: Path) -> None:
        with h5py.File(path, "a") as file:
            values = change(file[name][()])
            del file[name]
            if values is not None:
                file.create_dataset(name, data=values, track_times=False)

    return spoil


def npy(change: Change) -> Spoil:
    """Replace the array of a `.npy` file by what `change` makes of it."""
    return lambda path: np.save(path, change(np.load(path)))


def image(change: Callable[[Image.Image], Image.Image]) -> Spoil:
    """Replace an image by what `change` makes of it."""

    def spoil(path: Path) -> None:
        with Image.open(path) as opened:
            changed = change(opened)
        changed.save(path)

    return spoil


def removed(values: NDArray[Any]) -> None:
    """Removes a dataset of an HDF5 file."""


def stepping_back(times: NDArray[Any]) -> NDArray[Any]:
    """Times one of which, in the middle, is later than those after it."""
    changed = times.copy()
    changed[len(changed) // 2] = changed[3 * len(changed) // 4]
    return changed


def repeating(times: NDArray[Any]) -> NDArray[Any]:
    """Times the middle half of which are one and the same."""
    changed = times.copy()
    changed[len(changed) // 4 : 3 * len(changed) // 4] = changed[len(changed) // 4]
    return changed


def first_with(value: Any) -> Change:
    """Sets the first entry."""

    def change(values: NDArray[Any]) -> NDArray[Any]:
        changed = np.array(values)
        changed.reshape(-1)[0] = value
        return changed

    return change


def column(number: int, change: Change) -> Change:
    """Changes one column of a table."""

    def of_rows(rows: NDArray[Any]) -> NDArray[Any]:
        rows[:, number] = change(rows[:, number])
        return rows

    return of_rows


def negative_for_0(polarities: NDArray[Any]) -> NDArray[np.int8]:
    """Polarities 0 and 1 coded as -1 and 1."""
    return 2 * polarities.astype(np.int8) - 1


def tiny(mask: Image.Image) -> Image.Image:
    """A mask of another size."""
    return Image.new("L", (3, 3))


def all_of(value: int) -> Callable[[Image.Image], Image.Image]:
    """A mask with one value everywhere."""
    return lambda mask: Image.new("L", mask.size, value)


def with_colours(mask: Image.Image) -> Image.Image:
    """The mask with a palette, as label tools save it: pixels keep their classes, viewers show colours."""
    coloured = mask.copy()
    coloured.putpalette(np.random.default_rng(0).integers(0, 256, 3 * 256).tolist())
    return coloured

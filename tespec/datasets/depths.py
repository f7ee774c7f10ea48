"""Depth maps in an HDF5 file, read one at a time."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.hdf5 import AGAIN, dataset, part, reading

SAMPLED = 16  # maps of a recording whose bytes go into checksums; all of them are tens of GB


@dataclass(frozen=True)
class DepthMaps:
    """Depth of one recording, read when it is asked for.

    Attributes:
        path: of the file.
        name: of the dataset (maps, H, W) in it, in m.
        maps: number of each label's map.
        height: rows a map must have.
        width: columns a map must have.
    """

    path: Path
    name: str
    maps: tuple[int, ...]
    height: int
    width: int

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        """(H, W) float32 depth in m, NaN where there is none.

        Raises:
            UserError: the map cannot be read, or holds depths below zero.
        """
        number = self.maps[index]
        with reading(self.path, f"map {number} of {self.name}"):
            depth = np.asarray(part(self.path, self.name)[number : number + 1][0], np.float32)
        known = np.isfinite(depth)
        if (depth[known] < 0).any():
            raise UserError(self.path, f"map {number} of {self.name} holds depths below zero", AGAIN)
        return np.where(known & (depth > 0), depth, np.float32(np.nan))

    def part(self, first: int, end: int) -> DepthMaps:
        """The maps from `first` to `end` (exclusive)."""
        return replace(self, maps=self.maps[first:end])

    def checksums(self) -> list[int]:
        """CRC-32 of some maps, spread over the recording."""
        places = np.unique(np.linspace(0, len(self.maps) - 1, SAMPLED).astype(int)).tolist() if self.maps else []
        return [zlib.crc32(self[place].tobytes()) for place in places]


def open_depths(path: Path, name: str, height: int, width: int) -> int:
    """Number of depth maps in dataset `name` of a file.

    Raises:
        UserError: it is missing, or of another size or type.
    """
    shape = dataset(path, name, "f", 3).shape
    if shape[1:] != (height, width):
        what = f"{name} has maps of {shape[2]}x{shape[1]} px instead of {width}x{height}"
        raise UserError(path, what, "copy it again, or check the sensor's size")
    return int(shape[0])

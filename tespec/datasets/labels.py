"""Labels on disk, read one at a time and without trusting them: masks, depth maps, their times, the camera's speed."""

from __future__ import annotations

import io
import os
import re
import warnings
import zipfile
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFile

from tespec.core.errors import UserError
from tespec.events.readers.arrays import load_array
from tespec.events.readers.hdf5 import AGAIN, dataset, part, translate_errors

IGNORE = 255
NUMBER = re.compile(r"_(\d{8})\.png$")
LARGEST_FILE = 1 << 24  # bytes of one mask; real ones have a few kB
DAMAGED_PNG = (
    OSError,
    SyntaxError,
    ValueError,
    Image.DecompressionBombError,
    Image.DecompressionBombWarning,
)
DAMAGED_ZIP = (OSError, zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, RuntimeError)


@lru_cache(maxsize=32)
def _open_archive(path: Path, process: int) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except DAMAGED_ZIP as error:
        raise UserError(path, "not a readable zip archive", "copy it again") from error


def _archive(path: Path) -> zipfile.ZipFile:
    # One for each process: forked workers that share an open file move each other's reading position.
    return _open_archive(path, os.getpid())


def mask_names(place: Path, number: re.Pattern[str] = NUMBER) -> dict[int, str]:
    """Names of the masks in a folder or zip archive, by the number in their name, in order.

    Args:
        place: folder or archive.
        number: what finds the number in a name; other files are left alone.

    Raises:
        UserError: there are none, two have the same number, or the archive cannot be read.
    """
    if place.is_dir():
        names = sorted(str(path.relative_to(place)) for path in place.rglob("*.png"))
    else:
        names = _archive(place).namelist()
    found: dict[int, str] = {}
    for name in names:
        match = number.search(name)
        if match is None or PurePosixPath(name).name.startswith("."):  # macOS adds "._" twins to archives
            continue
        which = int(match[1])
        if which in found:
            raise UserError(place, f"{found[which]} and {name} are both mask {which}", "keep one of them")
        found[which] = name
    if not found:
        raise UserError(place, "holds no masks, which are PNG files with a number in their name", "copy it again")
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class MaskFiles:
    """Masks of one recording, read when they are asked for.

    Attributes:
        place: folder or zip archive.
        names: file of each mask.
        height: rows a mask must have.
        width: columns a mask must have.
        classes: number of classes; greater values, but for 255, are refused.
    """

    place: Path
    names: tuple[str, ...]
    height: int
    width: int
    classes: int

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        """(H, W) uint8 class of each pixel, 255 where there is none.

        Raises:
            UserError: the mask cannot be read, has another size, or holds an unknown class.
        """
        where = f"{self.place}, {self.names[index]}"
        content = self._read(self.names[index])
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", Image.DecompressionBombWarning)
                with Image.open(io.BytesIO(content), formats=("PNG",)) as image:
                    size = image.size
                    # Decoded only if it is as small as it should be.
                    mask = _classes_in(image) if size == (self.width, self.height) else None
                    mode = image.mode
        except DAMAGED_PNG as error:
            raise UserError(where, "not a readable PNG", "copy it again") from error
        if mask is None:
            what = f"has {size[0]}x{size[1]} px instead of {self.width}x{self.height}"
            raise UserError(where, what, "copy it again, or check the sensor's size")
        if mask.ndim != 2 or mask.dtype != np.uint8:
            what = f"is an image of mode {mode}, not grey or with a palette, of at most 8 bits"
            raise UserError(where, what, "give masks whose pixels are the numbers of their classes")
        unknown = mask[(mask >= self.classes) & (mask != IGNORE)]
        if len(unknown):
            raise UserError(where, f"holds class {int(unknown[0])} of {self.classes}", "check the archive's classes")
        return mask

    def part(self, first: int, end: int) -> MaskFiles:
        """The masks from `first` to `end` (exclusive)."""
        return replace(self, names=self.names[first:end])

    def checksums(self) -> list[int]:
        """CRC-32 of each mask's file, the same for a zip archive and for the folder that was extracted from it."""
        if self.place.is_dir():
            return [zlib.crc32(self._read(name)) for name in self.names]
        archive = _archive(self.place)
        return [archive.getinfo(name).CRC for name in self.names]

    def _read(self, name: str) -> bytes:
        where = f"{self.place}, {name}"
        try:
            if self.place.is_dir():
                path = self.place / name
                if not path.is_file():
                    raise UserError(where, "no such file", "copy it again")
                size, read = path.stat().st_size, path.read_bytes
            else:
                archive = _archive(self.place)
                size, read = archive.getinfo(name).file_size, lambda: archive.read(name)
            if size > LARGEST_FILE:
                raise UserError(where, f"has {size} bytes, more than any mask", "copy it again")
            return read()
        except DAMAGED_ZIP as error:
            raise UserError(where, "not readable", "copy it again") from error


def _classes_in(image: ImageFile.ImageFile) -> NDArray[Any]:
    """Pixels of a PNG as its file has them; Pillow stretches grey of 1, 2 and 4 bits to 0 to 255."""
    stored = image.tile[0][3]  # for example "L;2"
    bits = 1 if image.mode == "1" else int(stored[2:]) if stored in ("L;2", "L;4") else 0
    return np.asarray(image.convert("L")) // np.uint8(255 // ((1 << bits) - 1)) if bits else np.asarray(image)


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
        with translate_errors(self.path, f"map {number} of {self.name}"):
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


def read_stamps(path: Path) -> NDArray[np.int64]:
    """Times (N,) int64 in us from a text file with one on each line.

    Raises:
        UserError: the file is missing, holds other things than whole numbers, none at all, or times that step back.
    """
    try:
        times = np.array([int(line) for line in path.read_text().split()], np.int64)
    except FileNotFoundError as error:
        raise UserError(path, "no such file", "copy the times of the masks") from error
    except (ValueError, OverflowError, OSError) as error:
        raise UserError(path, "holds other things than one whole number on each line", "copy it again") from error
    if not len(times):
        raise UserError(path, "the file is empty", "copy it again")
    if (np.diff(times) <= 0).any():
        raise UserError(path, "its times step back or repeat", "copy it again")
    return times


FOLDER = "ego_speed"
STANDING = 0.1  # m/s; below, the camera counts as standing


def speed_file(root: Path, name: str) -> Path:
    """Where the speeds of a recording would lie."""
    return root / FOLDER / f"{name}.npy"


def speed_at(root: Path, name: str, times: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Speed (N,) float32 in m/s at `times` (N,) in us, interpolated; None where the dataset does not say it.

    `<root>/ego_speed/<name>.npy` holds (M, 2) float64, time in us in the recording's clock and speed in m/s.

    Raises:
        UserError: the file is damaged, or its times step back.
    """
    path = speed_file(root, name)
    if not path.is_file():
        return None
    rows = load_array(path)
    if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) < 1 or rows.dtype.kind != "f":
        raise UserError(path, f"is {rows.dtype} of shape {rows.shape} instead of float (N, 2)", "remove it")
    if not np.isfinite(rows).all() or (np.diff(rows[:, 0]) < 0).any():
        raise UserError(path, "holds times that step back, or other things than numbers", "remove it")
    known = rows.astype(np.float64)
    return np.interp(times, known[:, 0], known[:, 1]).astype(np.float32)

"""Segmentation masks on disk: PNG files in a folder, or in a zip archive that is read where it lies."""

from __future__ import annotations

import io
import re
import zipfile
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from tespec.errors import UserError

IGNORE = 255
NUMBER = re.compile(r"_(\d{8})\.png$")
LARGEST_MEMBER = 1 << 24  # bytes of one mask; real ones have a few kB


@lru_cache(maxsize=32)
def _archive(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except (zipfile.BadZipFile, OSError) as error:
        raise UserError(path, "not a readable zip archive", "copy it again") from error


def mask_names(place: Path) -> dict[int, str]:
    """Names of the masks in a folder or zip archive, by the number that their file name ends with, in order.

    Raises:
        UserError: there are none, or the archive cannot be read.
    """
    if place.is_dir():
        names = [str(path.relative_to(place)) for path in place.rglob("*.png")]
    else:
        names = _archive(place).namelist()
    found = {int(match[1]): name for name in names if (match := NUMBER.search(name))}
    if not found:
        raise UserError(place, "holds no masks named *_00000001.png", "copy it again")
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
        try:
            mask = np.asarray(Image.open(io.BytesIO(self._read(self.names[index]))))
        except (UnidentifiedImageError, OSError, SyntaxError, zipfile.BadZipFile, ValueError) as error:
            raise UserError(where, "not a readable PNG", "copy it again") from error
        if mask.shape != (self.height, self.width) or mask.dtype != np.uint8:
            found = f"{mask.dtype} of shape {mask.shape}"
            raise UserError(where, f"is {found} instead of uint8 of shape {(self.height, self.width)}", "copy it again")
        unknown = mask[(mask >= self.classes) & (mask != IGNORE)]
        if len(unknown):
            raise UserError(where, f"holds class {int(unknown[0])} of {self.classes}", "check the archive's classes")
        return mask

    def _read(self, name: str) -> bytes:
        if self.place.is_dir():
            return (self.place / name).read_bytes()
        archive = _archive(self.place)
        if archive.getinfo(name).file_size > LARGEST_MEMBER:
            raise UserError(f"{self.place}, {name}", "is larger than any mask", "copy the archive again")
        return archive.read(name)

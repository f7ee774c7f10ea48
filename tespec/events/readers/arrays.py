"""Arrays in `.npy` and `.npz` files, read without trusting them."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import IO

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError

# What NumPy raises on a damaged header; it parses it as Python text.
DAMAGE = (ValueError, EOFError, OSError, SyntaxError, TokenError, OverflowError, MemoryError, TypeError)
DAMAGED_ARCHIVE = (*DAMAGE, zipfile.BadZipFile, zlib.error, LookupError, RuntimeError)
LARGEST_MEMBER = 1 << 28  # bytes of an array in an archive once it is unpacked; labels have some MB
HEADERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def load_array(path: Path) -> NDArray[np.generic]:
    """The array in a `.npy` file; no pickles and no archives.

    Raises:
        UserError: the file is missing, truncated or damaged.
    """
    try:
        with path.open("rb") as file:
            return _read(file, os.fstat(file.fileno()).st_size)
    except DAMAGE as error:
        raise UserError(path, "not a readable .npy file", "copy it again") from error


def load_arrays(path: Path, names: Sequence[str]) -> list[NDArray[np.generic]]:
    """Arrays of a `.npz` file by their names; no pickles.

    Raises:
        UserError: the file is missing, truncated or damaged, lacks one of them, or one is larger than 256 MB.
    """
    arrays = []
    try:
        with zipfile.ZipFile(path) as archive:
            for name in names:
                size = archive.getinfo(f"{name}.npy").file_size
                if size > LARGEST_MEMBER:
                    raise UserError(path, f"its array {name} has {size:,} bytes", "copy it again")
                with archive.open(f"{name}.npy") as file:
                    arrays.append(_read(file, size))
    except FileNotFoundError as error:
        raise UserError(path, "no such file", "copy it again") from error
    except DAMAGED_ARCHIVE as error:
        raise UserError(path, "not a readable .npz file", "copy it again") from error
    return arrays


def _read(file: IO[bytes], size: int) -> NDArray[np.generic]:
    """The array of a file of `size` bytes, which has to hold all that its header claims."""
    with warnings.catch_warnings():
        # Damage may spell a type in a way that NumPy warns of.
        warnings.simplefilter("ignore")
        header = HEADERS.get(np.lib.format.read_magic(file))
        if header is None:
            raise ValueError("of a version for names beyond Latin letters, which no array here has")
        shape, _, dtype = header(file)
        if not dtype.itemsize or dtype.itemsize * math.prod(shape) > size - file.tell():
            raise ValueError("claims more than the file holds")
        file.seek(0)
        array: NDArray[np.generic] = np.lib.format.read_array(file, allow_pickle=False)
    return array

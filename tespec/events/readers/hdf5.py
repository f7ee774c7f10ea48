"""What readers of HDF5 files share: opening them, and their datasets, without trust."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that official files are compressed with

from tespec.core.errors import UserError
from tespec.events.readers.hdf5_chunks import Part
from tespec.events.readers.hdf5_links import found_within, require_own_data

OPEN_FILES = 32
OPEN_PARTS = 64  # datasets, each with a chunk cache that is kept
PACKED = 1000  # at most: bytes that a column may claim for each byte of its file
SMALL = 1 << 20  # bytes that any file may claim
CHUNK_CACHE = 1 << 22  # bytes for each dataset: successive windows read the same chunk
SUFFIXES = (".h5", ".hdf5")
DAMAGED = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
AGAIN = "copy it again"


@lru_cache(maxsize=OPEN_FILES)
def _opened(path: Path, process: int) -> h5py.File:
    return h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE)


def open_file(path: Path) -> h5py.File:
    """The open file; each process has its own, since forked ones cannot share it.

    Raises:
        UserError: the file is missing or no HDF5 file.
    """
    try:
        return _opened(path, os.getpid())
    except FileNotFoundError as error:
        raise UserError(path, "no such file", "check the path") from error
    except PermissionError as error:
        raise UserError(path, "cannot be read (no permission)", "change its permissions") from error
    except DAMAGED as error:
        raise UserError(path, "not a whole HDF5 file", AGAIN) from error


@contextmanager
def reading(path: Path, what: str) -> Iterator[None]:
    """Turn what HDF5 raises on damaged content into one line that names `what` of the file.

    Raises:
        UserError: something was raised.
    """
    try:
        yield
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(path, f"{what} cannot be read", AGAIN) from error


def dataset(path: Path, name: str, kinds: str, dimensions: int = 1) -> h5py.Dataset:
    """A dataset of a file, of the dtype and shape that it should have.

    Args:
        path: of the file.
        name: of the dataset.
        kinds: letters of the dtypes it may have, as in `numpy.dtype.kind`.
        dimensions: number of its axes.

    Raises:
        UserError: it is missing or of another kind.
    """
    file = open_file(path)
    with reading(path, name):
        found = found_within(path, file, name)
        if not isinstance(found, h5py.Dataset):
            raise UserError(path, f"has no dataset {name}", "give a whole recording")
        if found.dtype.kind not in kinds or found.ndim != dimensions:
            raise UserError(path, f"{name} is {found.dtype} of shape {found.shape}, not what it should be", AGAIN)
        _check_codecs(path, name, found)
        part(path, name)
    return found


def part(path: Path, name: str) -> Part:
    """A dataset of a file, to be read by parts.

    Raises:
        UserError: there is none, its values lie in another file, or it cannot be held to a size.
    """
    return _part(path, name, os.getpid())


@lru_cache(maxsize=OPEN_PARTS)
def _part(path: Path, name: str, process: int) -> Part:
    file = open_file(path)
    with reading(path, name):
        found = found_within(path, file, name)
        if not isinstance(found, h5py.Dataset):
            raise UserError(path, f"has no dataset {name}", "give a whole recording")
        require_own_data(path, name, found)
        return Part(path, found)


def require_plausible(path: Path, name: str, found: h5py.Dataset) -> None:
    """Refuse a dataset that claims more than a file of its size can hold; reading it through would never end.

    Raises:
        UserError: it does.
    """
    claimed, there = found.dtype.itemsize * math.prod(found.shape), path.stat().st_size
    if claimed > PACKED * there + SMALL:
        raise UserError(path, f"{name} claims {claimed:,} bytes in a file of {there:,}", AGAIN)


def _check_codecs(path: Path, name: str, found: h5py.Dataset) -> None:
    created = found.id.get_create_plist()
    for number in range(created.get_nfilters()):
        code, _, _, called = created.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            what = f"{name} is compressed by filter {code} ({called.decode('ascii', 'replace')}), which is not at hand"
            raise UserError(path, what, "install its HDF5 plugin, or copy the file again")


def recording_kind(path: Path) -> str | None:
    """Which recording an HDF5 file is: "dsec", "rvt", "mvsec", or None if it is none; never raises."""
    try:
        with h5py.File(path, "r") as file:

            def holds(name: str) -> bool:
                return found_within(path, file, name) is not None

            if holds("davis/left/events"):
                return "mvsec"
            if all(holds(f"events/{name}") for name in "xytp"):
                return "dsec" if holds("t_offset") or holds("ms_to_idx") else "rvt"
    except (*DAMAGED, UserError):
        pass
    return None

"""Open HDF5 files, and read their datasets."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that official files are compressed with
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import OPEN_FILES

OPEN = OPEN_FILES  # files and datasets kept open, each dataset with a chunk cache of at most 1 MB
AT_ONCE = 1 << 18  # events per read
SUFFIXES = (".h5", ".hdf5")
COLUMNS = ("events/x", "events/y", "events/t", "events/p")
DAMAGED = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
AGAIN = "copy it again"


def _state(path: Path) -> tuple[int, int, int]:
    """Key of this process and of this version of a file."""
    if not path.is_file():
        raise UserError(path, "no such file", "check the path")
    facts = path.stat()
    return os.getpid(), facts.st_ino, facts.st_mtime_ns


@lru_cache(maxsize=OPEN)
def _open_file(path: Path, state: tuple[int, int, int]) -> h5py.File:
    return h5py.File(path, "r")


def open_file(path: Path) -> h5py.File:
    """Open a file, or reuse it if unchanged; each process opens its own, since forked processes cannot share one."""
    try:
        return _open_file(path, _state(path))
    except DAMAGED as error:
        raise UserError(path, "incomplete or unreadable HDF5 file", AGAIN) from error


@contextmanager
def translate_errors(path: Path, what: str) -> Iterator[None]:
    """Turn HDF5 errors on damaged content into a `UserError` that says `what` cannot be read."""
    try:
        yield
    except DAMAGED as error:
        remedy = f"{AGAIN}, or install the HDF5 plugin it is compressed with"
        raise UserError(path, f"{what} cannot be read", remedy) from error


def holds(path: Path, *names: str) -> bool:
    """Whether an HDF5 file has any of these datasets or groups, or a damaged link in their place."""
    file = open_file(path)
    try:
        return any(file.get(name, getlink=True) is not None for name in names)
    except DAMAGED:
        return True  # opening it reports the error


def part(path: Path, name: str) -> h5py.Dataset:
    """Return a dataset of a file, to be read in slices; one in another file, or not completely written, is refused."""
    return _part(path, name, _state(path))


@lru_cache(maxsize=OPEN)
def _part(path: Path, name: str, state: tuple[int, int, int]) -> h5py.Dataset:
    with translate_errors(path, name):
        found = open_file(path).get(name)
        if not isinstance(found, h5py.Dataset):
            raise UserError(path, f"has no dataset {name}", "give a complete recording")
        elsewhere = Path(found.file.filename) != path or found.is_virtual
        if elsewhere or found.id.get_create_plist().get_external_count():
            raise UserError(path, f"{name} is stored in another file", "give a file that contains its data")
        # HDF5 returns fill values for storage that an interrupted copy or recording never wrote.
        if found.chunks is None:
            there, wanted = int(found.id.get_storage_size() > 0), int(found.size > 0)
        else:
            there = found.id.get_num_chunks()
            wanted = math.prod(-(-side // step) for side, step in zip(found.shape, found.chunks, strict=True))
        if there < wanted:
            raise UserError(path, f"{name} is incomplete ({there:,} of {wanted:,} chunks)", AGAIN)
    return found


def dataset(path: Path, name: str, kinds: str, dimensions: int = 1) -> h5py.Dataset:
    """Return a dataset with one of these `numpy.dtype.kind`s and this number of dimensions; see `part`."""
    found = part(path, name)
    if found.dtype.kind not in kinds or found.ndim != dimensions:
        wanted = {"f": "float", "u": "unsigned integer"}.get(kinds, "integer")
        raise UserError(path, f"{name} is {found.dtype} of shape {found.shape}, not {dimensions}-D {wanted}", AGAIN)
    return found


def read_slices(path: Path, *names: str) -> Iterator[list[NDArray[Any]]]:
    """Yield slices of datasets of equal length, `AT_ONCE` rows each."""
    for begin in range(0, len(part(path, names[0])), AT_ONCE):
        with translate_errors(path, "a part of the events"):
            columns = [part(path, name)[begin : begin + AT_ONCE] for name in names]
        yield columns

"""What readers of HDF5 files share: opening them, their datasets and their events, without trust."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # noqa: F401  # registers the filters that official files are compressed with
import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.stream import Events

OPEN_FILES = 32
OPEN_DATASETS = 64  # each with a chunk cache that is kept
CHUNK_CACHE = 1 << 22  # bytes for each dataset: successive readings share a chunk
LINKS = 8  # that lead from one to the next
AT_ONCE = 1 << 20  # events read together
SUFFIXES = (".h5", ".hdf5")
COLUMNS = ("events/x", "events/y", "events/t", "events/p")
DAMAGED = (OSError, RuntimeError, ValueError, KeyError, TypeError, OverflowError, MemoryError)
AGAIN = "copy it again"


@lru_cache(maxsize=OPEN_FILES)
def _opened(path: Path, state: tuple[int, int, int]) -> h5py.File:
    return h5py.File(path, "r", rdcc_nbytes=CHUNK_CACHE)


def _state(path: Path) -> tuple[int, int, int]:
    """What tells this process, and this version of a file, from others."""
    facts = path.stat()
    return os.getpid(), facts.st_ino, facts.st_mtime_ns


def open_file(path: Path) -> h5py.File:
    """The open file; each process has its own, since forked ones cannot share it, and a new version is opened anew.

    Raises:
        UserError: the file is missing or no HDF5 file.
    """
    try:
        return _opened(path, _state(path))
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
    """A dataset of a file, of the dtype and shape that it should have; see `part`.

    Args:
        path: of the file.
        name: of the dataset.
        kinds: letters of the dtypes it may have, as in `numpy.dtype.kind`.
        dimensions: number of its axes.

    Raises:
        UserError: it is missing, of another kind, or not stored whole in this file.
    """
    found = part(path, name)
    if found.dtype.kind not in kinds or found.ndim != dimensions:
        raise UserError(path, f"{name} is {found.dtype} of shape {found.shape}, not what it should be", AGAIN)
    return found


def part(path: Path, name: str) -> h5py.Dataset:
    """A dataset of a file, to be read by slices.

    Raises:
        UserError: it is missing, its codec is not at hand, or its values lie in another file or were never written.
    """
    return _part(path, name, _state(path))


@lru_cache(maxsize=OPEN_DATASETS)
def _part(path: Path, name: str, state: tuple[int, int, int]) -> h5py.Dataset:
    file = open_file(path)
    with reading(path, name):
        found = found_within(path, file, name)
        if not isinstance(found, h5py.Dataset):
            raise UserError(path, f"has no dataset {name}", "give a whole recording")
        if found.is_virtual or found.id.get_create_plist().get_external_count():
            raise UserError(path, f"{name} lies in other files", "give a file that holds its data itself")
        _check_codecs(path, name, found)
        _require_written(path, name, found)
    return found


def _require_written(path: Path, name: str, found: h5py.Dataset) -> None:
    """Refuse storage that was never written, which HDF5 reads as fill values: an interrupted copy or recording."""
    if not found.size:
        return
    if found.chunks is None:
        there, wanted = int(found.id.get_storage_size() > 0), 1
    else:
        there = found.id.get_num_chunks()
        wanted = math.prod(-(-side // step) for side, step in zip(found.shape, found.chunks, strict=True))
    if there < wanted:
        raise UserError(path, f"{name} was never written whole ({there:,} of {wanted:,} chunks are there)", AGAIN)


def _check_codecs(path: Path, name: str, found: h5py.Dataset) -> None:
    created = found.id.get_create_plist()
    for number in range(created.get_nfilters()):
        code, _, _, called = created.get_filter(number)
        if not h5py.h5z.filter_avail(code):
            what = f"{name} is compressed by filter {code} ({called.decode('ascii', 'replace')}), which is not at hand"
            raise UserError(path, what, "install its HDF5 plugin, or copy the file again")


def holds(path: Path, *names: str) -> bool:
    """Whether an HDF5 file has one of these datasets or groups, or a damaged link in its place.

    Raises:
        UserError: it is missing or no HDF5 file.
    """
    file = open_file(path)
    try:
        return any(found_within(path, file, name) is not None for name in names)
    except (*DAMAGED, UserError):
        return True  # opening it says what is wrong


def found_within(path: Path, file: h5py.File, name: str, links: int = LINKS) -> h5py.Dataset | h5py.Group | None:
    """What `name` stands for in a file, None if nothing does.

    Raises:
        UserError: it leads to another file, or goes in circles.
    """
    place: h5py.Dataset | h5py.Group = file
    parts = [part for part in name.split("/") if part not in ("", ".")]
    for number, part in enumerate(parts):
        if not isinstance(place, h5py.Group):
            return None
        link = place.get(part, getlink=True)
        if link is None:
            return None
        if isinstance(link, h5py.SoftLink):
            if not links:
                raise UserError(path, f"{name} is a link that leads nowhere", "copy the file again")
            before = "" if link.path.startswith("/") else "/".join(parts[:number]) + "/"
            return found_within(path, file, "/".join([before + link.path, *parts[number + 1 :]]), links - 1)
        if not isinstance(link, h5py.HardLink):
            raise UserError(path, f"{name} lies in another file", "give a file that holds its data itself")
        place = place[part]
    return place


def number_of_events(path: Path) -> int:
    """Number of events of a file with the datasets x, y, t and p in the group "events".

    Raises:
        UserError: one is missing, of another dtype, of another length, or empty.
    """
    found = {name: dataset(path, f"events/{name}", "iub") for name in "xytp"}
    lengths = {name: len(each) for name, each in found.items()}
    if len(set(lengths.values())) > 1:
        said = ", ".join(f"{name} {length:,}" for name, length in lengths.items())
        raise UserError(path, f"its columns have different lengths ({said})", AGAIN)
    if not lengths["t"]:
        raise UserError(path, "holds no events", "give a recording with events")
    return lengths["t"]


def read_events(path: Path, size: tuple[int, int], count: int) -> Iterator[Events]:
    """The events of such a file, some at a time; see `as_events`."""
    for begin in range(0, count, AT_ONCE):
        with reading(path, "a part of the events"):
            columns = [part(path, f"events/{name}")[begin : min(begin + AT_ONCE, count)] for name in "xytp"]
        yield as_events(path, size, *columns)


def as_events(
    path: Path, size: tuple[int, int], x: NDArray[Any], y: NDArray[Any], t: NDArray[Any], p: NDArray[Any]
) -> Events:
    """Columns of a file, whose polarities may be -1 for 0, as events of a sensor of `size` (height, width) in px.

    Raises:
        UserError: one lies outside of the sensor, or has another polarity.
    """
    for name, values, limit in (("x", x, size[1]), ("y", y, size[0])):
        if not (values.min() >= 0 and values.max() < limit):
            what = f"{name} from {values.min()} to {values.max()} on a sensor of {size[1]}x{size[0]} px"
            raise UserError(path, what, "copy it again, or give its true size")
    if not (p.min() >= -1 and p.max() <= 1):
        raise UserError(path, f"polarities from {p.min()} to {p.max()}", AGAIN)
    return Events(x.astype(np.uint16), y.astype(np.uint16), t.astype(np.int64), (p > 0).astype(np.uint8))

"""Open HDF5 files, and read their datasets within bounds of memory, whatever the files state."""

import math
import os
import re
import struct
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin  # registers the filters that official files are compressed with
import numpy as np
import zstandard
from numba import njit
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import OPEN_FILES

AT_ONCE = 1 << 18  # events per read
LARGEST_CHUNK = 1 << 27  # bytes; 16.8 M times of 64 bits, while h5py's default chunks have 1 MB
LARGEST_READ = 1 << 29  # bytes per read
SUFFIXES = (".h5", ".hdf5")
COLUMNS = ("events/x", "events/y", "events/t", "events/p")
DAMAGED = (
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    MemoryError,
    struct.error,
    zlib.error,
    zstandard.ZstdError,
)
COPY_AGAIN = "copy it again"

# Filters by their registered number. Official files are compressed with Blosc (DSEC, RVT) and LZF
# (M3ED, e2calib), files that users write with gzip and Zstandard. Plugins of other filters crash or
# hang on damaged chunks.
GZIP, SHUFFLE, FLETCHER32, LZF, BLOSC, ZSTD = 1, 2, 3, 32000, 32001, 32015
COMPRESSIONS = (GZIP, LZF, BLOSC, ZSTD)
FILTER_NAMES = {number: name for name, number in hdf5plugin.FILTERS.items()} | {
    1: "gzip",
    4: "szip",
    5: "nbit",
    6: "scaleoffset",
    32000: "LZF",
    36559: "Prophesee's ECF",
}
BLOSC_HEADER = struct.Struct("<4s3I")  # flags; bytes uncompressed, of a block, and compressed
HEAP_OBJECT = struct.Struct("<H6xQ")  # number and bytes of an object in a global heap


def _state(path: Path) -> tuple[int, int, int]:
    """Key of this process and of this version of a file."""
    if not path.is_file():
        raise UserError(path, "no such file", "check the path")
    stat = path.stat()
    return os.getpid(), stat.st_ino, stat.st_mtime_ns


@lru_cache(maxsize=OPEN_FILES)
def _open_file(path: Path, state: tuple[int, int, int]) -> h5py.File:
    return h5py.File(path, "r")


def open_file(path: Path) -> h5py.File:
    """Open a file, or reuse it if unchanged.

    Every process opens its files again, since forked processes cannot share one.
    """
    try:
        return _open_file(path, _state(path))
    except DAMAGED as error:
        raise UserError(path, "incomplete or unreadable HDF5 file", COPY_AGAIN) from error


@contextmanager
def translate_errors(path: Path, what: str) -> Iterator[None]:
    """Turn HDF5's errors on damaged content into a `UserError`.

    Args:
        path: the file, for the message.
        what: subject of the message "... cannot be read".
    """
    try:
        yield
    except DAMAGED as error:
        raise UserError(path, f"{what} cannot be read", COPY_AGAIN) from error


def has_datasets(path: Path, *names: str) -> bool:
    """Whether an HDF5 file has any of these datasets or groups, even behind a damaged link."""
    file = open_file(path)
    try:
        return any(file.get(name, getlink=True) is not None for name in names)
    except DAMAGED:
        return True  # opening it reports the error


class Dataset(h5py.Dataset):
    """A dataset of which HDF5 decodes only sound chunks.

    HDF5 trusts a chunk to have the size of its shape: it crashes on a shorter one, and a longer one
    may take any amount of memory. So the size is checked first.
    """

    def __init__(self, path: Path, dataset: h5py.Dataset) -> None:
        # so h5py does not ask for shape and chunks each time
        super().__init__(dataset.id, readonly=True)
        self.path = path
        self.descriptor = dataset.file.id.get_vfd_handle()
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        self.chunk_bytes = math.prod(self.chunks or ()) * self.dtype.itemsize
        properties = self.id.get_create_plist()
        filters = map(properties.get_filter, range(properties.get_nfilters()))
        # Number and parameters, in the order in which a chunk is encoded.
        self.encoding = [(number, values) for number, _, values, _ in filters]

    @cached_property
    def grid(self) -> tuple[int, ...]:
        """Number of chunks along each axis of a chunked dataset."""
        sides = zip(self.shape, self.chunks, strict=True)
        return tuple(-(-side // step) for side, step in sides)

    @cached_property
    def stored(self) -> NDArray[np.void]:
        """Position in the file (-1 once checked), bytes, and mask of unused filters per chunk."""
        stored = np.zeros(self.grid, [("at", np.int64), ("size", np.int64), ("mask", np.int64)])

        def add(chunk: Any) -> None:
            index = np.floor_divide(chunk.chunk_offset, self.chunks)
            stored[tuple(index)] = chunk.byte_offset, chunk.size, chunk.filter_mask

        self.id.chunk_iter(add)
        return stored

    def __getitem__(self, rows: Any) -> Any:
        """Read rows: an index or a slice of the first axis, or `()` for all."""
        selected = range(self.shape[0])[rows if rows != () else slice(None)] if self.shape else 0
        if isinstance(selected, int):
            selected = range(selected, selected + 1)
        if len(selected) * self.row_bytes > LARGEST_READ:
            raise UserError(
                self.path, f"{self.name[1:]} has the implausible shape {self.shape}", COPY_AGAIN
            )
        if self.chunks and selected:
            step = self.chunks[0]
            chunks = self.stored[selected.start // step : -(-selected.stop // step)]
            for chunk in chunks[chunks["at"] >= 0].tolist():
                if self._decoded_size(*chunk) != self.chunk_bytes:
                    raise UserError(self.path, f"a chunk of {self.name[1:]} is damaged", COPY_AGAIN)
            chunks["at"] = -1
        return super().__getitem__(rows)

    def _decoded_size(self, at: int, size: int, mask: int) -> int:
        """Bytes of a chunk after decompression, or -1 if it is damaged."""
        if size > 2 * self.chunk_bytes + 1024:
            return -1
        for position, (number, values) in reversed(list(enumerate(self.encoding))):
            if number == SHUFFLE or mask >> position & 1:
                continue
            if number == FLETCHER32:
                size -= 4
                continue
            content = os.pread(self.descriptor, BLOSC_HEADER.size if number == BLOSC else size, at)
            if number == BLOSC:  # c-blosc, README_CHUNK_FORMAT.rst
                _, decoded, _, compressed = BLOSC_HEADER.unpack(content)
                size = decoded if BLOSC_HEADER.size <= compressed <= size else -1
            elif number == ZSTD:
                size = zstandard.frame_content_size(content)
                if size <= self.chunk_bytes + 4:  # 4 bytes more with a checksum
                    # HDF5's filter returns arbitrary values for a damaged chunk
                    zstandard.decompress(content)
            elif number == GZIP:
                inflater = zlib.decompressobj()
                decoded = len(inflater.decompress(content, self.chunk_bytes + 5))
                size = decoded if inflater.eof else -1
            else:
                decoded = int(_lzf_size(np.frombuffer(content, np.uint8)))
                # h5py's filter tries multiples of this size, decompressing from the start.
                size = decoded if values[2:3] == (decoded,) else -1
        return size


@njit(cache=True, nogil=True)
def _lzf_size(content):  # type: ignore[no-untyped-def]
    """Bytes of a chunk in LZF after decompression, -1 if it is damaged.

    LZF consists of literal runs and of references to earlier bytes.
    """
    position = size = 0
    while position < len(content):
        control = content[position]
        if control < 32:  # a run of control + 1 bytes
            position += control + 2
            size += control + 1
        else:  # 3 bits of length, after a length of 7 one more byte, then 13 bits of offset
            position += 2
            size += (control >> 5) + 2
            if control >> 5 == 7:
                position += 1
                size += content[min(position - 2, len(content) - 1)]
    return size if position == len(content) else -1


def checked_dataset(path: Path, name: str, codec: int | None = None) -> Dataset:
    """Return a dataset of a file, to be read in slices.

    Args:
        path: the file.
        name: name of the dataset in the file.
        codec: number of a filter whose chunks the caller decodes.

    Raises:
        UserError: the dataset is missing, in another file or incomplete, or its chunks are too
            large or have filters that are not supported.
    """
    with translate_errors(path, name):
        return _part(path, name, codec, _state(path))


@lru_cache(maxsize=OPEN_FILES)  # each dataset with a chunk cache of at most 1 MB
def _part(path: Path, name: str, codec: int | None, state: tuple[int, int, int]) -> Dataset:
    dataset = open_file(path).get(name)
    if not isinstance(dataset, h5py.Dataset):
        raise UserError(path, f"has no dataset {name}", "give a complete recording")
    is_elsewhere = Path(dataset.file.filename) != path or dataset.is_virtual
    if is_elsewhere or dataset.id.get_create_plist().get_external_count():
        raise UserError(
            path, f"{name} is stored in another file", "give a file that contains its data"
        )
    stored = Dataset(path, dataset)
    _check_encoding(path, name, stored, codec)
    _check_chunks(path, name, stored)
    if codec is not None:  # the caller reads texts
        _check_heaps(path, stored)
    return stored


def _check_heaps(path: Path, stored: Dataset) -> None:
    """Refuse a file with a damaged global heap, where HDF5 would search texts for ever.

    Heaps are outside of the chunks of the file's large dataset.
    """
    chunks = np.sort(stored.stored[["at", "size"]].ravel()).tolist() if stored.chunks else []
    borders = [0, *(side for at, size in chunks for side in (at, at + size)), path.stat().st_size]
    with path.open("rb") as file:
        for begin, end in zip(borders[::2], borders[1::2], strict=True):
            file.seek(begin)
            content = file.read(max(0, end - begin))
            heaps = re.finditer(b"GCOL", content)
            if not all(_is_sound_heap(content, heap.start()) for heap in heaps):
                raise UserError(path, "its global heap is damaged", COPY_AGAIN)


def _is_sound_heap(content: bytes, start: int) -> bool:
    """Whether the objects of a global heap fit into it (HDF5 File Format Specification, III.E)."""
    header = HEAP_OBJECT.size
    size = int.from_bytes(content[start + 8 : start + 16], "little")
    end = min(start + size, len(content))
    position = start + 16
    while position <= end - header:
        index, size = HEAP_OBJECT.unpack_from(content, position)
        # object 0 is the free space, with its header
        step = size if index == 0 else header + -(-size // 8) * 8
        if not header <= step <= end - position:
            return False
        position += step
    return True


def _check_encoding(path: Path, name: str, stored: Dataset, codec: int | None) -> None:
    """Refuse filters other than `codec` alone, or one compression with shuffle and checksum."""
    numbers = [number for number, _ in stored.encoding]
    refused = [number for number in numbers if number not in (SHUFFLE, FLETCHER32, *COMPRESSIONS)]
    has_repeats = len(set(numbers)) < len(numbers) or len({*numbers} & {*COMPRESSIONS}) > 1
    if numbers != [codec] and (refused or has_repeats):
        names = [FILTER_NAMES.get(number, f"filter {number}") for number in refused or numbers]
        raise UserError(
            path,
            f"{name} is compressed with {', '.join(names)}, "
            "but only gzip, LZF, Blosc and Zstandard are read",
            "compress it with gzip: h5repack -f GZIP=4 INPUT OUTPUT",
        )


def _check_chunks(path: Path, name: str, stored: Dataset) -> None:
    """Refuse chunks that are too large, and missing ones, which HDF5 reads as fill values."""
    if stored.chunk_bytes > LARGEST_CHUNK:
        smaller = "x".join(map(str, (AT_ONCE, *stored.shape[1:])))
        raise UserError(
            path,
            f"{name} has chunks of {stored.chunk_bytes >> 20:,} MiB, "
            f"but at most {LARGEST_CHUNK >> 20} are read",
            f"make them smaller: h5repack -l {name}:CHUNK={smaller} INPUT OUTPUT",
        )
    if stored.chunks:
        count, expected = stored.id.get_num_chunks(), math.prod(stored.grid)
    else:
        count, expected = int(stored.id.get_storage_size() > 0), int(stored.size > 0)
    if count < expected:
        raise UserError(
            path, f"{name} is incomplete ({count:,} of {expected:,} chunks)", COPY_AGAIN
        )


def dataset(path: Path, name: str, kinds: str, dimensions: int = 1) -> Dataset:
    """Return a dataset of a file after checking its type.

    Args:
        path: the file.
        name: name of the dataset in the file.
        kinds: allowed `numpy.dtype.kind`s.
        dimensions: number of axes.

    Raises:
        UserError: the type differs, or the dataset cannot be read; see `checked_dataset`.
    """
    stored = checked_dataset(path, name)
    if stored.dtype.kind not in kinds or stored.ndim != dimensions:
        expected = {"f": "float", "u": "unsigned integer"}.get(kinds, "integer")
        raise UserError(
            path,
            f"{name} is {stored.dtype} of shape {stored.shape}, not {dimensions}-D {expected}",
            COPY_AGAIN,
        )
    return stored


def read_slices(path: Path, *names: str) -> Iterator[list[NDArray[Any]]]:
    """Yield slices of datasets of equal length, at most `AT_ONCE` rows each.

    Chunks are decoded at most twice.
    """
    columns = [_read_column(path, checked_dataset(path, name)) for name in names]
    yield from map(list, zip(*columns, strict=True))


def _read_column(path: Path, column: Dataset) -> Iterator[NDArray[Any]]:
    """Yield the slices of one dataset, which has chunks of its own size."""
    rows = column.chunks[0] if column.chunks else 1
    step = AT_ONCE * -(-rows // AT_ONCE)
    for begin in range(0, len(column), step):
        with translate_errors(path, "a part of the events"):
            block = column[begin : begin + step]
        for first in range(0, len(block), AT_ONCE):
            yield block[first : first + AT_ONCE]

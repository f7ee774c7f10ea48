"""Open HDF5 files, and read their datasets within bounds of memory, whatever the files say."""

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

OPEN = OPEN_FILES  # files and datasets kept open, each dataset with a chunk cache of at most 1 MB
AT_ONCE = 1 << 18  # events per read
LARGEST_CHUNK = 1 << 27  # bytes; 16.8 M times of 64 bits, while h5py's default chunks have 1 MB
LARGEST_READ = 1 << 29  # bytes read in one go
SUFFIXES = (".h5", ".hdf5")
COLUMNS = ("events/x", "events/y", "events/t", "events/p")
DAMAGED_CHUNK = (struct.error, zlib.error, zstandard.ZstdError)
DAMAGED = (
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    TypeError,
    OverflowError,
    MemoryError,
    *DAMAGED_CHUNK,
)
AGAIN = "copy it again"

# Filters by their registered number. Official files are compressed with Blosc (DSEC, RVT) and LZF
# (M3ED, e2calib), files that users write with gzip and Zstandard. Plugins of other filters crash or
# hang on damaged chunks.
GZIP, SHUFFLE, FLETCHER32, LZF, BLOSC, ZSTD = 1, 2, 3, 32000, 32001, 32015
COMPRESSIONS = (GZIP, LZF, BLOSC, ZSTD)
FILTER_NAMES = {number: name for name, number in hdf5plugin.FILTERS.items()}
FILTER_NAMES |= {
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
        raise UserError(path, f"{what} cannot be read", AGAIN) from error


def holds(path: Path, *names: str) -> bool:
    """Whether an HDF5 file has any of these datasets or groups, or a damaged link in their place."""
    file = open_file(path)
    try:
        return any(file.get(name, getlink=True) is not None for name in names)
    except DAMAGED:
        return True  # opening it reports the error


class Dataset(h5py.Dataset):
    """A dataset of which HDF5 decodes only sound chunks.

    HDF5 trusts a compressed chunk to have the size of its shape: it crashes on a shorter one, and a
    longer one may take any amount of memory. So the size is found first.
    """

    def __init__(self, path: Path, dataset: h5py.Dataset) -> None:
        # so h5py does not ask for shape and chunks each time
        super().__init__(dataset.id, readonly=True)
        self.path, self.descriptor = path, dataset.file.id.get_vfd_handle()
        self.row_bytes = math.prod(self.shape[1:]) * self.dtype.itemsize
        self.chunk_bytes = math.prod(self.chunks or ()) * self.dtype.itemsize
        properties = self.id.get_create_plist()
        filters = map(properties.get_filter, range(properties.get_nfilters()))
        # Number and parameters, in the order in which a chunk is encoded.
        self.encoding = [(number, values) for number, _, values, _ in filters]

    @cached_property
    def stored(self) -> NDArray[np.void]:
        """Of each chunk: position in the file, or -1 once checked; bytes; a mask with a bit for each unused filter."""
        shape = [-(-side // step) for side, step in zip(self.shape, self.chunks, strict=True)]
        stored = np.zeros(shape, [("at", np.int64), ("size", np.int64), ("mask", np.int64)])

        def add(chunk: Any) -> None:
            index = tuple(
                first // step for first, step in zip(chunk.chunk_offset, self.chunks, strict=True)
            )
            stored[index] = chunk.byte_offset, chunk.size, chunk.filter_mask

        self.id.chunk_iter(add)
        return stored

    def __getitem__(self, rows: Any) -> Any:
        """Read rows: an index or a slice of the first axis, or `()` for all."""
        chosen = range(self.shape[0])[rows if rows != () else slice(None)] if self.shape else 0
        first, count = (chosen, 1) if isinstance(chosen, int) else (chosen.start, len(chosen))
        if count * self.row_bytes > LARGEST_READ:
            raise UserError(
                self.path, f"{self.name[1:]} has the implausible shape {self.shape}", AGAIN
            )
        if self.encoding and count:
            chunks = self.stored[first // self.chunks[0] : -(-(first + count) // self.chunks[0])]
            for chunk in chunks[chunks["at"] >= 0].tolist():
                if self._decoded_size(*chunk) != self.chunk_bytes:
                    raise UserError(self.path, f"a chunk of {self.name[1:]} is damaged", AGAIN)
            chunks["at"] = -1
        return super().__getitem__(rows)

    def _decoded_size(self, at: int, size: int, mask: int) -> int:
        """Bytes of a chunk after decompression, or -1 if it is damaged."""
        if size > 2 * self.chunk_bytes + 1024:
            return -1
        end = size
        for position, (number, values) in reversed(list(enumerate(self.encoding))):
            if number == SHUFFLE or mask >> position & 1:
                continue
            if number == FLETCHER32:
                size, end = size - 4, end - 4
                continue
            content = os.pread(self.descriptor, BLOSC_HEADER.size if number == BLOSC else end, at)
            if number == BLOSC:  # c-blosc, README_CHUNK_FORMAT.rst
                _, size, _, compressed = BLOSC_HEADER.unpack(content)
                size = size if BLOSC_HEADER.size <= compressed <= end else -1
            elif number == ZSTD:
                size = zstandard.frame_content_size(content)
                if size <= self.chunk_bytes + 4:  # 4 bytes more with a checksum
                    # HDF5's filter returns arbitrary values for a damaged chunk
                    zstandard.decompress(content)
            elif number == GZIP:
                inflater = zlib.decompressobj()
                size = len(inflater.decompress(content, self.chunk_bytes + 5))
                size = size if inflater.eof else -1
            else:
                size = int(_lzf_size(np.frombuffer(content, np.uint8)))
                # h5py's filter tries multiples of this size, decompressing from the start.
                size = size if values[2:3] == (size,) else -1
        return size


@njit(cache=True, nogil=True)
def _lzf_size(content):  # type: ignore[no-untyped-def]
    """Bytes that a chunk in LZF, literal runs and references to earlier bytes, decompresses to, -1 if damaged."""
    position, size = 0, 0
    while position < len(content):
        control = content[position]
        if control < 32:  # a run of control + 1 bytes
            position += control + 2
            size += control + 1
        else:  # a reference: 3 bits of length, of which 7 is followed by more, then 13 bits of offset
            position += 2
            size += (control >> 5) + 2
            if control >> 5 == 7:
                position += 1
                size += content[min(position - 2, len(content) - 1)]
    return size if position == len(content) else -1


def part(path: Path, name: str, codec: int | None = None) -> Dataset:
    """Return a dataset of a file, to be read in slices.

    A dataset in another file, one that is not completely written, and one whose chunks are too
    large or have filters that are not read raise a `UserError`. `codec` is a filter whose chunks
    the caller decodes itself.
    """
    return _part(path, name, codec, _state(path))


@lru_cache(maxsize=OPEN)
def _part(path: Path, name: str, codec: int | None, state: tuple[int, int, int]) -> Dataset:
    with translate_errors(path, name):
        found = open_file(path).get(name)
        if not isinstance(found, h5py.Dataset):
            raise UserError(path, f"has no dataset {name}", "give a complete recording")
        elsewhere = Path(found.file.filename) != path or found.is_virtual
        if elsewhere or found.id.get_create_plist().get_external_count():
            raise UserError(
                path, f"{name} is stored in another file", "give a file that contains its data"
            )
        stored = Dataset(path, found)
        if codec is None or [number for number, _ in stored.encoding] != [codec]:
            _check_encoding(path, name, stored)
        _check_chunks(path, name, stored)
        if codec is not None:  # the caller reads texts
            _check_heaps(path, stored)
    return stored


def _check_heaps(path: Path, stored: Dataset) -> None:
    """Refuse a file with a damaged global heap, in which HDF5 searches for texts of variable length for ever.

    Heaps are looked for outside of the chunks of the file's large dataset.
    """
    chunks = np.sort(stored.stored[["at", "size"]].ravel()).tolist() if stored.chunks else []
    borders = [0, *(side for at, size in chunks for side in (at, at + size)), path.stat().st_size]
    with path.open("rb") as file:
        for begin, end in zip(borders[::2], borders[1::2], strict=True):
            file.seek(begin)
            content = file.read(max(0, end - begin))
            if not all(
                _is_sound_heap(content, heap.start()) for heap in re.finditer(b"GCOL", content)
            ):
                raise UserError(path, "its global heap is damaged", AGAIN)


def _is_sound_heap(content: bytes, at: int) -> bool:
    """Whether each object of a global heap has a size (HDF5 File Format Specification, III.E)."""
    header = HEAP_OBJECT.size
    last = min(at + int.from_bytes(content[at + 8 : at + 16], "little"), len(content)) - header
    position = at + 16
    while position <= last:
        index, size = HEAP_OBJECT.unpack_from(content, position)
        # object 0 is the free space, with its header
        step = size if index == 0 else header + -(-size // 8) * 8
        if step < header:
            return False
        position += step
    return True


def _check_encoding(path: Path, name: str, stored: Dataset) -> None:
    numbers = [number for number, _ in stored.encoding]
    refused = [number for number in numbers if number not in (SHUFFLE, FLETCHER32, *COMPRESSIONS)]
    if refused or len(set(numbers)) < len(numbers) or len(set(numbers) & set(COMPRESSIONS)) > 1:
        names = ", ".join(
            FILTER_NAMES.get(number, f"filter {number}") for number in refused or numbers
        )
        what = (
            f"{name} is compressed with {names}, but only gzip, LZF, Blosc and Zstandard are read"
        )
        raise UserError(path, what, "compress it with gzip: h5repack -f GZIP=4 INPUT OUTPUT")


def _check_chunks(path: Path, name: str, stored: Dataset) -> None:
    """Refuse chunks that are too large, and missing ones, in place of which HDF5 returns fill values."""
    if stored.chunk_bytes > LARGEST_CHUNK:
        what = f"{name} has chunks of {stored.chunk_bytes >> 20:,} MiB, but at most {LARGEST_CHUNK >> 20} are read"
        smaller = "x".join(map(str, (AT_ONCE, *stored.shape[1:])))
        raise UserError(
            path, what, f"make them smaller: h5repack -l {name}:CHUNK={smaller} INPUT OUTPUT"
        )
    count, expected = int(stored.id.get_storage_size() > 0), int(stored.size > 0)
    if stored.chunks:
        count = stored.id.get_num_chunks()
        expected = math.prod(
            -(-side // step) for side, step in zip(stored.shape, stored.chunks, strict=True)
        )
    if count < expected:
        raise UserError(path, f"{name} is incomplete ({count:,} of {expected:,} chunks)", AGAIN)


def dataset(path: Path, name: str, kinds: str, dimensions: int = 1) -> Dataset:
    """Return a dataset with one of these `numpy.dtype.kind`s and this number of dimensions; see `part`."""
    found = part(path, name)
    if found.dtype.kind not in kinds or found.ndim != dimensions:
        wanted = {"f": "float", "u": "unsigned integer"}.get(kinds, "integer")
        raise UserError(
            path,
            f"{name} is {found.dtype} of shape {found.shape}, not {dimensions}-D {wanted}",
            AGAIN,
        )
    return found


def read_slices(path: Path, *names: str) -> Iterator[list[NDArray[Any]]]:
    """Yield slices of datasets of equal length, at most `AT_ONCE` rows each, decoding each chunk at most twice."""
    blocks = [_read_blocks(path, name) for name in names]
    columns, remaining = [next(block) for block in blocks], len(part(path, names[0]))
    while remaining:
        columns = [
            column if len(column) else next(block)
            for column, block in zip(columns, blocks, strict=True)
        ]
        count = min(AT_ONCE, *map(len, columns))
        yield [column[:count] for column in columns]
        columns = [column[count:] for column in columns]
        remaining -= count


def _read_blocks(path: Path, name: str) -> Iterator[NDArray[Any]]:
    """Yield `AT_ONCE` rows of a dataset at a time, or whole chunks if they have more."""
    rows = part(path, name)
    step = max(AT_ONCE, rows.chunks[0] if rows.chunks else 0)
    for begin in range(0, max(len(rows), 1), step):
        with translate_errors(path, "a part of the events"):
            block = rows[begin : begin + step]
        yield block

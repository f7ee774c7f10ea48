"""Reads parts of an HDF5 dataset whose chunks unpack to what they should, and to no more.

HDF5 lets each filter take the memory that the packed bytes ask for: 48 kB can become gigabytes in a dataset whose
chunks have a megabyte. Here a chunk's packed bytes are looked at before HDF5 unpacks them for the first time.
"""

from __future__ import annotations

import itertools
import math
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import zstandard
from numpy.typing import NDArray

from tespec.core.errors import UserError

LARGEST_CHUNK = 1 << 28  # bytes; real ones have some MB
LARGEST_ITEM = 1 << 28  # bytes of one index of the first axis: an event, a frame, a map
CHUNKS_OF_AN_ITEM = 4096
CHUNKS_AT_ONCE = 1 << 14  # HDF5 takes some kB of memory for each chunk of a reading, however small it is
REMEMBERED = 1 << 16  # chunks known to be good
AGAIN = "copy it again"

# Numbers of HDF5's filters.
DEFLATE, SHUFFLE, FLETCHER, LZF, BLOSC, LZ4, BITSHUFFLE, ZSTD = 1, 2, 3, 32000, 32001, 32004, 32008, 32015
PACKS = (DEFLATE, LZF, BLOSC, LZ4, BITSHUFFLE, ZSTD)
BITSHUFFLE_CODECS = (2, 3)  # of its fifth option; without one it packs nothing
CHECKSUM = 4  # bytes of Fletcher32 behind a chunk
HARMLESS_DEFLATED = LARGEST_CHUNK // 1032  # bytes; deflate packs no better than 1032 to 1
HARMLESS_LZF = LARGEST_CHUNK // 88  # bytes; 3 bytes stand for 264 at most


class Part:
    """A dataset, read by parts along its first axis.

    Args:
        path: of the file, for messages.
        found: a dataset that lies in the file itself.

    Raises:
        UserError: its items or chunks are larger than any real ones, or packed in a way that cannot be held to a size.
    """

    def __init__(self, path: Path, found: h5py.Dataset) -> None:
        self._path, self._found, self._name = path, found, str(found.name).lstrip("/")
        self._item = found.dtype.itemsize * math.prod(found.shape[1:])
        self._packing: tuple[int, int] | None = None
        self._good: set[tuple[int, ...]] = set()
        if found.ndim and self._item > LARGEST_ITEM:
            raise UserError(path, f"{self._name} has items of {self._item:,} bytes", AGAIN)
        self._chunks: tuple[int, ...] = found.chunks or ()
        self._at_once = len(found) if found.ndim else 1
        if not self._chunks:
            return
        self._bytes = found.dtype.itemsize * math.prod(self._chunks)
        across = zip(found.shape[1:], self._chunks[1:], strict=True)
        self._across = [range(0, side, step) for side, step in across]
        if self._bytes > LARGEST_CHUNK or math.prod(map(len, self._across)) > CHUNKS_OF_AN_ITEM:
            raise UserError(path, f"{self._name} has chunks of {self._chunks}, which no real one has", AGAIN)
        self._packing = self._filter()
        self._at_once = max(1, CHUNKS_AT_ONCE // math.prod(map(len, self._across))) * self._chunks[0]

    def __getitem__(self, part: slice) -> NDArray[Any]:
        """Values of a slice of the first axis without a step.

        Raises:
            UserError: a chunk unpacks to more than it should.
        """
        begin, end, _ = part.indices(len(self._found))
        if self._packing is not None and begin < end:
            step = self._chunks[0]
            for place in itertools.product(range(begin - begin % step, end, step), *self._across):
                if place not in self._good:
                    self._check(place)
        if end - begin <= self._at_once:
            return np.asarray(self._found[begin:end])
        starts = range(begin, end, self._at_once)
        return np.concatenate([self._found[at : min(at + self._at_once, end)] for at in starts])

    def whole(self, largest: int = LARGEST_ITEM) -> NDArray[Any]:
        """All values.

        Raises:
            UserError: they are more than `largest` bytes, or a chunk unpacks to more than it should.
        """
        if not self._found.ndim:
            return np.asarray(self._found[()])
        if self._item * len(self._found) > largest:
            raise UserError(self._path, f"{self._name} has {self._item * len(self._found):,} bytes", AGAIN)
        return self[:]

    def _filter(self) -> tuple[int, int] | None:
        """Place and number of the filter that packs the chunks, None where they are as large as what they hold."""
        created = self._found.id.get_create_plist()
        filters = [created.get_filter(number) for number in range(created.get_nfilters())]
        packing = [(place, code) for place, (code, _, options, _) in enumerate(filters) if not _keeps(code, options)]
        if not packing:
            return None
        place, code = packing[0]
        if len(packing) > 1 or code not in PACKS or any(each[0] != FLETCHER for each in filters[place + 1 :]):
            said = ", ".join(str(each[0]) for each in filters)
            what = f"{self._name} is compressed by filters {said}, whose sizes cannot be checked"
            raise UserError(self._path, what, "write it with one of blosc, zstd, lz4, bitshuffle, gzip or lzf")
        return place, code

    def _check(self, place: tuple[int, ...]) -> None:
        number, code = self._packing or (0, 0)
        try:
            skipped, packed = self._found.id.read_direct_chunk(place)
        except (OSError, RuntimeError, ValueError):
            return  # not stored: HDF5 fills it in, or says what is wrong with it
        size = len(packed) if skipped >> number & 1 else _claimed(code, packed, self._bytes)
        if size is None or size > self._bytes + CHECKSUM:
            raise UserError(self._path, f"a chunk of {self._name} unpacks to more than {self._bytes:,} bytes", AGAIN)
        if len(self._good) >= REMEMBERED:
            self._good.clear()
        self._good.add(place)


def _keeps(code: int, options: tuple[int, ...]) -> bool:
    """Whether a filter gives out as many bytes as it takes in."""
    if code == BITSHUFFLE:
        return len(options) < 5 or options[4] not in BITSHUFFLE_CODECS
    return code in (SHUFFLE, FLETCHER)


def _claimed(code: int, packed: bytes, expected: int) -> int | None:
    """Bytes that HDF5 would take to unpack a chunk, or any number up to `expected`; None where they are not known."""
    if code == BLOSC:
        return int.from_bytes(packed[4:8], "little")
    if code in (LZ4, BITSHUFFLE):
        return int.from_bytes(packed[:8], "big")
    if code == ZSTD:
        try:
            size = zstandard.frame_content_size(packed)
        except zstandard.ZstdError:
            return None
        return None if size < 0 else size
    if code == DEFLATE:
        return 0 if len(packed) <= HARMLESS_DEFLATED else _inflated(packed, expected)
    return 0 if len(packed) <= HARMLESS_LZF else None


def _inflated(packed: bytes, expected: int) -> int:
    try:
        return len(zlib.decompressobj().decompress(packed, expected + CHECKSUM + 1))
    except zlib.error:
        return 0  # HDF5 says what is wrong with it

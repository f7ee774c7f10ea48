"""AEDAT 4 (iniVation, "AEDAT file formats"): compressed packets of FlatBuffers, of which those of events are read."""

from __future__ import annotations

import struct
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import lz4.frame
import numpy as np
import zstandard
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.events.readers.sensor import resolve_size
from tespec.events.stream import Events, Reader

MAGIC = b"#!AER-DAT4.0\r\n"
NONE, LZ4, LZ4_HIGH, ZSTD, ZSTD_HIGH = range(5)
EVENT = np.dtype([("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("on", "u1"), ("padding", "V3")])
LARGEST_HEADER, LARGEST_PACKET = 1 << 20, 1 << 26  # bytes, the packet's once it is decompressed: 4 million events
AGAIN = "copy it again"
DAMAGED = (struct.error, ValueError, IndexError, RuntimeError, EOFError, OverflowError, zstandard.ZstdError)


class _Header(NamedTuple):
    """Compression, stream of the events, sensor size (height, width), and where packets begin and end in bytes."""

    compression: int
    stream: int
    size: tuple[int, int]
    begin: int
    end: int


def open_aedat4(path: Path, height: int | None = None, width: int | None = None) -> Reader:
    """Open a recording; of several streams of events the first is read.

    Args:
        path: the file.
        height: rows of the sensor in px, which have to be those that the file says.
        width: columns, likewise.

    Raises:
        UserError: another format, damaged or truncated file, or no stream of events.
    """
    header = _read_header(path)
    size = resolve_size(path, height, width, header.size)

    packets = _find_packets(path, header)

    def chunks() -> Iterator[Events]:
        with path.open("rb") as file:
            for place, length in packets:
                file.seek(place)
                yield _decode(path, header.compression, place, file.read(length))

    # A packed event takes about as many bytes as one of the store.
    return Reader(path, *size, sum(length for _, length in packets) // 4, chunks)


def _read_header(path: Path) -> _Header:
    try:
        with path.open("rb") as file:
            magic = file.read(len(MAGIC))
            if not magic:
                raise UserError(path, "the file is empty", AGAIN)
            if magic != MAGIC:
                raise UserError(path, "does not begin like an AEDAT 4 file", "give one of version 4.0")
            (length,) = struct.unpack("<I", file.read(4))
            if length > LARGEST_HEADER:
                raise UserError(path, f"its header claims {length} bytes", AGAIN)
            table = _Table.root(file.read(length))
            begin = file.tell()
    except OSError as error:
        raise UserError(path, f"cannot be read ({error.strerror})", "check the path") from error
    except DAMAGED as error:
        raise UserError(path, "its header is damaged", AGAIN) from error
    try:
        compression, end, text = table.number(0, "<i", NONE), table.number(1, "<q", -1), table.text(2)
        stream, size = _events_of(text)
    except (*DAMAGED, ElementTree.ParseError) as error:
        raise UserError(path, "its header is damaged", AGAIN) from error
    if compression not in range(5):
        raise UserError(path, f"is compressed by unknown method {compression}", "give one with LZ4, ZSTD or none")
    if stream is None:
        raise UserError(path, "has no stream of events", "give a recording with events")
    whole = path.stat().st_size
    return _Header(compression, stream, size, begin, end if begin <= end <= whole else whole)


def _events_of(text: str) -> tuple[int | None, tuple[int, int]]:
    """Number and sensor size (height, width) of the first stream of events that the header's XML describes."""
    if "<!" in text:
        raise ValueError("declarations have no place in this header")
    for node in ElementTree.fromstring(text).iter("node"):
        facts = {attribute.get("key"): attribute.text or "" for attribute in node.findall("attr")}
        if facts.get("typeIdentifier") != "EVTS":
            continue
        info = next((child for child in node.findall("node") if child.get("name") == "info"), node)
        sides = {attribute.get("key"): attribute.text or "" for attribute in info.findall("attr")}
        return int(node.get("name", "")), (int(sides.get("sizeY", 0)), int(sides.get("sizeX", 0)))
    return None, (1, 1)


def _find_packets(path: Path, header: _Header) -> list[tuple[int, int]]:
    """Where the payload of each packet of events begins, and its bytes."""
    found = []
    with path.open("rb") as file:
        place = header.begin
        while place < header.end:
            file.seek(place)
            head = file.read(8)
            if len(head) < 8:
                raise UserError(path, "truncated in the middle of a packet's head", AGAIN)
            stream, length = struct.unpack("<ii", head)
            if length < 0 or place + 8 + length > header.end:
                raise UserError(path, f"truncated or damaged: a packet of {length} bytes at byte {place}", AGAIN)
            if stream == header.stream:
                found.append((place + 8, length))
            place += 8 + length
    return found


def _decode(path: Path, compression: int, place: int, packed: bytes) -> Events:
    try:
        elements = _elements(_decompress(packed, compression))
    except UserError:
        raise
    except DAMAGED as error:
        raise UserError(path, f"the packet at byte {place} is damaged", AGAIN) from error
    if len(elements) and min(int(elements["x"].min()), int(elements["y"].min())) < 0:
        raise UserError(path, f"the packet at byte {place} has coordinates below zero", AGAIN)
    return Events(
        elements["x"].astype(np.uint16),
        elements["y"].astype(np.uint16),
        elements["t"].astype(np.int64),
        (elements["on"] != 0).astype(np.uint8),
    )


def _decompress(packed: bytes, compression: int) -> bytes:
    if compression == NONE:
        return packed
    if compression in (LZ4, LZ4_HIGH):
        reader = lz4.frame.LZ4FrameDecompressor()
        content = reader.decompress(packed, max_length=LARGEST_PACKET)
        whole = reader.eof
    else:
        with zstandard.ZstdDecompressor().stream_reader(packed) as stream:
            content = stream.read(LARGEST_PACKET)
            whole = not stream.read(1)
    if not whole:
        raise ValueError("does not end, or is larger than any packet")
    return content


def _elements(packet: bytes) -> NDArray[np.void]:
    """The vector of events of a packet, a table with that one field behind its own length."""
    (length,) = struct.unpack_from("<I", packet)
    if length + 4 > len(packet):
        raise ValueError("shorter than it says")
    place = _Table.root(packet[4 : 4 + length]).vector(0)
    if place is None:
        return np.empty(0, EVENT)
    content, start, count = place
    return np.frombuffer(content, EVENT, count, start)


class _Table:
    """A table of a FlatBuffer: little-endian, its fields found through a table of offsets."""

    def __init__(self, content: bytes, place: int) -> None:
        self._content, self._place = content, place
        offset = place - struct.unpack_from("<i", content, place)[0]
        if offset < 0:
            raise ValueError("offset outside of the buffer")
        (size,) = struct.unpack_from("<H", content, offset)
        self._fields = struct.unpack_from(f"<{max(0, size - 4) // 2}H", content, offset + 4)

    @classmethod
    def root(cls, content: bytes) -> _Table:
        """The table a buffer begins with."""
        return cls(content, struct.unpack_from("<I", content)[0])

    def _field(self, number: int) -> int | None:
        offset = self._fields[number] if number < len(self._fields) else 0
        return self._place + offset if offset else None

    def number(self, number: int, kind: str, default: int) -> int:
        """A scalar field, of a format of `struct`."""
        place = self._field(number)
        return default if place is None else int(struct.unpack_from(kind, self._content, place)[0])

    def text(self, number: int) -> str:
        """A field of text; empty where it is missing."""
        place = self.vector(number)
        if place is None:
            return ""
        content, start, count = place
        if start + count > len(content):
            raise ValueError("text beyond the buffer")
        return content[start : start + count].decode()

    def vector(self, number: int) -> tuple[bytes, int, int] | None:
        """The buffer, where in it a vector's elements begin, and how many they are."""
        place = self._field(number)
        if place is None:
            return None
        start = place + struct.unpack_from("<I", self._content, place)[0]
        (count,) = struct.unpack_from("<I", self._content, start)
        return self._content, start + 4, count


READS = {".aedat4": open_aedat4}

"""Reader of the event packets in AEDAT 4 files, which are compressed FlatBuffers (iniVation, "AEDAT file formats").

The package `aedat` is not used because damaged headers make it abort the process.
"""

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import numpy as np
import zstandard

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, resolve_size

MAGIC = b"#!AER-DAT4.0\r\n"
NONE, LZ4, ZSTD = 0, (1, 2), (3, 4)  # compression methods, the second of each pair at a higher level
EVENT = np.dtype([("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("on", "u1"), ("padding", "V3")])
AGAIN = "copy it again"
DAMAGED = (ValueError, RuntimeError, MemoryError, ElementTree.ParseError, zstandard.ZstdError)


def reads(path: Path) -> bool:
    """Whether a file is named as one."""
    return path.suffix.lower() == ".aedat4" and path.is_file()


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open an `.aedat4` recording; only its first event stream is read. See `tespec.events.readers`."""
    whole = path.stat().st_size
    with path.open("rb") as file:
        magic, length = file.read(len(MAGIC)), file.read(4)
        header = file.read(min(int.from_bytes(length, "little"), whole))
    if magic != MAGIC:
        raise UserError(path, "does not start with the AEDAT 4.0 signature", "give an AEDAT 4.0 file")
    try:
        compression, end, start = (_field(header, number) for number in range(3))
        compression = _number("<i4", header, compression) if compression else 0
        end = _number("<i8", header, end) if end else whole  # end of the packets
        start, count = _vector(header, start)
        stream, named = _first_events(header[start : start + count].decode())
    except DAMAGED as error:
        raise UserError(path, "its header is damaged", AGAIN) from error
    if compression not in (NONE, *LZ4, *ZSTD):
        raise UserError(path, f"has the unknown compression method {compression}", "use LZ4, ZSTD or none")
    if stream is None:
        raise UserError(path, "has no event stream", "give a recording with events")
    size = resolve_size(path, sensor, named, default)
    begin = len(MAGIC) + 4 + len(header)
    packets = _find_packets(path, stream, begin, end if begin <= end <= whole else whole)

    def chunks() -> Iterator[Events]:
        with path.open("rb") as file:
            for place, length in packets:
                file.seek(place)
                try:
                    yield _decode(file.read(length), compression)
                except DAMAGED as error:
                    raise UserError(path, f"the packet at byte {place} is damaged ({error})", AGAIN) from error

    # A compressed event takes about 4 bytes.
    return Reader(path, *size, sum(length for _, length in packets) // 4, chunks)


def _first_events(text: str) -> tuple[int | None, tuple[int, int]]:
    """ID and sensor size (height, width) of the first event stream in the header's XML; the ID is None without one."""
    if "<!" in text:
        raise ValueError("declarations have no place in this header")
    for node in ElementTree.fromstring(text).iter("node"):
        if any(each.get("key") == "typeIdentifier" and each.text == "EVTS" for each in node.findall("attr")):
            facts = {attribute.get("key"): attribute.text or "" for attribute in node.iter("attr")}
            return int(node.get("name", "")), (int(facts.get("sizeY", 0)), int(facts.get("sizeX", 0)))
    return None, (1, 1)


def _find_packets(path: Path, wanted: int, begin: int, end: int) -> list[tuple[int, int]]:
    """Offset and size in bytes of the payload of each packet of a stream."""
    found, place = [], begin
    with path.open("rb") as file:
        while place < end:
            file.seek(place)
            stream, length = np.frombuffer(file.read(8).ljust(8, b"\xff"), "<i4").tolist()
            if length < 0 or place + 8 + length > end:
                raise UserError(path, f"truncated or damaged: a packet of {length} bytes at byte {place}", AGAIN)
            if stream == wanted:
                found.append((place + 8, length))
            place += 8 + length
    return found


def _decode(packet: bytes, compression: int) -> Events:
    if compression in LZ4:
        packet = bytes(lz4.frame.decompress(packet))
    elif compression in ZSTD:
        decompressor = zstandard.ZstdDecompressor().decompressobj()
        packet = decompressor.decompress(packet)
        if not decompressor.eof:
            raise ValueError("its compressed data is incomplete")
    if _number("<u4", packet, 0) + 4 > len(packet):
        raise ValueError("shorter than its size field")
    start, count = _vector(packet[4:], _field(packet[4:], 0))
    events = np.frombuffer(packet, EVENT, count, 4 + start)
    if (events["x"] < 0).any() or (events["y"] < 0).any():
        raise ValueError("negative coordinates")
    x, y = events["x"].astype(np.uint16), events["y"].astype(np.uint16)
    return Events(x, y, events["t"].astype(np.int64), (events["on"] != 0).astype(np.uint8))


# A FlatBuffer is little-endian, starts with the offset of its root table, and locates fields by a table of offsets.


def _number(kind: str, buffer: bytes, place: int) -> int:
    """Number of a dtype at an offset, which raises `ValueError` outside of the buffer."""
    return int(np.frombuffer(buffer, kind, 1, place)[0])


def _field(buffer: bytes, number: int) -> int:
    """Offset of a field of the root table, 0 if the field is missing."""
    table = _number("<u4", buffer, 0)
    offsets = table - _number("<i4", buffer, table)
    known = 6 + 2 * number <= _number("<u2", buffer, offsets)
    offset = _number("<u2", buffer, offsets + 4 + 2 * number) if known else 0
    return table + offset if offset else 0


def _vector(buffer: bytes, place: int) -> tuple[int, int]:
    """Offset and number of a vector's elements, (0, 0) for a missing field."""
    if not place:
        return 0, 0
    start = place + _number("<u4", buffer, place)
    return start + 4, _number("<u4", buffer, start)

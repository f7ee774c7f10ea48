"""Event packets of AEDAT 4 files, compressed FlatBuffers (iniVation, "AEDAT file formats").

AEDAT 1 to 3 are refused by name. The package `aedat` is not used because damaged headers make it
abort the process.
"""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator
from pathlib import Path

import lz4.frame
import numpy as np
import zstandard

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, resolve_size

SIGNATURE = b"#!AER-DAT"
MAGIC = b"#!AER-DAT4.0\r\n"
# compression methods, the second of each pair at a higher level
NONE, LZ4, ZSTD = 0, (1, 2), (3, 4)
# bytes after decompression: 4 million events; dv-processing writes packets of 10,000
LARGEST_PACKET = 1 << 26
# Coordinates are int16; read as uint16, negative ones are above 32,767, which is off every sensor.
EVENT = np.dtype([("t", "<i8"), ("x", "<u2"), ("y", "<u2"), ("on", "u1"), ("padding", "V3")])
COPY_AGAIN = "copy it again"
DAMAGED = (ValueError, RuntimeError, MemoryError, ElementTree.ParseError, zstandard.ZstdError)


def reads(path: Path) -> bool:
    """Whether a file is named `.aedat4`, or is an `.aedat` file of a format before it."""
    if path.suffix.lower() not in (".aedat", ".aedat4") or not path.is_file():
        return False
    with path.open("rb") as file:
        return path.suffix.lower() == ".aedat4" or file.read(len(SIGNATURE)) == SIGNATURE


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open an `.aedat4` recording with one stream of events.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    file_bytes = path.stat().st_size
    with path.open("rb") as file:
        magic = file.read(len(MAGIC))
        length = int.from_bytes(file.read(4), "little")
        header = file.read(min(length, file_bytes))
    if older := re.match(rb"#!AER-DAT([1-3](\.\d)?)\r?\n", magic):
        raise UserError(
            path,
            f"is an AEDAT {older[1].decode()} file, which is not supported",
            "convert it to .aedat4 with iniVation's DV, or save its x, y, t, p as .npz",
        )
    if magic != MAGIC:
        raise UserError(
            path, "does not start with the AEDAT 4.0 signature", "give an AEDAT 4.0 file"
        )
    try:
        fields = [_field(header, number) for number in range(3)]
        compression = _number("<i4", header, fields[0]) if fields[0] else NONE
        end = _number("<i8", header, fields[1]) if fields[1] else file_bytes  # of the packets
        start, count = _vector(header, fields[2])
        streams = _event_streams(header[start : start + count].decode())
    except DAMAGED as error:
        raise UserError(path, "its header is damaged", COPY_AGAIN) from error
    if compression not in (NONE, *LZ4, *ZSTD):
        raise UserError(
            path, f"has the unknown compression method {compression}", "use LZ4, ZSTD or none"
        )
    begin = len(MAGIC) + 4 + len(header)
    packets = _find_packets(path, begin, end if begin <= end <= file_bytes else file_bytes)
    with_events = [number for number in streams if number in packets]
    if not with_events:
        raise UserError(path, "has no event stream with events", "give a recording with events")
    if len(with_events) > 1:
        named = ", ".join(f"{number} ({streams[number][0]})" for number in with_events)
        raise UserError(
            path,
            f"has {len(with_events)} streams of events: {named}",
            "save one of them to a separate file, .aedat4 or .npz with arrays x, y, t, p",
        )
    size = resolve_size(path, sensor, streams[with_events[0]][1], default)
    payloads = packets[with_events[0]]

    def chunks() -> Iterator[Events]:
        with path.open("rb") as file:
            for position, length in payloads:
                file.seek(position)
                try:
                    yield _decode(file.read(length), compression)
                except DAMAGED as error:
                    raise UserError(
                        path, f"the packet at byte {position} is damaged ({error})", COPY_AGAIN
                    ) from error

    # about 4 bytes per compressed event
    return Reader(path, *size, sum(length for _, length in payloads) // 4, chunks)


def _event_streams(text: str) -> dict[int, tuple[str, Size | None]]:
    """Return names and sensor sizes (height, width) of the event streams in a header's XML.

    Keys are the streams' numbers; a size is None if the header does not name it.
    """
    if "<!" in text:
        raise ValueError("this header has no declarations")
    streams = {}
    for node in ElementTree.fromstring(text).iter("node"):
        if node.find("attr[@key='typeIdentifier'][.='EVTS']") is not None:
            texts = {attribute.get("key"): attribute.text or "" for attribute in node.iter("attr")}
            size = int(texts.get("sizeY", 0)), int(texts.get("sizeX", 0))
            name = f"{texts.get('source', '')} {texts.get('originalOutputName', '')}".strip()
            streams[int(node.get("name", ""))] = name, size if all(size) else None
    return streams


def _find_packets(path: Path, begin: int, end: int) -> dict[int, list[tuple[int, int]]]:
    """Return the offset and size in bytes of all packets' payloads, by stream."""
    packets: dict[int, list[tuple[int, int]]] = {}
    position = begin
    with path.open("rb") as file:
        while position < end:
            file.seek(position)
            stream, length = np.frombuffer(file.read(8).ljust(8, b"\xff"), "<i4").tolist()
            if length < 0 or position + 8 + length > end:
                raise UserError(
                    path,
                    f"truncated or damaged: a packet of {length} bytes at byte {position}",
                    COPY_AGAIN,
                )
            packets.setdefault(stream, []).append((position + 8, length))
            position += 8 + length
    return packets


def _decompress(packet: bytes, compression: int) -> bytes:
    """Decompress a packet; it may have at most `LARGEST_PACKET`, whatever its frame states."""
    if compression in LZ4:
        decompressor = lz4.frame.LZ4FrameDecompressor()
        content = decompressor.decompress(packet, max_length=LARGEST_PACKET)
        if not decompressor.eof:
            raise ValueError(f"incomplete, or larger than {LARGEST_PACKET >> 20} MiB")
        return bytes(content)
    if compression in ZSTD:
        if zstandard.frame_content_size(packet) > LARGEST_PACKET:
            raise ValueError(f"larger than {LARGEST_PACKET >> 20} MiB")
        return zstandard.ZstdDecompressor().decompress(
            packet, LARGEST_PACKET, allow_extra_data=False
        )
    return packet


def _decode(packet: bytes, compression: int) -> Events:
    packet = _decompress(packet, compression)
    if _number("<u4", packet, 0) + 4 > len(packet):
        raise ValueError("shorter than its size field")
    start, count = _vector(packet[4:], _field(packet[4:], 0))
    events = np.frombuffer(packet, EVENT, count, 4 + start)
    x, y = events["x"].astype(np.uint16), events["y"].astype(np.uint16)
    return Events(x, y, events["t"].astype(np.int64), (events["on"] != 0).astype(np.uint8))


# A FlatBuffer is little-endian, starts with the offset of its root table, and locates fields by a
# table of offsets.


def _number(dtype: str, buffer: bytes, offset: int) -> int:
    """Number at an offset, which raises `ValueError` outside of the buffer."""
    return int(np.frombuffer(buffer, dtype, 1, offset)[0])


def _field(buffer: bytes, number: int) -> int:
    """Offset of a field of the root table, 0 if the field is missing."""
    table = _number("<u4", buffer, 0)
    offsets = table - _number("<i4", buffer, table)
    if _number("<u2", buffer, offsets) < 6 + 2 * number:
        return 0
    offset = _number("<u2", buffer, offsets + 4 + 2 * number)
    return table + offset if offset else 0


def _vector(buffer: bytes, offset: int) -> tuple[int, int]:
    """Offset and number of a vector's elements, (0, 0) for a missing field."""
    if not offset:
        return 0, 0
    start = offset + _number("<u4", buffer, offset)
    return start + 4, _number("<u4", buffer, start)

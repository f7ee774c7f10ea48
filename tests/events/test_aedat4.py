"""AEDAT 4 recordings."""

import struct
import zlib
from itertools import pairwise
from pathlib import Path

import lz4.frame
import numpy as np
import pytest
import zstandard
from event_cases import assert_refused, assert_same_events, random_events, read

from tespec.events import load_events
from tespec.events.readers.aedat4 import EVENT, MAGIC

REAL = Path(__file__).parents[1] / "data" / "davis.aedat4"
XML = """<dv version="2.0"><node name="outInfo">
<node name="0"><attr key="typeIdentifier">FRME</attr></node>
<node name="3"><attr key="typeIdentifier">EVTS</attr><node name="info">
<attr key="sizeX" type="int">64</attr><attr key="sizeY" type="int">48</attr></node></node></node></dv>"""
COMPRESS = (
    lambda content: content,
    lz4.frame.compress,
    lz4.frame.compress,
    zstandard.ZstdCompressor().compress,
    zstandard.ZstdCompressor().compress,
)


def table(fields, heap=b""):
    """A FlatBuffer whose root has scalar fields (bytes) and, last, an offset (None) to what `heap` begins with."""
    vtable = struct.pack("<HH", 4 + 2 * len(fields), 0)
    body, offsets = b"", []
    for field in fields:
        offsets.append(4 + len(body))
        body += b"\0\0\0\0" if field is None else field
    vtable = struct.pack("<HH", 4 + 2 * len(fields), 4 + len(body)) + struct.pack(f"<{len(fields)}H", *offsets)
    start = 4 + len(vtable)
    if fields[-1] is None:
        body = body[:-4] + struct.pack("<I", 4)
    return struct.pack("<I", start) + vtable + struct.pack("<i", len(vtable)) + body + heap


def packet(events, stream=3, compression=1):
    elements = np.zeros(len(events.t), EVENT)
    for name, column in zip(("x", "y", "t", "on"), events, strict=True):
        elements[name] = column
    content = table([None], struct.pack("<I", len(elements)) + elements.tobytes())
    payload = COMPRESS[compression](struct.pack("<I", len(content)) + content)
    return struct.pack("<ii", stream, len(payload)) + payload


def recording(path, *packets, compression=1, xml=XML, end=-1):
    text = xml.encode()
    header = table([struct.pack("<i", compression), struct.pack("<q", end), None], struct.pack("<I", len(text)) + text)
    path.write_bytes(MAGIC + struct.pack("<I", len(header)) + header + b"".join(packets))
    return path


def parts_of(events, count):
    borders = np.linspace(0, len(events.t), count + 1).astype(int)
    return [type(events)(*(column[a:b] for column in events)) for a, b in pairwise(borders)]


def test_a_real_recording():
    """Every event equals that of the decoder `aedat` 2.3.0, whose columns (u2, u2, i8, u1) these checksums are of."""
    stream = load_events(REAL)
    assert (stream.count, stream.height, stream.width, stream.clamped) == (117_667, 260, 346, 0)
    assert [zlib.crc32(np.ascontiguousarray(column).tobytes()) for column in read(REAL)] == AEDAT


AEDAT = [1_580_470_145, 1_777_519_670, 4_267_156_144, 3_380_914_417]


@pytest.mark.parametrize("compression", range(5))
def test_packets_of_events_are_read_and_others_left_alone(tmp_path, compression):
    events = random_events(5_000, height=48, width=64)
    packets = [packet(part, compression=compression) for part in parts_of(events, 7)]
    other = struct.pack("<ii", 0, 5) + b"frame"
    path = recording(tmp_path / "a.aedat4", other, *packets, other, compression=compression)
    stream = load_events(path)
    assert (stream.height, stream.width, stream.count) == (48, 64, 5_000)
    assert_same_events(stream.slice(0, 50_000), events)


def test_times_that_step_back_between_packets_are_raised(tmp_path):
    events = random_events(900, height=48, width=64)
    t = events.t.copy()
    t[350:420] += 9_000
    stream = load_events(recording(tmp_path / "a.aedat4", *map(packet, parts_of(events._replace(t=t), 9))))
    wanted = np.maximum.accumulate(t)
    assert stream.clamped == (wanted != t).sum() > 0
    np.testing.assert_array_equal(stream.slice(0, 90_000).t, wanted)


def test_what_follows_the_packets_is_not_read(tmp_path):
    events = random_events(50, height=48, width=64)
    path = recording(tmp_path / "a.aedat4", packet(events))
    recording(path, packet(events), b"the table of the file's data", end=path.stat().st_size)
    assert load_events(path).count == 50


EVENTS = random_events(40, height=48, width=64)
NANOSECONDS = EVENTS._replace(t=EVENTS.t + 1_790_000_000 * 10**9)
BOMB = struct.pack("<ii", 3, 100) + lz4.frame.compress(bytes(1 << 29))[:100]
BAD = {
    "empty": (lambda path: path.write_bytes(b""), "the file is empty"),
    "older version": (lambda path: path.write_bytes(b"#!AER-DAT3.1\r\n" + bytes(99)), "not begin like an AEDAT 4"),
    "header torn": (lambda path: path.write_bytes(MAGIC + b"\x10\0\0\0abc"), "its header is damaged"),
    "vast header": (lambda path: path.write_bytes(MAGIC + b"\xff\xff\xff\x7f"), "its header is damaged"),
    "no events": (recording, "holds no events"),
    "no stream": (lambda path: recording(path, xml="<dv/>"), "has no stream of events"),
    "no XML": (lambda path: recording(path, xml="<dv"), "its header is damaged"),
    "entities": (lambda path: recording(path, xml="<!DOCTYPE a [<!ENTITY b 'c'>]><dv/>"), "its header is damaged"),
    "unknown method": (lambda path: recording(path, packet(EVENTS), compression=9), "unknown method 9"),
    "packet torn": (lambda path: recording(path, packet(EVENTS)[:-9]), r"truncated or damaged: a packet of \d+ bytes"),
    "head torn": (lambda path: recording(path, packet(EVENTS), b"\0\0\0"), "in the middle of a packet's head"),
    "another method": (lambda path: recording(path, packet(EVENTS, compression=3)), r"packet at byte \d+ is damaged"),
    "bomb": (lambda path: recording(path, BOMB), r"packet at byte \d+ is damaged"),
    "outside": (
        lambda path: recording(path, packet(EVENTS._replace(x=EVENTS.x + np.uint16(30)))), r"has events on \d+x\d+ px",
    ),
    "below zero": (
        lambda path: recording(path, packet(EVENTS._replace(y=EVENTS.y.astype(int) - 40))), "coordinates below zero",
    ),
    "nanoseconds": (lambda path: recording(path, packet(NANOSECONDS)), "after the year 5138.* write its times"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_refused(tmp_path, kind):
    make, message = BAD[kind]
    make(tmp_path / "a.aedat4")
    assert_refused(tmp_path / "a.aedat4", message)

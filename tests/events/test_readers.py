"""Readers of all formats: against other decoders, word by word, in all encodings, and with damaged files."""

import os
import re
import struct
import zipfile
import zlib
from pathlib import Path

import lz4.frame
import numpy as np
import pytest
import zstandard
from event_files import assert_refused, assert_same_events, cut, dat, random_events, read, write_h5

from tespec.core.errors import UserError
from tespec.datasets.folder import find_recordings
from tespec.events import Events, open_events
from tespec.events.readers import arrays, prophesee
from tespec.events.readers.aedat4 import EVENT, MAGIC
from tespec.events.readers.arrays import load_array, load_arrays

DATA = Path(__file__).parents[1] / "data"
REAL = DATA / "evt3_640x480_2.08s.raw"
SIZE = (48, 64)
EVENTS = random_events(3_000, height=48, width=64, end=120_000)


XML = """<dv version="2.0"><node name="outInfo">
<node name="0"><attr key="typeIdentifier">FRME</attr></node>
<node name="3"><attr key="typeIdentifier">EVTS</attr><node name="info">
<attr key="sizeX" type="int">64</attr><attr key="sizeY" type="int">48</attr></node></node></node></dv>"""
ZSTD = zstandard.ZstdCompressor().compress
COMPRESS = (lambda content: content, lz4.frame.compress, lz4.frame.compress, ZSTD, ZSTD)


def _flat_buffer(fields, heap):
    """FlatBuffer whose root table has scalar fields (bytes), then a field with the offset of `heap`."""
    offsets = 4 + np.cumsum([0, *map(len, fields)])
    vtable = struct.pack(f"<{len(offsets) + 2}H", 4 + 2 * len(offsets), 4 + offsets[-1], *offsets)
    body = struct.pack("<i", len(vtable)) + b"".join(fields) + struct.pack("<I", 4)
    return struct.pack("<I", 4 + len(vtable)) + vtable + body + heap


def packet(events, stream=3, compression=1):
    elements = np.zeros(len(events.t), EVENT)
    for name, column in zip(("x", "y", "t", "on"), events, strict=True):
        elements[name] = column
    content = _flat_buffer([], struct.pack("<I", len(elements)) + elements.tobytes())
    payload = COMPRESS[compression](struct.pack("<I", len(content)) + content)
    return struct.pack("<ii", stream, len(payload)) + payload


def aedat4(path, *packets, compression=1, xml=XML, end=-1):
    scalars = [struct.pack("<i", compression), struct.pack("<q", end)]
    header = _flat_buffer(scalars, struct.pack("<I", len(xml)) + xml.encode())
    path.write_bytes(MAGIC + struct.pack("<I", len(header)) + header + b"".join(packets))
    return path


# CRC-32 of columns (u2, u2, i8, u1) as decoded by evlib 0.13.2 and aedat 2.3.0.
@pytest.mark.parametrize(
    ("name", "facts", "checksums"),
    [
        (REAL.name, (480, 640, 343_474, 0), [1_020_540_681, 2_671_808_845, 1_163_852_150, 2_041_904_026]),
        ("davis.aedat4", (260, 346, 117_667, 0), [1_580_470_145, 1_777_519_670, 4_267_156_144, 3_380_914_417]),
    ],
)
def test_every_event_of_a_real_recording_is_that_of_another_decoder(monkeypatch, name, facts, checksums):
    monkeypatch.setattr(prophesee, "BLOCK", 77_777)
    stream = open_events(DATA / name)
    assert (stream.height, stream.width, stream.count, stream.clamped) == facts
    assert [zlib.crc32(np.ascontiguousarray(column).tobytes()) for column in read(DATA / name)] == checksums


@pytest.mark.parametrize("compression", range(5))
def test_packets_of_events_are_read_and_others_left_alone(tmp_path, compression):
    parts = zip(*(np.array_split(column, 7) for column in EVENTS), strict=True)
    packets = [packet(Events(*part), compression=compression) for part in parts]
    other, path = struct.pack("<ii", 0, 5) + b"frame", tmp_path / "a.aedat4"
    end = aedat4(path, other, *packets, other, compression=compression).stat().st_size
    aedat4(path, other, *packets, other, b"the table of the file's data", compression=compression, end=end)
    assert_same_events(read(path), EVENTS)


def archive(path, columns):
    np.savez_compressed(path.with_suffix(".npz"), **columns, other=np.zeros(3))
    return path.with_suffix(".npz")


CODINGS = {
    "as they are": {},
    "signed": {"p": 2 * EVENTS.p.astype("i1") - 1},
    "bool": {"p": EVENTS.p.astype(bool)},
    "floats": {"p": 2.0 * EVENTS.p - 1, "x": EVENTS.x.astype("f4"), "y": EVENTS.y.astype("f8"), "t": EVENTS.t / 1e6},
    "unsigned times": {"t": EVENTS.t.astype("u4")},
}


@pytest.mark.parametrize("coding", CODINGS)
def test_every_coding_of_arrays_gives_the_same_events(tmp_path, monkeypatch, coding):
    monkeypatch.setattr(arrays, "BLOCK", 1_234)
    assert_same_events(read(archive(tmp_path / "a", EVENTS._asdict() | CODINGS[coding]), SIZE), EVENTS)


def test_damaged_files_in_a_folder_are_found_and_other_content_is_left_alone(tmp_path):
    found = [archive(tmp_path / "b", EVENTS._asdict()), cut(archive(tmp_path / "torn", EVENTS._asdict()), 5)]
    np.save(tmp_path / "a_bbox.npy", np.zeros(3, [("t", "<i8"), ("x", "<f4"), ("y", "<f4"), ("class_id", "u1")]))
    np.savez(tmp_path / "labels.npz", labels=np.zeros(3))
    assert find_recordings(tmp_path) == sorted(found)


def described(dtype, shape, content=b"", length=None):
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\2\0" + struct.pack("<I", length or len(text)) + text + content


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"hello",
        described("<i8", "(1000000000000,)", bytes(80)),
        described("<i8", "(11,)", bytes(80)),
        described("<i8", f"({10**30},)", bytes(80)),
        described("|V2147483647", "(4,)", bytes(80)),
        described("|O", "(1,)", b"cos\nsystem\n(S'true'\ntR."),
        described("<i8", "(1,)", b" " * 100_000, 2**32 - 1),
    ],
)
def test_arrays_that_files_do_not_hold_are_refused(tmp_path, content):
    (tmp_path / "a.npy").write_bytes(content)
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", content)
    for name, load in (("a.npy", load_array), ("a.npz", lambda path: load_arrays(path, "x"))):
        with pytest.raises(UserError, match=f"not a readable {name[1:]} file; copy it again"):
            load(tmp_path / name)
    assert_refused(tmp_path / "a.npz", "not a readable .npz file; copy it again", SIZE)


def changed(**columns):
    return lambda path: archive(path, EVENTS._asdict() | columns)


DAT = [(3, 2, 1, 1)]
NANOSECONDS = EVENTS.t + 1_790_000_000 * 10**9
BOMB = struct.pack("<ii", 3, 100) + lz4.frame.compress(bytes(1 << 29))[:100]
BAD = {
    "gone.raw": (lambda path: None, "no such file or folder; check the path"),
    "pipe.dat": (os.mkfifo, "not a regular file; check the path"),
    "notes.txt": (Path.touch, r"holds no events in a supported format; give a \.dat, \.raw, "),
    "folder.dat": (Path.mkdir, r"holds no events in a supported format; give a \.dat, \.raw, "),
    "outside.dat": (lambda path: dat(path, DAT, header="% Height 9\n% Width 2\n"), "events on 4x3 px, but its sensor"),
    "none.dat": (lambda path: dat(path, []), "holds no events"),
    "older.aedat4": (lambda path: path.write_bytes(b"#!AER-DAT3.1\r\n" + bytes(99)), "not start with the AEDAT 4"),
    "head.aedat4": (lambda path: path.write_bytes(MAGIC + b"\x10\0\0\0abc"), "its header is damaged"),
    "vast.aedat4": (lambda path: path.write_bytes(MAGIC + b"\xff\xff\xff\x7f"), "its header is damaged"),
    "stream.aedat4": (lambda path: aedat4(path, xml="<dv/>"), "has no event stream"),
    "entity.aedat4": (lambda path: aedat4(path, xml="<!DOCTYPE a [<!ENTITY b 'c'>]><dv/>"), "its header is damaged"),
    "method.aedat4": (lambda path: aedat4(path, packet(EVENTS), compression=9), "unknown compression method 9"),
    "torn.aedat4": (lambda path: aedat4(path, packet(EVENTS)[:-9]), r"truncated or damaged: a packet of \d+ bytes"),
    "mixed.aedat4": (lambda path: aedat4(path, packet(EVENTS, compression=3)), r"packet at byte \d+ is damaged"),
    "bomb.aedat4": (lambda path: aedat4(path, BOMB), r"packet at byte \d+ is damaged"),
    "below.aedat4": (lambda path: aedat4(path, packet(EVENTS._replace(y=EVENTS.y.astype(int) - 40))), "negative coord"),
    "two.npz": (changed(p=EVENTS.p + 1), "polarities from 1 to 2; write them as 0 and 1"),
    "codings.npz": (changed(p=np.arange(3_000) % 3 - 1), "polarities from -1 to 1"),
    "half.npz": (changed(p=EVENTS.p / 2), "polarities from 0.0 to 0.5"),
    "outside.npz": (changed(x=EVENTS.x + 9), r"x from 9 to \d+ on a sensor of 64x48 px"),
    "pixels.npz": (changed(x=EVENTS.x * 0.5), "its x coordinates are not whole numbers"),
    "nan.npz": (changed(x=np.where(EVENTS.x, EVENTS.x, np.nan)), "x from nan to nan"),
    "us.npz": (changed(t=EVENTS.t.astype("f8")), "whole numbers stored as floats.*; write microseconds as"),
    "times.npz": (changed(t=EVENTS.t * np.nan), "has invalid times"),
    "ns.npz": (changed(t=NANOSECONDS), "after the year 5138"),
    "reversed.npz": (changed(t=EVENTS.t[::-1]), "2,999 of 3,000 times are earlier than one before"),
    "text.npz": (changed(p=EVENTS.p.astype("S1")), "its x, y, t, p are uint16 "),
    "array.npy": (lambda path: np.save(path, np.zeros((9, 4))), "holds no events in a supported format; give a .dat"),
    "lacks.npz": (lambda path: np.savez(path, x=np.zeros(3)), "lacks one of the arrays x, y, t, p; give a file"),
    "scalar.npz": (lambda path: archive(path, EVENTS._asdict() | {"t": np.int64(5)}), r"int64 \(\), .*; give four num"),
    "unlike.npz": (lambda path: archive(path, EVENTS._asdict() | {"x": EVENTS.x[:9]}), r"uint16 \(9,\), uint16 \(3000"),
    "codec.h5": (lambda path: write_h5(path, {"CD/events": np.zeros(3)}), "in Prophesee's own HDF5 format.*; convert"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(tmp_path, name):
    make, message = BAD[name]
    path = tmp_path / f"recording ü {name}"
    make(path)
    size = None if path.suffix in (".dat", ".raw", ".aedat4") else SIZE
    assert_refused(path, message, size)
    with pytest.raises(UserError, match=re.escape(f"{path}: ")):
        open_events(path, size)

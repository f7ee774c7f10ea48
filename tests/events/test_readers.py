"""Readers of all formats: against other decoders, word by word, in all encodings, and with damaged files."""

import os
import re
import shutil
import struct
import zipfile
import zlib
from pathlib import Path

import h5py
import hdf5plugin
import lz4.frame
import numpy as np
import pytest
import zstandard
from event_files import assert_refused, assert_same_events, cut, dat, random_events, read, write_h5

from tespec.core.errors import UserError
from tespec.datasets.folder import find_recordings
from tespec.events import Events, load_events, open_events
from tespec.events.readers import arrays, raw
from tespec.events.readers.aedat4 import EVENT, MAGIC
from tespec.events.readers.arrays import load_array, load_arrays
from tespec.events.readers.hdf5 import part

DATA = Path(__file__).parents[1] / "data"
REAL = DATA / "evt3_640x480_2.08s.raw"
SIZE = (48, 64)
EVENTS = random_events(3_000, height=48, width=64, end=120_000)
OFFSET = 49_512_345_678  # us, offset of DSEC's times
EPOCH = 1_506_117_800.123456  # s, start of MVSEC's times


def dsec(path, *events, codec=None, **changes):
    """Write a recording of DSEC; `changes` replace its HDF5 datasets, None leaves one out."""
    milliseconds = np.arange(int(max(events[2], default=0)) // 1000 + 2)
    kinds = "<u2", "<u2", "<u4", "u1"
    content = {f"events/{name}": np.asarray(events[i], kinds[i]) for i, name in enumerate("xytp")}
    content |= {
        "ms_to_idx": np.searchsorted(events[2], 1000 * milliseconds).astype("<u8"),
        "t_offset": np.int64(OFFSET),
    }
    return write_h5(path, content | {name.replace("__", "/"): value for name, value in changes.items()}, codec)


def mvsec(path, x, y, t, p, rows=None):
    """Write a recording of MVSEC; `t` is in us after EPOCH."""
    table = np.stack([x, y, EPOCH + np.asarray(t) / 1e6, 2.0 * np.asarray(p) - 1], axis=1) if rows is None else rows
    return write_h5(path, {"davis/left/events": table}, codec={})


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
    monkeypatch.setattr(raw, "BLOCK", 77_777)
    stream = load_events(DATA / name)
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


@pytest.mark.parametrize("block", [1 << 20, 700])
def test_hdf5_of_dsec_and_mvsec(tmp_path, monkeypatch, block):
    monkeypatch.setattr("tespec.events.readers.hdf5.AT_ONCE", block)
    epoch_us = np.array([round((EPOCH + t / 1e6) * 1e6) for t in EVENTS.t.tolist()], np.int64)
    rows = np.stack([EVENTS.x, EVENTS.y, EPOCH + EVENTS.t / 1e6, EVENTS.p], axis=1)
    for path, wanted, size in (
        (dsec(tmp_path / "a.h5", *EVENTS), EVENTS._replace(t=EVENTS.t + OFFSET), (480, 640)),
        (mvsec(tmp_path / "d_data.hdf5", *EVENTS), EVENTS._replace(t=epoch_us), (260, 346)),
        (mvsec(tmp_path / "e.hdf5", *EVENTS, rows=rows), EVENTS._replace(t=epoch_us), (260, 346)),
    ):
        stream = load_events(path)
        assert ((stream.height, stream.width), stream.clamped) == (size, 0)
        assert_same_events(read(path), wanted)


@pytest.mark.parametrize(
    "codec",
    [{"compression": "gzip"}, {"compression": "lzf"}, hdf5plugin.Zstd(), hdf5plugin.LZ4(), hdf5plugin.Bitshuffle()],
    ids=["gzip", "lzf", "zstd", "lz4", "bitshuffle"],
)
def test_hdf5_of_every_codec(tmp_path, codec):
    path = dsec(tmp_path / "a.h5", *EVENTS, codec=codec)
    assert_same_events(read(path), EVENTS._replace(t=EVENTS.t + OFFSET))


def test_a_forked_process_reads_by_itself_and_a_file_that_changed_is_opened_again(tmp_path):
    path = dsec(tmp_path / "a.h5", *EVENTS)
    part(path, "events/t")[:1_000]
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, part(path, "events/t")[500:].astype("<i8").sum().tobytes())
        os._exit(0)
    part(path, "events/t")[100:2_000]
    os.waitpid(child, 0)
    assert np.frombuffer(os.read(reader, 8), np.int64)[0] == EVENTS.t[500:].sum()
    shutil.move(dsec(tmp_path / "b.h5", *(column[:500] for column in EVENTS)), path)
    assert len(read(path).t) == 500


def test_damaged_files_in_a_folder_are_found_and_other_content_is_left_alone(tmp_path):
    (tmp_path / "empty.h5").touch()
    found = [tmp_path / "empty.h5", write_h5(tmp_path / "metavision.hdf5", {"CD/events": np.zeros(3)})]
    found += [dsec(tmp_path / "column.h5", *EVENTS, events__p=None), cut(dsec(tmp_path / "cut.h5", *EVENTS), 0.4)]
    found += [archive(tmp_path / "b", EVENTS._asdict()), cut(archive(tmp_path / "torn", EVENTS._asdict()), 5)]
    np.save(tmp_path / "a_bbox.npy", np.zeros(3, [("t", "<i8"), ("x", "<f4"), ("y", "<f4"), ("class_id", "u1")]))
    np.savez(tmp_path / "labels.npz", labels=np.zeros(3))
    write_h5(tmp_path / "rectify_map.h5", {"rectify_map": np.zeros((4, 4, 2), np.float32)})
    write_h5(tmp_path / "a_gt.hdf5", {"davis/left/depth_image_raw": np.zeros((2, 4, 4), np.float32)})
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


def made_anew(put, name="events/x", writer=dsec):
    """Return a writer of a recording in which `put` recreates the dataset `name` from its values or another file."""

    def make(path):
        other = write_h5(path.with_name("other.h5"), {"values": EVENTS.x, "events/x": EVENTS.x})
        with h5py.File(writer(path, *EVENTS), "r+") as file:
            values = file[name][()]
            del file[name]
            put(file, name, values, str(other))

    return make


def link(file, name, values, other):
    file[name] = h5py.ExternalLink(other, "/values")


def virtual(file, name, values, other):
    layout = h5py.VirtualLayout((3_000,), "<u2")
    layout[:] = h5py.VirtualSource(other, "values", (3_000,))
    file.create_virtual_dataset(name, layout)


def external(file, name, values, other):
    file.create_dataset(name, (3_000,), "<u2", external=[(other, 0, 6_000)])


def half_written(file, name, values, other):
    column = file.create_dataset(name, values.shape, values.dtype, chunks=(500, *values.shape[1:]))
    column[:1_000] = values[:1_000]


def never_written(file, name, values, other):
    file.create_dataset(name, values.shape, values.dtype)


def unknown_codec(path):
    content = dsec(path, *EVENTS).read_bytes()
    # Replace the filter's number in the file by one that does not exist.
    path.write_bytes(content.replace((32001).to_bytes(2, "little"), (32766).to_bytes(2, "little")))


DAT = [(3, 2, 1, 1)]
NANOSECONDS = EVENTS.t + 1_790_000_000 * 10**9
BOMB = struct.pack("<ii", 3, 100) + lz4.frame.compress(bytes(1 << 29))[:100]
HALF, NONE = r"is incomplete \(2 of 6 chunks", r"is incomplete \(0 of 1 chunks"
WRITTEN = [(dsec, "events/t"), (dsec, "events/x"), (dsec, "events/p"), (mvsec, "davis/left/events")]
BAD = {
    "gone.raw": (lambda path: None, "no such file or folder; check the path"),
    "pipe.dat": (os.mkfifo, "no such file or folder; check the path"),
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
    "torn.h5": (lambda path: cut(dsec(path, *EVENTS), 0.4), "incomplete or unreadable HDF5 file"),
    "other.h5": (lambda path: write_h5(path, {"a": np.zeros(3)}), "holds no events in a supported format"),
    "none.h5": (lambda path: dsec(path, *([[]] * 4)), "holds no events; give a recording"),
    "column.h5": (lambda path: dsec(path, *EVENTS, events__p=None), "has no dataset events/p"),
    "offset.h5": (lambda path: dsec(path, *EVENTS, t_offset=None), "has no dataset t_offset"),
    "lengths.h5": (lambda path: dsec(path, *EVENTS, events__x=EVENTS.x[:9]), r"different lengths \[9, 3000,"),
    "floats.h5": (lambda path: dsec(path, *EVENTS, events__x=EVENTS.x / 2), "events/x is float64 of shape"),
    "axes.h5": (lambda path: dsec(path, *EVENTS, events__x=np.zeros((3000, 2), "u2")), r"shape \(3000, 2\)"),
    "beyond.h5": (lambda path: dsec(path, *EVENTS, t_offset=np.int64(2**62)), "t_offset is out of range: 46116860"),
    "rvt.h5": (lambda path: write_h5(path, {"events/p": EVENTS.p}), "unsupported layout .supported: DSEC, MVSEC, P"),
    "nan.hdf5": (lambda path: mvsec(path, *EVENTS, rows=np.full((50, 4), np.nan)), "x from nan to nan on a"),
    "half.hdf5": (lambda path: mvsec(path, EVENTS.x + 0.5, *EVENTS[1:]), "are not whole numbers"),
    "five.hdf5": (lambda path: mvsec(path, *EVENTS, rows=np.zeros((50, 5))), r"shape \(50, 5\) instead of"),
    "filter.h5": (unknown_codec, "cannot be read; copy it again, or install the HDF5 plugin"),
    **{f"{put.__name__}.h5": (made_anew(put), "x is stored in another file") for put in (link, virtual, external)},
    **{f"half{i}.h5": (made_anew(half_written, name, put), f"{name} {HALF}") for i, (put, name) in enumerate(WRITTEN)},
    **{f"no{i}.h5": (made_anew(never_written, name, put), f"{name} {NONE}") for i, (put, name) in enumerate(WRITTEN)},
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

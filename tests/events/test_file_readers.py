"""Readers of text, arrays, N-Caltech's `.bin` and AEDAT, against encoders by their descriptions."""

import struct
import tracemalloc
import zipfile

import lz4.frame
import numpy as np
import pandas as pd
import pytest
import zstandard
from event_files import assert_refused, assert_same_events, cut, random_events, read

from tespec.core.errors import UserError
from tespec.datasets.folder import find_recordings
from tespec.events import Events, readers
from tespec.events.opening import open_reader
from tespec.events.readers import aedat4 as aedat4_reader
from tespec.events.readers import arrays, text
from tespec.events.readers.aedat4 import EVENT, MAGIC
from tespec.events.readers.arrays import as_events, load_array, load_arrays

SIZE = (48, 64)
EVENTS = random_events(3_000, height=48, width=64, end=120_000)
EPOCH_US = 1_506_117_800_123_456

# --- text


def write_text(
    path, events, order="xypt", separator=",", header="", seconds=False, end="\n", polarity=str
):
    """Write events as text; times in s have six decimals."""
    columns = events._asdict() | {"p": map(polarity, events.p.tolist())}
    columns |= {
        "t": [f"{t // 10**6}.{t % 10**6:06d}" for t in events.t.tolist()] if seconds else events.t
    }
    lines = [
        separator.join(map(str, row))
        for row in zip(*(columns[name] for name in order), strict=True)
    ]
    path.write_text(header + end.join([*lines, ""]), newline="")
    return path


def with_savetxt(path, events):
    np.savetxt(
        path,
        np.stack([events.t / 1e6, events.x, events.y, 2.0 * events.p - 1], axis=1),
        header="t x y p",
    )
    return path


def with_pandas(path, events):
    # with the index, which has no name
    pd.DataFrame(events._asdict() | {"p": events.p == 1}).to_csv(path)
    return path


TEXTS = {
    "RPG": lambda path, events: write_text(path, events, "txyp", " ", seconds=True),
    "E2VID": lambda path, events: write_text(path, events, "txyp", " ", "64 48\n", seconds=True),
    "v2e": lambda path, events: write_text(
        path,
        events,
        "txyp",
        " ",
        "#!events.txt\n# Format is time (float s), x, y, polarity\n",
        seconds=True,
    ),
    "Metavision": lambda path, events: write_text(path, events),
    "Metavision with size": lambda path, events: write_text(
        path, events, header="%geometry:64,48\n"
    ),
    "faery": lambda path, events: write_text(path, events, "txyp", header="t,x@64,y@48,on\n"),
    "savetxt": with_savetxt,
    "pandas": with_pandas,
    "jAER": lambda path, events: write_text(
        path, events, "txyp", header="# timestamp, x, y, polarity\n"
    ),
    "any order": lambda path, events: write_text(
        path, events, "pyxt", "\t", "POL\ty\tX\ttimestamp_us\n"
    ),
    "Windows": lambda path, events: write_text(
        path,
        events,
        header='\ufeff"x","y","p","ts"\r\n',
        end="\r\n",
        polarity=lambda p: str(2 * p - 1),
    ),
    "nanoseconds": lambda path, events: write_text(
        path, events._replace(t=events.t * 1_000 + 400), "xytp", " , ", "x,y,t (ns),p\n"
    ),
    "seconds named": lambda path, events: write_text(
        path, events, "xytp", " ", "x y t_s p\n", seconds=True
    ),
    "comments": lambda path, events: write_text(
        path, events, header="# a drive\n\nx,y,p,t\n# of day 2\n"
    ),
}
NAME_THEIR_SIZE = ("E2VID", "Metavision with size", "faery")


@pytest.mark.parametrize(
    ("layout", "suffix"), [*((layout, ".csv") for layout in TEXTS), ("RPG", ".TXT")]
)
def test_text_in_every_layout_gives_the_same_events(tmp_path, monkeypatch, layout, suffix):
    monkeypatch.setattr(text, "BLOCK", 700)
    events = EVENTS._replace(t=EVENTS.t + EPOCH_US)
    path = TEXTS[layout](tmp_path / f"events{suffix}", events)
    assert find_recordings(tmp_path) == [path]
    size = None if layout in NAME_THEIR_SIZE else SIZE
    assert_same_events(read(path, size), events)
    reader = open_reader(path, size)
    assert (reader.height, reader.width) == SIZE
    assert 0.5 < reader.events / len(events.t) < 2
    if size:
        assert_refused(path, "does not specify the sensor's size; give --sensor")


def rows(count, make):
    return "\n".join(make(i) for i in range(count)) + "\n"


# Text files in data sets, none of which is a recording.
OTHER_TEXTS = {
    "empty.txt": "",
    # DSEC, images and labels
    "timestamps.txt": rows(50, lambda i: str(49_599_300_523 + 50_000 * i)),
    "exposure_timestamps_left.txt": "# exposure start, end\n"
    + rows(50, lambda i: f"{10**10 + i}, {10**10 + i + 90}"),
    "images.txt": rows(50, lambda i: f"{0.04 * i:.6f} images/frame_{i:08d}.png"),  # RPG
    "imu.txt": rows(50, lambda i: f"{0.001 * i:.6f} 9.8 0.1 0.2 0.01 0.02 0.03"),
    "groundtruth.txt": rows(50, lambda i: f"{0.005 * i:.6f} 1.0 0.9 1.7 0.1 0.2 0.3 0.4"),
    "calib.txt": "199.09 198.83 132.19 110.71 -0.368 0.150 -0.0003 -0.002 0.0\n",
    "requirements.txt": "numpy>=1.26\ntorch\n",
    "README.txt": "x, y and t are pixels and microseconds, p is the polarity.\n" * 20,
    "yolo.txt": rows(20, lambda i: f"0 0.5 0.4 {i % 9 / 10} 0.2"),
    "boxes.txt": rows(50, lambda i: f"{i} {i + 3} 20 30"),
    "boxes01.csv": rows(50, lambda i: f"{i},{i + 3},1,1"),
    "tracks.txt": rows(50, lambda i: f"{i} {30 + i} 40 1"),  # frame, x, y, visible
    "positions.txt": rows(50, lambda i: f"{0.1 * i:.3f} {1.5 * i} {0.3 * i} 1"),
    "metadata.csv": "sequence,split,events,duration_s\n"
    + rows(20, lambda i: f"drive{i},train,{10**6 * i},60.5"),
    "labels.csv": "timestamp,x,y,w,h,class_id\n" + rows(20, lambda i: f"{i},3,4,5,6,0"),
    "few.csv": rows(9, lambda i: f"{i},2,1,{100 * i}"),
    "unnamed.csv": rows(50, lambda i: f"{100 * i},{i},2,{i % 2}"),  # t,x,y,p or another order
    "semicolons.csv": "x;y;t;p\n" + rows(50, lambda i: f"{i};2;{i};1"),
    "binary.txt": "\0\1\2\3" * 9_000,
    "line.csv": "1," * 20_000,
    "header.csv": "x,y,p,t\n",
}


def test_other_text_in_a_folder_is_no_recording(tmp_path):
    for name, content in OTHER_TEXTS.items():
        (tmp_path / name).write_text(content)
    path = TEXTS["Metavision"](tmp_path / "cd.csv", EVENTS)
    assert find_recordings(tmp_path) == [path]
    for name in OTHER_TEXTS:
        message = r"holds no events in a known layout \(.*\); give it a first line with the names"
        assert_refused(tmp_path / name, message, SIZE)


# --- N-MNIST and N-Caltech101


def write_bin(path, events):
    """Write events as gorchard/event-Python reads them; an entry with y = 240 adds 8.192 ms."""
    content, overflows = bytearray(), 0
    for x, y, t, p in zip(*(column.tolist() for column in events), strict=True):
        while t - 8192 * overflows >= 8192:
            content += bytes((0, 240, 0, 0, 0))
            overflows += 1
        content += bytes((x, y)) + (p << 23 | t - 8192 * overflows).to_bytes(3, "big")
    path.write_bytes(content)
    return path


@pytest.mark.parametrize("block", [1 << 18, 7])
def test_bin_of_ncaltech(tmp_path, monkeypatch, block):
    monkeypatch.setattr(readers, "BLOCK", block)
    path = write_bin(tmp_path / "00002.bin", EVENTS)
    assert_same_events(read(path, SIZE), EVENTS)
    assert_refused(path, "does not specify the sensor's size; give --sensor")
    times = range((1 << 23) - 12, 1 << 23)  # the latest of 23 bits
    (tmp_path / "late.bin").write_bytes(
        b"".join(bytes((3, 5)) + (1 << 23 | t).to_bytes(3, "big") for t in times)
    )
    late = read(tmp_path / "late.bin", SIZE)
    assert (late.t.tolist(), set(late.x), set(late.y), set(late.p)) == (list(times), {3}, {5}, {1})


def test_other_bin_in_a_folder_is_no_recording(tmp_path):
    rng = np.random.default_rng(0)
    path = write_bin(tmp_path / "00002.bin", EVENTS)
    others = {
        "random": rng.bytes(5_000),
        "velodyne": rng.uniform(-50, 50, (5_000, 4)).astype("<f4").tobytes(),
        "zeros": bytes(5_000),
        "length": path.read_bytes() + b"\0",
        "few": path.read_bytes()[:45],
        "empty": b"",
        "overflows": bytes((0, 240, 0, 0, 0)) * 1_000,
        "weights": b"PK\3\4" + rng.bytes(4_996),
    }
    for name, content in others.items():
        (tmp_path / f"{name}.bin").write_bytes(content)
    assert find_recordings(tmp_path) == [path]
    assert_refused(tmp_path / "random.bin", "holds no events in a supported format", SIZE)


# --- AEDAT

FRAMES = '<node name="0"><attr key="typeIdentifier">FRME</attr></node>'
SIDES = '<attr key="sizeX" type="int">64</attr><attr key="sizeY" type="int">48</attr>'


def stream(number, source="", sides=SIDES):
    """Description of a stream of events in a header."""
    source = f'<attr key="source">{source}</attr>' if source else ""
    info = f'<node name="info">{source}{sides}</node>'
    return f'<node name="{number}"><attr key="typeIdentifier">EVTS</attr>{info}</node>'


def xml(*streams):
    return f'<dv version="2.0"><node name="outInfo">{"".join(streams)}</node></dv>'


XML = xml(FRAMES, stream(3))
ZSTD = zstandard.ZstdCompressor().compress
COMPRESS = (lambda content: content, lz4.frame.compress, lz4.frame.compress, ZSTD, ZSTD)


def _flat_buffer(fields, heap):
    """FlatBuffer whose root table has scalar fields (bytes), then the offset of `heap`."""
    offsets = 4 + np.cumsum([0, *map(len, fields)])
    vtable = struct.pack(f"<{len(offsets) + 2}H", 4 + 2 * len(offsets), 4 + offsets[-1], *offsets)
    body = struct.pack("<i", len(vtable)) + b"".join(fields) + struct.pack("<I", 4)
    return struct.pack("<I", 4 + len(vtable)) + vtable + body + heap


def packet(events, stream=3, compression=1):
    elements = np.zeros(len(events.t), EVENT)
    for name, column in zip(("x", "y", "t", "on"), events, strict=True):
        elements[name] = column
    content = _flat_buffer([], struct.pack("<I", len(elements)) + elements.tobytes())
    return framed(struct.pack("<I", len(content)) + content, stream, COMPRESS[compression])


def framed(content, stream=3, compress=lz4.frame.compress):
    """Packet of a stream."""
    payload = compress(content)
    return struct.pack("<ii", stream, len(payload)) + payload


def aedat4(path, *packets, compression=1, xml=XML, end=-1):
    scalars = [struct.pack("<i", compression), struct.pack("<q", end)]
    header = _flat_buffer(scalars, struct.pack("<I", len(xml)) + xml.encode())
    path.write_bytes(MAGIC + struct.pack("<I", len(header)) + header + b"".join(packets))
    return path


@pytest.mark.parametrize("compression", range(5))
def test_packets_of_events_are_read_and_others_left_alone(tmp_path, compression):
    parts = zip(*(np.array_split(column, 7) for column in EVENTS), strict=True)
    packets = [packet(Events(*part), compression=compression) for part in parts]
    other, path = struct.pack("<ii", 0, 5) + b"frame", tmp_path / "a.aedat4"
    end = aedat4(path, other, *packets, other, compression=compression).stat().st_size
    aedat4(
        path,
        other,
        *packets,
        other,
        b"the table of the file's data",
        compression=compression,
        end=end,
    )
    assert_same_events(read(path), EVENTS)


def test_an_aedat4_without_a_size_asks_for_it(tmp_path):
    for sides in ("", SIDES.replace("64", "0"), SIDES.replace("48", "0")):
        path = aedat4(tmp_path / "a.aedat4", packet(EVENTS), xml=xml(stream(3, sides=sides)))
        assert_refused(path, "does not specify the sensor's size; give --sensor")
        assert_same_events(read(path, SIZE), EVENTS)


def test_two_streams_of_events_are_asked_for_but_an_empty_one_is_not_read(tmp_path):
    both = xml(stream(0, "cam_left"), stream(3, "cam_right"))
    path = aedat4(tmp_path / "a.aedat4", packet(EVENTS, 0), packet(EVENTS, 3), xml=both)
    assert_refused(
        path,
        r"has 2 streams of events: 0 \(cam_left\), 3 \(cam_right\); save one of them to a separate",
    )
    for number in (0, 3):
        assert_same_events(read(aedat4(path, packet(EVENTS, number), xml=both)), EVENTS)


STATED = zstandard.ZstdCompressor(write_content_size=False).compress
BOMBS = {
    "lz4": (1, lz4.frame.compress),
    "lz4 without a size": (1, lambda content: lz4.frame.compress(content, store_size=False)),
    "zstd": (3, ZSTD),
    "zstd without a size": (3, STATED),
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_packets_that_are_too_large_are_refused_with_bounded_memory(tmp_path, monkeypatch, bomb):
    monkeypatch.setattr(aedat4_reader, "LARGEST_PACKET", 1 << 20)
    compression, compress = BOMBS[bomb]
    for size, message in (
        ((1 << 20) - 8, "shorter than|buffer"),
        (1 << 23, "larger than 1 MiB|did not decompress full"),
    ):
        packet = framed(b"\xff" * size, compress=compress)
        path = aedat4(tmp_path / "a.aedat4", packet, compression=compression)
        assert_refused(path, f"the packet at byte .* is damaged .*({message})")


def test_older_aedat_is_refused_by_name(tmp_path):
    for version in ("2.0", "3.1"):
        path = tmp_path / f"{version}.aedat"
        path.write_bytes(f"#!AER-DAT{version}\r\n#Format: RAW\r\n".encode() + bytes(99))
        assert_refused(
            path,
            f"is an AEDAT {version} file, which is not supported; convert it to .aedat4 with iniVa",
        )
    (tmp_path / "other.aedat").write_bytes(bytes(99))
    assert [path.name for path in find_recordings(tmp_path)] == ["2.0.aedat", "3.1.aedat"]


# --- arrays


def archive(path, columns):
    np.savez_compressed(path.with_suffix(".npz"), **columns, other=np.zeros(3))
    return path.with_suffix(".npz")


CODINGS = {
    "as they are": {},
    "signed": {"p": 2 * EVENTS.p.astype("i1") - 1},
    "bool": {"p": EVENTS.p.astype(bool)},
    "floats": {
        "p": 2.0 * EVENTS.p - 1,
        "x": EVENTS.x.astype("f4"),
        "y": EVENTS.y.astype("f8"),
        "t": EVENTS.t / 1e6,
    },
    "unsigned times": {"t": EVENTS.t.astype("u4")},
}


@pytest.mark.parametrize("coding", CODINGS)
def test_every_coding_of_arrays_gives_the_same_events(tmp_path, monkeypatch, coding):
    monkeypatch.setattr(arrays, "BLOCK", 1_234)
    assert_same_events(
        read(archive(tmp_path / "a", EVENTS._asdict() | CODINGS[coding]), SIZE), EVENTS
    )


def test_arrays_and_structured_events_with_other_names(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK", 1_234)
    x, y, t, p = EVENTS
    named = {
        "long": {"polarity": p, "timestamp": t, "y": y, "x": x},
        "unit": {"x": x, "y": y, "t_ms": t / 1e3, "pol": p},
        "exact": {"x": x, "y": y, "t": t, "p": p, "time": np.zeros(3), "on": np.zeros(3)},
    }
    for name, columns in named.items():
        assert_same_events(read(archive(tmp_path / name, columns), SIZE), EVENTS)
    dtypes = {
        "metavision": [("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")],
        "expelliarmus": [("t", "<i8"), ("x", "<i2"), ("y", "<i2"), ("p", "u1")],
        "tonic": [("x", "<i8"), ("y", "<i8"), ("t", "<i8"), ("p", "?")],
        "faery": [("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("on", "?")],
        "seconds": [("x", ">u2"), ("y", ">u2"), ("ts", ">f8"), ("p", "i1")],
    }
    for name, dtype in dtypes.items():
        events = np.empty(len(t), dtype)
        values = EVENTS._asdict() | {"on": p, "ts": t / 1e6}
        for field in events.dtype.names:
            events[field] = values[field]
        np.save(tmp_path / f"{name}.npy", events)
        assert_same_events(read(tmp_path / f"{name}.npy", SIZE), EVENTS)
    cut(tmp_path / "tonic.npy", 20)
    assert_refused(tmp_path / "tonic.npy", "holds no events in a supported format", SIZE)


def test_other_arrays_in_a_folder_are_no_recordings(tmp_path):
    torn = cut(archive(tmp_path / "torn", EVENTS._asdict()), 5)
    found = [archive(tmp_path / "b", EVENTS._asdict()), torn]
    np.save(
        tmp_path / "a_bbox.npy",
        np.zeros(3, [("t", "<i8"), ("x", "<f4"), ("y", "<f4"), ("class_id", "u1")]),
    )
    np.save(tmp_path / "timestamps.npy", np.zeros(3))
    (tmp_path / "damaged.npy").write_bytes(b"hello")
    np.savez(tmp_path / "labels.npz", labels=np.zeros(3))
    assert find_recordings(tmp_path) == sorted(found)


def test_a_recording_of_arrays_is_read_in_blocks(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "BLOCK", 1 << 14)
    ones = np.ones(400_000, "i8")
    path = archive(tmp_path / "a", {"x": ones, "y": ones, "t": np.arange(400_000), "p": ones})
    blocks = open_reader(path, SIZE).chunks()
    tracemalloc.start()
    assert sum(len(events.t) for events in blocks) == 400_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4 << 20  # bytes; all columns together take 13 MB


def test_arrays_that_take_too_much_memory_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(arrays, "LARGEST_ARRAY", 1 << 20)
    np.savez_compressed(tmp_path / "a.npz", labels=np.zeros(1 << 18))
    with pytest.raises(UserError, match=r"its array labels takes 0\.0 GiB; give one of at most"):
        load_arrays(tmp_path / "a.npz", ["labels"])
    with zipfile.ZipFile(tmp_path / "b.npz", "w", zipfile.ZIP_LZMA) as file:
        for name in "xytp":
            file.writestr(f"{name}.npy", described("<i8", "(11,)", bytes(88)))
    assert_refused(tmp_path / "b.npz", "not a readable .npz file", SIZE)


OFF = 65_535
PIXELS = {  # x or y as stored, and as px; coordinates off the sensor are left to packing
    "int16": (np.array([-1, 5, 32_767], "i2"), [OFF, 5, 32_767]),
    "int8": (np.array([-128, 0, 127], "i1"), [OFF, 0, 127]),
    "int64": (np.array([-(2**40), 65_535, 65_536]), [OFF, OFF, OFF]),
    "uint64": (np.array([2**64 - 1, 1, 2], "u8"), [OFF, 1, 2]),
    "float32": (np.array([-1, 1e30, 639], "f4"), [OFF, OFF, 639]),
}
UNCERTAIN = "invalid polarities from .*; write them as 0 and 1, or as -1 and 1"
POLARITIES = {
    "bool": (np.array([True, False, True]), [1, 0, 1]),
    "uint8": (np.array([1, 0, 1], "u1"), [1, 0, 1]),
    "int8": (np.array([1, -1, 1], "i1"), [1, 0, 1]),
    "float": (np.array([1.0, -1.0, -1.0]), [1, 0, 0]),
    "float 0": (np.array([1.0, 0.0, 0.0]), [1, 0, 0]),
    "one": (np.array([-1, -1, -1]), [0, 0, 0]),
    "ternary": (np.array([-1, 0, 1]), UNCERTAIN),
    "float ternary": (np.array([-1.0, 0.0, 1.0]), UNCERTAIN),
    "off and none": (np.array([-1.0, 0.0, 0.0]), UNCERTAIN),
    "255": (np.array([0, 255, 255], "u1"), UNCERTAIN),
    "half": (np.array([0, 0.5, 1]), UNCERTAIN),
    "nan": (np.array([0, np.nan, 1]), UNCERTAIN),
}
TIMES = {
    "us": (np.array([-5, 0, 7]), [-5, 0, 7]),
    "uint32": (np.array([0, 1, 2**32 - 1], "u4"), [0, 1, 2**32 - 1]),
    "s": (np.array([0.0, 1e-6, 1.5]), [0, 1, 1_500_000]),
    "epoch s": (
        EPOCH_US / 1e6 + np.array([0.0, 1e-6, 2e-6]),
        [EPOCH_US, EPOCH_US + 1, EPOCH_US + 2],
    ),
    "float32 of 60 s": (np.array([0, 0.5, 60], "f4"), [0, 500_000, 60_000_000]),
    "ns": (np.array([0, 1_499, 2_000_000]), [0, 1, 2_000], 1e-3),
    "float us": (np.array([0.0, 1.0, 5_000.0]), [0, 1, 5_000], 1.0),
    "float32 epoch": (
        np.array([1.5e9] * 3, "f4"),
        "float32 with a resolution of 128,000.0 ms, too coarse",
    ),
    "float32 of 5 h": (
        np.array([0, 0.5, 18_000], "f4"),
        "float32 with a resolution of 2.0 ms, too coarse",
    ),
    "float16 of 60 s": (
        np.array([0, 0.5, 60], "f2"),
        "float16 with a resolution of 31.2 ms, too coarse",
    ),
    "whole seconds": (np.array([0.0, 1e3, 2e3]), "whole numbers stored as floats"),
    "uint64": (np.array([0, 1, 2**64 - 1], "u8"), r"invalid times of up to 1.84e\+19 us"),
    "epoch ns": (np.array([0, 1, EPOCH_US * 1_000]), "invalid times of up to 1.51e"),
    "infinite": (np.array([0, 1, np.inf]), "invalid times of up to inf us"),
    "text": (np.array(["0", "1", "2"]), "its x, y, t, p are .*<U1"),
}


@pytest.mark.parametrize(
    ("column", "case"),
    [
        (column, case)
        for column, cases in {"x": PIXELS, "y": PIXELS, "t": TIMES, "p": POLARITIES}.items()
        for case in cases.values()
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_columns_are_converted_if_they_are_certain_or_refused(tmp_path, column, case):
    stored, expected, *unit = case
    columns = dict.fromkeys("xytp", np.arange(3)) | {"p": np.array([0, 1, 1]), column: stored}
    options = {"unit": unit[0]} if unit else {}
    if isinstance(expected, str):
        with pytest.raises(UserError, match=expected):
            as_events(tmp_path, **columns, **options)
    else:
        assert getattr(as_events(tmp_path, **columns, **options), column).tolist() == expected


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
        for name in "xytp":
            file.writestr(f"{name}.npy", content)
    for name, load in (("a.npy", load_array), ("a.npz", lambda path: load_arrays(path, "x"))):
        with pytest.raises(UserError, match=f"not a readable {name[1:]} file; copy it again"):
            load(tmp_path / name)
    assert_refused(tmp_path / "a.npz", "not a readable .npz file; copy it again", SIZE)


def changed(**columns):
    return lambda path: archive(path, EVENTS._asdict() | columns)


def text_with(line, header="x,y,t,p"):
    return lambda path: path.write_text(
        f"{header}\n" + rows(50, lambda i: f"{i},2,{i},1") + line + "\n"
    )


EVENT_FIELDS = [("x", "<u2"), ("y", "<u2"), ("t", "<i8"), ("p", "u1")]
NANOSECONDS = EVENTS.t + 1_790_000_000 * 10**9
BOMB = struct.pack("<ii", 3, 100) + lz4.frame.compress(bytes(1 << 22))[:100]
FEWER = _flat_buffer([], struct.pack("<I", 1 << 30) + bytes(160))  # than the number of events
BAD = {
    "older.aedat4": (
        lambda path: path.write_bytes(b"#!AER-DAT3.1\r\n" + bytes(99)),
        "is an AEDAT 3.1 file.*; convert",
    ),
    "plain.aedat4": (
        lambda path: path.write_bytes(b"hello" * 9),
        "does not start with the AEDAT 4.0 signature",
    ),
    "head.aedat4": (
        lambda path: path.write_bytes(MAGIC + b"\x10\0\0\0abc"),
        "its header is damaged",
    ),
    "vast.aedat4": (
        lambda path: path.write_bytes(MAGIC + b"\xff\xff\xff\x7f"),
        "its header is damaged",
    ),
    "stream.aedat4": (lambda path: aedat4(path, xml="<dv/>"), "has no event stream"),
    "entity.aedat4": (
        lambda path: aedat4(path, xml="<!DOCTYPE a [<!ENTITY b 'c'>]><dv/>"),
        "its header is damaged",
    ),
    "method.aedat4": (
        lambda path: aedat4(path, packet(EVENTS), compression=9),
        "unknown compression method 9",
    ),
    "torn.aedat4": (
        lambda path: aedat4(path, packet(EVENTS)[:-9]),
        r"truncated or damaged: a packet of \d+ bytes",
    ),
    "mixed.aedat4": (
        lambda path: aedat4(path, packet(EVENTS, compression=3)),
        r"packet at byte \d+ is damaged",
    ),
    "fewer.aedat4": (
        lambda path: aedat4(path, framed(struct.pack("<I", len(FEWER)) + FEWER)),
        r"packet at byte \d+ is damaged",
    ),
    "bomb.aedat4": (lambda path: aedat4(path, BOMB), r"packet at byte \d+ is damaged"),
    "below.aedat4": (
        lambda path: aedat4(path, packet(EVENTS._replace(y=EVENTS.y.astype(int) - 40))),
        r"64x655\d\d px",
    ),
    "two.npz": (changed(p=EVENTS.p + 1), "polarities from 1 to 2; write them as 0 and 1"),
    "codings.npz": (changed(p=np.arange(3_000) % 3 - 1), "polarities from -1 to 1"),
    "half.npz": (changed(p=EVENTS.p / 2), "polarities from 0.0 to 0.5"),
    "outside.npz": (changed(x=EVENTS.x + 9), r"events on \d+x48 px, but its sensor has 64x48 px"),
    "pixels.npz": (changed(x=EVENTS.x * 0.5), "its x coordinates are not whole numbers"),
    "nan.npz": (
        changed(x=np.where(EVENTS.x, EVENTS.x, np.nan)),
        "its x coordinates are not whole numbers",
    ),
    "us.npz": (
        changed(t=EVENTS.t.astype("f8")),
        "whole numbers stored as floats.*; write microseconds as",
    ),
    "times.npz": (changed(t=EVENTS.t * np.nan), "has invalid times"),
    "ns.npz": (changed(t=NANOSECONDS), "has invalid times of up to 1.79e\\+18 us"),
    "reversed.npz": (changed(t=EVENTS.t[::-1]), "time"),
    "text.npz": (changed(p=EVENTS.p.astype("S1")), "its x, y, t, p are uint16 "),
    "array.npy": (
        lambda path: np.save(path, np.zeros((9, 4))),
        "holds no events in a supported format; give a .dat",
    ),
    "lacks.npz": (
        lambda path: np.savez(path, x=np.zeros(3)),
        "lacks one of the arrays x, y, t, p; give a file",
    ),
    "scalar.npz": (
        lambda path: archive(path, EVENTS._asdict() | {"t": np.int64(5)}),
        r"int64 \(\), .*; give four num",
    ),
    "unlike.npz": (
        lambda path: archive(path, EVENTS._asdict() | {"x": EVENTS.x[:9]}),
        r"uint16 \(9,\), uint16 \(3000",
    ),
    "many.aedat4": (
        lambda path: aedat4(path, packet(EVENTS), xml=xml(stream("a"))),
        "its header is damaged",
    ),
    "ternary.npz": (changed(p=np.sign(np.arange(3_000) % 3 - 1.0)), "polarities from -1.0 to 1.0"),
    "coarse.npz": (
        changed(t=(1.5e9 + EVENTS.t / 1e6).astype("f4")),
        "float32 with a resolution of 128,000.0 ms",
    ),
    "axes.npy": (
        lambda path: np.save(path, np.zeros((3, 3), "u2,u2,i8,u1").astype(EVENT_FIELDS)),
        r"\(3, 3\)",
    ),
    "polarity.csv": (text_with("1,3,9,2"), "invalid polarities from 1 to 2"),
    "word.csv": (text_with("x,3,9,1"), "its x, y, t, p are object|its x, y, t, p are str"),
    "short.csv": (
        text_with("1,3,9"),
        "x, y, t, p are|invalid polarities|has a line that is no event",
    ),
    "long.csv": (
        text_with("1,3,9,1,5"),
        r"no events in a known layout \(.*Expected 4 fields in line 51, saw 5",
    ),
    "gap.csv": (text_with("1,3,,1"), "integer and decimal times are mixed"),
    "decimal.csv": (text_with("1,3,9.5,1"), "integer and decimal times are mixed"),
    "half.csv": (text_with("1.5,3,9,1"), "its x coordinates are not whole numbers"),
    "huge.csv": (text_with("1,3,99999999999999999999,1"), "has invalid times of up to 1e"),
    "ms.csv": (text_with("1,3,9,1", "x,y,p,t"), "invalid polarities"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(tmp_path, name):
    make, message = BAD[name]
    path = tmp_path / f"recording ü {name}"
    make(path)
    assert_refused(path, message, None if path.suffix == ".aedat4" else SIZE)


def test_a_short_line_is_refused_and_not_taken_for_a_file_without_events(tmp_path):
    path = tmp_path / "drive.csv"
    path.write_text("x,y,p,t_us\n1,2,1,10\n3,4\n5,6,0,30\n")
    assert text.reads(path)
    with pytest.raises(UserError, match=r"drive\.csv"):
        list(open_reader(path, (8, 8)).chunks())

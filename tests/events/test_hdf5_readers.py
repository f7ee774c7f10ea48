"""HDF5 readers: layouts, compressions, and files that must not crash, hang or fill the memory."""

import os
import shutil
import zlib

import h5py
import hdf5plugin
import numpy as np
import pytest
import zstandard
from event_files import assert_refused, assert_same_events, cut, random_events, read, write_h5

from tespec.core.errors import UserError
from tespec.datasets.folder import find_recordings
from tespec.events.opening import open_reader
from tespec.events.readers import hdf5
from tespec.events.readers.hdf5 import checked_dataset

SIZE = (48, 64)
EVENTS = random_events(3_000, height=48, width=64, end=120_000)
OFFSET = 49_512_345_678  # us, offset of DSEC's times
EPOCH = 1_506_117_800.123456  # s, start of MVSEC's times
CODECS = {
    "gzip": {"compression": "gzip"},
    "gzip, shuffle, fletcher32": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "lzf, shuffle": {"compression": "lzf", "shuffle": True},
    "blosc": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.SHUFFLE)),
    "blosc, fletcher32": {**hdf5plugin.Blosc(cname="lz4"), "fletcher32": True},
    "zstd": dict(hdf5plugin.Zstd()),
    "fletcher32": {"fletcher32": True},
    "shuffle": {"shuffle": True},
    "none": {"chunks": True},
}


def columns(path, events, kinds, more, changes=None, codec=None, name="events/{}"):
    """Write columns x, y, t, p; `changes` replace datasets of a group, None leaves one out."""
    content = {
        name.format(letter): np.asarray(column, kind)
        for letter, column, kind in zip("xytp", events, kinds, strict=True)
    }
    changes = {key.replace("__", "/"): value for key, value in (changes or {}).items()}
    return write_h5(path, content | more | changes, codec)


def dsec(path, *events, codec=None, **changes):
    """Write a recording of DSEC."""
    milliseconds = np.arange(int(max(events[2], default=0)) // 1000 + 2)
    index = np.searchsorted(events[2], 1000 * milliseconds).astype("<u8")
    more = {"ms_to_idx": index, "t_offset": np.int64(OFFSET)}
    return columns(path, events, ("<u2", "<u2", "<u4", "u1"), more, changes, codec)


def mvsec(path, x, y, t, p, rows=None):
    """Write a recording of MVSEC; `t` is in us after EPOCH."""
    table = np.stack([x, y, EPOCH + np.asarray(t) / 1e6, 2.0 * np.asarray(p) - 1], axis=1)
    return write_h5(path, {"davis/left/events": table if rows is None else rows}, codec={})


def rvt(path, *events, **changes):
    """Write a raw recording of Gen1 or 1Mpx as RVT's page hosts them."""
    more = {"events/height": np.int64(48), "events/width": np.int64(64)}
    return columns(path, events, ("u2", "u2", "i8", "u1"), more, changes)


def e2calib(path, *events):
    codec = {"compression": "lzf", "chunks": (1 << 16,), "maxshape": (None,)}
    return columns(path, events, ("u2", "u2", "i8", "u1"), {}, codec=codec, name="{}")


M3ED = {
    "prophesee/left/calib/resolution": np.array([64, 48]),
    "prophesee/left/ms_map_idx": np.arange(9),
    **{f"prophesee/right/{name}": np.zeros(5, "u2") for name in "xytp"},
}
NAMED_SIZE = {
    "a_td.dat.h5": rvt,
    "a_td.h5": rvt,
    "signed.h5": lambda path, *events: rvt(
        path, *events, events__p=2 * events[3].astype("i1") - 1, events__width=np.array([64])
    ),
    "m3ed.h5": lambda path, *events: columns(
        path, events, ("u2", "u2", "i8", "i1"), M3ED, name="prophesee/left/{}"
    ),
}
UNKNOWN_SIZE = {
    "no_size.h5": lambda path, *events: rvt(path, *events, events__height=None, events__width=None),
    "e2calib.h5": e2calib,
    # of TimoStoffregen's packager
    "packager.hdf5": lambda path, x, y, t, p: columns(
        path, (x, y, t / 1e6, p), ("i2", "i2", "f8", "?"), {}, codec={}, name="events/{}s"
    ),
}


@pytest.mark.parametrize("block", [1 << 20, 700])
def test_hdf5_of_dsec_and_mvsec(tmp_path, monkeypatch, block):
    monkeypatch.setattr(hdf5, "AT_ONCE", block)
    epoch_us = np.array([round((EPOCH + t / 1e6) * 1e6) for t in EVENTS.t.tolist()], np.int64)
    rows = np.stack([EVENTS.x, EVENTS.y, EPOCH + EVENTS.t / 1e6, EVENTS.p], axis=1)
    for path, expected, size in (
        (dsec(tmp_path / "a.h5", *EVENTS), EVENTS._replace(t=EVENTS.t + OFFSET), (480, 640)),
        (mvsec(tmp_path / "d_data.hdf5", *EVENTS), EVENTS._replace(t=epoch_us), (260, 346)),
        (mvsec(tmp_path / "e.hdf5", *EVENTS, rows=rows), EVENTS._replace(t=epoch_us), (260, 346)),
    ):
        reader = open_reader(path)
        assert (reader.height, reader.width, reader.events) == (*size, 3_000)
        assert_same_events(read(path), expected)


@pytest.mark.parametrize("name", [*NAMED_SIZE, *UNKNOWN_SIZE])
def test_columns_in_the_layouts_of_public_repositories(tmp_path, name):
    path = (NAMED_SIZE | UNKNOWN_SIZE)[name](tmp_path / name, *EVENTS)
    assert_same_events(read(path, SIZE), EVENTS)
    assert find_recordings(tmp_path) == [path]
    named = r"its sensor is 64x48 px, not 48x64; omit --sensor"
    unknown = "does not specify the sensor's size; give --sensor"
    assert_refused(path, *((named, (64, 48)) if name in NAMED_SIZE else (unknown,)))


@pytest.mark.parametrize("codec", CODECS)
def test_hdf5_of_every_codec(tmp_path, codec):
    path = dsec(tmp_path / "a.h5", *EVENTS, codec=CODECS[codec])
    assert_same_events(read(path), EVENTS._replace(t=EVENTS.t + OFFSET))


@pytest.mark.parametrize(
    ("codec", "name"),
    [
        (hdf5plugin.LZ4(), "lz4"),
        (hdf5plugin.Bitshuffle(), "bshuf"),
        (hdf5plugin.BZip2(), "bzip2"),
        (hdf5plugin.Blosc2(), "blosc2"),
        (hdf5plugin.SZ3(absolute=1), "sz3"),
        (hdf5plugin.Zfp(reversible=True), "zfp"),
        ({"scaleoffset": 0}, "scaleoffset"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_other_filters_are_refused_by_name(tmp_path, codec, name):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset(
            "x", data=np.zeros(4_096, "f4" if name in ("sz3", "zfp") else "i4"), **codec
        )
    with pytest.raises(
        UserError,
        match=f"x is compressed with {name}, but only gzip, LZF, Blosc and .*; .*h5repack",
    ):
        checked_dataset(tmp_path / "a.h5", "x")


def test_two_compressions_are_refused(tmp_path):
    properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    properties.set_chunk((100,))
    properties.set_deflate(1)
    properties.set_filter(hdf5.ZSTD, 1, (3,))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        h5py.h5d.create(
            file.id, b"x", h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple((100,)), properties
        )
    with pytest.raises(UserError, match="x is compressed with gzip, zstd, but only"):
        checked_dataset(tmp_path / "a.h5", "x")


def blosc_of(content):
    """Return a chunk in Blosc's format whose header names the size of `content`."""
    with h5py.File("memory", "w", driver="core", backing_store=False) as file:
        values = np.frombuffer(content, np.uint8)
        stored = file.create_dataset("a", data=values, chunks=values.shape, **hdf5plugin.Blosc())
        return stored.id.read_direct_chunk((0,))[1]


WHOLE = bytes(range(250)) * 32  # of 1,000 times of 64 bits
# LZF in runs of 25 bytes
LITERALS = b"".join(bytes([24]) + WHOLE[i : i + 25] for i in range(0, 8_000, 25))
CHUNKS = {
    "gzip": {
        "whole": zlib.compress(WHOLE),
        "short": zlib.compress(WHOLE[:-1]),
        "bomb": zlib.compress(bytes(1 << 22)),
    },
    "lzf": {
        "whole": LITERALS,
        "short": LITERALS[:-26],
        "bomb": LITERALS + bytes([0xE0, 255, 0]) * 1_000,
    },
    "zstd": {"whole": zstandard.compress(WHOLE), "short": zstandard.compress(WHOLE[:-1])},
    "blosc": {"whole": blosc_of(WHOLE), "short": blosc_of(WHOLE[:-1])},
    "none": {"whole": WHOLE, "short": WHOLE[:-1], "bomb": bytes(1 << 22)},
}
CHUNKS["zstd"]["bomb"] = zstandard.compress(bytes(1 << 22))
CHUNKS["blosc"]["bomb"] = blosc_of(bytes(1 << 22))
for content in CHUNKS.values():
    content |= {"torn": content["whole"][:-9], "header": content["whole"][:3]}
    content |= {"unfiltered": WHOLE[:99], "noise": np.random.default_rng(0).bytes(999)}


@pytest.mark.parametrize("damage", CHUNKS["gzip"])
@pytest.mark.parametrize("codec", CHUNKS)
def test_a_chunk_of_another_size_is_not_decoded(tmp_path, codec, damage):
    """HDF5 2.0 crashes on a short chunk, and fills the memory with a long one."""
    path = e2calib(tmp_path / "a.h5", *EVENTS)
    with h5py.File(path, "r+") as file:
        del file["t"]
        options = CODECS[codec] | {"chunks": (1_000,)}
        times = file.create_dataset("t", (3_000,), "<i8", **options)
        times[:] = EVENTS.t
        mask = int(damage == "unfiltered")
        times.id.write_direct_chunk((1_000,), CHUNKS[codec][damage], filter_mask=mask)
    if damage == "whole":
        times = checked_dataset(path, "t")[:]
        assert times[1_000:2_000].tobytes() == WHOLE
        np.testing.assert_array_equal(
            np.delete(times, np.s_[1_000:2_000]), np.delete(EVENTS.t, np.s_[1_000:2_000])
        )
    else:
        assert_refused(
            path, "a chunk of t is damaged; copy|a part of the events cannot be read; copy", SIZE
        )


def test_chunks_of_histograms_are_checked_in_every_dimension(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        data = file.create_dataset(
            "data", data=np.arange(5 * 6 * 7).reshape(5, 6, 7), chunks=(2, 4, 4), compression=1
        )
        data.id.write_direct_chunk((2, 4, 0), zlib.compress(bytes(9)))
    data = checked_dataset(tmp_path / "a.h5", "data")
    np.testing.assert_array_equal(
        [data[0], data[1], data[-1]], np.arange(5 * 6 * 7).reshape(5, 6, 7)[[0, 1, 4]]
    )
    for rows in (2, slice(1, 3), (), slice(None)):
        with pytest.raises(UserError, match="a chunk of data is damaged"):
            data[rows]


@pytest.mark.parametrize("chunks", [1_000, 400, 3_000])
def test_a_large_chunk_is_decoded_once_and_too_large_a_chunk_not_at_all(
    tmp_path, monkeypatch, chunks
):
    monkeypatch.setattr(hdf5, "AT_ONCE", 300)
    path = dsec(
        tmp_path / "a.h5",
        *EVENTS,
        codec={"compression": "gzip", "chunks": (chunks,)},
        ms_to_idx=None,
    )
    decoded, decode = [], hdf5.Dataset._decoded_size
    monkeypatch.setattr(
        hdf5.Dataset, "_decoded_size", lambda *args: decoded.append(args) or decode(*args)
    )
    slices = list(open_reader(path).chunks())
    assert sum(len(events.t) for events in slices) == 3_000
    assert max(len(events.t) for events in slices) <= 300
    assert len(decoded) == 4 * -(-3_000 // chunks)
    os.utime(path, (0, 0))
    monkeypatch.setattr(hdf5, "LARGEST_CHUNK", 4 * chunks - 1)
    assert_refused(
        path,
        r"events/t has chunks of .*; make them smaller: h5repack -l events/t:CHUNK=300 INPUT OUT",
    )


def test_columns_are_read_by_their_own_chunks(tmp_path, monkeypatch):
    """The large chunk of a column of bytes must not make reads of the times too large."""
    chunks = {"x": 100, "y": 700, "t": 450, "p": 3_000}
    columns = dict(zip("xytp", EVENTS, strict=True))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, rows in chunks.items():
            file.create_dataset(name, data=columns[name], chunks=(rows,), compression="gzip")
    monkeypatch.setattr(hdf5, "AT_ONCE", 300)
    monkeypatch.setattr(hdf5, "LARGEST_READ", 8 * 700)
    slices = list(hdf5.read_slices(tmp_path / "a.h5", *"xytp"))
    assert [len(x) for x, *_ in slices] == [300] * 10
    for found, expected in zip(zip(*slices, strict=True), EVENTS, strict=True):
        np.testing.assert_array_equal(np.concatenate(found), expected)


def test_a_forked_process_reads_by_itself_and_a_file_that_changed_is_opened_again(tmp_path):
    path = dsec(tmp_path / "a.h5", *EVENTS)
    checked_dataset(path, "events/t")[:1_000]
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, checked_dataset(path, "events/t")[500:].astype("<i8").sum().tobytes())
        os._exit(0)
    checked_dataset(path, "events/t")[100:2_000]
    os.waitpid(child, 0)
    assert np.frombuffer(os.read(reader, 8), np.int64)[0] == EVENTS.t[500:].sum()
    shutil.move(dsec(tmp_path / "b.h5", *(column[:500] for column in EVENTS)), path)
    assert len(read(path).t) == 500


def test_damaged_files_in_a_folder_are_found_and_other_content_is_left_alone(tmp_path):
    (tmp_path / "empty.h5").touch()
    found = [
        dsec(tmp_path / "column.h5", *EVENTS, events__p=None),
        cut(dsec(tmp_path / "cut.h5", *EVENTS), 0.4),
        tmp_path / "empty.h5",
        write_h5(tmp_path / "metavision.hdf5", {"CD/events": np.zeros(3)}),
    ]
    write_h5(tmp_path / "rectify_map.h5", {"rectify_map": np.zeros((4, 4, 2), np.float32)})
    write_h5(
        tmp_path / "a_gt.hdf5", {"davis/left/depth_image_raw": np.zeros((2, 4, 4), np.float32)}
    )
    write_h5(tmp_path / "points.h5", {name: np.zeros(3) for name in "xyz"})
    assert find_recordings(tmp_path) == found


def made_anew(put, name="events/x", writer=dsec):
    """Return a writer of a recording in which `put` recreates the dataset `name`."""

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


HALF, NONE = r"is incomplete \(2 of 6 chunks", r"is incomplete \(0 of 1 chunks"
WRITTEN = [
    (dsec, "events/t"),
    (dsec, "events/x"),
    (dsec, "events/p"),
    (mvsec, "davis/left/events"),
    (rvt, "events/y"),
]
BAD = {
    "torn.h5": (lambda path: cut(dsec(path, *EVENTS), 0.4), "incomplete or unreadable HDF5 file"),
    "other.h5": (
        lambda path: write_h5(path, {"a": np.zeros(3)}),
        "holds no events in a supported format",
    ),
    "points.h5": (
        lambda path: write_h5(path, {"x": EVENTS.x, "t": EVENTS.t}),
        "holds no events in a supported",
    ),
    "none.h5": (lambda path: dsec(path, *([[]] * 4)), "holds no events; give a recording"),
    "nothing.h5": (lambda path: rvt(path, *([[]] * 4)), "holds no events; give a recording"),
    "column.h5": (lambda path: dsec(path, *EVENTS, events__p=None), "has no dataset events/p"),
    "lacks.h5": (
        lambda path: rvt(path, *EVENTS, events__x=None),
        "has no dataset events/x; give a complete",
    ),
    "clock.h5": (
        lambda path: rvt(path, *EVENTS, events__t=None),
        "has no dataset events/t; give a complete",
    ),
    "offset.h5": (lambda path: dsec(path, *EVENTS, t_offset=None), "has no dataset t_offset"),
    "lengths.h5": (
        lambda path: dsec(path, *EVENTS, events__x=EVENTS.x[:9]),
        r"different lengths \[9, 3000,",
    ),
    "unlike.h5": (
        lambda path: rvt(path, *EVENTS, events__p=EVENTS.p[:9]),
        r"different lengths \[3000, 3000, 3000, 9",
    ),
    "floats.h5": (
        lambda path: dsec(path, *EVENTS, events__x=EVENTS.x / 2),
        "events/x is float64 of shape",
    ),
    "axes.h5": (
        lambda path: dsec(path, *EVENTS, events__x=np.zeros((3000, 2), "u2")),
        r"shape \(3000, 2\)",
    ),
    "table.h5": (
        lambda path: rvt(path, *EVENTS, events__y=np.zeros((3000, 2), "u2")),
        r"shape \(3000, 2\)",
    ),
    "text.h5": (
        lambda path: rvt(path, *EVENTS, events__y=np.full(3000, b"a")),
        r"\|S1 of shape \(3000,\), not",
    ),
    "beyond.h5": (
        lambda path: dsec(path, *EVENTS, t_offset=np.int64(2**62)),
        "t_offset is out of range: 46116860",
    ),
    "unit.h5": (
        lambda path: rvt(path, *EVENTS, events__t=EVENTS.t / 1e6),
        "events/t is float64, but in this layout times are microseconds as integers; write them so",
    ),
    "whole.h5": (
        lambda path: write_h5(
            path, {f"events/{name}s": column for name, column in EVENTS._asdict().items()}
        ),
        "events/ts is int64, but in this layout times are seconds as floats",
    ),
    "sides.h5": (
        lambda path: rvt(path, *EVENTS, events__width=np.arange(5)),
        "the size of the sensor cannot be read",
    ),
    "tall.h5": (
        lambda path: rvt(path, *EVENTS, events__height=np.int64(2**40)),
        "invalid sensor size 64x10995",
    ),
    "two.h5": (
        lambda path: rvt(path, *EVENTS, events__p=EVENTS.p + 1),
        "polarities from 1 to 2; write",
    ),
    "nan.hdf5": (
        lambda path: mvsec(path, *EVENTS, rows=np.full((50, 4), np.nan)),
        "x coordinates are not whole",
    ),
    "half.hdf5": (lambda path: mvsec(path, EVENTS.x + 0.5, *EVENTS[1:]), "are not whole numbers"),
    "five.hdf5": (
        lambda path: mvsec(path, *EVENTS, rows=np.zeros((50, 5))),
        r"shape \(50, 5\), not \(events, 4\)",
    ),
    "filter.h5": (
        unknown_codec,
        "events/t is compressed with filter 32766, but only gzip, LZF, Blosc",
    ),
    **{
        f"{put.__name__}.h5": (made_anew(put), "x is stored in another file")
        for put in (link, virtual, external)
    },
    **{
        f"half{i}.h5": (made_anew(half_written, name, put), f"{name} {HALF}")
        for i, (put, name) in enumerate(WRITTEN)
    },
    **{
        f"no{i}.h5": (made_anew(never_written, name, put), f"{name} {NONE}")
        for i, (put, name) in enumerate(WRITTEN)
    },
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(tmp_path, name):
    make, message = BAD[name]
    path = tmp_path / f"recording ü {name}"
    make(path)
    size = None if name == "tall.h5" else SIZE
    assert_refused(path, message, size)

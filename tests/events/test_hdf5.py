"""HDF5 recordings of DSEC, RVT and MVSEC, in the dtypes and with the codec of the official files."""

import os
import shutil

import h5py
import hdf5plugin
import numpy as np
import pytest
from event_cases import assert_refused, assert_same_events, random_events, read
from h5_files import EPOCH, OFFSET, dsec, mvsec, rvt, write

from tespec.datasets.folder import find_recordings
from tespec.datasets.mvsec import seconds_to_us
from tespec.events import load_events
from tespec.events.opening import open_reader
from tespec.events.readers.hdf5 import part

SIZE = (48, 64)
EVENTS = random_events(3_000, height=48, width=64, end=120_000)


@pytest.fixture
def recordings(tmp_path):
    epoch_us = np.array([round((EPOCH + t / 1e6) * 1e6) for t in EVENTS.t.tolist()], np.int64)
    return {
        "dsec": (dsec(tmp_path / "events.h5", *EVENTS), EVENTS._replace(t=EVENTS.t + OFFSET)),
        "rvt": (rvt(tmp_path / "a_td.dat.h5", *EVENTS), EVENTS),
        "mvsec": (mvsec(tmp_path / "a_data.hdf5", *EVENTS), EVENTS._replace(t=epoch_us)),
    }


@pytest.mark.parametrize("block", [1 << 20, 700])
@pytest.mark.parametrize("kind", ["dsec", "rvt", "mvsec"])
def test_every_event_comes_back(recordings, monkeypatch, kind, block):
    for module in ("tespec.events.readers.hdf5", "tespec.datasets.mvsec"):
        monkeypatch.setattr(f"{module}.AT_ONCE", block)
    path, wanted = recordings[kind]
    assert load_events(path, *SIZE).clamped == 0
    assert_same_events(read(path, *SIZE), wanted)


CODECS = {
    "gzip": {"compression": "gzip", "shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "zstd": hdf5plugin.Zstd(),
    "lz4": hdf5plugin.LZ4(),
    "bitshuffle with lz4": hdf5plugin.Bitshuffle(),
    "bitshuffle with zstd": hdf5plugin.Bitshuffle(cname="zstd"),
}


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_every_event(tmp_path, codec):
    path = write(
        tmp_path / "a.h5", {f"events/{name}": column for name, column in EVENTS._asdict().items()}, CODECS[codec]
    )
    assert_same_events(read(path, *SIZE), EVENTS)


def test_both_ways_to_write_polarity_are_read(tmp_path):
    assert_same_events(read(rvt(tmp_path / "a.h5", *EVENTS, events__p=2 * EVENTS.p.astype("i1") - 1)), EVENTS)
    rows = np.stack([EVENTS.x, EVENTS.y, EPOCH + EVENTS.t / 1e6, EVENTS.p], axis=1)
    np.testing.assert_array_equal(read(mvsec(tmp_path / "b.hdf5", *EVENTS, rows=rows)).p, EVENTS.p)


def test_times_that_step_back_are_raised_and_counted(tmp_path):
    t = EVENTS.t.copy()
    t[1000] += 5_000
    wanted = np.maximum.accumulate(t)
    for path, offset in (
        (rvt(tmp_path / "a.h5", *EVENTS._replace(t=t)), 0),
        (dsec(tmp_path / "b.h5", *EVENTS._replace(t=t)), OFFSET),
    ):
        np.testing.assert_array_equal(read(path, *SIZE).t, wanted + offset)
        assert load_events(path, *SIZE).clamped == (wanted != t).sum() > 0


def test_seconds_since_1970_are_exact_to_the_microsecond():
    rng = np.random.default_rng(0)
    for us in (rng.integers(1_400_000_000_000_000, 1_800_000_000_000_000, 100_000), np.arange(2**40, 2**40 + 999)):
        np.testing.assert_array_equal(seconds_to_us(us / 1e6), us)


def test_sizes_are_those_of_the_sensors_where_nothing_else_is_said(tmp_path):
    paths = dsec(tmp_path / "a.h5", *EVENTS), mvsec(tmp_path / "b.hdf5", *EVENTS), rvt(tmp_path / "c.h5", *EVENTS)
    assert [(reader.height, reader.width) for reader in map(open_reader, paths)] == [(480, 640), (260, 346), SIZE]
    assert_refused(rvt(tmp_path / "d.h5", *EVENTS, events__height=None), "does not name the sensor's size; give --sens")


def test_a_forked_process_reads_by_itself(recordings):
    path, wanted = recordings["dsec"]
    part(path, "events/t")[:1_000]
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.write(writer, part(path, "events/t")[500:].astype("<i8").sum().tobytes())
        os._exit(0)
    part(path, "events/t")[100:2_000]
    os.waitpid(child, 0)
    assert np.frombuffer(os.read(reader, 8), np.int64)[0] == (wanted.t - OFFSET)[500:].sum()


def test_a_file_that_changed_is_opened_again(tmp_path):
    path = rvt(tmp_path / "a.h5", *EVENTS)
    assert len(read(path).t) == 3_000
    shutil.move(rvt(tmp_path / "b.h5", *(column[:500] for column in EVENTS)), path)
    assert len(read(path).t) == 500


def test_damaged_files_in_a_folder_are_found_and_other_content_is_left_alone(tmp_path):
    found = [rvt(tmp_path / "a.h5", *EVENTS), rvt(tmp_path / "column.h5", *EVENTS, events__p=None)]
    found += [cut(rvt(tmp_path / "cut.h5", *EVENTS)), tmp_path / "empty.h5"]
    found[-1].touch()
    found.append(write(tmp_path / "metavision.hdf5", {"CD/events": np.zeros(3)}))
    write(tmp_path / "rectify_map.h5", {"rectify_map": np.zeros((4, 4, 2), np.float32)})
    write(tmp_path / "a_gt.hdf5", {"davis/left/depth_image_raw": np.zeros((2, 4, 4), np.float32)})
    assert find_recordings(tmp_path) == sorted(found)


def cut(path):
    content = path.read_bytes()
    path.write_bytes(content[: int(0.6 * len(content))])
    return path


def unknown_codec(path):
    content = dsec(path, *EVENTS).read_bytes()
    # The number of the filter in the file becomes that of one that does not exist.
    path.write_bytes(content.replace((32001).to_bytes(2, "little"), (32766).to_bytes(2, "little")))


def elsewhere(put, name="events/x"):
    """A recording of which `put` takes a part from another file."""

    def make(path):
        other = write(path.with_name("other.h5"), {"values": EVENTS.x, "events/x": EVENTS.x})
        with h5py.File(rvt(path, *EVENTS), "r+") as file:
            del file[name]
            put(file, other)

    return make


def replaced(put, name="events/x", writer=rvt):
    """A recording of which `put` makes a dataset anew."""

    def make(path):
        columns = EVENTS._replace(t=1_000 * np.arange(3_000)) if name == "ms_to_idx" else EVENTS
        with h5py.File(writer(path, *columns), "r+") as file:
            values = file[name][()]
            del file[name]
            put(file, name, values)

    return make


def link(file, other):
    file["events/x"] = h5py.ExternalLink(str(other), "/values")


def link_by_another(file, other):
    file["away"] = h5py.ExternalLink(str(other), "/")
    file["events/x"] = h5py.SoftLink("/away/values")


def link_of_the_group(file, other):
    file["events"] = h5py.ExternalLink(str(other), "/events")


def virtual(file, other):
    layout = h5py.VirtualLayout((3_000,), "<u2")
    layout[:] = h5py.VirtualSource(str(other), "values", (3_000,))
    file.create_virtual_dataset("events/x", layout)


def external_storage(file, other):
    file.create_dataset("events/x", (3_000,), "<u2", external=[(str(other), 0, 6_000)])


def circle(file, other):
    file["events/x"] = h5py.SoftLink("/events/x")


def half_written(file, name, values):
    options = {"maxshape": (None, *values.shape[1:]), "chunks": (500, *values.shape[1:])}
    column = file.create_dataset(name, (0, *values.shape[1:]), values.dtype, **options)
    column.resize(len(values), axis=0)
    column[:1_000] = values[:1_000]


def never_written(file, name, values):
    file.create_dataset(name, values.shape, values.dtype)


def other_values(kind):
    return lambda file, name, values: file.create_dataset(name, data=np.zeros(3_000).astype(kind))


HALF, NONE = r"was never written whole \([12] of [167] chunks", r"was never written whole \(0 of 1 chunks"
COLUMNS = [(dsec, "events/t"), (dsec, "ms_to_idx"), (rvt, "events/x"), (rvt, "events/p"), (mvsec, "davis/left/events")]
BAD = {
    "text": (lambda path: path.write_bytes(b"x" * 5000), "not a whole HDF5 file"),
    "empty file": (lambda path: path.write_bytes(b""), "not a whole HDF5 file"),
    "truncated": (lambda path: cut(dsec(path, *EVENTS)), "not a whole HDF5 file; copy it again"),
    "other content": (lambda path: write(path, {"a": np.zeros(3)}), r"holds no events \(events/x, y, t, p, or"),
    "Prophesee's": (lambda path: write(path, {"CD/events": np.zeros(3)}), "is Prophesee's own HDF5 format.*; convert"),
    "no events": (lambda path: dsec(path, *([[]] * 4)), "holds no events; give a recording"),
    "column missing": (lambda path: dsec(path, *EVENTS, events__p=None), "has no dataset events/p"),
    "no offset": (lambda path: dsec(path, *EVENTS, t_offset=None), "has no dataset t_offset"),
    "no index": (lambda path: dsec(path, *EVENTS, ms_to_idx=None), "has no dataset ms_to_idx"),
    "lengths differ": (lambda path: dsec(path, *EVENTS, events__x=EVENTS.x[:9]), r"different lengths \(x 9, y 3,000"),
    "floats": (lambda path: dsec(path, *EVENTS, events__x=EVENTS.x / 2), "events/x is float64 of shape"),
    "two axes": (lambda path: dsec(path, *EVENTS, events__x=np.zeros((3000, 2), "u2")), r"shape \(3000, 2\)"),
    "index lies": (
        lambda path: dsec(path, *EVENTS, ms_to_idx=np.zeros(100, "<u8")), "ms_to_idx does not fit the events' times",
    ),
    "offset beyond time": (lambda path: dsec(path, *EVENTS, t_offset=np.int64(2**62)), "t_offset is 46116860"),
    "nanoseconds": (lambda path: dsec(path, *EVENTS, t_offset=np.int64(2**59)), "after the year 5138"),
    "outside": (lambda path: dsec(path, *EVENTS, events__x=EVENTS.x + np.uint16(30)), r"x from \d+ to \d+ on a sensor"),
    "polarity 7": (lambda path: rvt(path, *EVENTS, events__p=EVENTS.p + np.int8(6)), "polarities from 6 to 7"),
    "no seconds": (lambda path: mvsec(path, *EVENTS, rows=np.full((50, 4), np.nan)), "holds times that are none"),
    "half pixels": (lambda path: mvsec(path, EVENTS.x + 0.5, *EVENTS[1:]), "that are no whole numbers"),
    "five columns": (lambda path: mvsec(path, *EVENTS, rows=np.zeros((50, 5))), r"shape \(50, 5\) instead of"),
    "unknown codec": (unknown_codec, r"compressed by filter 32766 \(blosc\), which is not at hand; install its HDF5"),
    "circle": (elsewhere(circle), "events/x cannot be read|has no dataset events/x"),
    "height of text": (lambda path: rvt(path, *EVENTS, events__height="tall"), "its height and width are no whole"),
    "many heights": (lambda path: rvt(path, *EVENTS, events__height=np.arange(9)), "its height and width are no"),
    **{put.__name__: (elsewhere(put), "lies in another file") for put in (link, link_by_another)},
    **{put.__name__: (elsewhere(put), "events/x lies in other files") for put in (virtual, external_storage)},
    "group": (elsewhere(link_of_the_group, "events"), "events/. lies in another file"),
    **{f"half of {name}": (replaced(half_written, name, writer), rf"{name} {HALF}") for writer, name in COLUMNS},
    **{f"no {name}": (replaced(never_written, name, writer), rf"{name} {NONE}") for writer, name in COLUMNS},
    **{kind: (replaced(other_values(kind)), "events/x is ") for kind in ("S4", "<f4", "<c8")},
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_refused(tmp_path, kind):
    make, message = BAD[kind]
    path = tmp_path / "recording ü.h5"
    make(path)
    assert_refused(path, message, *SIZE)

import os
import shutil

import numpy as np
import pytest
from event_cases import assert_same_events, random_events
from h5_files import EPOCH, OFFSET, dsec, mvsec, rvt, write

from tespec.core.errors import UserError
from tespec.datasets.folder import find_recordings
from tespec.datasets.mvsec import seconds_to_us
from tespec.events import Events, open_events
from tespec.events.opening import dataset_of

HEIGHT, WIDTH = 48, 64
EVENTS = random_events(3_000, height=HEIGHT, width=WIDTH, end=120_000)
SIZE = {"height": HEIGHT, "width": WIDTH}


def shifted(events, offset):
    return events._replace(t=events.t + offset)


def epoch_us(t):
    return np.array([round((EPOCH + each / 1e6) * 1e6) for each in t.tolist()], np.int64)


@pytest.fixture
def recordings(tmp_path):
    return {
        "dsec": (dsec(tmp_path / "events.h5", *EVENTS), shifted(EVENTS, OFFSET)),
        "rvt": (rvt(tmp_path / "a_td.dat.h5", *EVENTS), EVENTS),
        "mvsec": (mvsec(tmp_path / "a_data.hdf5", *EVENTS), EVENTS._replace(t=epoch_us(EVENTS.t))),
    }


@pytest.mark.parametrize("block", [1 << 20, 700])
@pytest.mark.parametrize("kind", ["dsec", "rvt", "mvsec"])
def test_every_event_comes_back(recordings, monkeypatch, kind, block):
    for module in ("tespec.events.readers.hdf5", "tespec.datasets.mvsec"):
        monkeypatch.setattr(f"{module}.AT_ONCE", block)
    path, wanted = recordings[kind]
    assert dataset_of(path).__name__ == {"dsec": "Dsec", "rvt": "Gen1", "mvsec": "Mvsec"}[kind]
    stream = open_events(path, **SIZE)
    assert (stream.height, stream.width, stream.count, stream.clamped) == (HEIGHT, WIDTH, len(EVENTS.t), 0)
    assert (stream.t_first, stream.t_last) == (wanted.t[0], wanted.t[-1])
    assert_same_events(stream.slice(stream.t_first, stream.t_last + 1), wanted)
    for t0, t1 in ((10, 10_000), (0, 0), (-500, 5), (119_000, 400_000), (50_000, 50_001)):
        t0, t1 = t0 + stream.t_first, t1 + stream.t_first
        inside = (wanted.t >= t0) & (wanted.t < t1)
        assert_same_events(stream.slice(t0, t1), Events(*(column[inside] for column in wanted)))


def test_sizes_are_those_of_the_sensors_where_nothing_else_is_said(tmp_path):
    assert (open_events(dsec(tmp_path / "a.h5", *EVENTS)).height, 480) == (480, 480)
    stream = open_events(mvsec(tmp_path / "b.hdf5", *EVENTS))
    assert (stream.height, stream.width) == (260, 346)
    stream = open_events(rvt(tmp_path / "c.h5", *EVENTS, height=100, width=200))
    assert (stream.height, stream.width) == (100, 200)
    with pytest.raises(UserError, match=r"d.h5: does not name the sensor's size; give --sensor"):
        open_events(rvt(tmp_path / "d.h5", *EVENTS, events__height=None))


def test_a_description_above_names_the_size(tmp_path):
    folder = tmp_path / "train" / "a" / "events" / "left"
    folder.mkdir(parents=True)
    (tmp_path / "dataset.json").write_text('{"sensor": {"height": 60, "width": 70}}')
    stream = open_events(dsec(folder / "events.h5", *EVENTS))
    assert (stream.height, stream.width) == (60, 70)
    (tmp_path / "dataset.json").write_text('{"sensor": {"height": 0, "width": 70}}')
    with pytest.raises(UserError, match=r"dataset.json: names a sensor of 70x0 px"):
        open_events(folder / "events.h5")


def test_both_ways_to_write_polarity_are_read(tmp_path):
    signed = open_events(rvt(tmp_path / "a.h5", *EVENTS, events__p=2 * EVENTS.p.astype("i1") - 1))
    assert_same_events(signed.slice(0, 200_000), EVENTS)
    rows = np.stack([EVENTS.x, EVENTS.y, EPOCH + EVENTS.t / 1e6, EVENTS.p], axis=1)
    stream = open_events(mvsec(tmp_path / "b.hdf5", *EVENTS, rows=rows))
    np.testing.assert_array_equal(stream.slice(stream.t_first, stream.t_last + 1).p, EVENTS.p)


def test_times_that_step_back_are_raised_and_counted(tmp_path):
    t = EVENTS.t.copy()
    t[1000] += 5_000
    for path in (rvt(tmp_path / "a.h5", *EVENTS._replace(t=t)), dsec(tmp_path / "b.h5", *EVENTS._replace(t=t))):
        stream = open_events(path, **SIZE)
        wanted = np.maximum.accumulate(t) + (OFFSET if path.stem == "b" else 0)
        np.testing.assert_array_equal(stream.slice(stream.t_first, stream.t_last + 1).t, wanted)
        assert stream.clamped == (wanted != t + wanted[0] - t[0]).sum() > 0


def test_seconds_since_1970_are_exact_to_the_microsecond():
    rng = np.random.default_rng(0)
    for us in (rng.integers(1_400_000_000_000_000, 1_800_000_000_000_000, 100_000), np.arange(2**40, 2**40 + 999)):
        np.testing.assert_array_equal(seconds_to_us(us / 1e6), us)
    assert seconds_to_us(np.array([0.1234567])).tolist() == [123_457]


def test_a_forked_process_reads_by_itself(recordings):
    path, wanted = recordings["dsec"]
    stream = open_events(path, **SIZE)
    stream.slice(OFFSET, OFFSET + 1000)
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        found = stream.slice(OFFSET, OFFSET + 200_000)
        os.write(writer, np.int64(len(found.t)).tobytes())
        os._exit(0)
    stream.slice(OFFSET + 500, OFFSET + 90_000)
    os.waitpid(child, 0)
    assert np.frombuffer(os.read(reader, 8), np.int64)[0] == len(wanted.t)


def test_files_that_are_no_recordings(tmp_path):
    files = {
        "rectify_map.h5": {"rectify_map": np.zeros((4, 4, 2), np.float32)},
        "a_gt.hdf5": {"davis/left/depth_image_raw": np.zeros((2, 4, 4), np.float32)},
        "event_representations.h5": {"data": np.zeros((2, 20, 4, 4), np.uint8)},
    }
    for name, content in files.items():
        path = write(tmp_path / name, content)
        assert dataset_of(path) is None
        with pytest.raises(UserError, match=r"holds no events \(events/x, y, t, p, or davis/left/events\)"):
            open_events(path)
    (tmp_path / "text.h5").write_text("hello")
    for name, said in (("text.h5", "not a whole HDF5 file"), ("missing.h5", "no such file")):
        with pytest.raises(UserError, match=said):
            dataset_of(tmp_path / name)


def test_a_damaged_file_in_a_folder_is_named_and_other_content_is_left_alone(tmp_path):
    good = rvt(tmp_path / "a.h5", *EVENTS)
    write(tmp_path / "rectify_map.h5", {"rectify_map": np.zeros((4, 4, 2), np.float32)})
    damaged = {"cut.h5": "not a whole HDF5 file", "empty.h5": "not a whole", "column.h5": "has no dataset events/p"}
    cut(rvt(tmp_path / "cut.h5", *EVENTS), 0.5)
    (tmp_path / "empty.h5").touch()
    rvt(tmp_path / "column.h5", *EVENTS, events__p=None)
    write(tmp_path / "metavision.hdf5", {"CD/events": np.zeros(3)})
    damaged["metavision.hdf5"] = "is Prophesee's own HDF5 format"
    assert find_recordings(tmp_path) == sorted([good, *(tmp_path / name for name in damaged)])
    for name, said in damaged.items():
        with pytest.raises(UserError, match=f"{name}: {said}"):
            open_events(tmp_path / name)


def unknown_codec(path):
    content = dsec(path, *EVENTS).read_bytes()
    # The number of the filter in the file becomes that of one that does not exist.
    path.write_bytes(content.replace((32001).to_bytes(2, "little"), (32766).to_bytes(2, "little")))
    return path


def cut(path, share):
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    return path


def lying_index(path):
    index = np.zeros(100, "<u8")
    return dsec(path, *EVENTS, ms_to_idx=index)


BAD = {
    "not HDF5": (lambda path: path.write_bytes(b"x" * 5000) and path, "not a whole HDF5 file"),
    "empty file": (lambda path: path.write_bytes(b"") or path, "not a whole HDF5 file"),
    "truncated": (lambda path: cut(dsec(path, *EVENTS), 0.6), "not a whole HDF5 file"),
    "no events": (lambda path: dsec(path, *([[]] * 4)), "holds no events; give a recording"),
    "column missing": (lambda path: dsec(path, *EVENTS, events__p=None), "has no dataset events/p"),
    "no offset": (lambda path: dsec(path, *EVENTS, t_offset=None), "has no dataset t_offset"),
    "no index": (lambda path: dsec(path, *EVENTS, ms_to_idx=None), "has no dataset ms_to_idx"),
    "lengths differ": (lambda path: dsec(path, *EVENTS, events__x=EVENTS.x[:9]), r"different lengths \(x 9, y 3,000"),
    "floats": (lambda path: dsec(path, *EVENTS, events__x=EVENTS.x / 2), "events/x is float64 of shape"),
    "two axes": (lambda path: dsec(path, *EVENTS, events__x=np.zeros((3000, 2), "u2")), r"shape \(3000, 2\)"),
    "index lies": (lying_index, "ms_to_idx does not fit the events' times"),
    "offset beyond time": (lambda path: dsec(path, *EVENTS, t_offset=np.int64(2**62)), "t_offset is 46116860"),
    "outside": (lambda path: dsec(path, *EVENTS, events__x=EVENTS.x + np.uint16(30)), r"x from \d+ to \d+ on a sensor"),
    "polarity 7": (lambda path: rvt(path, *EVENTS, events__p=EVENTS.p + np.int8(6)), "polarities from 6 to 7"),
    "no seconds": (
        lambda path: mvsec(path, *EVENTS, rows=np.full((50, 4), np.nan)), "davis/left/events holds times that are none",
    ),
    "half pixels": (
        lambda path: mvsec(path, EVENTS.x + 0.5, *EVENTS[1:]), "holds coordinates that are no whole numbers",
    ),
    "five columns": (lambda path: mvsec(path, *EVENTS, rows=np.zeros((50, 5))), r"shape \(50, 5\) instead of"),
    "unknown codec": (unknown_codec, r"compressed by filter 32766 \(blosc\), which is not at hand"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD)
def test_bad_files_are_refused_in_one_line(tmp_path, kind):
    make, message = BAD[kind]
    path = make(tmp_path / "recording ü.h5")
    with pytest.raises(UserError, match=message) as caught:
        open_events(path, **SIZE).slice(-(2**50), 2**61)
    assert str(caught.value).startswith(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone.h5: no such file"):
        open_events(tmp_path / "gone.h5")


def test_a_file_that_changed_is_scanned_again(tmp_path):
    path = rvt(tmp_path / "a.h5", *EVENTS)
    assert open_events(path).count == 3000
    fewer = rvt(tmp_path / "b.h5", *(column[:500] for column in EVENTS))
    shutil.copyfile(fewer, tmp_path / "c.h5")
    assert open_events(tmp_path / "c.h5").t_last == EVENTS.t[499]

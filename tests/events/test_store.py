"""The packed store."""

import errno
import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from event_cases import assert_same_events, event_arrays, random_events, random_stream
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tespec.core.errors import UserError
from tespec.datasets.sources import EventSource
from tespec.events import ArrayStream, Events, EventStream, open_events, packing, provenance
from tespec.events.opening import cache_path, open_reader
from tespec.events.packing import pack
from tespec.events.provenance import SourceHash
from tespec.events.readers import prophesee
from tespec.events.readers.prophesee import write_dat
from tespec.events.store import is_complete, open_store, verify_store
from tespec.events.stream import Reader


def sampled(content):
    return hashlib.sha256(content + content).hexdigest()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(event_arrays(), st.lists(st.tuples(st.integers(-3_000, 5_000), st.integers(-3_000, 5_000)), max_size=8))
def test_what_is_packed_is_read_in_any_slice(tmp_path_factory, events, slices):
    folder = tmp_path_factory.mktemp("stores") / "store"
    if not len(events.t):
        with pytest.raises(UserError, match="holds no events"):
            pack(ArrayStream(*events, 6, 8), folder)
        return
    stream = open_store(pack(ArrayStream(*events, 6, 8), folder))
    assert (stream.height, stream.width, stream.count) == (6, 8, len(events.t))
    assert (stream.t_first, stream.t_last) == (events.t[0], events.t[-1])
    for t0, t1 in [(-10_000, 10_000), *slices]:
        kept = (events.t >= t0) & (events.t < t1)
        assert_same_events(stream.slice(t0, t1), Events(*(column[kept] for column in events)))


def test_the_largest_sensor_and_late_times_are_kept(tmp_path):
    start = 1_700_000_000_000_000
    events = random_events(5_000, height=1024, width=2048, start=start, end=start + 3_000_000)
    stream = open_events(pack(ArrayStream(*events, 1024, 2048), tmp_path / "store"))
    assert isinstance(stream, EventStream)
    assert_same_events(stream.slice(start, start + 3_000_000), events)


def test_words_and_index_are_laid_out_as_described(tmp_path):
    stream = ArrayStream(
        *(np.array(values) for values in ([2047, 1], [3, 1023], [7_000_999, 7_002_000], [1, 0])), 1024, 2048
    )
    folder = pack(stream, tmp_path / "store")
    assert names(folder) == ["events.u32", "header.json", "index.i64"]
    words = np.fromfile(folder / "events.u32", "<u4")
    assert words.tolist() == [2047 | 3 << 11 | 1 << 21 | 999 << 22, 1 | 1023 << 11]
    assert np.fromfile(folder / "index.i64", "<i8").tolist() == [0, 1, 1, 2]


def test_the_header_says_what_the_store_is_and_where_it_came_from(tmp_path):
    source = tmp_path / "a.raw"
    source.write_bytes(b"the recording")
    t = np.array([7_005, 7_003, 9_000])
    zeros = np.zeros(3, int)
    folder = pack(ArrayStream(zeros, zeros, t, zeros, 6, 8), tmp_path / "stores" / "store", source)
    whole = hashlib.sha256(b"the recording").hexdigest()
    assert json.loads((folder / "header.json").read_text()) == {
        "format": "tespec packed events",
        "version": 2,
        "height": 6,
        "width": 8,
        "count": 3,
        "first_ms": 7,
        "clamped": 1,
        "source": {
            "name": "a.raw",
            "bytes": 13,
            "sha256": whole,
            # A file shorter than the sample is its head and its tail alike.
            "files": [{"name": "a.raw", "bytes": 13, "sampled_sha256": sampled(b"the recording")}],
        },
        "sha256": {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("events.u32", "index.i64")
        },
    }
    assert open_store(folder).clamped == 1


def test_the_source_is_hashed_as_far_as_it_is_decoded_and_not_again(tmp_path, monkeypatch):
    path, hashed, order = tmp_path / "a.dat", [], []
    monkeypatch.setattr(prophesee, "BLOCK", 100)
    monkeypatch.setattr(provenance, "BLOCK", 64)
    write_dat(path, *random_events(400, height=6, width=8), 6, 8)
    reader = open_reader(path)

    def chunks():
        for events in reader.chunks():
            order.append(len(hashed))
            yield events

    def read(self):
        for block in blocks(self):
            hashed.append((self._path, block))
            yield block

    blocks = SourceHash._read
    monkeypatch.setattr(SourceHash, "_read", read)
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    store = pack(replace(reader, chunks=chunks), cache_path(reader), path)
    total = len(hashed)
    assert total == -(-path.stat().st_size // 64)
    assert order == [-(-path.stat().st_size * share // 256) for share in range(4)]  # a quarter with each quarter
    assert (
        json.loads((store / "header.json").read_text())["source"]["sha256"]
        == hashlib.sha256(path.read_bytes()).hexdigest()
    )
    EventSource(path).verify()
    assert path not in {each for each, _ in hashed[total:]}


def test_a_folder_as_source_is_the_files_in_it(tmp_path):
    folder = tmp_path / "dir0"
    (folder / "imgs").mkdir(parents=True)
    (folder / "b").write_bytes(b"second")
    (folder / "a").write_bytes(b"first ")
    header = json.loads((pack(random_stream(3), tmp_path / "store", folder) / "header.json").read_text())
    digest = hashlib.sha256(b"first second").hexdigest()
    assert {name: header["source"][name] for name in ("name", "bytes", "sha256")} == {
        "name": "dir0",
        "bytes": 12,
        "sha256": digest,
    }
    assert [each["name"] for each in header["source"]["files"]] == ["a", "b"]


def test_chunks_of_any_length_give_the_same_store(tmp_path):
    events = random_events(1_000, end=2_000_000)
    t = events.t.copy()
    t[::50] -= 3_000  # of which some step back over the border of a chunk
    folders = []
    for length in (1, 3, 100, 1_000):
        borders = range(0, 1_000, length)
        parts = [Events(*(column[at : at + length] for column in events._replace(t=t))) for at in borders]
        reader = Reader(tmp_path / "a", 6, 8, 1_000, lambda parts=parts: iter(parts))
        folders.append(pack(reader, tmp_path / str(length)))
    assert open_store(folders[0]).clamped > 0
    assert len({tuple(content(folder).values()) for folder in folders}) == 1
    assert_same_events(open_store(folders[0]).slice(-10_000, 3_000_000), events._replace(t=np.maximum.accumulate(t)))


def test_a_long_pause_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(packing, "AT_ONCE", 1_000)
    t = [5_000, 60_000_000, 60_000_001]
    stream = open_store(pack(stream_of(t), tmp_path / "store"))
    assert stream.slice(0, 10**9).t.tolist() == t
    assert stream.slice(6_000, t[1]).t.tolist() == []


def stream_of(t, height=6, width=8):
    zeros = np.zeros(len(t), int)
    return ArrayStream(zeros, zeros, np.array(t), zeros, height, width)


@pytest.mark.parametrize(
    ("stream", "message"),
    [
        (stream_of([1], height=1025), "a sensor of 8x1025 px does not fit"),
        (stream_of([1], width=2049), "a sensor of 2049x6 px does not fit"),
        (stream_of([0, 10**15]), "lasts 277,778 h by its time stamps, so one is damaged"),
        (stream_of([0, 10**10]), "lasts 3 h by its time stamps, so one is damaged"),
    ],
)
def test_what_does_not_fit_is_refused_and_leaves_nothing(tmp_path, stream, message):
    with pytest.raises(UserError, match=message):
        pack(stream, tmp_path / "store")
    assert not names(tmp_path)


def test_nothing_is_overwritten_and_a_missing_source_is_named(tmp_path):
    pack(random_stream(3), tmp_path / "store")
    with pytest.raises(UserError, match="exists already; remove it or choose another folder"):
        pack(random_stream(3), tmp_path / "store")
    with pytest.raises(UserError, match=r"gone\.raw: no such file"):
        pack(random_stream(3), tmp_path / "other", tmp_path / "gone.raw")
    assert names(tmp_path) == ["store"]


def test_an_interrupted_pack_leaves_nothing(tmp_path):
    class Broken(ArrayStream):
        def slice(self, t0, t1):
            if t0 > 0:
                raise KeyboardInterrupt
            return super().slice(t0, t1)

    with pytest.raises(KeyboardInterrupt):
        pack(Broken(*random_events(1_000, end=2_000_000), 6, 8), tmp_path / "store")
    assert not names(tmp_path)


def write_header(folder, **change):
    header = json.loads((folder / "header.json").read_text()) | change
    (folder / "header.json").write_text(json.dumps(header))


def write_index(folder, change):
    index = np.fromfile(folder / "index.i64", "<i8")
    change(index)
    index.tofile(folder / "index.i64")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "events.u32").unlink(), r"events\.u32: no such file; pack the recording again"),
        (lambda f: (f / "index.i64").unlink(), r"index\.i64: no such file"),
        (lambda f: (f / "events.u32").write_bytes(b"abc"), "has 3 bytes, not the 4000 of 1000 events"),
        (lambda f: (f / "index.i64").write_bytes(b"abc"), "truncated: 3 bytes"),
        (lambda f: (f / "header.json").write_text("{"), "not a readable header"),
        (lambda f: (f / "header.json").write_text("[]"), "not a readable header"),
        (lambda f: write_header(f, version=1), "format version 1, this harness reads 2"),
        (lambda f: write_header(f, width="8"), "its numbers make no sense"),
        (lambda f: write_header(f, height=0), "its numbers make no sense"),
        (lambda f: write_header(f, count=999), "has 4000 bytes, not the 3996 of 999 events"),
        (lambda f: write_header(f, first_ms=10**30), "its first millisecond is"),
        (lambda f: write_index(f, lambda index: index.__setitem__(0, 1)), r"index\.i64: does not fit the events"),
        (lambda f: write_index(f, lambda index: index.__setitem__(3, 10**6)), "does not fit the events"),
        (lambda f: write_index(f, lambda index: index.__setitem__(slice(1, 3), 0)), "does not fit the events"),
        (lambda f: np.full(1000, 1000 << 22, "<u4").tofile(f / "events.u32"), "damaged"),
        (lambda f: np.full(1000, 9, "<u4").tofile(f / "events.u32"), "events outside of the sensor"),
    ],
)
def test_a_damaged_store_is_refused(tmp_path, damage, message):
    folder = pack(random_stream(1_000), tmp_path / "store")
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        open_events(folder) if (folder / "header.json").is_file() else open_store(folder)
    assert str(folder) in str(caught.value)


def test_a_folder_without_header_is_no_store(tmp_path):
    with pytest.raises(UserError, match=r"header\.json: no such file"):
        open_store(tmp_path)


@pytest.fixture
def recording(tmp_path):
    """A file, what is in it, and how it is packed when nothing goes wrong."""
    path = tmp_path / "a.dat"
    write_dat(path, *random_events(20_000, height=60, width=80, end=3_000_000), 60, 80)
    whole = pack(open_reader(path), tmp_path / "whole", path)
    return path, {name: (whole / name).read_bytes() for name in names(whole)}


def content(folder):
    return {name: (folder / name).read_bytes() for name in names(folder)}


def test_a_whole_store_of_the_same_recording_is_left_as_it_is(recording, tmp_path):
    path, _ = recording
    before = (tmp_path / "whole" / "events.u32").stat().st_mtime_ns
    assert pack(open_reader(path), tmp_path / "whole", path) == tmp_path / "whole"
    assert (tmp_path / "whole" / "events.u32").stat().st_mtime_ns == before
    (tmp_path / "whole" / "index.i64").write_bytes(b"")
    assert not is_complete(tmp_path / "whole")
    with pytest.raises(UserError, match="exists already"):
        pack(open_reader(path), tmp_path / "whole", path)


@pytest.mark.parametrize("after", [0, 1, 3_000, 18_000])
def test_an_interrupted_packing_of_a_file_leaves_nothing(recording, tmp_path, monkeypatch, after):
    path, wanted = recording
    monkeypatch.setattr(prophesee, "BLOCK", 500)

    def stop(done, total):
        assert total == 20_000
        if done > after:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(open_reader(path), tmp_path / "store", path, stop)
    assert names(tmp_path) == ["a.dat", "whole"]
    pack(open_reader(path), tmp_path / "store", path)
    assert content(tmp_path / "store") == wanted


KILLED = """
import os, signal, sys
from pathlib import Path
from tespec.events.opening import open_reader
from tespec.events.packing import pack
from tespec.events.readers import prophesee
prophesee.BLOCK = 500
path, store, after = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
def stop(done, total):
    if done > after:
        os.kill(os.getpid(), signal.SIGKILL)
pack(open_reader(path), store, path, stop)
"""


def test_what_a_killed_packing_leaves_is_no_store_and_is_cleared(recording, tmp_path):
    path, wanted = recording
    command = [sys.executable, "-c", KILLED, path, tmp_path / "store", "9000"]
    assert subprocess.run(command).returncode == -signal.SIGKILL
    assert not (tmp_path / "store").exists()
    assert (tmp_path / ".store.unfinished").exists()
    pack(open_reader(path), tmp_path / "store", path)
    assert content(tmp_path / "store") == wanted
    assert names(tmp_path) == ["a.dat", "store", "whole"]


def test_a_full_disk_is_named_and_nothing_looks_whole(recording, tmp_path, monkeypatch):
    path, wanted = recording

    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(packing.os, "fsync", full)
        with pytest.raises(UserError, match=r"store: the disk is full after [\d,]+ bytes; make room"):
            pack(open_reader(path), tmp_path / "store", path)
    assert not (tmp_path / "store").exists()
    pack(open_reader(path), tmp_path / "store", path)
    assert content(tmp_path / "store") == wanted


def test_a_store_whose_bytes_changed_is_found(recording, tmp_path):
    words = np.fromfile(tmp_path / "whole" / "events.u32", "<u4")
    words[77] ^= 1 << 21
    words.tofile(tmp_path / "whole" / "events.u32")
    with pytest.raises(UserError, match=r"events\.u32: is not what was written"):
        verify_store(tmp_path / "whole")

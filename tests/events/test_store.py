"""The packed store: lossless, laid out as described, written whole or not at all, refused when damaged."""

import errno
import hashlib
import json
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from event_cases import assert_same_events, event_arrays, random_events
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tespec.core.errors import UserError
from tespec.events import ArrayStream, Events, open_events, packing, provenance, store
from tespec.events.opening import open_reader
from tespec.events.packing import load, pack
from tespec.events.provenance import SourceHash
from tespec.events.readers import prophesee
from tespec.events.readers.prophesee import write_dat
from tespec.events.store import is_complete, open_store, verify_store
from tespec.events.stream import Reader

WHOLE = -(10**12), 10**17


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def content(folder):
    return {name: (folder / name).read_bytes() for name in names(folder)}


def in_memory(count=1_000, **options):
    return ArrayStream(*random_events(count, **options), 6, 8)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(event_arrays(), st.lists(st.tuples(st.integers(-3_000, 5_000), st.integers(-3_000, 5_000)), max_size=8))
def test_what_is_packed_is_read_in_any_slice(tmp_path_factory, events, slices):
    folder, stream = tmp_path_factory.mktemp("stores") / "store", ArrayStream(*events, 6, 8)
    streams = [stream, open_store(pack(stream, folder))] if len(events.t) else [stream]
    for each in streams:
        assert (each.height, each.width, each.count) == (6, 8, len(events.t))
        assert (each.t_first, each.t_last) == ((events.t[0], events.t[-1]) if len(events.t) else (0, 0))
        for t0, t1 in [(-10_000, 10_000), *slices]:
            kept = (events.t >= t0) & (events.t < t1)
            assert_same_events(each.slice(t0, t1), Events(*(column[kept] for column in events)))


@pytest.mark.parametrize("span", [3_000_000, 2**33])  # within the reach of 32-bit divisions, and beyond
def test_the_largest_sensor_and_late_times_are_kept(tmp_path, span):
    start = 1_700_000_000_000_000
    events = random_events(5_000, height=1024, width=2048, start=start, end=start + span)
    for stream in (recorded := ArrayStream(*events, 1024, 2048), open_events(pack(recorded, tmp_path / "store"))):
        assert_same_events(stream.slice(start, start + span), events)


def test_words_index_and_header_are_laid_out_as_described(tmp_path):
    source = tmp_path / "dir0"
    (source / "imgs").mkdir(parents=True)
    (source / "b").write_bytes(b"recording")
    (source / "a").write_bytes(b"the ")
    x, y, t, p = (
        np.array(values) for values in ([2047, 1, 1], [3, 1023, 0], [7_000_999, 6_999_000, 7_002_000], [1, 0, 0])
    )
    folder = pack(ArrayStream(x, y, t, p, 1024, 2048), tmp_path / "stores" / "store", source)
    assert names(folder) == ["events.u32", "header.json", "index.i64"]
    words = np.fromfile(folder / "events.u32", "<u4")
    assert words.tolist() == [2047 | 3 << 11 | 1 << 21 | 999 << 22, 1 | 1023 << 11 | 999 << 22, 1]
    assert np.fromfile(folder / "index.i64", "<i8").tolist() == [0, 2, 2, 3]
    halves = [(b"the ", "a"), (b"recording", "b")]  # a file shorter than the sample is its head and its tail
    assert json.loads((folder / "header.json").read_text()) == {
        "format": "tespec packed events",
        "version": 2,
        "height": 1024,
        "width": 2048,
        "count": 3,
        "first_ms": 7000,
        "clamped": 1,
        "source": {
            "name": "dir0",
            "bytes": 13,
            "sha256": hashlib.sha256(b"the recording").hexdigest(),
            "files": [
                {"name": name, "bytes": len(half), "sampled_sha256": hashlib.sha256(half + half).hexdigest()}
                for half, name in halves
            ],
        },
        "sha256": {
            name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in ("events.u32", "index.i64")
        },
    }
    assert open_store(folder).clamped == 1


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """A file, read in blocks of 500 events, and its store as it is when nothing goes wrong."""
    monkeypatch.setattr(prophesee, "BLOCK", 500)
    path = tmp_path / "a.dat"
    write_dat(path, *random_events(20_000, height=60, width=80, end=3_000_000), 60, 80)
    return path, content(pack(open_reader(path), tmp_path / "whole", path))


def test_the_source_is_hashed_as_far_as_it_is_decoded_and_not_again(recording, tmp_path, monkeypatch):
    path, _ = recording
    hashed, ahead = [], []
    monkeypatch.setattr(provenance, "BLOCK", 512)

    def chunks():
        for number, events in enumerate(open_reader(path).chunks()):
            ahead.append(512 * len(hashed) - 4000 * number)  # bytes hashed before those of a chunk are decoded
            yield events

    def read(self):
        for block in blocks(self):
            hashed.append(block)
            yield block

    blocks = SourceHash._read
    monkeypatch.setattr(SourceHash, "_read", read)
    folder = pack(replace(open_reader(path), chunks=chunks), tmp_path / "store", path)
    assert b"".join(hashed) == path.read_bytes()
    assert max(ahead) <= 2 * 512
    assert min(ahead[1:]) >= -2 * 4000  # that of the chunk before may be under way
    assert (
        json.loads((folder / "header.json").read_text())["source"]["sha256"]
        == hashlib.sha256(path.read_bytes()).hexdigest()
    )


def test_chunks_of_any_length_give_the_same_store(tmp_path, monkeypatch):
    events = random_events(1_000, end=2_000_000)
    t = events.t.copy()
    t[::50] -= 3_000  # of which some step back over the border of a chunk
    t[500:] += 2_000_000  # a pause longer than the part of the index that is written at once
    monkeypatch.setattr(packing, "AT_ONCE", 1_000)
    wanted, folders = events._replace(t=np.maximum.accumulate(t)), []
    for length in (1, 3, 100, 1_000):
        parts = [
            Events(*(column[at : at + length] for column in events._replace(t=t))) for at in range(0, 1_000, length)
        ]
        reader = Reader(tmp_path / "a", 6, 8, 1_000, lambda parts=parts: iter(parts))
        folders.append(pack(reader, tmp_path / str(length)))
        for stream in (open_store(folders[-1]), load(reader)):
            assert stream.clamped == (t != wanted.t).sum() > 0
            assert_same_events(stream.slice(*WHOLE), wanted)
    assert len({tuple(content(folder).values()) for folder in folders}) == 1


@pytest.mark.parametrize(
    ("t", "size", "message"),
    [
        ([1], (1025, 8), "a sensor of 8x1025 px does not fit the packed store"),
        ([1], (6, 2049), "a sensor of 2049x6 px does not fit"),
        ([0, 8 * 24 * 3600 * 10**6], (6, 8), "lasts 192 h by its time stamps, so one is damaged"),
        ([0, 3 * 3600 * 10**6], (6, 8), "lasts 3 h by its time stamps"),
        ([], (6, 8), "holds no events"),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path, t, size, message):
    zeros = np.zeros(len(t), np.uint16)
    events = Events(zeros, zeros, np.array(t, np.int64), zeros.astype(np.uint8))
    reader = Reader(tmp_path / "a.raw", *size, len(t), lambda: iter([events]))
    for call in (lambda: pack(reader, tmp_path / "store"), lambda: load(reader)):
        with pytest.raises(UserError, match=rf"a\.raw: {message}"):
            call()
    assert names(tmp_path) == []


def write_header(folder, **change):
    (folder / "header.json").write_text(json.dumps(json.loads((folder / "header.json").read_text()) | change))


def write_index(folder, place, value):
    index = np.fromfile(folder / "index.i64", "<i8")
    index[place] = value
    index.tofile(folder / "index.i64")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "events.u32").unlink(), r"events\.u32: no such file; pack the recording again"),
        (lambda f: (f / "index.i64").unlink(), r"index\.i64: no such file"),
        (lambda f: (f / "events.u32").write_bytes(b"abc"), "has 3 bytes, not the 4000 of 1000 events"),
        (lambda f: (f / "index.i64").write_bytes(b"abc"), "has 3 bytes, truncated"),
        (lambda f: (f / "header.json").write_text("{"), "not a readable header"),
        (lambda f: (f / "header.json").write_text("[]"), "not a readable header"),
        (lambda f: (f / "header.json").unlink(), r"header\.json: no such file"),
        (lambda f: write_header(f, version=1), "format version 1, this harness reads 2"),
        (lambda f: write_header(f, width="8"), "not a readable header"),
        (lambda f: write_header(f, height=0), "its numbers make no sense"),
        (lambda f: write_header(f, count=999), "has 4000 bytes, not the 3996 of 999 events"),
        (lambda f: write_header(f, first_ms=10**30), "its numbers make no sense"),
        (lambda f: write_index(f, 0, 1), r"index\.i64: does not fit the events"),
        (lambda f: write_index(f, 3, 10**6), "does not fit the events"),
        (
            lambda f: write_index(f, slice(3, 5), [8 * 10**18, -8 * 10**18]),
            "does not fit the events",
        ),  # differences wrap
        (lambda f: write_index(f, slice(1, 3), 0), "does not fit the events"),
        (lambda f: np.full(1000, 1000 << 22, "<u4").tofile(f / "events.u32"), "damaged"),
        (lambda f: np.full(1000, 9, "<u4").tofile(f / "events.u32"), "events outside of the sensor"),
    ],
)
def test_a_damaged_store_is_refused(tmp_path, damage, message):
    folder = pack(in_memory(), tmp_path / "store")
    damage(folder)
    assert not is_complete(folder)
    with pytest.raises(UserError, match=message) as caught:
        open_store(folder)
    assert str(folder) in str(caught.value)


def test_a_store_whose_bytes_changed_is_found(recording, tmp_path):
    words = np.fromfile(tmp_path / "whole" / "events.u32", "<u4")
    words[77] ^= 1 << 21
    words.tofile(tmp_path / "whole" / "events.u32")
    with pytest.raises(UserError, match=r"events\.u32: is not what was written"):
        verify_store(tmp_path / "whole")


def test_open_stores_are_mapped_anew_so_that_open_files_are_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(store, "_mapped", store.lru_cache(maxsize=2)(store._mapped.__wrapped__))
    streams = [open_store(pack(in_memory(seed=seed), tmp_path / str(seed))) for seed in range(5)]
    for seed in (0, 1, 2, 3, 4, 0):
        assert_same_events(streams[seed].slice(*WHOLE), random_events(1_000, seed=seed))
    assert store._mapped.cache_info().currsize == 2


def test_a_whole_store_of_the_same_recording_stays_and_nothing_else_is_overwritten(recording, tmp_path):
    path, wanted = recording
    before = (tmp_path / "whole" / "events.u32").stat().st_mtime_ns
    assert pack(open_reader(path), tmp_path / "whole", path) == tmp_path / "whole"
    assert (tmp_path / "whole" / "events.u32").stat().st_mtime_ns == before
    with pytest.raises(UserError, match=r"was packed for a sensor of 80x60 px, not 90x60"):
        pack(replace(open_reader(path), width=90), tmp_path / "whole", path)
    other = tmp_path / "b.dat"
    write_dat(other, *random_events(20_000, height=60, width=80, seed=1), 60, 80)
    for attempt in (
        lambda: pack(in_memory(3), tmp_path / "whole"),
        lambda: pack(open_reader(other), tmp_path / "whole", other),
    ):
        with pytest.raises(UserError, match="exists already; remove it or choose another folder"):
            attempt()
    with pytest.raises(UserError, match=r"gone\.raw: no such file"):
        pack(in_memory(3), tmp_path / "other", tmp_path / "gone.raw")
    (tmp_path / "files").mkdir()
    with pytest.raises(UserError, match="files: exists already"):
        pack(open_reader(path), tmp_path / "files", path)
    (tmp_path / "whole" / "index.i64").write_bytes(b"")
    assert content(pack(open_reader(path), tmp_path / "whole", path)) == wanted


def interrupt(path, folder, monkeypatch):
    def stop(done, total):
        assert total == 20_000
        if done > 3_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack(open_reader(path), folder, path, stop)


def fill_the_disk(path, folder, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(packing.os, "fsync", full)
        with pytest.raises(UserError, match=r"store: the disk is full after [\d,]+ bytes; make room"):
            pack(open_reader(path), folder, path)


KILLED = """
import os, signal, sys
from pathlib import Path
from tespec.events.opening import open_reader
from tespec.events.packing import pack
def stop(done, total):
    os.kill(os.getpid(), signal.SIGKILL)
path, store = map(Path, sys.argv[1:])
pack(open_reader(path), store, path, stop)
"""


def kill(path, folder, monkeypatch):
    assert subprocess.run([sys.executable, "-c", KILLED, path, folder]).returncode == -signal.SIGKILL
    (folder.parent / ".store.unfinished").rename(folder.parent / ".store.stale")  # any of the two is cleared


@pytest.mark.parametrize("stop", [interrupt, fill_the_disk, kill])
def test_what_is_not_finished_is_no_store_and_is_cleared(recording, tmp_path, monkeypatch, stop):
    path, wanted = recording
    stop(path, tmp_path / "store", monkeypatch)
    assert not (tmp_path / "store").exists()
    pack(open_reader(path), tmp_path / "store", path)
    assert content(tmp_path / "store") == wanted
    assert names(tmp_path) == ["a.dat", "store", "whole"]


TWO_AT_ONCE = """
import sys
from pathlib import Path
from tespec.events.opening import open_reader
from tespec.events.packing import pack
path, store = map(Path, sys.argv[1:])
reader, seen = open_reader(path), []
print("ready", flush=True)
sys.stdin.readline()
pack(reader, store, path, lambda done, total: seen.append(done))
print(bool(seen))
"""


def test_of_processes_that_pack_the_same_file_at_once_one_does_the_work(recording, tmp_path):
    path, wanted = recording
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    command = [sys.executable, "-c", TWO_AT_ONCE, path, tmp_path / "store"]
    started = [subprocess.Popen(command, text=True, **pipes) for _ in range(2)]
    for each in started:
        assert each.stdout.readline() == "ready\n"
    for each in started:
        each.stdin.write("go\n")
        each.stdin.flush()
    said = [each.communicate(timeout=120) for each in started]
    assert sorted(said) == [("False\n", ""), ("True\n", "")]
    assert content(tmp_path / "store") == wanted
    assert names(tmp_path) == ["a.dat", "store", "whole"]


@pytest.mark.parametrize(("size", "t"), [((1025, 8), [1]), ((6, 8), [0, 8 * 24 * 3600 * 10**6])])
def test_arrays_that_cannot_be_packed_are_refused(size, t):
    zeros = np.zeros(len(t), int)
    with pytest.raises(ValueError, match="cannot be packed"):
        ArrayStream(zeros, zeros, np.array(t), zeros, *size)

"""Packed stores: lossless, in the documented layout, written atomically, refused when damaged."""

import errno
import hashlib
import json
import multiprocessing
import os
import signal
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
from event_files import (
    assert_same_events,
    event_arrays,
    in_memory,
    parts_of,
    random_events,
    reader_of,
    whole,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from tespec.core import hashes
from tespec.core.errors import UserError
from tespec.core.files import OPEN_FILES
from tespec.events import Events, files, packing, readers, store, window_histograms
from tespec.events.opening import open_reader
from tespec.events.packing import pack, pack_in_memory
from tespec.events.readers.dat import write_dat
from tespec.events.store import Facts, open_store

FORK = multiprocessing.get_context("fork")
FORKS = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on


def sha256(content):
    return hashlib.sha256(content).hexdigest()


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def content(folder):
    return {name: (folder / name).read_bytes() for name in names(folder)}


def stored(path, **options):
    """Pack a recording of 1,000 random events into a store beside it; returns its path."""
    return pack(reader_of(path, random_events(1_000, **options)), path.with_suffix(".store"))


@settings(max_examples=30)
@given(
    event_arrays(),
    st.lists(st.tuples(st.integers(-3_000, 5_000), st.integers(-3_000, 5_000)), max_size=8),
)
def test_what_is_packed_is_read_in_any_slice(tmp_path_factory, events, slices):
    folder = tmp_path_factory.mktemp("stores")
    for each in (
        in_memory(*events),
        open_store(pack(reader_of(folder / "a", events), folder / "store")),
    ):
        assert (each.height, each.width, each.count) == (6, 8, len(events.t))
        assert (each.t_first, each.t_last) == (events.t[0], events.t[-1])
        for t0, t1 in [(-10_000, 10_000), *slices]:
            kept = (events.t >= t0) & (events.t < t1)
            assert_same_events(each.slice(t0, t1), Events(*(column[kept] for column in events)))


def test_words_index_and_header_are_laid_out_as_described(tmp_path):
    source = tmp_path / "dir0"
    (source / "imgs").mkdir(parents=True)
    (source / "b").write_bytes(b"recording")
    (source / "a").write_bytes(b"the ")
    day = 1_700_000_000_000_000
    events = Events(
        *map(np.array, ([2046, 1, 1], [3, 1023, 0], [day + 999, day - 1000, day + 2000], [1, 0, 0]))
    )
    folder = pack(
        reader_of(source, *parts_of(events, 3), height=1024, width=2047),
        tmp_path / "stores" / "store",
    )
    assert names(folder) == ["events.u32", "header.json", "index.i64"]
    words = np.fromfile(folder / "events.u32", "<u4")
    assert words.tolist() == [2046 | 3 << 11 | 1 << 21 | 999 << 22, 1 | 1023 << 11 | 999 << 22, 1]
    assert np.fromfile(folder / "index.i64", "<i8").tolist() == [0, 2, 2, 3]
    assert json.loads((folder / "header.json").read_text()) == {
        "format": "tespec packed events",
        "version": 3,
        "height": 1024,
        "width": 2047,
        "count": 3,
        "t_first": day + 999,
        "t_last": day + 2000,
        "clamped": 1,
        "dropped": 0,
        "source": {
            "name": "dir0",
            "bytes": 13,
            "sha256": sha256(b"the recording"),
            "files": [
                # A file shorter than the sample is both its head and its tail.
                {"name": "a", "bytes": 4, "sampled_sha256": sha256(b"the the ")},
                {"name": "b", "bytes": 9, "sampled_sha256": sha256(b"recordingrecording")},
            ],
        },
        "sha256": {
            name: sha256((folder / name).read_bytes()) for name in ("events.u32", "index.i64")
        },
    }
    assert open_store(folder).facts == Facts(
        1024, 2047, 3, day + 999, day + 2000, clamped=1, dropped=0
    )


@pytest.fixture
def recording(tmp_path, monkeypatch):
    """Path of a file that is read in blocks of 500 events, and the content of its store."""
    monkeypatch.setattr(readers, "BLOCK", 500)
    path = tmp_path / "a.dat"
    write_dat(path, *random_events(20_000, height=60, width=80, end=3_000_000), 60, 80)
    return path, content(pack(open_reader(path), tmp_path / "whole"))


def test_a_packed_recording_is_hashed_once(tmp_path, monkeypatch):
    path, hashed = tmp_path / "a", []
    monkeypatch.setattr(hashes, "sha256_of", lambda *paths: hashed.append(paths) or "0" * 64)
    reader = reader_of(path, random_events(1_000))
    os.utime(path, (0, 0))  # a file that was just written is hashed again
    header = json.loads((pack(reader, tmp_path / "store") / "header.json").read_text())
    assert header["source"]["sha256"] == files.content_sha256(path) == "0" * 64
    assert hashed == [(path,)]


def test_chunks_of_any_length_give_the_same_store(tmp_path):
    events = random_events(1_000, end=500_000)
    t = events.t.copy()
    t[100] -= 3_000  # times that step back are raised to the latest time before them
    t[500:] += 60_000_000  # a silence
    wanted, stores = events._replace(t=np.maximum.accumulate(t)), []
    for count in (1_000, 143, 1):
        reader = reader_of(tmp_path / "a", *parts_of(events._replace(t=t), count))
        stores.append(content(pack(reader, tmp_path / str(count))))
        for stream in (open_store(tmp_path / str(count)), pack_in_memory(reader)):
            assert stream.clamped == (t != wanted.t).sum() > 0
            assert_same_events(whole(stream), wanted)
    assert stores[0] == stores[1] == stores[2]


@pytest.mark.parametrize(
    ("t", "size", "message"),
    [
        ([1], (1025, 8), "its sensor of 8x1025 px is too large for a packed store"),
        ([1], (6, 2048), "its sensor of 2048x6 px is too large"),
        ([0, 9 * 3600 * 10**6], (6, 8), "has times from 0 to 32,400,000,000 us, over 8 h or"),
    ],
)
def test_what_cannot_be_packed_is_refused(tmp_path, t, size, message):
    events = random_events(len(t))._replace(t=np.array(t))
    reader = reader_of(tmp_path / "a.raw", events, height=size[0], width=size[1])
    for call in (lambda: pack(reader, tmp_path / "store"), lambda: pack_in_memory(reader)):
        with pytest.raises(UserError, match=message):
            call()
    assert names(tmp_path) == ["a.raw"]


def write_header(folder, **change):
    (folder / "header.json").write_text(
        json.dumps(json.loads((folder / "header.json").read_text()) | change)
    )


def write_array(folder, name, place, value):
    array = np.fromfile(folder / name, "<u4" if name == "events.u32" else "<i8")
    array[place] = value
    array.tofile(folder / name)


LOST, TORN, HEADER = (
    "is missing or truncated; pack",
    "do not match each other",
    r"header\.json: not a readable header",
)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "events.u32").unlink(), LOST),
        (lambda f: (f / "events.u32").write_bytes(b"abc"), LOST),
        (lambda f: (f / "events.u32").write_bytes(b"abcd"), TORN),
        (lambda f: (f / "header.json").write_text("{"), HEADER),
        (lambda f: (f / "header.json").unlink(), HEADER),
        (
            lambda f: write_header(f, version=2),
            f"{HEADER} of format version 3; pack the recording again",
        ),
        (lambda f: write_header(f, width="8"), HEADER),
        (lambda f: write_header(f, source=None), HEADER),
        *(
            (
                lambda f, files=files: write_header(
                    f, source={"name": "a", "sha256": "", "files": files}
                ),
                HEADER,
            )
            for files in (None, 5, [["a"]], ["a"])
        ),
        *((lambda f, t=t: write_header(f, t_last=t), HEADER) for t in (-1, 10**30, 30_000 * 10**6)),
        (lambda f: write_header(f, t_last=60_000), TORN),
        (lambda f: write_header(f, dropped=-1), HEADER),
        (lambda f: write_header(f, count=999), TORN),
        (lambda f: write_array(f, "index.i64", 0, 1), TORN),
        (lambda f: write_array(f, "index.i64", 3, 10**6), TORN),
        (lambda f: write_array(f, "index.i64", slice(1, 3), 0), TORN),
        # overflows int64
        (lambda f: write_array(f, "index.i64", slice(3, 5), [8 * 10**18, -8 * 10**18]), TORN),
    ],
)
def test_a_damaged_store_is_refused(tmp_path, damage, message):
    folder = stored(tmp_path / "a")
    damage(folder)
    with pytest.raises(UserError, match=message) as caught:
        open_store(folder)
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("change", [31, 1023 << 22], ids=["column outside", "microsecond outside"])
def test_damaged_words_are_refused_where_they_are_read(tmp_path, change):
    folder, at = stored(tmp_path / "a"), int(random_events(1_000).t[200])
    write_array(folder, "events.u32", 200, np.fromfile(folder / "events.u32", "<u4")[200] | change)
    stream = open_store(folder)
    assert len(stream.slice(0, at // 1000 * 1000).t)
    for read in (
        lambda: stream.slice(at, at + 1),
        lambda: window_histograms(stream, [(0, 50_000)], 10),
    ):
        with pytest.raises(UserError, match="damaged"):
            read()


def test_open_stores_are_mapped_anew_so_that_open_files_are_bounded(tmp_path, monkeypatch):
    assert 2 * store._mapped.cache_parameters()["maxsize"] <= OPEN_FILES
    monkeypatch.setattr(store, "_mapped", store.lru_cache(maxsize=2)(store._mapped.__wrapped__))
    streams = [open_store(stored(tmp_path / str(seed), seed=seed)) for seed in range(5)]
    for seed in (0, 1, 2, 3, 4, 0):
        assert_same_events(whole(streams[seed]), random_events(1_000, seed=seed))
    assert store._mapped.cache_info().currsize == 2


def test_a_complete_store_of_the_same_recording_stays_and_any_other_is_replaced(
    recording, tmp_path
):
    path, wanted = recording
    before = (tmp_path / "whole" / "events.u32").stat().st_mtime_ns
    assert pack(open_reader(path), tmp_path / "whole") == tmp_path / "whole"
    assert (tmp_path / "whole" / "events.u32").stat().st_mtime_ns == before
    (tmp_path / "files").mkdir()
    with pytest.raises(UserError, match="exists but is not a packed store; remove it"):
        pack(open_reader(path), tmp_path / "files")
    (tmp_path / "whole" / "index.i64").write_bytes(b"")
    assert content(pack(open_reader(path), tmp_path / "whole")) == wanted
    assert open_store(pack(replace(open_reader(path), width=90), tmp_path / "whole")).width == 90
    write_dat(path, *random_events(9, height=60, width=80), 60, 80)
    assert open_store(pack(open_reader(path), tmp_path / "whole")).count == 9


def fill_the_disk(path, folder, monkeypatch):
    full = OSError(errno.ENOSPC, "No space left on device")
    with monkeypatch.context() as patch:
        patch.setattr(packing.os, "fsync", Mock(side_effect=full))
        with pytest.raises(
            UserError, match=r"No space left on device\); the events need about 80,000 bytes; free"
        ):
            pack(open_reader(path), folder)


def killed(*arguments):
    process = FORK.Process(target=pack, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def kill(path, folder, monkeypatch):
    killed(open_reader(path), folder, lambda done, total: signal.raise_signal(9))
    assert ".store.unfinished" in names(folder.parent)


def kill_in_a_deletion(path, folder, monkeypatch):
    def delete_one_file(path, **more):
        if path.exists():
            (path / "header.json").unlink()
            signal.raise_signal(9)

    pack(replace(open_reader(path), width=90), folder)
    with monkeypatch.context() as patch:
        patch.setattr(packing.shutil, "rmtree", delete_one_file)
        killed(open_reader(path), folder)


@FORKS
@pytest.mark.parametrize("stop", [fill_the_disk, kill, kill_in_a_deletion])
def test_what_is_not_finished_is_no_store_and_is_cleared(recording, tmp_path, monkeypatch, stop):
    path, wanted = recording
    stop(path, tmp_path / "store", monkeypatch)
    assert not (tmp_path / "store").exists() or content(tmp_path / "store") == wanted
    pack(open_reader(path), tmp_path / "store")
    assert content(tmp_path / "store") == wanted
    # The next replacement clears what a killed deletion left.
    assert {*names(tmp_path)} - {".store.replaced"} == {"a.dat", "store", "whole"}


@FORKS
def test_of_processes_that_pack_the_same_file_at_once_one_does_the_work(recording, tmp_path):
    path, wanted = recording
    together, worked = FORK.Barrier(2), FORK.SimpleQueue()

    def work():
        seen = []
        together.wait(60)
        pack(open_reader(path), tmp_path / "store", lambda done, total: seen.append(done))
        worked.put(bool(seen))

    processes = [FORK.Process(target=work) for _ in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert sorted(worked.get() for _ in processes) == [False, True]
    assert content(tmp_path / "store") == wanted
    assert names(tmp_path) == ["a.dat", "store", "whole"]

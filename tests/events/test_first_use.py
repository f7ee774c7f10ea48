"""A recording is packed when it is opened for the first time, once, into the cache."""

import os
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest
from event_cases import assert_same_events, random_events
from recording_files import ddd17

from tespec.core.errors import UserError
from tespec.core.files import one_at_a_time
from tespec.datasets.finding import Recordings
from tespec.datasets.prepare import prepare
from tespec.events import load_events, open_events, opening, packing
from tespec.events.opening import cache_path, open_reader
from tespec.events.packing import pack
from tespec.events.readers.prophesee import write_dat
from tespec.events.readers.records import read_records
from tespec.events.store import store_of

REAL = Path(__file__).parents[1] / "data"
EVENTS = random_events(3_000, height=60, width=80, end=300_000)
Usage = namedtuple("Usage", "total used free")


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def recording(tmp_path):
    write_dat(tmp_path / "a.dat", *EVENTS, 60, 80)
    return tmp_path / "a.dat"


def stores(cache):
    return sorted(path.name for path in (cache / "stores").iterdir())


def everything(stream):
    return stream.slice(stream.t_first, stream.t_last + 1)


@pytest.mark.parametrize("name", ["evt3_640x480_2.08s.raw", "davis.aedat4"])
def test_a_recording_is_read_once(cache, tmp_path, monkeypatch, name):
    path = tmp_path / name
    shutil.copyfile(REAL / name, path)
    wanted = load_events(path)
    first = open_events(path)
    facts = ("height", "width", "count", "t_first", "t_last", "clamped")
    assert [getattr(first, fact) for fact in facts] == [getattr(wanted, fact) for fact in facts]
    assert len(stores(cache)) == 1
    monkeypatch.setattr(opening, "pack", None)
    second = open_events(path)
    assert second.folder == first.folder
    assert_same_events(everything(second), everything(wanted))
    middle = (wanted.t_first + wanted.t_last) // 2
    assert_same_events(second.slice(middle, middle + 5_000), wanted.slice(middle, middle + 5_000))


def test_a_file_that_changed_is_packed_again_and_its_old_store_goes(cache, recording):
    open_events(recording)
    (before,) = stores(cache)
    content = bytearray(recording.read_bytes())
    content[len(content) // 2] ^= 1  # as large as before, and the same at both ends
    facts = recording.stat()
    recording.write_bytes(content)
    os.utime(recording, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    assert_same_events(everything(open_events(recording)), everything(load_events(recording)))
    (after,) = stores(cache)
    assert after != before


def test_files_and_sizes_do_not_share_a_store(cache, recording, tmp_path):
    shutil.copyfile(recording, tmp_path / "b.dat")
    content = recording.read_bytes()
    (tmp_path / "c.dat").write_bytes(b"% Version 2\n" + content[content.index(b"\x0c\x08") :])
    for path, *size in (
        (recording,),
        (tmp_path / "b.dat",),
        (tmp_path / "c.dat", 60, 80),
        (tmp_path / "c.dat", 90, 80),
    ):
        stream = open_events(path, *size)
        assert [stream.height, stream.width] == (size or [60, 80])
        assert stream.count == 3_000
    assert len(stores(cache)) == 4


@pytest.mark.parametrize("harm", ["header.json", "events.u32", "index.i64"])
def test_a_damaged_store_in_the_cache_is_made_again(cache, recording, harm):
    folder = open_events(recording).folder
    (folder / harm).write_bytes(b"x" * 7)
    assert_same_events(everything(open_events(recording)), EVENTS)


def test_a_store_beside_the_recording_is_read_in_its_place(cache, recording):
    pack(open_reader(recording), store_of(recording), recording)
    assert open_events(recording).folder == store_of(recording)
    assert not cache.exists()
    write_dat(recording, *random_events(3_000, height=60, width=80, end=300_000, seed=1), 60, 80)
    with pytest.raises(UserError, match=r"a\.dat\.store: was made from another version of a\.dat .*prepare the rec"):
        open_events(recording)
    recording.unlink()
    assert_same_events(everything(open_events(recording)), EVENTS)


def test_so_is_that_in_a_folder(cache, tmp_path):
    folder = ddd17(tmp_path / "dir0", random_events(2_000, height=260, width=346, end=200_000))
    wanted = everything(open_events(folder))
    pack(open_reader(folder), store_of(folder), folder)
    assert open_events(folder).folder == folder / "events.store"
    for name in ("events.dat.t", "events.dat.xyp"):
        (folder / name).unlink()
    assert_same_events(everything(open_events(folder)), wanted)


def test_preparing_a_recording_leaves_no_second_store(cache, recording):
    open_events(recording)
    prepare(Recordings(recording))
    assert stores(cache) == []
    assert open_events(recording).folder == store_of(recording)


def test_no_room_is_seen_before_anything_is_written(cache, recording, monkeypatch):
    monkeypatch.setattr(packing.shutil, "disk_usage", lambda path: Usage(10**9, 10**9, 11_999))
    with pytest.raises(UserError) as caught:
        open_events(recording)
    what = "has 11,999 bytes free, the packed events of a.dat need about 12,000; make room, let TESPEC_CACHE name"
    assert f"{cache / 'stores'}: {what}" in str(caught.value)
    assert stores(cache) == []


def test_a_cache_that_cannot_be_written_to_is_named(cache, recording):
    cache.write_text("a file where a folder should be")
    with pytest.raises(UserError, match=r"cannot be written to \(.*; make room, let TESPEC_CACHE name another folder"):
        open_events(recording)


def test_what_cannot_be_read_leaves_nothing(cache, tmp_path):
    path = tmp_path / "a.dat"
    write_dat(path, *EVENTS, 60, 80)
    path.write_bytes(path.read_bytes().replace(b"Height 60", b"Height 20"))
    with pytest.raises(UserError, match=r"a\.dat: has events on \d+x\d+ px, its sensor is 80x20 px"):
        open_events(path)
    assert stores(cache) == []


OPENING = """
import sys
from tespec.events import open_events
print("ready", flush=True)
sys.stdin.readline()
print(open_events(sys.argv[1]).count)
"""


def test_a_process_waits_for_the_one_that_packs_and_says_so(cache, recording):
    folder = cache_path(open_reader(recording))
    with one_at_a_time(folder):
        other = subprocess.Popen(
            [sys.executable, "-c", OPENING, recording],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        other.stdin.write("go\n")
        other.stdin.flush()
        said = other.stderr.readline()
        assert said == f"{recording}: another process packs it; waiting for it\n"
        assert stores(cache) == [f".{folder.name}.lock"]
    out, err = other.communicate(timeout=120)
    assert (other.returncode, out.split()[-1], err) == (0, "3000", "")


def test_packing_that_takes_long_shows_its_progress(cache, recording, monkeypatch, capsys):
    monkeypatch.setattr(opening, "QUIET_SECONDS", -1.0)
    monkeypatch.setattr("tespec.core.progress.SECONDS_BETWEEN_LINES", -1.0)
    open_events(recording)
    assert "packing a.dat: 3000/3000 events" in capsys.readouterr().err


def test_packing_that_takes_no_time_shows_nothing(cache, recording, capsys):
    open_events(recording)
    assert capsys.readouterr().err == ""


def test_records_are_read_some_at_a_time(tmp_path):
    kind = np.dtype([("t", "<u4"), ("word", "<u4")])
    rows = np.zeros(100, kind)
    rows["t"], rows["word"] = np.arange(100), np.arange(100) ** 2
    path = tmp_path / "a"
    path.write_bytes(b"header" + rows.tobytes())
    parts = list(read_records(path, kind, 6, 100, 30))
    assert [len(part) for part in parts] == [30, 30, 30, 10]
    np.testing.assert_array_equal(np.concatenate(parts), rows)
    path.write_bytes(path.read_bytes()[:300])
    with pytest.raises(UserError, match="has become shorter since it was opened; copy it again"):
        list(read_records(path, kind, 6, 100, 30))
    path.unlink()
    with pytest.raises(UserError, match=r"a: cannot be read \(No such file or directory\)"):
        list(read_records(path, kind, 6, 100, 30))

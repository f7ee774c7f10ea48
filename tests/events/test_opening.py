"""Opening: a store is mapped, a recording without one is read through or refused, and nothing is ever written."""

import os
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest
from event_cases import assert_same_events, random_events
from recording_files import ddd17, evt3, evt3_events

import tespec
from tespec.cli.main import main
from tespec.core.errors import UserError
from tespec.datasets import sources
from tespec.datasets.prepare import pack_missing
from tespec.datasets.sources import EventSource
from tespec.events import ArrayStream, PackedEvents, load_events, open_events
from tespec.events.opening import open_reader
from tespec.events.packing import pack
from tespec.events.readers.prophesee import write_dat
from tespec.events.store import store_of

REAL = Path(__file__).parents[1] / "data"
EVENTS = random_events(400, height=260, width=346, end=200_000)


@pytest.fixture
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def recording(tmp_path):
    write_dat(tmp_path / "a.dat", *EVENTS, 260, 346)
    return tmp_path / "a.dat"


def everything(stream):
    return stream.slice(stream.t_first, stream.t_last + 1)


def listed(*folders):
    """Every file below some folders, with its size and its time of change."""
    files = (path for folder in folders for path in folder.rglob("*"))
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def play(world, out):
    network = tespec.models.EventSwin(arch="micro", img_size=(64, 96)).eval()
    network.recipe = {"window_ms": 50.0, "bins": 10, "rule": "edges", "downsample": {"factor": 1, "keep": "nearest"}}
    path = world / "1mpx" / "train" / "moorea_2019-02-19_000_td_500000_8500000_td.dat"
    assert next(tespec.stream(path, network))[0]


def words(text):
    return lambda world, out: main(text.format(world=world, out=out, real=REAL).split())


LOOKS = {
    "check": words("data check dsec {world}/dsec"),
    "check --quick": words("data check ddd17 {world}/ddd17 --quick"),
    "check --out": words("data check mvsec {world}/mvsec --quick --out {out}/a.csv"),
    "preview": words("data preview gen1 {world}/gen1 --out {out}/a.png"),
    "preview recordings": words("data preview recordings {real}/davis.aedat4 --at 0.08 --high-pass --out {out}/a.png"),
    "run --dry-run": words("run --method tespec --task gen1 --data {world} --dry-run"),
    "pretrain --dry-run": words("pretrain --method tespec --data {world} --dry-run"),
    "tespec.stream": play,
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_writes_nothing(cache, tiny_world, tmp_path, tmp_path_factory, monkeypatch, look):
    monkeypatch.chdir(tmp_path)
    before = listed(tiny_world, tmp_path, REAL)
    assert not LOOKS[look](tiny_world, tmp_path_factory.mktemp("pictures"))
    assert listed(tiny_world, tmp_path, REAL) == before


def as_raw(folder):
    return evt3(folder / "a.raw", *evt3_events(EVENTS))


def as_dat(folder):
    write_dat(folder / "a.DAT", *EVENTS, 260, 346)
    return folder / "a.DAT"


def as_ddd17(folder):
    return ddd17(folder / "dir0", EVENTS)


def as_store(folder):
    return pack(ArrayStream(*EVENTS, 260, 346), folder / "a")


@pytest.mark.parametrize("write", [as_raw, as_dat, as_ddd17, as_store])
def test_every_format_gives_the_same_events_packed_or_not(cache, tmp_path, write):
    path = write(tmp_path)
    streams = [load_events(str(path)), EventSource(path).stream]
    pack_missing([EventSource(path)])
    streams += [open_events(path), EventSource(path).stream]
    for stream in streams:
        assert isinstance(stream, PackedEvents)
        assert (stream.count, stream.t_first, stream.t_last) == (400, EVENTS.t[0], EVENTS.t[-1])
        assert_same_events(stream.slice(0, 200_000), EVENTS)
        kept = (EVENTS.t >= 50_123) & (EVENTS.t < 61_007)
        assert_same_events(stream.slice(50_123, 61_007), type(EVENTS)(*(column[kept] for column in EVENTS)))
        assert len(stream.slice(61_007, 50_123).t) == 0


def test_what_is_not_packed_is_refused_with_what_to_do(cache, recording):
    with pytest.raises(UserError) as caught:
        open_events(recording)
    remedy = f"pack it (benchmarks/data.py prepare recordings {recording}), or read it whole with load_events"
    assert str(caught.value) == f"{recording}: is not packed; {remedy}"
    assert not cache.exists()


def test_a_store_in_the_cache_is_known_by_content_wherever_the_recording_lies(cache, recording, tmp_path):
    pack_missing([EventSource(recording)])
    (store,) = (cache / "stores").iterdir()
    (tmp_path / "mounted elsewhere").mkdir()
    moved = recording.rename(tmp_path / "mounted elsewhere" / "a.dat")
    assert open_events(moved).path == store
    content = bytearray(moved.read_bytes())
    content[len(content) // 2] ^= 1  # as large as before, and the same at both ends
    facts = moved.stat()
    moved.write_bytes(content)
    os.utime(moved, ns=(facts.st_atime_ns, facts.st_mtime_ns + 1))
    with pytest.raises(UserError, match="is not packed"):
        open_events(moved)
    assert_same_events(everything(EventSource(moved).stream), everything(load_events(moved)))


def test_files_and_sizes_do_not_share_a_store(cache, recording, tmp_path):
    shutil.copyfile(recording, tmp_path / "b.dat")
    content = recording.read_bytes()
    (tmp_path / "c.dat").write_bytes(b"% Version 2\n" + content[content.index(b"\x0c\x08") :])
    sources = [EventSource(recording), EventSource(tmp_path / "b.dat")]
    sources += [EventSource(tmp_path / "c.dat", size) for size in ((260, 346), (300, 346))]
    pack_missing(sources)
    assert len(list((cache / "stores").iterdir())) == 4
    assert [source.stream.height for source in sources] == [260, 260, 260, 300]


@pytest.mark.parametrize("harm", ["header.json", "events.u32", "index.i64"])
def test_a_damaged_store_in_the_cache_is_made_again(cache, recording, harm):
    pack_missing([EventSource(recording)])
    (store,) = (cache / "stores").iterdir()
    (store / harm).write_bytes(b"x" * 7)
    with pytest.raises(UserError, match="is not packed"):
        open_events(recording)
    pack_missing([EventSource(recording)])
    assert_same_events(everything(open_events(recording)), EVENTS)


@pytest.mark.parametrize("write", [as_dat, as_ddd17])
def test_a_store_beside_the_recording_is_read_in_its_place(cache, tmp_path, write):
    path = write(tmp_path)
    store = pack(open_reader(path), store_of(path), path)
    pack_missing([EventSource(path)])
    assert open_events(path).path == store
    assert not cache.exists()
    file = path if path.is_file() else path / "events.dat.t"
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(UserError, match=r"\.store: was made from another version of .*prepare the recording again"):
        open_events(path)
    for each in [path] if path.is_file() else list(path.glob("events.dat.*")):
        each.unlink()
    assert_same_events(everything(open_events(path)), EVENTS)


def test_preparing_a_recording_leaves_no_second_store(cache, recording):
    pack_missing([EventSource(recording)])
    pack_missing([EventSource(recording)], beside=True)
    assert list((cache / "stores").iterdir()) == []
    assert open_events(recording).path == store_of(recording)


def test_what_is_no_recording_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no events")
    (tmp_path / "plain").write_text("no events")
    (tmp_path / "empty.raw").write_bytes(b"")
    (tmp_path / "folder.dat").mkdir()
    for name, message in (
        ("gone.raw", "no such file or folder; check the path"),
        ("notes.txt", r"no reader for '\.txt'; give a file of \.aedat4, "),
        ("plain", "no reader for 'files without a suffix'"),
        ("empty.raw", "the file is empty; copy it again"),
        ("folder.dat", "neither a packed store nor a DDD17 recording"),
    ):
        for opening in (open_events, load_events):
            with pytest.raises(UserError, match=message) as caught:
                opening(tmp_path / name)
            assert str(tmp_path / name) in str(caught.value)


def test_sizes_that_do_not_fit_are_refused(cache, tmp_path):
    folder = as_store(tmp_path)
    assert open_events(folder, 260, 346).height == 260
    with pytest.raises(UserError, match="its sensor is 346x260 px, not 640x480"):
        open_events(folder, 480, 640)
    for opening in (open_events, load_events):
        with pytest.raises(ValueError, match="both height and width"):
            opening(as_raw(tmp_path), height=480)


def test_one_recording_that_is_not_packed_is_held_at_a_time_and_read_once(cache, tmp_path, monkeypatch):
    paths, read = [tmp_path / f"{number}.dat" for number in range(3)], []
    for path in paths:
        write_dat(path, *EVENTS, 260, 346)
    with h5py.File(tmp_path / "map.h5", "w") as file:
        file["rectify_map"] = np.stack(np.mgrid[:260, :346][::-1], axis=-1).astype(np.float32)
    monkeypatch.setattr(sources, "load_events", lambda path, *size: read.append(path) or load_events(path, *size))
    streams = [EventSource(path).stream for path in paths]
    assert EventSource(paths[-1]).stream is streams[-1]
    rectified = EventSource(paths[-1], None, tmp_path / "map.h5").stream
    assert_same_events(everything(rectified), everything(streams[0]))
    assert read == paths
    assert sources._in_memory.cache_info().currsize == sources._loaded.cache_info().currsize == 1

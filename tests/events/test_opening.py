"""Opening recordings: stores are memory-mapped, small recordings loaded, large ones packed."""

import json
import os
import pickle
import re
import shutil
import signal
import zlib
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from event_files import (
    assert_refused,
    assert_same_events,
    dat,
    ddd17,
    evt3,
    evt3_events,
    random_events,
    read,
    whole,
)
from twins import fingerprint

import tespec
from tespec.cli.main import main
from tespec.core.errors import UserError
from tespec.core.files import read_yaml
from tespec.core.paths import cache_root
from tespec.core.settings import Binning, Downsample, HistogramSpec
from tespec.datasets.folder import find_recordings, split_train_val
from tespec.datasets.labels import MaskFiles, read_label_times
from tespec.datasets.sources import EventSource, pack_missing
from tespec.events import open_events, opening, readers
from tespec.events.cache import cached_store
from tespec.events.opening import open_reader
from tespec.events.packing import pack, scan
from tespec.events.readers.arrays import load_array, load_arrays
from tespec.events.readers.dat import write_dat
from tespec.events.store import open_store, store_of
from tespec.inference import find

REAL = Path(__file__).parents[1] / "data"
RAW = REAL / "evt3_640x480_2.08s.raw"
SPEC = HistogramSpec(
    bins=10,
    rule="edges",
    window_ms=50.0,
    downsample=Downsample(1, "nearest"),
    size=(64, 96),
    segments=5,
    reset=False,
)
EVENTS = random_events(400, height=260, width=346, end=200_000)


def listed(*folders):
    """Path, size and modification time of every file below the folders."""
    files = (path for folder in folders for path in folder.rglob("*"))
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def play(world, out):
    network = tespec.models.EventSwin(backbone="swin_micro", img_size=(64, 96)).eval()
    network.recipe = {"histograms": asdict(SPEC)}
    path = world / "1mpx" / "train" / "moorea_2019-02-19_000_td_500000_8500000_td.dat"
    assert next(tespec.stream(path, network))


def command(text):
    return lambda world, out: main(text.format(world=world, out=out, real=REAL).split())


LOOKS = {
    "check": command("data check dsec {world}/dsec"),
    "preview": command("data preview gen1 {world}/gen1 --out {out}/a.png"),
    "run --dry-run": command("run --method tespec --task gen1 --data {world} --dry-run"),
    "pretrain --dry-run": command("pretrain --method tespec --data {world} --dry-run"),
    "tespec.stream": play,
}


@pytest.mark.parametrize("look", LOOKS)
def test_a_look_writes_nothing(without_data, tiny_world, tmp_path, tmp_path_factory, look):
    before = listed(tiny_world, tmp_path, REAL)
    assert not LOOKS[look](tiny_world, tmp_path_factory.mktemp("pictures"))
    assert listed(tiny_world, tmp_path, REAL) == before


FORMATS = {
    "raw": lambda folder: evt3(folder / "a.raw", *evt3_events(EVENTS)),
    "dat": lambda folder: write_dat(folder / "a.DAT", *EVENTS, 260, 346) or folder / "a.DAT",
    "ddd17": lambda folder: ddd17(folder / "dir0", EVENTS),
    "store": lambda folder: pack(open_reader(FORMATS["dat"](folder)), folder / "a"),
}


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_the_same_events_packed_or_not(without_data, tmp_path, kind):
    path = FORMATS[kind](tmp_path)
    streams = [open_events(str(path)), EventSource(path).stream]
    pack_missing([EventSource(path)])
    for stream in (*streams, open_events(path)):
        assert_same_events(whole(stream), EVENTS)
    assert EventSource(path).stream.path == open_events(path).path


def test_a_large_recording_is_packed_into_the_cache_and_a_small_one_is_not(
    without_data, tmp_path, monkeypatch
):
    path, stores = FORMATS["dat"](tmp_path), tmp_path / "cache" / "stores"
    assert_same_events(whole(open_events(path)), EVENTS)
    assert not stores.exists()
    monkeypatch.setattr(opening, "IN_MEMORY", 399)
    stream = open_events(path)
    assert_same_events(whole(stream), EVENTS)
    assert [stream.path] == list(stores.iterdir())
    assert EventSource(path).facts == EventSource(path).scanned().facts == scan(open_reader(path))


def files_in(stores):
    """Folders of stores in the cache, without the links to them."""
    return [path for path in stores.iterdir() if not path.is_symlink()]


def test_one_content_has_one_store_whatever_its_name_place_and_time(without_data, tmp_path):
    """A change between the first and the last 64 kB shows in the file's time and content hash."""
    recording, stores = tmp_path / "a.dat", tmp_path / "cache" / "stores"
    events = random_events(40_000, height=260, width=346, end=200_000)
    write_dat(recording, *events, 260, 346)
    pack_missing([EventSource(recording)])
    (store,) = stores.iterdir()
    (tmp_path / "mounted: elsewhere").mkdir()
    moved = recording.rename(tmp_path / "mounted: elsewhere" / "b.dat")
    assert open_events(moved).path == store
    os.utime(moved, (1, 1))
    assert open_events(moved).path == store
    shutil.copy(moved, recording)
    pack_missing([EventSource(recording)])
    assert files_in(stores) == [store]
    assert cached_store(replace(open_reader(moved), height=300)) != store
    content = bytearray(recording.read_bytes())
    content[-20_000 * 8 + 7] ^= 1 << 4  # the polarity of one event
    recording.write_bytes(content)
    os.utime(recording, (3, 3))
    assert np.flatnonzero(whole(open_events(recording)).p != events.p).tolist() == [20_000]
    pack_missing([EventSource(recording)])
    assert len(files_in(stores)) == 2
    assert open_events(moved).path == store
    assert np.flatnonzero(whole(open_events(recording)).p != events.p).tolist() == [20_000]


def test_recordings_and_caches_with_any_name_are_packed(without_data, tmp_path, monkeypatch):
    names = ("2026-01-01T10:00:00", "a  b", "\u8f66" * 60, "one\ntwo", "-", "[x]*", "%s {0}")
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "a:b  [x]* %s {0}\n\u8f66"))
    for name in names:
        path = tmp_path / f"{name}.dat"
        write_dat(path, *EVENTS, 260, 346)
        pack_missing([EventSource(path)])
        assert_same_events(whole(open_events(path)), EVENTS)
    stores = cache_root() / "stores"
    assert len(files_in(stores)) == 1  # they have the same content
    assert all(re.fullmatch("[A-Za-z0-9._-]+", path.name) for path in stores.iterdir())


@pytest.mark.parametrize("harm", ["header.json", "events.u32", "index.i64"])
def test_a_damaged_store_in_the_cache_is_made_again(without_data, tmp_path, harm):
    recording = FORMATS["dat"](tmp_path)
    pack_missing([EventSource(recording)])
    (store,) = (tmp_path / "cache" / "stores").iterdir()
    (store / harm).write_bytes(b"x" * 7)
    assert open_events(recording).path == recording
    pack_missing([EventSource(recording)])
    assert open_events(recording).path == store
    assert_same_events(whole(open_events(recording)), EVENTS)


PIPES = {
    "a.raw": open_events,
    "a.h5": open_events,
    "a": open_events,
    "a.npz": lambda path: load_arrays(path, "xytp"),
    "a.npy": load_array,
    "times.txt": read_label_times,
    "masks.zip": lambda path: MaskFiles(path, ("0.png",))[0],
    "w.safetensors": tespec.load,
    "w.pth": tespec.load,
    "plan.yaml": read_yaml,
    "events.u32": lambda path: open_store(path.parent),
}


@pytest.mark.parametrize("name", PIPES)
def test_a_pipe_is_refused_instead_of_waited_for(tmp_path, name):
    path = tmp_path / name
    if name == "events.u32":
        pack(open_reader(FORMATS["dat"](tmp_path)), tmp_path / "a.store").rename(tmp_path / "store")
        path = tmp_path / "store" / name
        path.unlink()
    os.mkfifo(path)

    def stop(*_):
        raise AssertionError("it waits for the pipe")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(10)
    try:
        with pytest.raises(
            (UserError, OSError), match=f"{name}|cannot be opened .not a regular file"
        ):
            PIPES[name](path)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def test_a_device_is_refused_and_pipes_in_folders_are_no_recordings(tmp_path):
    with pytest.raises(UserError, match=r"/dev/zero: not a regular file; check the path"):
        open_events("/dev/zero")
    for name in ("a.raw", "b.npz", "c"):
        os.mkfifo(tmp_path / name)
    FORMATS["dat"](tmp_path)
    assert find_recordings(tmp_path) == [tmp_path / "a.DAT"]


@pytest.mark.parametrize("kind", ["dat", "ddd17"])
def test_a_store_beside_the_recording_is_read_in_its_place(without_data, tmp_path, kind):
    path = FORMATS[kind](tmp_path)
    pack_missing([EventSource(path)])
    pack_missing([EventSource(path)], in_place=True)
    assert list((tmp_path / "cache" / "stores").iterdir()) == []
    assert open_events(path).path == store_of(path)
    file = path if path.is_file() else path / "events.dat.t"
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(
        UserError, match=r"\.store: was made from another version of .*prepare the recording again"
    ):
        open_events(path)
    for each in [path] if path.is_file() else list(path.glob("events.dat.*")):
        each.unlink()
    assert_same_events(whole(open_events(path)), EVENTS)


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: evt3(
            folder / "a.raw", *evt3_events(random_events(9)), header=b"% evt 3.0\n"
        ),
        lambda folder: dat(folder / "a.dat", [(3, 2, 1, 1)], header="% Version 2\n"),
    ],
)
def test_the_user_goes_before_a_description_beside_the_recording_and_nothing_is_guessed(
    tmp_path, make
):
    path = make(tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({"splits": {"train": ["a"]}}))
    assert_refused(path, r"give --sensor WIDTHxHEIGHT.*% geometry WIDTHxHEIGHT.*dataset\.json")
    (tmp_path / "dataset.json").write_text(json.dumps({"sensor": {"width": 96, "height": 80}}))
    assert open_events(path).width == 96
    assert open_events(path, (120, 160)).width == 160


def test_a_size_that_contradicts_the_file_is_refused(tmp_path):
    for path, own in ((REAL / "davis.aedat4", "346x260"), (RAW, "640x480")):
        assert_refused(path, f"its sensor is {own} px, not 1280x720; omit --sensor", (720, 1280))
    with pytest.raises(UserError, match="its sensor is 346x260 px, not 640x480"):
        open_events(FORMATS["store"](tmp_path), (480, 640))


def test_the_size_reaches_workers_the_fingerprint_and_predictions(tmp_path):
    nameless, content, every = tmp_path / "drive.raw", RAW.read_bytes(), Downsample(1, "nearest")
    # Headers of older recorders do not specify the size.
    nameless.write_bytes(
        b"% Date 2017-03-21 15:02:10\n% evt 3.0\n" + content[content.index(b"% end\n") + 6 :]
    )
    division = split_train_val(nameless.parent, 50, every, (480, 640))
    # Workers receive the recording as a pickle and open it themselves.
    again, real = (
        pickle.loads(pickle.dumps(division.train[0])),
        split_train_val(RAW, 50, every).train[0],
    )
    histograms, expected = (
        recording.histograms(3, 4, Binning(10, "edges")) for recording in (again, real)
    )
    np.testing.assert_array_equal(histograms, expected)
    assert fingerprint(division.train) != fingerprint(
        split_train_val(nameless.parent, 50, every, (720, 1280)).train
    )
    found = find(str(nameless), SPEC, None, None, "640x480")
    assert (found.region.height, found.region.width) == (480, 640)
    for refused in (
        lambda: find(str(nameless), SPEC, None, None),
        lambda: split_train_val(nameless.parent, 50, every),
    ):
        with pytest.raises(UserError, match=r"drive\.raw: does not specify the sensor's size"):
            refused()


# CRC-32 of columns (u2, u2, i8, u1) as decoded by evlib 0.13.2 and aedat 2.3.0.
@pytest.mark.parametrize(
    ("name", "facts", "checksums"),
    [
        (
            "evt3_640x480_2.08s.raw",
            (480, 640, 343_474, 0),
            [1_020_540_681, 2_671_808_845, 1_163_852_150, 2_041_904_026],
        ),
        (
            "davis.aedat4",
            (260, 346, 117_667, 0),
            [1_580_470_145, 1_777_519_670, 4_267_156_144, 3_380_914_417],
        ),
    ],
)
def test_every_event_of_a_real_recording_is_that_of_another_decoder(
    monkeypatch, name, facts, checksums
):
    monkeypatch.setattr(readers, "BLOCK", 77_777)
    stream = open_events(REAL / name)
    assert (stream.height, stream.width, stream.count, stream.clamped) == facts
    assert [
        zlib.crc32(np.ascontiguousarray(column).tobytes()) for column in read(REAL / name)
    ] == checksums


DAT = [(3, 2, 1, 1)]
BAD = {
    "gone.raw": (lambda path: None, "no such file or folder; check the path"),
    "pipe.dat": (os.mkfifo, "not a regular file; check the path"),
    "notes.md": (Path.touch, r"holds no events in a supported format; give a \.dat, \.raw, "),
    "folder.dat": (Path.mkdir, r"holds no events in a supported format; give a \.dat, \.raw, "),
    "outside.dat": (
        lambda path: dat(path, DAT, header="% Height 9\n% Width 2\n"),
        "events on 4x3 px, but its sensor",
    ),
    "none.dat": (lambda path: dat(path, []), "holds no events"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(tmp_path, name):
    make, message = BAD[name]
    path = tmp_path / f"recording ü {name}"
    make(path)
    assert_refused(path, message)

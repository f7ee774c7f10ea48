"""Opening recordings: packed stores are memory-mapped, others are read into memory or refused; nothing is written."""

import json
import os
import pickle
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from event_files import assert_refused, assert_same_events, dat, ddd17, evt3, evt3_events, random_events, whole

import tespec
from tespec.cli.main import main
from tespec.core.errors import UserError
from tespec.core.settings import Binning, Downsample, HistogramSpec
from tespec.datasets.folder import divide
from tespec.datasets.recording import fingerprint
from tespec.datasets.sources import EventSource, pack_missing
from tespec.events import load_events, open_events
from tespec.events.files import cache_path
from tespec.events.opening import open_reader
from tespec.events.packing import pack
from tespec.events.readers.dat import write_dat
from tespec.events.store import store_of
from tespec.inference import find

REAL = Path(__file__).parents[1] / "data"
RAW = REAL / "evt3_640x480_2.08s.raw"
SPEC = HistogramSpec(10, "edges", 50.0, Downsample(1, "nearest"), (64, 96), segments=5, reset=False)
EVENTS = random_events(400, height=260, width=346, end=200_000)


def listed(*folders):
    """Path, size and modification time of every file below the folders."""
    files = (path for folder in folders for path in folder.rglob("*"))
    return sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def play(world, out):
    network = tespec.models.EventSwin(arch="micro", img_size=(64, 96)).eval()
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
    streams = [load_events(str(path)), EventSource(path).stream]
    pack_missing([EventSource(path)])
    for stream in (*streams, open_events(path)):
        assert_same_events(whole(stream), EVENTS)
    assert EventSource(path).stream.path == open_events(path).path


def test_a_store_in_the_cache_is_known_by_content_wherever_the_recording_lies(without_data, tmp_path):
    recording, cache = FORMATS["dat"](tmp_path), tmp_path / "cache"
    with pytest.raises(UserError) as caught:
        open_events(recording)
    remedy = f"pack it (tespec data prepare recordings {recording}), or load it into memory with load_events"
    assert str(caught.value) == f"{recording}: is not packed; {remedy}"
    assert not cache.exists()
    pack_missing([EventSource(recording)])
    (store,) = (cache / "stores").iterdir()
    (tmp_path / "mounted elsewhere").mkdir()
    moved = recording.rename(tmp_path / "mounted elsewhere" / recording.name)
    assert open_events(moved).path == store
    assert cache_path(replace(open_reader(moved), height=300)) != store
    os.utime(moved, (1, 1))
    with pytest.raises(UserError, match="is not packed"):
        open_events(moved)  # a change between the parts that are hashed is seen by the file's time
    content = bytearray(moved.read_bytes())
    content[-1] ^= 1 << 4  # a polarity
    moved.write_bytes(content)
    with pytest.raises(UserError, match="is not packed"):
        open_events(moved)
    assert_same_events(whole(EventSource(moved).stream), whole(load_events(moved)))


@pytest.mark.parametrize("harm", ["header.json", "events.u32", "index.i64"])
def test_a_damaged_store_in_the_cache_is_made_again(without_data, tmp_path, harm):
    recording = FORMATS["dat"](tmp_path)
    pack_missing([EventSource(recording)])
    (store,) = (tmp_path / "cache" / "stores").iterdir()
    (store / harm).write_bytes(b"x" * 7)
    with pytest.raises(UserError, match="is not packed"):
        open_events(recording)
    pack_missing([EventSource(recording)])
    assert_same_events(whole(open_events(recording)), EVENTS)


@pytest.mark.parametrize("kind", ["dat", "ddd17"])
def test_a_store_beside_the_recording_is_read_in_its_place(without_data, tmp_path, kind):
    path = FORMATS[kind](tmp_path)
    pack_missing([EventSource(path)])
    pack_missing([EventSource(path)], beside=True)
    assert list((tmp_path / "cache" / "stores").iterdir()) == []
    assert open_events(path).path == store_of(path)
    file = path if path.is_file() else path / "events.dat.t"
    before = file.read_bytes()
    file.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
    with pytest.raises(UserError, match=r"\.store: was made from another version of .*prepare the recording again"):
        open_events(path)
    for each in [path] if path.is_file() else list(path.glob("events.dat.*")):
        each.unlink()
    assert_same_events(whole(open_events(path)), EVENTS)


@pytest.mark.parametrize(
    "make",
    [
        lambda folder: evt3(folder / "a.raw", *evt3_events(random_events(9)), header=b"% evt 3.0\n"),
        lambda folder: dat(folder / "a.dat", [(3, 2, 1, 1)], header="% Version 2\n"),
    ],
)
def test_the_user_goes_before_a_description_beside_the_recording_and_nothing_is_guessed(tmp_path, make):
    path = make(tmp_path)
    (tmp_path / "dataset.json").write_text(json.dumps({"splits": {"train": ["a"]}}))
    assert_refused(path, r"give --sensor WIDTHxHEIGHT.*% geometry WIDTHxHEIGHT.*dataset\.json")
    (tmp_path / "dataset.json").write_text(json.dumps({"sensor": {"width": 96, "height": 80}}))
    assert load_events(path).width == 96
    assert load_events(path, (120, 160)).width == 160


def test_a_size_that_contradicts_the_file_is_refused(tmp_path):
    for path, own in ((REAL / "davis.aedat4", "346x260"), (RAW, "640x480")):
        assert_refused(path, f"its sensor is {own} px, not 1280x720; omit --sensor", (720, 1280))
    with pytest.raises(UserError, match="its sensor is 346x260 px, not 640x480"):
        open_events(FORMATS["store"](tmp_path), (480, 640))


def test_the_size_reaches_workers_the_fingerprint_and_predictions(tmp_path):
    nameless, content, every = tmp_path / "drive.raw", RAW.read_bytes(), Downsample(1, "nearest")
    # Headers of older recorders do not specify the size.
    nameless.write_bytes(b"% Date 2017-03-21 15:02:10\n% evt 3.0\n" + content[content.index(b"% end\n") + 6 :])
    division = divide(nameless.parent, 50, every, (480, 640))
    # Workers receive the recording as a pickle and open it themselves.
    again, real = pickle.loads(pickle.dumps(division.train[0])), divide(RAW, 50, every).train[0]
    histograms, expected = (recording.histograms(3, 4, Binning(10, "edges")) for recording in (again, real))
    np.testing.assert_array_equal(histograms, expected)
    assert fingerprint(division.train) != fingerprint(divide(nameless.parent, 50, every, (720, 1280)).train)
    found = find(str(nameless), SPEC, None, None, "640x480")
    assert (found.region.height, found.region.width) == (480, 640)
    for refused in (lambda: find(str(nameless), SPEC, None, None), lambda: divide(nameless.parent, 50, every)):
        with pytest.raises(UserError, match=r"drive\.raw: does not specify the sensor's size"):
            refused()

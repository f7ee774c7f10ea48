"""Packing a data set, into the cache before training or by hand; stores are matched by content, not
by size.
"""

import shutil
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from types import SimpleNamespace

import numpy as np
import pytest
from event_files import assert_same_events, dat, random_events, whole, write_h5
from guides import follow
from twins import copied, fingerprint, opened

from tespec.core.errors import UserError
from tespec.core.settings import Downsample
from tespec.datasets import sources
from tespec.datasets.check import check, problems
from tespec.datasets.folder import EventFolder, split_train_val
from tespec.datasets.sources import EventSource, pack_missing
from tespec.events import open_events, opening
from tespec.events.files import describe_files
from tespec.events.readers.dat import write_dat
from tespec.events.store import PACK_AGAIN, header_of, store_of, verify_store


def recording(path, count=20_000, seed=0):
    path.parent.mkdir(exist_ok=True)
    write_dat(path, *random_events(count, height=60, width=80, end=3_000_000, seed=seed), 60, 80)
    return path


def prepare(dataset, **how):
    """Pack recordings next to their files, as `data prepare` does."""
    pack_missing(
        [files.source for split in dataset.splits for files in dataset.files(split)],
        in_place=True,
        **how,
    )


def assert_refused(path, message):
    """Assert that neither opening nor packing a recording accepts its store."""
    for read in (
        open_events,
        lambda path: EventSource(path).stream,
        lambda path: pack_missing([EventSource(path)]),
    ):
        with pytest.raises(UserError, match=message):
            read(path)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Folder of packed stores in a cache of this test alone, with no store open."""
    sources.find_events.cache_clear()
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "stores"


def test_what_is_not_packed_is_packed_into_the_cache_until_it_is_prepared(cache, tmp_path):
    every = [
        EventSource(recording(tmp_path / "in" / f"{number}.dat", seed=number))
        for number in range(3)
    ]
    prepare(EventFolder(every[0].path))
    pack_missing(every)
    assert len(list(cache.iterdir())) == 2
    prepare(EventFolder(tmp_path / "in"))
    assert list(cache.iterdir()) == []
    assert all(verify_store(store_of(each.path)) is None for each in every)


def test_room_for_all_is_asked_for_before_anything_is_written(cache, tmp_path, monkeypatch):
    paths = [recording(tmp_path / "in" / f"{number}.dat", seed=number) for number in range(3)]
    prepare(EventFolder(paths[0]))
    before, disk = sorted(tmp_path.rglob("*")), SimpleNamespace(free=159_999, total=10**12)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: disk)
    what = "has 159,999 bytes free, but the packed events need about 160,000; free disk space"
    with pytest.raises(UserError, match=f"stores: {what}"):
        pack_missing(map(EventSource, paths))
    with pytest.raises(UserError, match=f"in: {what}"):
        prepare(EventFolder(tmp_path / "in"))
    assert sorted(tmp_path.rglob("*")) == before
    disk.free = 160_000
    pack_missing(map(EventSource, paths))


def test_before_a_training_its_recordings_are_packed_and_those_of_the_test_left_alone(
    tiny_world, cache, tmp_path
):
    root = copied(tiny_world, tmp_path, "1mpx")
    split_train_val(root, 50, Downsample(1, "nearest"))
    used = [path.name for split in ("train", "val") for path in root.glob(f"{split}/*.dat")]
    assert (
        sorted(header_of(path)["source"]["name"] for path in cache.iterdir()) == sorted(used) != []
    )
    shutil.rmtree(cache.parent)
    cache.parent.write_text("a file where a folder should be")
    remedy = r"free disk space \(tespec data cache --empty\), or set TESPEC_CACHE to"
    what = rf"cannot be written to \(.*; {remedy}"
    with pytest.raises(UserError, match=what):
        pack_missing([EventSource(recording(tmp_path / "a.dat"))])


@pytest.mark.parametrize("processes", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_damaged_folders_of_ddd17_are_skipped_and_stores_that_cannot_be_written_not(
    tiny_world, tmp_path, processes
):
    first, second, *_ = sorted(copied(tiny_world, tmp_path, "ddd17").glob("dir*"))
    times = np.fromfile(first / "events.dat.t", "<i8")
    times[-1] = 1 << 62
    times.tofile(first / "events.dat.t")
    pack = partial(
        pack_missing, [EventSource(first), EventSource(second)], in_place=True, processes=processes
    )
    assert [left_out.where for left_out in pack(skip_damaged=True)] == [str(first)]
    shutil.rmtree(second / "events.store")
    (second / ".events.store.unfinished").touch()
    with pytest.raises(UserError, match="cannot be written to"):
        pack(skip_damaged=True)


def test_formats_of_the_user_are_known_to_every_process(tmp_path, monkeypatch):
    program = tmp_path / "my_format.py"
    program.write_text(
        "import sys\n"
        "import numpy as np\n"
        "from tespec.events import Events, opening\n"
        "from tespec.events.readers import Reader\n"
        "def reads(path):\n"
        "    return path.suffix == '.h5'\n"  # before the harness's own format is asked
        "def open_recording(path, sensor, default):\n"
        "    events = Events(*np.arange(12).reshape(4, 3) % 2)\n"
        "    return Reader(path, 4, 5, 3, lambda: iter([events]))\n"
        "opening.FORMATS.insert(0, sys.modules[__name__])\n"
    )
    monkeypatch.setattr(opening, "FORMATS", [*opening.FORMATS])

    class NewProcess(ThreadPoolExecutor):
        """One worker which, like a new process, knows no format of the user."""

        def __init__(self, workers, context, initializer):
            del opening.FORMATS[0]
            super().__init__(1, initializer=initializer)

    monkeypatch.setattr(sources, "ProcessPoolExecutor", NewProcess)
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.h5", "b.h5"):
        (folder / name).write_text(name)
    command = f"python benchmarks/data.py prepare recordings {folder} --processes 2"
    assert "packed: 2 recordings" in follow(command, tmp_path, "--import", str(program))[0]


def test_a_damaged_recording_stops_several_processes(tmp_path, monkeypatch):
    paths = [recording(tmp_path / f"{number}.dat", 2000) for number in range(3)]
    stopped = []

    class Pool(ThreadPoolExecutor):
        def __init__(self, workers, context, initializer):
            super().__init__(workers)

        def shutdown(self, wait=True, *, cancel_futures=False):
            stopped.append(cancel_futures)
            super().shutdown(wait, cancel_futures=cancel_futures)

    monkeypatch.setattr(sources, "ProcessPoolExecutor", Pool)
    monkeypatch.setattr(sources, "_pack", lambda packing: UserError(packing.store, "is bad", "-"))
    with pytest.raises(UserError, match="is bad"):
        pack_missing(map(EventSource, paths), in_place=True, processes=2)
    assert stopped == [True]


def test_recordings_are_read_by_several_threads_at_once(tmp_path, monkeypatch):
    meeting = Barrier(2, timeout=20)
    monkeypatch.setattr(sources, "scan", lambda reader: (meeting.wait(), reader.path)[1])
    paths = [recording(tmp_path / f"{number}.dat", 2000) for number in range(2)]
    with ThreadPoolExecutor(2) as pool:
        scanned = list(pool.map(EventSource.scanned, map(EventSource, paths)))
    assert [source.facts for source in scanned] == paths  # not read again


def test_a_bag_is_the_same_with_the_lock_of_its_store(tmp_path):
    bag = tmp_path / "bag"
    bag.mkdir()
    for name in ("metadata.yaml", "bag_0.db3"):
        (bag / name).write_text(name)
    before = describe_files(bag)
    for name in (".events.store.lock", "._bag_0.db3", ".DS_Store"):
        (bag / name).touch()
    assert describe_files(bag) == before


def test_a_store_of_another_version_is_refused_and_replaced(tmp_path):
    path = recording(tmp_path / "a" / "a.dat")
    store = store_of(path)
    prepare(EventFolder(path.parent))
    before, size = (store / "events.u32").read_bytes(), path.stat().st_size
    recording(path, seed=7)
    assert path.stat().st_size == size
    assert_refused(
        path, r"a\.dat\.store: was made from another version of a\.dat .*prepare the rec"
    )
    prepare(EventFolder(path.parent))
    verify_store(store)
    assert (store / "events.u32").read_bytes() != before
    assert_same_events(whole(open_events(store)), whole(open_events(path)))
    assert [each.name for each in store.parent.iterdir() if each.name.startswith(".")] == []
    # Renaming a recording keeps its store valid.
    path, _ = path.rename(path.with_name("b.dat")), store.rename(store.with_name("b.dat.store"))
    assert EventSource(path).stream.count == 20_000


def test_another_sensor_size_is_packed_again_and_refused_until_then(tmp_path):
    path = dat(tmp_path / "a.dat", [(3, 2, 1, 1)], header="% Version 2\n")
    pack_missing([EventSource(path, (96, 128))], in_place=True)
    (tmp_path / "dataset.json").write_text('{"sensor": {"width": 64, "height": 48}}')
    remedy = "remove the store and prepare the recording again"
    refused = rf"a\.dat\.store: was made .* or for another sensor size; {remedy}"
    assert_refused(path, refused)
    pack_missing([EventSource(path)], in_place=True)
    assert (open_events(path).height, open_events(path).width) == (48, 64)
    with pytest.raises(UserError, match=refused):
        open_events(path, (96, 128))
    (
        tmp_path / "dataset.json"
    ).unlink()  # the store keeps the size, also before a training without --sensor
    assert pack_missing([EventSource(path)]) == []
    assert open_events(path).width == 64


def test_a_damaged_store_whose_recording_is_gone_is_named(tmp_path):
    path = recording(tmp_path / "a.dat")
    pack_missing([EventSource(path)], in_place=True)
    path.unlink()
    (store_of(path) / "header.json").write_text('{"version": 1}')
    assert_refused(path, r"header\.json: not a readable header .* or copy the store again")


def test_check_compares_every_byte_of_a_store_and_of_what_it_was_made_from(tmp_path):
    path = recording(tmp_path / "in" / "a.dat", count=100_000)
    prepare(EventFolder(path))
    assert problems(list(check(EventFolder(path)))) == []
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1  # between the sampled bytes, so a quick check misses it
    path.write_bytes(content)
    assert problems(list(check(EventFolder(path), quick=True))) == []
    (problem,) = problems(list(check(EventFolder(path))))
    assert f"{store_of(path)}: was made from another version of a.dat" in problem
    words = np.fromfile(store_of(path) / "events.u32", "<u4")
    words[len(words) // 2] ^= 1 << 21  # a polarity
    words.tofile(store_of(path) / "events.u32")
    (problem,) = problems(list(check(EventFolder(path))))
    assert problem == f"{store_of(path) / 'events.u32'}: does not match its checksum; {PACK_AGAIN}"


def test_preparing_what_is_packed_already_changes_nothing_nor_does_losing_the_original(
    tiny_world, tmp_path
):
    root = copied(tiny_world, tmp_path, "gen1")
    before = fingerprint(opened(root, "gen1").recordings("test"))
    prepare(opened(root, "gen1"))
    stores = {path: path.stat().st_ino for path in root.rglob("events.u32")}
    prepare(opened(root, "gen1"))
    assert {path: path.stat().st_ino for path in root.rglob("events.u32")} == stores != {}
    for path in root.glob("*/*_td.dat"):
        path.unlink()
    sources.find_events.cache_clear()
    assert fingerprint(opened(root, "gen1").recordings("test")) == before


def test_a_packed_recording_of_another_sensor_than_its_data_set_s_opens_again(tmp_path):
    events = {
        f"events/{name}": np.array([number], "u2")
        for name, number in zip("xytp", (3, 2, 5, 1), strict=True)
    }
    path = write_h5(tmp_path / "events.h5", events | {"t_offset": 0, "ms_to_idx": np.array([0, 1])})
    pack_missing([EventSource(path, (720, 1280))], in_place=True)
    assert (open_events(path).height, open_events(path).width) == (720, 1280)

"""Packing: content and not size decides, it can be done again, and by several processes at once."""

import json
import shutil
import subprocess
import sys

import numpy as np
import pytest

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.files import one_at_a_time
from tespec.core.settings import Downsample
from tespec.datasets import sources
from tespec.datasets import survey as report
from tespec.datasets.description import read_description
from tespec.datasets.finding import Recordings
from tespec.datasets.pairs import paired
from tespec.datasets.prepare import prepare
from tespec.datasets.recording import fingerprint
from tespec.datasets.sources import EventSource, store_of
from tespec.datasets.survey import survey
from tespec.datasets.unlabelled import divide
from tespec.events import load_events, open_events, packing
from tespec.events.opening import open_reader
from tespec.events.packing import pack
from tespec.events.readers.prophesee_dat import write_dat
from tespec.events.store import open_store, verify_store
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset


def opened(root, dataset):
    import_tasks()
    settings = finetuning_settings(dataset, "recurrent", "sample", (), read_description(root).overrides())
    return open_dataset(settings, root)


def recording(path, count=20_000, seed=0):
    rng = np.random.default_rng(seed)
    columns = rng.integers(0, 80, count), rng.integers(0, 60, count), np.sort(rng.integers(0, 3_000_000, count))
    write_dat(path, *columns, rng.integers(0, 2, count), 60, 80)
    return path


def everything(stream):
    return stream.slice(stream.t_first, stream.t_last + 1)


@pytest.fixture(autouse=True)
def nothing_open():
    sources._open.cache_clear()


@pytest.fixture
def twin(tiny_world, tmp_path):
    def copied(dataset):
        return shutil.copytree(tiny_world / dataset, tmp_path / "data" / dataset)

    return copied


def other_version(path):
    """As many bytes, other events: what a mended download is."""
    size = path.stat().st_size
    recording(path, seed=7)
    assert path.stat().st_size == size


def test_a_store_of_another_version_of_the_file_is_not_read(tmp_path):
    path = recording(tmp_path / "a.dat")
    prepare(Recordings(path))
    assert EventSource(path).stream.count == 20_000
    other_version(path)
    sources._open.cache_clear()
    with pytest.raises(UserError, match=r"a\.dat\.store: was made from another version of a\.dat .*prepare the rec"):
        EventSource(path).stream  # noqa: B018
    # A new name is no new version.
    prepare(Recordings(path))
    path, _ = path.rename(tmp_path / "b.dat"), store_of(path).rename(tmp_path / "b.dat.store")
    assert EventSource(path).stream.count == 20_000


def test_what_is_looked_at_does_not_grow_with_the_file(tmp_path, monkeypatch):
    path = tmp_path / "a.dat"
    store = pack(open_reader(recording(path)), store_of(path), path)
    monkeypatch.setattr(sources, "SourceHash", None)  # what reads a file whole
    monkeypatch.setattr(packing, "SourceHash", None)
    assert EventSource(path).stream.count == open_store(store).count


@pytest.mark.parametrize("elsewhere", [False, True])
def test_preparing_again_replaces_a_store_of_another_version(tmp_path, elsewhere):
    (tmp_path / "a").mkdir()
    path = recording(tmp_path / "a" / "a.dat")
    out = tmp_path / "b" if elsewhere else None
    prepare(Recordings(path.parent), out)
    store = store_of((out or path.parent) / "a.dat")
    before = (store / "events.u32").read_bytes()
    other_version(path)
    prepare(Recordings(path.parent), out)
    verify_store(store)
    assert (store / "events.u32").read_bytes() != before
    wanted, found = everything(load_events(path)), everything(open_events(store))
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)
    assert [each.name for each in store.parent.iterdir() if each.name.startswith(".")] == []


def test_a_store_of_something_else_is_not_replaced(tmp_path):
    one, other = recording(tmp_path / "a.dat"), recording(tmp_path / "b.dat", seed=1)
    store = pack(open_reader(one), tmp_path / "store", one)
    with pytest.raises(UserError, match="exists already; remove it or choose another folder"):
        pack(open_reader(other), store, other)


def test_labels_that_changed_are_copied_again(twin, tmp_path):
    root, out = twin("gen1"), tmp_path / "out"
    prepare(opened(root, "gen1"), out)
    path = min((root / "test").glob("*_bbox.npy"))
    copied, before = out / "test" / path.name, path.read_bytes()
    boxes = np.load(path)
    boxes["x"] += 1
    np.save(path, boxes)
    assert path.stat().st_size == len(before)
    left = min((out / "train").glob("*_bbox.npy"))
    untouched = left.stat().st_ino
    prepare(opened(root, "gen1"), out)
    assert copied.read_bytes() == path.read_bytes() != before
    assert left.stat().st_ino == untouched  # what is the same is left as it is


def test_a_folder_of_masks_in_which_one_changed_is_copied_again(twin, tmp_path):
    root, out = twin("dsec"), tmp_path / "out"
    prepare(opened(root, "dsec"), out)
    path = min(root.rglob("*.png"))
    content = bytearray(path.read_bytes())
    content[-20] ^= 1
    path.write_bytes(content)
    prepare(opened(root, "dsec"), out)
    assert (out / path.relative_to(root)).read_bytes() == bytes(content)


def flip_a_polarity(store):
    words = np.fromfile(store / "events.u32", "<u4")
    words[len(words) // 2] ^= 1 << 21
    words.tofile(store / "events.u32")


def change_the_middle(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_check_compares_every_byte_of_a_store(twin, tmp_path):
    root, out = twin("gen1"), tmp_path / "out"
    prepare(opened(root, "gen1"), out)
    dataset = opened(out, "gen1")
    assert report.problems(list(survey(dataset))) == []
    (store, *_) = sorted((out / "test").glob("*.store"))
    flip_a_polarity(store)
    sources._open.cache_clear()
    (problem,) = report.problems(list(survey(dataset)))
    assert problem == f"{store / 'events.u32'}: is not what was written; pack the recording again"


def test_check_compares_every_byte_of_what_a_store_was_made_from(tmp_path):
    path = recording(tmp_path / "a.dat", count=100_000)
    prepare(Recordings(path))
    change_the_middle(path)  # between the samples: as open to the quick look as before
    sources._open.cache_clear()
    assert EventSource(path).stream.count == 100_000
    (problem,) = report.problems(list(survey(Recordings(path))))
    assert f"{store_of(path)}: was made from another version of a.dat" in problem


@pytest.mark.parametrize("dataset", ["ddd17", "gen1", "dsec", "mvsec", "1mpx"])
def test_preparing_what_is_packed_already_changes_nothing(twin, tmp_path, dataset):
    root, packed, third = twin(dataset), tmp_path / "packed", tmp_path / "third"
    prepare(opened(root, dataset), packed)
    before = {path: path.stat().st_ino for path in packed.rglob("*") if path.name == "events.u32"}
    manifest = json.loads((packed / "packed.json").read_text())
    assert json.loads(prepare(opened(packed, dataset)).read_text()) == manifest
    assert {path: path.stat().st_ino for path in before} == before
    # A packed copy can be the original of another.
    assert json.loads(prepare(opened(packed, dataset), third).read_text()) == manifest
    splits = [opened(each, dataset).recordings("test") for each in (root, packed, third)]
    assert len({fingerprint(split) for split in splits}) == 1


@pytest.mark.parametrize("labelled", [True, False])
def test_packed_copies_keep_the_frames(twin, tmp_path, labelled):
    root, out = twin("ddd17"), tmp_path / "out"
    prepare(opened(root, "ddd17") if labelled else Recordings(root), out)
    assert not list(out.rglob("events.dat.xyp"))
    for original in sorted(root.glob("dir*/imgs/*.png")):
        assert (out / original.relative_to(root)).read_bytes() == original.read_bytes()
    wanted, found = (
        {each.name: each.images for each in paired(divide(where, 50, Downsample(1, "nearest")).train, 50)}
        for where in (root, out)
    )
    assert wanted
    assert {name: len(images) for name, images in found.items()} == {name: len(wanted[name]) for name in wanted}


def test_a_store_alone_is_prepared_already(tmp_path):
    path = recording(tmp_path / "a.dat")
    prepare(Recordings(path))
    path.unlink()
    (tmp_path / "alone").mkdir()
    shutil.move(store_of(path), tmp_path / "alone" / "drive")
    (store,) = (tmp_path / "alone").iterdir()
    prepare(Recordings(store.parent))
    assert sorted(each.name for each in store.iterdir()) == ["events.u32", "header.json", "index.i64"]


TWO_AT_ONCE = """
import sys
from pathlib import Path
from tespec.events.opening import open_reader
from tespec.events.packing import pack
path, store, note = map(Path, sys.argv[1:4])
reader = open_reader(path)
print("ready", flush=True)
sys.stdin.readline()
seen = []
pack(reader, store, path, lambda done, total: seen.append(done))
note.write_text(str(len(seen)))
"""


@pytest.mark.parametrize("count", [2, 4])
def test_processes_that_pack_the_same_file_at_once_all_end_well(tmp_path, count):
    path, store = recording(tmp_path / "a.dat"), tmp_path / "a.dat.store"
    started = [
        subprocess.Popen(
            [sys.executable, "-c", TWO_AT_ONCE, path, store, tmp_path / f"{number}.txt"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for number in range(count)
    ]
    for each in started:
        assert each.stdout.readline() == "ready\n"
    for each in started:
        each.stdin.write("go\n")
        each.stdin.flush()
    for each in started:
        _, err = each.communicate(timeout=120)
        assert (each.returncode, err) == (0, "")
    worked = [int((tmp_path / f"{number}.txt").read_text()) for number in range(count)]
    assert sum(packed > 0 for packed in worked) == 1
    verify_store(store)
    left = sorted(each.name for each in tmp_path.iterdir() if not each.name.endswith(".txt"))
    assert left == ["a.dat", "a.dat.store"]


HOLDER = """
import sys, time
from pathlib import Path
from tespec.core.files import one_at_a_time
with one_at_a_time(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(3600)
"""


def test_a_killed_holder_keeps_nobody_out(tmp_path):
    place = tmp_path / "store"
    with subprocess.Popen([sys.executable, "-c", HOLDER, place], stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        holder.kill()
    with one_at_a_time(place):
        pass
    assert list(tmp_path.iterdir()) == []

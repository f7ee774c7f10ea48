"""Data is hashed whole: a change of any byte that a run reads makes it other data, and is named."""

import os
import shutil

import h5py
import pytest
from event_files import change_middle_byte
from PIL import Image
from twins import copied, opened
from twins.layouts import relayout

from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.hashes import checksums, fingerprint_of, sha256_of_files
from tespec.core.paths import cache_root
from tespec.datasets.recording import contents_of, hash_data
from tespec.datasets.sources import pack_missing
from tespec.pretraining.method import open_pretraining


def divide_a_depth_map(path):
    other = shutil.copy(path, path.with_suffix(".new"))  # the old one may be open
    with h5py.File(other, "r+") as file:
        maps = file["davis/left/depth_image_raw"]
        maps[3] = maps[3] / 10
    os.replace(other, path)


def turn_an_image(path):
    with Image.open(path) as image:
        turned = image.rotate(180)
    turned.save(path)


def changed(before, after):
    assert fingerprint_of(before) != fingerprint_of(after)
    assert before.keys() == after.keys()
    return [name.partition("/")[2] for name in before if before[name] != after[name]]


@pytest.mark.parametrize(
    ("dataset", "layout", "change", "path", "name"),
    [
        ("ddd17", "", change_middle_byte, "dir2/events.dat.xyp", "dir2: events.dat.xyp, events"),
        ("dsec", "", change_middle_byte, "**/13_a/**/events.h5", "zurich_city_13_a: events.h5"),
        ("dsec", "", change_middle_byte, "**/13_a/**/rectify_map.h5", "zurich_city_13_a: rect"),
        ("mvsec", "", divide_a_depth_map, "outdoor_day1_gt.hdf5", "outdoor_day1: "),
        ("gen1", "", change_middle_byte, "test/*_td.dat", "17-04-13_15-05-13_500000_8500000: 17"),
        ("gen1", "rvt-archive", change_middle_byte, "test/**/*.h5", "17-04-13_15-05-13_500000_"),
    ],
)
def test_a_changed_byte_between_the_ends_of_a_file_is_other_data(
    tiny_world, tmp_path, dataset, layout, change, path, name
):
    root = copied(tiny_world, tmp_path, dataset)
    if layout:
        relayout(root, dataset, layout)

    def checksums_now():
        return checksums(contents_of(opened(root, dataset).recordings("test")))

    before = checksums_now()
    (file,) = root.glob(path.replace("13_a", "zurich_city_13_a"))
    change(file)
    names = changed(before, checksums_now())
    assert names
    assert all(each.startswith(name) for each in names)


@pytest.mark.parametrize(
    ("method", "dataset", "image"),
    [("imagenet", "objects", "train/*/*.png"), ("scaleevent", "ddd17", "dir0/imgs/*.png")],
)
def test_a_changed_image_is_other_data(tiny_world, tmp_path, method, dataset, image):
    root = shutil.copytree(tiny_world / dataset, tmp_path / dataset)

    def checksums_now():
        settings = pretraining_settings(method, "smoke")
        return checksums(open_pretraining(settings, root).contents())

    before = checksums_now()
    path = sorted(root.glob(image))[1]
    turn_an_image(path)
    (name,) = changed(before, checksums_now())
    assert name.endswith(f": {path.name}")


@pytest.fixture
def file(tmp_path):
    """A file of yesterday."""
    path = tmp_path / "events.raw"
    write(path, b"abc")
    return path


def write(path, content, time=10**9):
    path.write_bytes(content)
    os.utime(path, (time, time))


def test_a_file_is_read_again_only_if_its_size_or_time_is_new(file):
    (first,) = sha256_of_files([(file,)])
    write(file, b"xyz")  # with the same time
    assert sha256_of_files([(file,)]) == [first]
    (other,) = sha256_of_files([(file,)], again=True)
    assert other != first
    assert sha256_of_files([(file,)]) == [other]
    write(file, b"abc", time=10**9 + 1)
    assert sha256_of_files([(file,)]) == [first]
    shutil.rmtree(cache_root() / "hashes")
    assert sha256_of_files([(file,), (file, file)])[0] == first


def test_a_file_of_this_moment_is_not_remembered(file):
    file.write_bytes(b"abc")
    time = file.stat().st_mtime_ns
    before = sha256_of_files([(file,)])
    file.write_bytes(b"xyz")
    os.utime(file, ns=(time, time))  # as on a disk with coarse times
    assert sha256_of_files([(file,)]) != before


def test_without_a_place_to_remember_files_are_read_each_time(file, tmp_path, monkeypatch):
    (tmp_path / "no folder").touch()
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "no folder"))
    before = sha256_of_files([(file,)])
    write(file, b"xyz")
    assert sha256_of_files([(file,)]) != before


def test_an_unreadable_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"gone.raw: cannot be read .No such file.*; copy it again"):
        checksums({"0/a: gone.raw": (tmp_path / "gone.raw",)})


def test_a_cached_store_of_a_recording_that_changed_in_spite_of_its_time_is_removed_on_request(
    tiny_world, tmp_path, monkeypatch
):
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))
    root = copied(tiny_world, tmp_path, "gen1")
    path = max(root.glob("train/*_td.dat"))
    os.utime(path, (10**9, 10**9))
    recordings = opened(root, "gen1").recordings("train")
    pack_missing(recording.source for recording in recordings)
    hash_data(contents_of(recordings), recordings, check=True)
    change_middle_byte(path)
    os.utime(path, (10**9, 10**9))
    pack_missing(recording.source for recording in recordings)
    with pytest.raises(UserError, match=f"{path}: changed, but not its size and time; its packed"):
        hash_data(contents_of(recordings), recordings, check=True)
    pack_missing(recording.source for recording in recordings)
    hash_data(contents_of(recordings), recordings, check=True)

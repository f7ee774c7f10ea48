"""Folders of recordings: in every layout, all are found, and no test or validation recording is
trained on.
"""

import json
import os
import re
import shutil
import socket
from pathlib import Path

import numpy as np
import pytest
from event_files import random_events, write_h5
from PIL import Image
from twins.layouts import LAYOUTS, relayout

from tespec.core import config
from tespec.core.config import pretraining_settings
from tespec.core.description import (
    Description,
    described_size,
    descriptions_above,
    read_description,
)
from tespec.core.errors import UserError
from tespec.core.settings import Binning, Downsample
from tespec.datasets.check import check, problems
from tespec.datasets.folder import EventFolder, find_recordings, split_recordings, split_train_val
from tespec.datasets.images import open_images
from tespec.datasets.recording import event_corrections
from tespec.datasets.splits import split_folders, split_named
from tespec.events.histogram import Region
from tespec.events.opening import open_reader
from tespec.events.packing import pack
from tespec.events.readers.dat import write_dat
from tespec.pretraining.method import open_pretraining

WHOLE = Downsample(1, "nearest")
# Parts of paths in the tiny world: of official test recordings, training recordings, and the
# validation recording.
SPLIT = {
    "ddd17": (["dir1/"], ["dir0", "dir2"], "dir3"),
    "mvsec": (["outdoor_day1", "outdoor_night1"], ["outdoor_day2"], "outdoor_day3"),
    "dsec": (["zurich_city_13_a"], ["zurich_city_00_a", "zurich_city_01_a"], "zurich_city_09_a"),
    "gen1": (
        ["test/", "17-04-13_15-05-13"],
        ["17-04-13_15-05-10", "17-04-13_15-05-11"],
        "17-04-13_15-05-12",
    ),
    "1mpx": (
        ["test/", "moorea_2019-02-19_002"],
        ["moorea_2019-02-19_000"],
        "moorea_2019-02-19_001",
    ),
}
# Some layouts do not specify the sensor's size; others only move labels or change contents.
ALIKE = ("dat-no-size", "h5-no-size", "older", "us", "folder")
ALIKE += ("ess-readme", "ess", "archive", "flat-archive")
EVERY_LAYOUT = [
    (dataset, layout) for dataset in LAYOUTS for layout in LAYOUTS[dataset] if layout not in ALIKE
]


def official(world, folder, dataset, layout=""):
    """Copy a data set of the sample world without its dataset.json, like the official archive."""
    root = shutil.copytree(world / dataset, folder / dataset)
    if layout:
        relayout(root, dataset, layout)
    for path in root.rglob("dataset.json"):
        path.unlink()
    return root


def write_recordings(root, *names, seconds=2.0, height=12, width=16):
    """Write random events to files below `root`, and return their paths."""
    events = random_events(200, height=height, width=width)._replace(
        t=np.linspace(0, 1e6 * seconds, 200).astype("i8")
    )
    for path in (paths := [root / name for name in names]):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_dat(path, *events, height, width)
    return paths


def names(recordings):
    return [recording.name for recording in recordings]


def assert_fair(dataset, found):
    assert found
    assert not [name for name in found if any(each in f"{name}/" for each in SPLIT[dataset][0])]


def assert_validated_apart(dataset, train, held_out):
    validated = SPLIT[dataset][2]
    assert [{validated in name for name in split} for split in (train, held_out)] == [
        {False},
        {True},
    ]


@pytest.mark.parametrize(("dataset", "layout"), EVERY_LAYOUT)
def test_no_layout_lets_in_what_is_tested_or_validated_on(tiny_world, tmp_path, dataset, layout):
    root = official(tiny_world, tmp_path, dataset, layout)
    division = split_train_val(root, 50, WHOLE)
    assert_fair(dataset, names(division.train + division.held_out))
    assert all(name in "\n".join(names(division.train)) for name in SPLIT[dataset][1])
    assert division.excluded_test
    if dataset in ("gen1", "1mpx"):
        assert_validated_apart(dataset, names(division.train), names(division.held_out))
    if layout != "outer":  # its recordings are in a subfolder of the one with dataset.json
        root = official(tiny_world, tmp_path / "described", dataset, layout)
        shutil.copy(tiny_world / dataset / "dataset.json", root)
        division = split_train_val(root, 50, WHOLE)
        assert_validated_apart(dataset, names(division.train), names(division.held_out))
        assert division.excluded_test


def test_what_a_config_of_ones_own_validates_on_is_held_out(tiny_world, tmp_path, monkeypatch):
    monkeypatch.setattr(config, "_added", {})
    (tmp_path / "own.yaml").write_text(f"base: dsec\nsplits: {{val: [{SPLIT['dsec'][2]}]}}\n")
    config.add_file("tasks", tmp_path / "own.yaml")
    division = split_train_val(official(tiny_world, tmp_path, "dsec", "flat"), 50, WHOLE)
    assert_validated_apart("dsec", names(division.train), names(division.held_out))


@pytest.mark.parametrize(
    ("method", "network", "dataset"),
    [
        ("tespec", "swin", "1mpx"),
        ("ecdp", "resnet", "ddd17"),
        ("moby", "swin", "dsec"),
        ("imagenet", "swin", "dsec"),
    ],
)
def test_pretrainings_see_no_test_recording_and_hold_validation_out(
    tiny_world, tmp_path, method, network, dataset
):
    settings = pretraining_settings(method, "sample", [], network)
    assert_fair(
        dataset, open_pretraining(settings, official(tiny_world, tmp_path, dataset)).recordings()
    )
    found = open_pretraining(settings, tiny_world / dataset).recordings()
    train, held_out = (
        [name for name, each in found.items() if part in each] for part in ("train", "held_out")
    )
    assert_validated_apart(dataset, train, held_out)


@pytest.mark.parametrize(
    ("dataset", "place"),
    [
        ("ddd17", "dir1"),
        ("mvsec", "outdoor_night1_data.hdf5"),
        ("gen1", "test"),
        ("dsec", "test/zurich_city_13_a/events/left/events.h5"),
        ("1mpx", "test/moorea_2019-02-19_002_td_500000_8500000_td.dat"),
    ],
)
def test_a_test_recording_that_is_pointed_at_is_refused(tiny_world, tmp_path, dataset, place):
    with pytest.raises(
        UserError, match=r"belongs to a test split, which pre-training must not use; give training"
    ):
        split_train_val(official(tiny_world, tmp_path, dataset) / place, 50, WHOLE)


def test_a_description_that_names_other_splits_is_believed(tiny_world, tmp_path):
    root = official(tiny_world, tmp_path, "ddd17")
    (root / "dataset.json").write_text('{"splits": {"train": ["dir1"], "val": ["dir0"]}}')
    division = split_train_val(root, 50, WHOLE)
    assert (names(division.train), names(division.held_out)) == (["dir1"], ["dir0"])
    assert split_train_val(root / "dir1", 50, WHOLE).train
    with pytest.raises(UserError, match=r"dir2: belongs to a test split"):
        split_train_val(tiny_world / "ddd17" / "dir2", 50, WHOLE)


def test_packed_renamed_and_linked_test_recordings_are_known(tiny_world, tmp_path):
    root = official(tiny_world, tmp_path, "ddd17")
    pack(open_reader(root / "dir1"), tmp_path / "packed" / "drive.store")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "drive").symlink_to(root / "dir1")
    pack(open_reader(root / "dir1"), root / "dir1" / "events.store")
    (root / "dir1" / "events.dat.t").unlink()
    for path in (tmp_path / "packed" / "drive.store", tmp_path / "linked" / "drive", root / "dir1"):
        with pytest.raises(UserError, match="belongs to a test split"):
            split_train_val(path, 50, WHOLE)


@pytest.mark.parametrize("name", ["17-04-13_15-05-13", "moorea_2019-02-19_002"])
def test_what_may_be_tested_on_and_does_not_show_it_is_refused(tiny_world, tmp_path, name):
    (path,) = tiny_world.glob(f"*/test/{name}_*.dat")
    shutil.copy(path, tmp_path)
    with pytest.raises(
        UserError,
        match=r"not in a train, val or test folder, so it may be a test recording; keep the",
    ):
        split_train_val(tmp_path, 50, WHOLE)


def test_recordings_of_ones_own_are_left_out_by_no_name(tmp_path):
    write_recordings(
        tmp_path, "dir1/drive.dat", "a/dir1/one.dat", "train/two.dat", "outdoor_day10/three.dat"
    )
    division = split_train_val(tmp_path, 50, WHOLE)
    assert len({recording.path for recording in division.train + division.held_out}) == 4
    assert not division.excluded_test


def test_what_lies_beside_the_folders_of_splits_is_left_out_and_named(tmp_path):
    files = "train/one.dat", "test/two.dat", "more/three.dat", "extra/train/four.dat", "five.dat"
    write_recordings(tmp_path, *files, height=48, width=64)
    division = split_train_val(tmp_path, 50, WHOLE)
    assert {recording.path for recording in division.train + division.held_out} == {
        tmp_path / "train" / "one.dat"
    }
    assert division.excluded_test == ("test/two.dat",)
    assert division.left_out == ("extra/train/four.dat", "five.dat", "more/three.dat")
    assert split_train_val(tmp_path / "extra", 50, WHOLE).train
    tested, beside = open_pretraining(
        pretraining_settings("tespec", "sample", ["segments=5"]), tmp_path
    ).notes
    assert tested == "skipped (test split): test/two.dat"
    assert beside.endswith(
        "not listed in dataset.json): extra/train/four.dat, five.dat, more/three.dat"
    )


def test_folders_of_images_may_have_the_names_of_splits_and_recordings(tmp_path):
    for folder in ("train", "dir1", "bus"):
        (tmp_path / "classes" / folder).mkdir(parents=True)
        for number in range(3):
            Image.new("L", (8, 8)).save(tmp_path / "classes" / folder / f"{number}.png")
    images = open_images(tmp_path / "classes")
    assert (images.classes, len(images.train), len(images.held_out)) == (
        ("bus", "dir1", "train"),
        6,
        3,
    )
    for split in ("train", "val", "test", "more"):
        shutil.copytree(tmp_path / "classes", tmp_path / "splits" / split)
    images = open_images(tmp_path / "splits")
    assert (len(images.train), len(images.held_out), images.classes) == (
        9,
        9,
        ("bus", "dir1", "train"),
    )
    assert images.excluded_test == ("test/bus", "test/dir1", "test/train")
    assert images.left_out == ("more/bus", "more/dir1", "more/train")


def test_without_a_validation_split_a_fifth_of_train_is_held_out_by_name(tmp_path):
    training = [f"train/r{number}_td.dat" for number in range(10)]
    write_recordings(tmp_path / "a", *training, "test/s_td.dat")
    write_recordings(tmp_path / "b", *reversed(training), seconds=1)
    division, other = (
        split_train_val(tmp_path / "a", 50, WHOLE),
        split_train_val(tmp_path / "b", 50, WHOLE),
    )
    assert (len(division.train), len(division.held_out), len(division.excluded_test)) == (8, 2, 1)
    assert sorted(names(division.train + division.held_out)) == training
    assert names(division.held_out) == names(other.held_out)


def test_of_few_recordings_the_last_quarter_is_held_out_in_contiguous_windows(tmp_path):
    (path,) = write_recordings(tmp_path, "one.dat", seconds=2.03, height=48, width=64)
    division = split_train_val(path, 50, WHOLE)
    (train,), (held_out,) = division.train, division.held_out
    assert names([train, held_out]) == [
        "one.dat (first 75% of its time)",
        "one.dat (after 75% of its time)",
    ]
    assert (len(train), len(held_out)) == (30, 10)
    windows = np.concatenate([train.windows, held_out.windows])
    np.testing.assert_array_equal(
        windows, 50_000 * np.stack([np.arange(40), np.arange(1, 41)], axis=1)
    )
    with pytest.raises(
        UserError, match="longest has 10 windows of 50 ms; use --set segments=10, or"
    ):
        open_pretraining(pretraining_settings("tespec", "sample", ["segments=15"]), path)
    (path,) = write_recordings(tmp_path, "short.dat", seconds=0.03, height=48, width=64)
    with pytest.raises(UserError, match=r"longest has 0 windows of 50 ms; .* longer rec"):
        open_pretraining(pretraining_settings("tespec", "sample"), path)


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("a.h5", Path.touch, r"a\.h5: incomplete or unreadable HDF5 file"),
        (
            "dir9",
            lambda path: (path.mkdir(), (path / "events.dat.xyp").touch()),
            r"dir9.events\.dat\.t: no such file",
        ),
        ("link.dat", lambda path: path.symlink_to("gone.dat"), r"link\.dat: no such file"),
        ("drive", lambda path: path.symlink_to("gone"), r"drive: no such file"),
    ],
)
def test_recordings_that_cannot_be_read_are_named_and_not_passed_over(
    tmp_path, name, spoil, message
):
    write_recordings(tmp_path, "one.DAT", ".hidden/two.dat")
    write_h5(tmp_path / "rectify_map.h5", {"rectify_map": np.zeros((2, 2, 2), np.float32)})
    spoil(tmp_path / name)
    assert {path.name for path in find_recordings(tmp_path)} == {"one.DAT", name}
    with pytest.raises(UserError, match=message):
        split_train_val(tmp_path, 50, WHOLE)
    (problem,) = problems(list(check(EventFolder(tmp_path))))
    assert re.search(message, problem)


def test_links_to_folders_are_followed_once_and_never_in_circles(tmp_path):
    write_recordings(tmp_path, "in/a.dat", "disk/b.dat", "disk/more/c.dat")
    root = tmp_path / "in"
    (root / "linked").symlink_to(tmp_path / "disk")
    (root / "again").symlink_to(tmp_path / "disk" / "more")
    (root / "circle").symlink_to(root)
    (root / "itself").symlink_to("itself")
    found = {
        "a.dat",
        "again/c.dat",
        "linked/b.dat",
        "itself",
    }  # opening the last one reports the error
    assert {path.relative_to(root).as_posix() for path in find_recordings(root)} == found
    for place in ("in/1.png", "disk/2.png"):
        Image.new("L", (8, 8)).save(tmp_path / place)
    images = open_images(root)
    assert {*images.train, *images.held_out} == {root / "1.png", root / "linked" / "2.png"}


def test_each_folder_is_searched_for_splits_once_and_not_for_each_recording(tmp_path, monkeypatch):
    write_recordings(
        tmp_path, *(f"{split}/{number}.dat" for split in ("train", "test") for number in range(5))
    )
    listed, replaced = [], "tespec.datasets.folder.split_folders"
    monkeypatch.setattr(replaced, lambda path: listed.append(path) or split_folders(path))
    assert len(split_recordings(tmp_path, find_recordings(tmp_path))["train"]) == 5
    assert len(listed) == len(set(listed))
    assert {tmp_path, tmp_path / "test", tmp_path / "train"} <= set(listed)


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", "train"),
        ("Training", "train"),
        ("TRAIN", "train"),
        ("train_events", "train"),
        ("val", "val"),
        ("Valid", "val"),
        ("validation", "val"),
        ("dev", "val"),
        ("test", "test"),
        ("Testing", "test"),
        ("test_events", "test"),
        ("Test_2", "unknown"),
        ("train2", "unknown"),
        ("test-clean", "unknown"),
        ("trainval", "unknown"),
        ("ILSVRC2012_img_val", "unknown"),
        ("my testset", "unknown"),
        ("eval", "unknown"),
        ("train_val", "unknown"),
        *(
            (name, "unknown")
            for name in ("tests", "testA", "testdata", "dataTest", "validate", "held_out", "unseen")
        ),
        ("latest", None),
        ("contest", None),
        ("valley", None),
        ("device", None),
        ("testimony", None),
        ("dir1", None),
    ],
)
def test_folders_are_splits_by_every_usual_name(tmp_path, name, split):
    """Whether a folder is alone, next to others of no split, or next to a folder "train"."""
    assert split_named(name) == split
    for others in ((), ("city",), ("city", "train/a")):
        root = tmp_path / str(len(others))
        (path,) = write_recordings(root, f"{name}/drive/r.dat")
        write_recordings(root, *(f"{other}/s.dat" for other in others))
        if split == "unknown":
            problem = "may be a split, but its name is none of train, training, val, .*; rename it"
            what = f"{re.escape(name)}: {problem}"
            with pytest.raises(UserError, match=what):
                split_recordings(root, find_recordings(root))
            continue
        if split == "test" and "train/a" not in others and not others:
            with pytest.raises(UserError, match="belongs to a test split"):
                split_recordings(root, find_recordings(root))
            continue
        found = split_recordings(root, find_recordings(root))
        assert next(of for of, paths in found.items() if path in paths) == (split or "train")


def test_a_doubtful_folder_is_refused_outside_of_splits_alone(tmp_path):
    """Also when it is given itself, next to a split; a `dataset.json` can say what it is."""
    write_recordings(tmp_path, "Train/test_drive/a.dat", "Train/test_2.dat", "test_3.dat")
    found = split_recordings(tmp_path, find_recordings(tmp_path))
    assert [path.name for path in found["train"]] == ["test_2.dat", "a.dat", "test_3.dat"]
    (path,) = write_recordings(tmp_path, "Test_2/train/b.dat")
    for root in (tmp_path, tmp_path / "Test_2"):
        with pytest.raises(UserError, match=r"Test_2: may be a split"):
            split_recordings(root, find_recordings(root))
    (tmp_path / "dataset.json").write_text('{"splits": {"train": ["Train"], "test": ["Test_2"]}}')
    assert split_recordings(tmp_path, find_recordings(tmp_path))["test"] == [path]


def test_files_and_links_that_are_test_recordings_are_not_trained_on(tmp_path):
    write_recordings(tmp_path / "files", "train.dat", "val.dat", "test.dat")
    found = split_recordings(tmp_path / "files", find_recordings(tmp_path / "files"))
    assert {split: [path.stem for path in paths] for split, paths in found.items() if paths} == {
        "train": ["train"],
        "val": ["val"],
        "test": ["test"],
    }
    write_recordings(tmp_path / "drives", "drive_train.dat", "drive_test.dat")
    with pytest.raises(UserError, match=r"drive_test\.dat: may be a split"):
        split_recordings(tmp_path / "drives", find_recordings(tmp_path / "drives"))
    write_recordings(tmp_path / "all", "train/a.dat", "test/b.dat")
    (mine,) = write_recordings(tmp_path / "mine", "c.dat")
    (tmp_path / "mine" / "link.dat").symlink_to(tmp_path / "all" / "test" / "b.dat")
    found = split_recordings(tmp_path / "mine", find_recordings(tmp_path / "mine"))
    assert (found["train"], found["test"]) == ([mine], [tmp_path / "mine" / "link.dat"])
    (path,) = write_recordings(tmp_path / "official", "OUTDOOR_DAY1.dat")
    with pytest.raises(UserError, match="belongs to a test split"):
        split_recordings(path, [path])


def test_pipes_and_sockets_in_a_folder_are_never_opened(tmp_path):
    (path,) = write_recordings(tmp_path, "train/one.dat")
    for ending in (".raw", ".dat", ".h5", ".hdf5", ".npz", ".aedat4", ".csv", ".bin", ".png", ""):
        os.mkfifo(tmp_path / "train" / f"pipe{ending}")
    (tmp_path / "train" / "device.raw").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s.raw"))
        assert find_recordings(tmp_path) == [path]


MISTAKES = {
    "nothing there": (shutil.rmtree, "data: no such file or folder; check the path"),
    "a pipe": (
        lambda root: [shutil.rmtree(root), os.mkfifo(root)],
        "data: not a regular file; check the path",
    ),
    "no recordings": (
        lambda root: [path.unlink() for path in root.iterdir()],
        "data: holds no recording",
    ),
    "a split's recording": (
        lambda root: (root / "dataset.json").write_text('{"splits": {"train": ["r0", "r7"]}}'),
        "data: recording r7, listed in its dataset.json, is missing",
    ),
    "different sizes": (
        lambda root: write_recordings(root, "z.dat", height=13),
        r"different sizes: 16x12 \(r2.dat\), 16x13 \(z.dat\) px",
    ),
}


@pytest.mark.parametrize(("spoil", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes_are_named(tmp_path, spoil, message):
    write_recordings(tmp_path / "data", "r0.dat", "r1.dat", "r2.dat")
    spoil(tmp_path / "data")
    with pytest.raises(UserError, match=message):
        split_train_val(tmp_path / "data", 50, WHOLE)


def test_damaged_recordings_are_left_out_if_asked_for_and_recorded(tmp_path):
    sound = write_recordings(tmp_path, "r0.dat", "r2.dat", height=48, width=64)
    (tmp_path / "r1.dat").write_bytes(b"% Height 12\n% Width 16\n")  # without events
    with pytest.raises(UserError, match=r"r1\.dat: .*, or skip it with --skip-damaged"):
        split_train_val(tmp_path, 50, WHOLE)
    settings = pretraining_settings("tespec", "sample", ["segments=5"])
    task = open_pretraining(settings, tmp_path, skip_damaged=True)
    assert {name.split(" (")[0] for name in task.recordings()} == {"r0.dat", "r2.dat"}
    assert task.damaged == ("r1.dat",)
    assert any(re.match(r"skipped \(damaged\): .*r1\.dat: ", note) for note in task.notes)
    for path in sound:
        path.unlink()
    with pytest.raises(UserError, match=r"r1\.dat: "):
        split_train_val(tmp_path, 50, WHOLE, skip_damaged=True)


def test_windows_below_1_us_and_factors_above_the_sensor_are_refused(tmp_path):
    (path,) = write_recordings(tmp_path, "one.dat")  # 16x12 px
    with pytest.raises(
        UserError, match=r"window_ms: 0.0004 is not a length of at least 1 us; give a number of ms"
    ):
        split_train_val(path, 0.0004, WHOLE)
    with pytest.raises(
        UserError, match=r"a sensor of 16x12 px cannot be downsampled by 13; give at most 12"
    ):
        split_train_val(path, 50, Downsample(13, "nearest"))
    assert split_train_val(path, 50, Downsample(12, "nearest")).train[0].region == Region(1, 1, 12)


@pytest.mark.parametrize(
    ("field", "change", "text"),
    [
        (slice(-16, -12), lambda time: time - 5_000, "1 times mended that were out of order, 0"),
        (slice(-4, None), lambda word: word | 0x3FFF, "0 times mended that were out of order, 1"),
    ],
    ids=["the last time steps back by 5 ms", "the last x is off the sensor"],
)
def test_mended_and_dropped_events_are_counted(tmp_path, field, change, text):
    path, _ = write_recordings(tmp_path, "mended.dat", "sound.dat")
    content = bytearray(path.read_bytes())
    last = int.from_bytes(content[field], "little")
    place = slice(-8, -4) if field.stop else field
    content[place] = change(last).to_bytes(4, "little")
    path.write_bytes(content)
    division = split_train_val(tmp_path, 50, WHOLE)
    text = f"in 1 recordings: {text} events off the sensor dropped"
    assert event_corrections((*division.train, *division.held_out)) == {"corrections": text}


def test_an_archive_of_histograms_is_pretrained_on_as_it_is(tiny_world, tmp_path):
    root = official(tiny_world, tmp_path, "gen1", "rvt-archive")
    division = split_train_val(root, 50, WHOLE)
    assert (len(division.train), len(division.held_out), division.train[0].region) == (
        2,
        1,
        Region(64, 80),
    )
    assert division.train[0].histograms(1, 2, Binning(10, "rvt")).max() > 0
    with pytest.raises(UserError, match=r"holds windows of 50 ms, not 40; give --set window_ms=50"):
        split_train_val(root, 40, WHOLE)


def test_the_nearest_one_that_states_a_sensor_within_five_folders_gives_its_size(tmp_path):
    recording = tmp_path / "a" / "b" / "c" / "d" / "e" / "drive.dat"
    recording.parent.mkdir(parents=True)
    assert (read_description(tmp_path), described_size(recording)) == (
        Description(),
        None,
    )  # as in official archives
    (tmp_path / "dataset.json").write_text('{"sensor": {"height": 9, "width": 9}}')
    assert described_size(recording) is None  # six folders up
    assert [folder for folder, _ in descriptions_above(recording, tmp_path)] == [tmp_path]
    (tmp_path / "a" / "dataset.json").write_text('{"sensor": {"height": 480, "width": 640}}')
    assert described_size(recording) == (480, 640)
    (recording.parent / "dataset.json").write_text('{"splits": {"train": ["drive"]}}')
    assert described_size(recording) == (480, 640)
    (recording.parents[1] / "dataset.json").write_text('{"sensor": {"height": 80, "width": 96}}')
    assert described_size(recording) == (80, 96)


def test_a_relative_path_is_searched_above_the_working_folder_and_not_inside_it(
    tmp_path, monkeypatch
):
    """A recording in `train` is described by its data set, also when named from there or from
    another data set.
    """
    for name, side in (("one", 60), ("other", 70)):
        (tmp_path / name / "train").mkdir(parents=True)
        (tmp_path / name / "dataset.json").write_text(
            json.dumps({"sensor": {"height": side, "width": side}})
        )
    monkeypatch.chdir(tmp_path / "one" / "train")
    assert described_size(Path("drive.raw")) == (60, 60)
    assert described_size(Path("../../other/train/drive.raw")) == (70, 70)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", ""),
        ("{", ""),
        ("3", "content: "),
        ('{"split": {"test": ["a"]}}', "split: "),
        ('{"sensor": {"height": 80, "width": 96, "heigth": 80}}', "sensor.heigth: "),
        ('{"splits": {"train": 1}}', "splits.train: "),
        ('{"sensor": {"height": 80, "width": 1000000}}', "sensor.width: "),
        # Relative and absolute paths out of the folder.
        (
            '{"splits": {"train": ["a/../../b"]}}',
            r"splits.train.0: .* is not a valid recording name",
        ),
        ('{"splits": {"train": ["/etc"]}}', r"splits.train.0: .* is not a valid recording name"),
        (
            '{"splits": {"train": ["a", "%s/b"]}}' % ("x" * 5000),
            r"splits.train.1: .*'x{200}' is not a valid recording name",
        ),
    ],
)
def test_what_is_no_description_is_refused(tmp_path, content, message):
    (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(
        UserError, match=rf"dataset\.json: not a valid data set description.*{message}"
    ) as caught:
        described_size(tmp_path)
    assert "\n" not in str(caught.value)

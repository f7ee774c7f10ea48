import json
import re
import shutil

import h5py
import numpy as np
import pytest
from ddd17_copies import copy_archive
from twins.layouts import relayout

from tespec.core.config import pretraining_settings
from tespec.core.errors import UserError
from tespec.core.settings import Downsample
from tespec.datasets.finding import Recordings, find_recordings
from tespec.datasets.recording import fingerprint
from tespec.datasets.survey import problems, survey
from tespec.datasets.unlabelled import divide
from tespec.events import open_events
from tespec.events.packing import pack
from tespec.events.readers.prophesee import write_dat
from tespec.pretraining.objective import build_objective

WHOLE = Downsample(1, "nearest")


def write_recording(path, seconds=2.0, height=12, width=16, seed=0):
    rng = np.random.default_rng(seed)
    count = 200
    path.parent.mkdir(parents=True, exist_ok=True)
    x, y, p = (rng.integers(0, limit, count) for limit in (width, height, 2))
    t = np.linspace(0, 1e6 * seconds, count).astype(np.int64)
    write_dat(path, x.astype(np.uint16), y.astype(np.uint16), t, p.astype(np.uint8), height, width)
    return path


def names(recordings):
    return [recording.name for recording in recordings]


def test_the_description_says_what_is_held_out(tiny_world):
    division = divide(tiny_world / "1mpx", 50, WHOLE)
    assert names(division.train) == ["train/moorea_2019-02-19_000_td_500000_8500000_td.dat"]
    assert names(division.held_out) == ["val/moorea_2019-02-19_001_td_500000_8500000_td.dat"]
    assert division.size == (64, 96)


def test_folders_of_an_official_download_say_it_and_test_is_left_alone(tmp_path):
    for number, split in enumerate(["train"] * 6 + ["val"] * 2 + ["test"] * 3):
        write_recording(tmp_path / split / f"r{number}_td.dat")
    division = divide(tmp_path, 50, WHOLE)
    assert names(division.train) == [f"train/r{number}_td.dat" for number in range(6)]
    assert names(division.held_out) == ["val/r6_td.dat", "val/r7_td.dat"]


def test_without_a_held_out_split_a_fifth_of_train_is_held_out(tmp_path):
    for number in range(10):
        write_recording(tmp_path / "train" / f"r{number}_td.dat")
        write_recording(tmp_path / "test" / f"s{number}_td.dat")
    division = divide(tmp_path, 50, WHOLE)
    assert (len(division.train), len(division.held_out)) == (8, 2)
    together = names(division.train) + names(division.held_out)
    assert sorted(together) == [f"train/r{number}_td.dat" for number in range(10)]


def test_what_is_held_out_depends_on_names_alone(tmp_path):
    for number in range(5):
        write_recording(tmp_path / "a" / f"r{number}.dat")
        write_recording(tmp_path / "b" / f"r{4 - number}.dat", seconds=3)
    assert names(divide(tmp_path / "a", 50, WHOLE).held_out) == names(divide(tmp_path / "b", 50, WHOLE).held_out)


def test_test_recordings_of_ddd17_are_never_trained_on(tiny_world, tmp_path):
    division = divide(copy_archive(tiny_world, tmp_path, ("dir0", "dir1", "dir2", "dir3")), 50, WHOLE)
    assert {recording.path.name for recording in division.train} == {"dir0", "dir1"}
    assert {recording.path.name for recording in division.held_out} == {"dir3"}


def test_of_few_recordings_the_last_quarter_is_held_out(tmp_path):
    division = divide(write_recording(tmp_path / "one.dat"), 50, WHOLE)
    (train,), (held_out,) = division.train, division.held_out
    assert (len(train), len(held_out)) == (30, 10)
    assert train.windows[-1, 1] == held_out.windows[0, 0] == 1_500_000
    assert names([train, held_out]) == ["one.dat (first 75% of its time)", "one.dat (after 75% of its time)"]


def test_windows_lie_side_by_side_within_the_events(tmp_path):
    path = write_recording(tmp_path / "one.dat", seconds=2.03)
    division = divide(path, 50, WHOLE)
    (train,), (held_out,) = division.train, division.held_out
    windows = np.concatenate([train.windows, held_out.windows])
    np.testing.assert_array_equal(windows, 50_000 * np.stack([np.arange(40), np.arange(1, 41)], axis=1))


def test_every_kind_of_recording_is_found(tiny_world, tmp_path):
    path = write_recording(tmp_path / "a" / "one.DAT")
    pack(open_events(path), tmp_path / "packed")
    shutil.copytree(tiny_world / "ddd17" / "dir0", tmp_path / "archive" / "dir0")
    found = find_recordings(tmp_path)
    assert found == [path, tmp_path / "archive" / "dir0", tmp_path / "packed"]
    for each in found:
        assert find_recordings(each) == [each]
        assert divide(each, 50, WHOLE).train


def other_file(path):
    with h5py.File(path, "w") as file:
        file["rectify_map"] = np.zeros((2, 2, 2), np.float32)


def prophesee_file(path):
    with h5py.File(path, "w") as file:
        file["CD/events"] = np.zeros(3, [("x", "<u2"), ("y", "<u2"), ("p", "<i2"), ("t", "<i8")])


def truncated_file(path):
    other_file(path)
    path.write_bytes(path.read_bytes()[:1000])


def ddd17_without_times(path):
    path.mkdir()
    (path / "events.dat.xyp").write_bytes(bytes(60))


@pytest.mark.parametrize(
    ("name", "spoil", "message"),
    [
        ("a.h5", lambda path: path.touch(), r"a\.h5: not a whole HDF5 file"),
        ("a.hdf5", truncated_file, r"a\.hdf5: not a whole HDF5 file"),
        ("a.h5", prophesee_file, r"a\.h5: is Prophesee.s own HDF5 format"),
        ("dir9", ddd17_without_times, r"dir9.events\.dat\.t: no such file"),
    ],
)
def test_recordings_that_cannot_be_read_are_named_and_not_passed_over(tmp_path, name, spoil, message):
    write_recording(tmp_path / "one.dat")
    other_file(tmp_path / "rectify_map.h5")
    spoil(tmp_path / name)
    assert {path.name for path in find_recordings(tmp_path)} == {"one.dat", name}
    with pytest.raises(UserError, match=message):
        divide(tmp_path, 50, WHOLE)
    (problem,) = problems(list(survey(Recordings(tmp_path))))
    assert re.search(message, problem)


@pytest.mark.parametrize(
    ("downsample", "size"),
    [
        (Downsample("auto", "all", 160), (90, 160)),
        (Downsample("auto", "all", 100), (77, 91)),
        (Downsample("auto", "all", None), (540, 640)),
        (Downsample(2, "nearest"), (270, 320)),
    ],
)
def test_downsampling_gives_whole_pixels(tmp_path, downsample, size):
    path = write_recording(tmp_path / "one.dat", height=540 if size != (90, 160) else 360, width=640)
    division = divide(path, 50, downsample)
    assert division.size == size
    assert division.train[0].histograms(0, 1, 2, "edges").shape == (1, 4, *size)


def test_recordings_too_short_for_a_window_do_not_stop_the_others(tmp_path):
    for number in range(5):
        write_recording(tmp_path / f"r{number}.dat", seconds=0.01 if number == 2 else 1.0)
    division = divide(tmp_path, 50, WHOLE)
    assert sorted(len(recording) for part in (division.train, division.held_out) for recording in part) == [
        0,
        20,
        20,
        20,
        20,
    ]


def spoil_description(root):
    (root / "dataset.json").write_text(json.dumps({"splits": {"train": ["r0", "r7"]}}))


BROKEN = {
    "nothing there": (shutil.rmtree, WHOLE, "data: no such file or folder; check the path"),
    "no recordings": (lambda root: [path.unlink() for path in root.iterdir()], WHOLE, "data: holds no recording"),
    "a split's recording": (spoil_description, WHOLE, "data: recording r7 of its dataset.json is missing"),
    "different sizes": (lambda root: write_recording(root / "z.dat", height=13), WHOLE,
                        r"different sizes: 16x12 \(r2.dat\), 16x13 \(z.dat\) px"),
    "too short": (lambda root: [write_recording(path, 0.03) for path in root.iterdir()], WHOLE,
                  "lasts 0.030 s, less than one window of 50 ms"),
    "torn file": (lambda root: (root / "r1.dat").write_bytes(b"% Height 12\n% Width 16\n"), WHOLE, "r1.dat: "),
    "factor by another name": (lambda root: None, Downsample("half", "all"), "downsample.factor: unknown value 'half'"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_mistakes_are_named(tmp_path, kind):
    spoil, downsample, message = BROKEN[kind]
    for number in range(3):
        write_recording(tmp_path / "data" / f"r{number}.dat")
    spoil(tmp_path / "data")
    with pytest.raises(UserError, match=message):
        divide(tmp_path / "data", 50, downsample)


def test_damaged_recordings_are_left_out_if_asked_for_and_recorded(tmp_path):
    for number in range(3):
        write_recording(tmp_path / f"r{number}.dat", height=48, width=64)
    (tmp_path / "r1.dat").write_bytes(b"% Height 12\n% Width 16\n")
    with pytest.raises(UserError, match=r"r1\.dat: .*, or leave it out with --skip-damaged"):
        divide(tmp_path, 50, WHOLE)
    settings = pretraining_settings("tespec", "sample", ["segments=5"])
    task = build_objective(settings, tmp_path, skip_damaged=True)
    assert {name.split(" (")[0] for name in task.recordings()} == {"r0.dat", "r2.dat"}
    assert task.protocol()["left out as damaged"] == "r1.dat"
    assert any(re.match(r"left out as damaged: .*r1\.dat: ", note) for note in task.notes)
    for name in "r0.dat", "r2.dat":
        (tmp_path / name).unlink()
    with pytest.raises(UserError, match=r"r1\.dat: "):
        divide(tmp_path, 50, WHOLE, skip_damaged=True)


def test_too_few_windows_held_out_are_counted(tmp_path):
    """Of 2 s in windows of 50 ms the last quarter, 10 windows, is held out."""
    path = write_recording(tmp_path / "one.dat", height=48, width=64)
    with pytest.raises(UserError, match=r"has 10 windows of 50 ms, not 15 \(segments\); give --set segments=10, or"):
        build_objective(pretraining_settings("tespec", "sample", ["segments=15"]), path)
    assert build_objective(pretraining_settings("tespec", "sample", ["segments=10"]), path).recordings()


def test_a_damaged_time_does_not_ask_for_windows_without_end(tiny_world, tmp_path):
    archive = copy_archive(tiny_world, tmp_path, ("dir0",))
    times = np.fromfile(archive / "dir0" / "events.dat.t", np.int64)
    times[-1] = 10**18
    times.tofile(archive / "dir0" / "events.dat.t")
    with pytest.raises(UserError, match=r"dir0: lasts 277,778 h by its time stamps, so one is damaged"):
        divide(archive / "dir0", 50, WHOLE)


def test_times_that_step_back_are_counted(tmp_path):
    path = write_recording(tmp_path / "stepping_td.dat")
    content = bytearray(path.read_bytes())
    content[-8:-4] = (0).to_bytes(4, "little")
    path.write_bytes(bytes(content))
    assert divide(path, 50, WHOLE).clamped == {path: 1}
    assert divide(write_recording(tmp_path / "sound_td.dat"), 50, WHOLE).clamped == {}


@pytest.mark.parametrize(
    ("dataset", "layout", "names"),
    [
        ("dsec", "readme", [f"train/zurich_city_0{number}_a/events/left/events.h5" for number in range(2)]),
        ("mvsec", "folders", ["outdoor_day/outdoor_day2_data.hdf5"]),
        ("ddd17", "folder", ["dir0", "dir1"]),
        ("gen1", "rvt-h5", [f"train/17-04-13_15-05-1{number}_500000_8500000_td.h5" for number in range(2)]),
    ],
)
def test_recordings_of_every_dataset_are_found_and_split(tiny_world, tmp_path, dataset, layout, names):
    root = tmp_path / dataset
    shutil.copytree(tiny_world / dataset, root)
    relayout(root, dataset, layout)
    division = divide(root, 50, WHOLE)
    found = {recording.name.split(" (")[0] for recording in division.train}
    assert found == set(names)
    assert division.train[0].histograms(0, 2, 10, "edges").shape[1] == 20


def test_an_archive_of_histograms_is_pretrained_on_as_it_is(tiny_world, tmp_path):
    root = tmp_path / "gen1"
    shutil.copytree(tiny_world / "gen1", root)
    relayout(root, "gen1", "rvt-archive")
    division = divide(root, 50, WHOLE)
    assert len(division.train) == 2
    assert len(division.held_out) == 1
    assert division.size == (64, 80)
    assert division.train[0].histograms(1, 2, 10, "rvt").max() > 0
    with pytest.raises(UserError, match=r"holds windows of 50 ms, not 40; give --set window_ms=50"):
        divide(root, 40, WHOLE)


def test_a_packed_store_stands_for_what_it_was_made_from(tiny_world, tmp_path):
    root = tmp_path / "1mpx"
    shutil.copytree(tiny_world / "1mpx", root)
    before = divide(tiny_world / "1mpx", 50, WHOLE)
    for path in root.glob("train/*_td.dat"):
        pack(open_events(path), path.with_name(path.name + ".store"), path)
        path.unlink()
    after = divide(root, 50, WHOLE)
    assert names(after.train) == names(before.train)
    assert fingerprint(after.train, after.held_out) == fingerprint(before.train, before.held_out)
    np.testing.assert_array_equal(
        after.train[0].histograms(3, 4, 10, "edges"), before.train[0].histograms(3, 4, 10, "edges")
    )

"""Gen1 and 1Mpx: choice of label frames and boxes, raw files, RVT's archives, and refused files."""

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace

import h5py
import hdf5plugin  # noqa: F401  # registers the filter of RVT's files
import numpy as np
import pytest
from event_files import random_events
from short_runs import cell_spec
from twins import copied
from twins.broken import content
from twins.layouts import relayout
from twins.rvt_archive import archive

from tespec.core.config import finetuning_settings
from tespec.core.errors import UserError
from tespec.core.settings import Binning
from tespec.datasets.archive import REPRESENTATIONS, WINDOW_OF_FRAME
from tespec.datasets.archive import TIMES as WINDOW_TIMES
from tespec.datasets.augment import FlipZoom
from tespec.datasets.prophesee import (
    LABELS,
    BoxLabels,
    PropheseeProtocol,
    choose_boxes,
    choose_frames,
    raw_boxes,
)
from tespec.datasets.recording import contiguous_windows
from tespec.events.readers.dat import write_dat
from tespec.runs.data import Data
from tespec.runs.finetune import prepare_run
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset
from tespec.tasks.detection import DetectionTask

# prophesee-ai/prophesee-automotive-dataset-toolbox, src/io/box_loading.py
RVT = Binning(10, "rvt")  # of RVT's archives
FIELDS = ("t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence")
BOX = list(zip(FIELDS, ("<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4"), strict=True))


def boxes(*rows):
    """Structured array of boxes from rows of (time in us, x, y, w, h, class)."""
    return np.array([(*row, place, 1.0) for place, row in enumerate(rows)], BOX)


def frames_at(times, *, label=0, size=(60, 50)):
    """One box at each of `times` in us, moving to the right."""
    return boxes(*((time, 20 + place % 50, 30, *size, label) for place, time in enumerate(times)))


def write_recording(
    folder, name, stored, *, task="gen1", end=1_300_000, start=0, count=4000, seed=0
):
    """Write boxes and random events; the first is at `start`, the last `end` us later."""
    height, width = {"gen1": (240, 304), "1mpx": (720, 1280)}[task]
    events = random_events(
        count, height=height, width=width, start=start, end=start + end, seed=seed
    )
    events.t[[0, -1]] = start, start + end
    folder.mkdir(parents=True, exist_ok=True)
    write_dat(folder / f"{name}_td.dat", *events, height, width)
    np.save(folder / f"{name}_bbox.npy", stored)


def opened(root, task="gen1", *changes, arch="recurrent"):
    import_tasks()
    return open_dataset(finetuning_settings(task, arch, "paper", changes), root)


GEN1 = PropheseeProtocol(250, False, 30, 10, 0.9, ())
ONE_MPX = PropheseeProtocol(100, True, 0, 5, 0.9, ())
HOUR = 3_600_000_000
SKIPPED = "17-04-06_09-57-37_6344500000_6404500000"
TIMES = list(range(0, 1_250_001, 250_000))

# Boxes (x, y, width, height, class) and, for those that count, their corners by RVT's rules. RVT
# crops at the last pixel and requires sides >= 10, a diagonal >= 30, and in training a width <= 273
# = int(0.9 * 304).
KEPT = {
    (10, 20, 30, 40, 1): [10, 20, 40, 60],
    (-20.5, -9.5, 60, 50, 0): [0, 0, 39.5, 40.5],
    (260, 200, 80, 80, 0): [260, 200, 303, 239],
    (0, 0, 10, 90, 0): [0, 0, 10, 90],
    (0, 0, 18, 24, 0): [0, 0, 18, 24],
    (0, 0, 273, 50, 0): [0, 0, 273, 50],
}
KEPT_IN_TEST = {(0, 0, 273.5, 50, 0): [0, 0, 273.5, 50]}
OUTSIDE_IMAGE = [
    (293.5, 0, 24, 90, 0),
    (0, 0, 9.75, 90, 0),
    (0, 0, 18, 23.5, 0),
    (304, 0, 40, 40, 0),
    (0, 50, 40, 0, 0),
]
OTHER_CLASS = (0, 0, 50, 50, 2)


def test_which_boxes_count():
    stored = raw_boxes(
        boxes(*((0, *box) for box in (*OUTSIDE_IMAGE, *KEPT, OTHER_CLASS, *KEPT_IN_TEST))), "a", 4
    )
    for training, expected in ((True, KEPT), (False, KEPT | KEPT_IN_TEST)):
        kept = choose_boxes(stored, GEN1, 2, (240, 304), training)
        assert kept.corners.tolist() == list(expected.values())
        assert kept.label.tolist() == [box[4] for box in expected]


FRAMES = {
    "4 Hz": (range(0, 2_000_000, 250_000), range(250_000, 2_000_000, 250_000)),
    "the first from 100 ms on": ([99_999, 100_000, 349_999, 350_000], [100_000, 349_999]),
    "1 Hz": ([500_000, 1_500_000, 2_500_000], [500_000, 1_500_000, 2_500_000]),
    "2 ms late or early": (
        [200_000, 452_000, 700_000, 948_000],
        [200_000, 452_000, 700_000, 948_000],
    ),
    "3 ms late": ([200_000, 453_000, 700_000], [200_000, 700_000]),
    "off the period": ([200_000, 300_000, 450_000, 575_000], [200_000, 450_000]),
    "two at once": ([200_000, 200_900, 450_000, 450_900], [200_000, 450_000]),
    "none late enough": ([0, 99_999], []),
    "none": ([], []),
}


@pytest.mark.parametrize(("times", "expected"), FRAMES.values(), ids=FRAMES)
def test_label_frames(times, expected):
    assert choose_frames(np.array(times, np.int64), GEN1).tolist() == list(expected)


@pytest.mark.parametrize(("spacing", "each"), [(16_666, 6), (16_683, 6), (33_333, 3), (33_367, 3)])
def test_frames_of_1mpx_keep_their_distance_over_a_minute(spacing, each):
    """Small differences from 100 ms add up to more than the tolerance within seconds."""
    times = 100_000 + spacing * np.arange(60_000_000 // spacing)
    np.testing.assert_array_equal(choose_frames(times, ONE_MPX), times[::each])
    with_a_gap = np.delete(times, np.arange(each, 40 * each))
    np.testing.assert_array_equal(
        choose_frames(with_a_gap, ONE_MPX), np.delete(times[::each], np.arange(1, 40))
    )


def test_labels_are_the_boxes_of_their_frames_and_checksums_know_them():
    rows, times = (
        [(t, 10 * place, 4, 20, 10, place % 2) for place, t in enumerate([1, 1, 2, 3, 3, 3, 5])],
        [1, 3, 5],
    )
    labels = BoxLabels(raw_boxes(boxes(*rows), "a", 2).downsampled(2, (240, 304)), np.array(times))
    assert [labels[index].corners[:, 0].tolist() for index in range(3)] == [
        [0, 5],
        [15, 20, 25],
        [30],
    ]
    assert [labels[index].label.tolist() for index in range(3)] == [[0, 1], [1, 0, 1], [0]]
    assert labels[-1].corners.tolist() == [[30, 2, 40, 7]]
    rows[3] = (3, 30, 4, 20, 10, 0)  # another class
    other = BoxLabels(raw_boxes(boxes(*rows), "a", 2).downsampled(2, (240, 304)), np.array(times))
    assert labels.checksums() != other.checksums()
    rows[3], rows[2] = (3, 30, 4, 20, 10, 1), (2, 0, 0, 9, 9, 0)  # no label is at this time
    other = BoxLabels(raw_boxes(boxes(*rows), "a", 2).downsampled(2, (240, 304)), np.array(times))
    assert labels.checksums() == other.checksums()


@pytest.fixture
def root(tmp_path):
    """Folder of two training recordings and one test recording, in the official sizes."""
    for number, (split, name) in enumerate([("train", "b"), ("train", "a"), ("test", "c")]):
        write_recording(tmp_path / split, name, frames_at(TIMES), seed=number)
    return tmp_path


def test_every_recording_of_a_split_but_the_skipped_ones_is_there_in_order(root):
    for path in [*root.glob("train/b_*"), root / "test" / "c_bbox.npy"]:
        shutil.copy(path, path.with_name(path.name.replace(path.name[0], SKIPPED, 1)))
    found = {
        split: [recording.name for recording in opened(root).recordings(split)]
        for split in ("train", "test")
    }
    assert found == {"train": ["a", "b"], "test": ["c"]}
    with pytest.raises(UserError, match="has recordings of Gen1; give the folder of 1Mpx"):
        opened(root, "1mpx")
    (root / "test" / "c_td.dat").rename(root / "test" / "d_td.dat")
    without_events = (
        r"c_bbox\.npy: has no events next to it; copy the recording's events next to its"
    )
    with pytest.raises(UserError, match=without_events):
        opened(root).names("test")
    with pytest.raises(UserError, match="b is in train and again in train; list it once"):
        opened(root, "gen1", "splits.train=[b, a, b]")
    changed = opened(root, "gen1", "splits.train=[b]", "splits.test=[a]")
    assert [recording.name for recording in changed.recordings("train")] == ["b"]
    with pytest.raises(UserError, match=r"a_td\.dat: recording of the test split is missing"):
        changed.recordings("test")


def test_event_files_of_several_kinds_are_each_a_recording(root):
    test = root / "test"
    for name, ending in (("d", "_td.dat.h5"), ("e", "_td.h5"), ("f", "_td.dat.h5.store")):
        (test / f"{name}{ending}").touch()
        shutil.copy(test / "c_bbox.npy", test / f"{name}_bbox.npy")
    data = opened(root)
    paths = {name: data.find("test", name).source.path.name for name in data.names("test")}
    assert paths == {"c": "c_td.dat", "d": "d_td.dat.h5", "e": "e_td.h5", "f": "f_td.dat.h5"}
    assert data.layout == "_td.dat, _td.dat.h5, _td.h5"
    for ending in ("_td.h5", "_td.dat.h5.store"):
        (test / f"c{ending}").touch()
        with pytest.raises(
            UserError,
            match=rf"c{ending.removesuffix('.store')}: also exists as .*/c_td\.dat; keep one",
        ):
            opened(root)
        (test / f"c{ending}").unlink()


def test_five_windows_of_50_ms_lead_from_label_to_label_or_one_to_each(root):
    (recording,) = opened(root).recordings("test")
    assert (recording.label_times.tolist(), recording.left_out) == (TIMES[1:], 1)
    assert recording.label_indices.tolist() == [4, 9, 14, 19, 24]
    np.testing.assert_array_equal(recording.windows, contiguous_windows(0, 1_250_000, 50_000))
    assert recording.histograms(0, 25, Binning(10, "edges")).shape == (25, 20, 240, 304)
    (alone,) = opened(root, "gen1", arch="feedforward").recordings("test")
    assert alone.windows.tolist() == [[time - 50_000, time] for time in TIMES[1:]]


def test_a_clock_that_starts_late_changes_nothing_but_the_times(root, tmp_path_factory):
    """Windows and scored times, which skip the first 0.5 s, are relative to a recording's first
    event.
    """
    (before,) = opened(root).recordings("test")
    late = tmp_path_factory.mktemp("late")
    for split, name in (("train", "a"), ("test", "c")):
        write_recording(
            late / split, name, frames_at([HOUR + time for time in TIMES]), start=HOUR, seed=2
        )
    (recording,) = opened(late).recordings("test")
    np.testing.assert_equal(
        (recording.windows, recording.label_indices), (before.windows + HOUR, before.label_indices)
    )
    task, seen = DetectionTask(finetuning_settings("gen1", "recurrent", "paper"), late), []
    scorer = SimpleNamespace(
        update=lambda outcome, truth, name, time_us, groups: seen.append(time_us)
    )
    for label in range(len(recording.label_indices)):
        task.score(scorer, recording.labels[label], recording.labels[label], recording, label)
    assert seen == TIMES[1:]


@pytest.mark.parametrize(
    ("times", "message"),
    [
        (range(100_000, 20_000_000, 250_000), r"labels are at 100000 to 19850000 us, the events "),
        (range(4_100_000, 5_000_000, 250_000), r"labels are at 4100000 to 4850000 us, the events "),
        (range(5_000, 25_001, 250), r"labels are at 5000 to 25000 us, the events at 5000000 to "),
        ([5_000_000, 5_050_000], r"no label frame from 5000000 to 5050000 us passes the filters"),
    ],
    ids=["from 0 on", "before the events", "ms", "too early"],
)
def test_boxes_on_another_clock_are_refused(tmp_path, times, message):
    times = list(times)
    write_recording(
        tmp_path / "test", "a", frames_at(times), start=5_000_000, end=20_000_000, count=4000
    )
    with pytest.raises(UserError, match=rf"{message}.*convert .* clock"):
        opened(tmp_path).recordings("test")


@pytest.mark.parametrize("later", [(), (900,), (2_000,), range(900, 9_000, 900)])
def test_boxes_at_one_time_or_close_together_have_the_clock_of_the_events(tmp_path, later):
    times = [300_000, *(300_000 + time for time in later)]
    write_recording(tmp_path / "test", "a", frames_at(times), end=20_000_000)
    assert opened(tmp_path).recordings("test")[0].label_times.tolist() == [300_000]


@pytest.mark.parametrize("hertz", [1, 4, 20])
def test_boxes_in_ms_are_refused_also_if_the_events_begin_at_0(tmp_path, hertz):
    stored = frames_at([1000 // hertz * place for place in range(20 * hertz)])
    write_recording(tmp_path / "test", "a", stored, end=20_000_000)
    with pytest.raises(UserError, match=r"its labels are at 0 to .* us, the events at 0 to 2"):
        opened(tmp_path).recordings("test")


def test_fractions_of_the_image_are_no_boxes():
    with pytest.raises(UserError, match=r"^a: holds fractions of the image: .*; multiply them by"):
        raw_boxes(boxes((0, 0.5, 0.25, 0.5, 1, 0), (9, 0, 0, 1, 1, 1)), "a", 2)
    assert len(raw_boxes(boxes((0, 0.5, 0.25, 0.5, 1.5, 0)), "a", 2).t) == 1


def test_twins_that_macos_adds_are_no_recordings(root):
    for path in list(root.glob("*/*.*")):
        path.with_name(f"._{path.name}").write_bytes(b"Mac OS X")
    data = opened(root)
    assert {split: data.names(split) for split in ("train", "test")} == {
        "train": ("a", "b"),
        "test": ("c",),
    }


def test_boxes_as_wide_as_the_sensor_are_left_out_of_training_alone(root):
    for path in root.glob("*/*_bbox.npy"):
        np.save(path, np.concatenate([frames_at(TIMES[:3]), frames_at(TIMES[3:], size=(280, 50))]))
    found = opened(root)
    assert found.recordings("test")[0].label_times.tolist() == TIMES[1:]
    assert [recording.label_times.tolist() for recording in found.recordings("train")] == [
        TIMES[1:3]
    ] * 2


def test_of_1mpx_three_of_seven_classes_count_and_boxes_are_halved(tmp_path):
    rows = [(100_000, 40 + 100 * label, 30, 60, 50, label) for label in range(7)]
    small = [(100_000, 8, 8, 5, 6, 0), (200_000, 8, 8, 4.5, 90, 0), (300_000, 8, 8, 80, 80, 6)]
    stored = boxes(*rows, (100_000, 1200, 700, 300, 300, 2), *small)
    write_recording(tmp_path / "test", "a", stored, task="1mpx", end=1_000_000)
    (recording,) = opened(tmp_path, "1mpx").recordings("test")
    assert (recording.label_times.tolist(), recording.left_out) == ([100_000], 2)
    assert recording.labels[0].label.tolist() == [0, 1, 2, 2, 0]
    # RVT crops again after it halves (data/genx_utils/labels.py, `scale_`).
    halved = [
        [20, 15, 50, 40],
        [70, 15, 100, 40],
        [120, 15, 150, 40],
        [600, 350, 639, 359],
        [4, 4, 6.5, 7],
    ]
    assert recording.labels[0].corners.tolist() == halved
    outside = raw_boxes(boxes((0, 1278.5, 8, 1, 5, 0), (0, 1277, 8, 2, 5, 0)), "a", 7).downsampled(
        2, (720, 1280)
    )
    assert outside.corners.tolist() == [[638.5, 4, 639, 6.5]]


# RVT's archives of histograms; `tests/twins` compares them with the raw recordings.
@pytest.fixture(scope="module")
def made(tmp_path_factory):
    root = tmp_path_factory.mktemp("made")
    write_recording(root / "test", "a", frames_at(TIMES[1:]))
    archive(
        root,
        factor=1,
        period_us=250_000,
        windows_per_period=5,
        classes=2,
        min_diagonal=30,
        min_side=10,
    )
    return root


def test_of_an_archive_feed_forward_networks_see_the_window_of_each_label(made):
    (every,) = opened(made, "gen1", "rule=rvt").recordings("test")
    (alone,) = opened(made, "gen1", "rule=rvt", arch="feedforward").recordings("test")
    assert (every.label_indices.tolist(), alone.label_indices.tolist()) == (
        [3, 8, 13, 18, 23],
        [0, 1, 2, 3, 4],
    )
    assert every.label_times.tolist() == alone.label_times.tolist() == TIMES[1:]
    np.testing.assert_array_equal(alone.histograms(1, 2, RVT), every.histograms(8, 6, RVT)[::5])
    flipped = np.empty((2, 20, 240, 304), np.uint8)
    every.fill(flipped, 3, RVT, FlipZoom(np.arange(240), np.arange(304)[::-1]))
    np.testing.assert_array_equal(flipped, every.histograms(3, 2, RVT)[..., ::-1])


def test_a_protocol_or_factor_that_an_archive_is_not_stored_with_is_refused(tiny_world, tmp_path):
    relayout(root := copied(tiny_world, tmp_path, "gen1"), "gen1", "rvt-archive")

    def prepared(*changes):
        data = Data(root, "sample")
        return prepare_run(
            "evaluation",
            cell_spec(tmp_path, tmp_path, "gen1", changes=("rule=rvt", *changes), data=data),
        )[0]

    assert prepared("protocol.skip=[a]").cell.overrides["protocol.skip"] == ["a"]
    remedy = "leave it at its default"
    what = rf"labels that RVT's protocol selected, so protocol\.min_side has no effect; {remedy}"
    with pytest.raises(UserError, match=what):
        prepared("protocol.skip=[a]", "protocol.min_side=3")
    with pytest.raises(
        UserError,
        match=r"holds histograms downsampled by 1 .*, not by 2 .*; set downsample\.factor to 1",
    ):
        prepared("downsample.to_width=null", "downsample.factor=2")
    prepared("downsample.to_width=null", "downsample.factor=1")


COUNTS = REPRESENTATIONS / "event_representations.h5"


def boxes_of(**changes):
    """Change arrays of an archive's labels.npz; None removes one."""

    def spoil(path):
        arrays = dict(np.load(path))
        arrays |= {name: change(arrays[name]) for name, change in changes.items()}
        np.savez(path, **{name: array for name, array in arrays.items() if array is not None})

    return spoil


def earlier(stored, us=1):
    stored["t"] -= us
    return stored


def starts_and_ends(ends, length=50_000):
    return np.stack([ends - length, ends], axis=1)


@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
def test_rvts_own_archive_of_gen1_is_read_by_its_index_files(made, tmp_path, arch):
    """It holds starts and ends of windows, and boxes 1 us before the ends (249999, 499999, ...)."""
    (before,) = opened(made, "gen1", "rule=rvt", arch=arch).recordings("test")
    folder = shutil.copytree(made, tmp_path / "archive") / "test" / "a"
    content(starts_and_ends)(folder / WINDOW_TIMES)
    boxes_of(labels=earlier)(folder / LABELS)
    (recording,) = opened(tmp_path / "archive", "gen1", "rule=rvt", arch=arch).recordings("test")
    np.testing.assert_array_equal(recording.windows, before.windows)
    assert recording.label_times.tolist() == before.label_times.tolist() == TIMES[1:]
    for one, other in zip(recording.labels, before.labels, strict=True):
        assert len(one.label) == 1
        np.testing.assert_equal(one, other)
    np.testing.assert_array_equal(recording.histograms(0, 5, RVT), before.histograms(0, 5, RVT))
    # The index decides: boxes belong to another window if it says so.
    content(lambda index: index - 1)(folder / WINDOW_OF_FRAME)
    (moved,) = opened(tmp_path / "archive", "gen1", "rule=rvt", arch=arch).recordings("test")
    assert moved.label_times.tolist() == [time - 50_000 for time in TIMES[1:]]


@pytest.mark.parametrize(
    ("file", "spoil", "message"),
    [
        (
            COUNTS,
            content(lambda data: data.astype("u2"), "data"),
            r"data is uint16 \(24, 20, 240, 304\) instead of uint8",
        ),
        (
            COUNTS,
            content(lambda data: data * 11, "data"),
            r"event_representations\.h5: holds counts above 10",
        ),
        (
            WINDOW_TIMES,
            content(lambda times: times[:-1]),
            "does not hold 24 increasing times, one for each",
        ),
        (WINDOW_TIMES, content(lambda times: times[::-1]), "does not hold 24 increasing times"),
        (
            WINDOW_TIMES,
            content(lambda times: starts_and_ends(times, 250_000)),
            "last 250000 to 250000 us, not 50000",
        ),
        (
            WINDOW_TIMES,
            content(lambda times: starts_and_ends(times)[:, ::-1]),
            "last -50000 to -50000 us, not 50000",
        ),
        (
            WINDOW_TIMES,
            content(lambda times: times + 60_000),
            r"labels\.npz: has boxes 60000 us from the end of their",
        ),
        (WINDOW_OF_FRAME, lambda path: path.unlink(), r"repr_idx\.npy: no such file"),
        (
            WINDOW_OF_FRAME,
            content(lambda index: index[::-1]),
            "does not hold rising indices of 24 histograms",
        ),
        (
            WINDOW_OF_FRAME,
            content(lambda index: index + 1),
            "does not hold rising indices of 24 histograms",
        ),
        (
            WINDOW_OF_FRAME,
            content(lambda index: index - 4),
            "does not hold rising indices of 24 histograms",
        ),
        (
            WINDOW_OF_FRAME,
            content(lambda index: index * 0.5),
            "does not hold rising indices of 24 histograms",
        ),
        (
            WINDOW_OF_FRAME,
            content(lambda index: index[:-1]),
            r"do not match \(5, 5 and 4 label frames\); unpack",
        ),
        (
            LABELS,
            boxes_of(objframe_idx_2_label_idx=lambda rows: rows + 1),
            r"do not match \(5, 5 and 5",
        ),
        (
            LABELS,
            boxes_of(objframe_idx_2_label_idx=lambda rows: rows[1:]),
            r"do not match \(5, 4 and 5",
        ),
        (
            LABELS,
            boxes_of(objframe_idx_2_label_idx=lambda rows: None),
            "lacks one of the arrays labels, objframe_idx_2",
        ),
    ],
)
def test_damaged_archives_are_refused(made, tmp_path, file, spoil, message):
    root = shutil.copytree(made, tmp_path / "archive")
    spoil(root / "test" / "a" / file)
    with pytest.raises(UserError, match=message):
        opened(root, "gen1", "rule=rvt").recordings("test")[0].histograms(0, 24, RVT)


@pytest.mark.parametrize(
    ("changes", "later_us", "bins", "message"),
    [
        ([], 50_000, 10, "has no histogram for one of the windows"),
        (
            [],
            0,
            5,
            r"holds histograms of 10 bins, rule rvt, not 5 bins, rule rvt; give --set rep",
        ),
        (["window_ms=40"], 0, 10, "holds windows of 50 ms, not 40; give --set window_ms=50"),
        (["sensor_px=640x480"], 0, 10, "its sensor is 304x240 px, not 640x480; omit --sensor"),
    ],
)
def test_histograms_that_an_archive_does_not_hold_are_refused(
    made, changes, later_us, bins, message
):
    def read():
        (recording,) = opened(made, "gen1", "rule=rvt", *changes).recordings("test")
        dataclasses.replace(recording, windows=recording.windows + later_us).histograms(
            0, 24, Binning(bins, "rvt")
        )

    with pytest.raises(UserError, match=message):
        read()


# What RVT's own script made of recordings: tests/data/NOTICE.md.
FIXTURE = Path(__file__).parents[1] / "data" / "rvt_script_fixture"
SCRIPT = {
    "gen1": (GEN1, 2, "17-03-30_12-53-58_1037500000_1097500000", "event_representations.h5"),
    "1mpx": (
        ONE_MPX,
        3,
        "moorea_2019-06-14_002_976500000_1036500000",
        "event_representations_ds2_nearest.h5",
    ),
}


@pytest.mark.parametrize("task", SCRIPT)
def test_histograms_frames_and_boxes_are_those_of_rvts_script(task):
    rules, classes, name, counts = SCRIPT[task]
    folder = "gen1" if task == "gen1" else "gen4"
    archived = FIXTURE / f"{folder}_proc" / "train" / name
    (raw,) = opened(FIXTURE / f"{folder}_raw", task).recordings("train")
    ends = np.load(archived / WINDOW_TIMES)
    with h5py.File(archived / REPRESENTATIONS / counts) as file:
        expected = file["data"][:]
    found = dataclasses.replace(raw, windows=starts_and_ends(ends)).histograms(0, len(ends), RVT)
    assert expected.sum() > 5_000
    assert np.array_equal(found, expected)  # three times as fast as numpy.testing

    np.testing.assert_array_equal(
        raw.label_times, np.load(archived / "labels_v2" / "timestamps_us.npy")
    )
    stored = np.load(archived / LABELS)["labels"]
    path = FIXTURE / f"{folder}_raw" / "train" / f"{name}_bbox.npy"
    sensor = type(opened(FIXTURE / f"{folder}_raw", task)).sensor
    kept = choose_boxes(raw_boxes(np.load(path), path, 7), rules, classes, sensor, training=True)
    kept = kept.keep(np.isin(kept.t, raw.label_times))
    assert (kept.t.tolist(), kept.label.tolist()) == (
        stored["t"].tolist(),
        stored["class_id"].tolist(),
    )
    sizes = kept.corners[:, 2:] - kept.corners[:, :2]
    for values, field in zip((*kept.corners[:, :2].T, *sizes.T), "xywh", strict=True):
        np.testing.assert_array_equal(values, stored[field])


def test_the_archive_that_rvts_script_makes_of_1mpx_has_the_labels_of_its_recording():
    (raw,), (archived,) = (
        opened(FIXTURE / f"gen4_{kind}", "1mpx", "rule=rvt").recordings("train")
        for kind in ("raw", "proc")
    )
    assert archived.label_times.tolist() == raw.label_times.tolist()
    for one, other in zip(archived.labels, raw.labels, strict=True):
        assert one.label.tolist() == other.label.tolist()
        np.testing.assert_allclose(
            one.corners, other.corners, rtol=1e-6
        )  # widths are rounded to float32
    np.testing.assert_array_equal(
        archived.windows[archived.label_indices, 1], raw.windows[raw.label_indices, 1]
    )


def test_the_archive_that_rvts_script_makes_of_gen1_is_refused():
    with pytest.raises(
        UserError,
        match=r"windows of 50 ms are 125 ms apart, so events between them are missing; give",
    ):
        opened(FIXTURE / "gen1_proc", "gen1", "rule=rvt").recordings("train")

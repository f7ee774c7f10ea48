import multiprocessing
import pickle
import shutil

import h5py
import numpy as np
import pytest
from prophesee_files import boxes, frames_at, opened, write_recording
from twins.rvt_archive import archive

from tespec.core.errors import UserError
from tespec.datasets.rvt_archive import LABELS, REPRESENTATIONS, ArchiveSource, check_spacing, is_archive
from tespec.events.spatial import Region

TIMES = list(range(250_000, 1_250_001, 250_000))
RVT = "rule=rvt"
SETTINGS = {
    "gen1": {"factor": 1, "period_us": 250_000, "classes": 2, "min_diagonal": 30, "min_side": 10},
    "1mpx": {"factor": 2, "period_us": 100_000, "classes": 3, "min_diagonal": 0, "min_side": 5},
}


def make(root, task="gen1", windows_per_period=5, stored=None):
    """A raw recording and the archive made from it; the folder of the archive's recording."""
    stored = frames_at(TIMES) if stored is None else stored
    write_recording(root / "raw" / "test", "a", stored, task=task)
    shutil.copytree(root / "raw", root / "archive")
    archive(root / "archive", windows_per_period=windows_per_period, **SETTINGS[task])
    return root / "archive" / "test" / "a"


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    return make(tmp_path_factory.mktemp("made"))


@pytest.fixture
def folder(made, tmp_path):
    """A copy to break."""
    return shutil.copytree(made, tmp_path / "archive" / "test" / "a")


def root_of(folder):
    return folder.parents[1]


def test_windows_and_histograms_are_those_stored(made):
    source = ArchiveSource(made)
    assert is_archive(made)
    assert not is_archive(made.parent)
    assert source.region == Region(240, 304)
    windows = source.windows()
    np.testing.assert_array_equal(windows[:, 1], np.arange(100_000, 1_250_001, 50_000))
    np.testing.assert_array_equal(windows[:, 0], windows[:, 1] - 50_000)
    with h5py.File(source.file) as file:
        stored = file["data"][:]
    np.testing.assert_array_equal(source.histograms(windows, 10, "rvt", source.region), stored)
    np.testing.assert_array_equal(source.histograms(windows[[7, 2]], 10, "rvt", source.region), stored[[7, 2]])
    assert source.histograms(windows[:0], 10, "rvt", source.region).shape == (0, 20, 240, 304)


@pytest.mark.parametrize("arch", ["recurrent", "feedforward"])
def test_an_archive_gives_the_labels_of_the_raw_recording(made, arch):
    (raw,) = opened(made.parents[2] / "raw", "gen1", RVT, arch=arch).recordings("test")
    (stored,) = opened(root_of(made), "gen1", RVT, arch=arch).recordings("test")
    np.testing.assert_array_equal(raw.label_times, stored.label_times)
    for index in range(len(raw.labels)):
        np.testing.assert_array_equal(raw.labels[index].corners, stored.labels[index].corners)
        np.testing.assert_array_equal(raw.labels[index].label, stored.labels[index].label)
    lengths = {len(each) - int(each.labelled[0]) for each in (raw, stored)}
    assert lengths == ({21} if arch == "recurrent" else {5})


def test_histograms_are_those_of_the_raw_recording(made):
    """Windows of both are closed: the event at 1.25 s is in the last one, and borders count on both sides."""
    (raw,) = opened(made.parents[2] / "raw", "gen1", RVT).recordings("test")
    (stored,) = opened(root_of(made), "gen1", RVT).recordings("test")
    found = raw.source.histograms(stored.windows, 10, "rvt", raw.region)
    np.testing.assert_array_equal(stored.histograms(0, len(stored), 10, "rvt"), found)


def test_a_1mpx_archive_is_of_half_the_size_and_its_boxes_are_not(tmp_path):
    rows = [(100_000 * number, 1200, 700, 300, 300, 2) for number in range(1, 5)]
    folder = make(tmp_path, "1mpx", windows_per_period=2, stored=boxes(*rows))
    (raw,) = opened(tmp_path / "raw", "1mpx", RVT).recordings("test")
    (stored,) = opened(root_of(folder), "1mpx", RVT).recordings("test")
    assert ArchiveSource(folder).factor == 2
    assert stored.region.height, stored.region.width == (360, 640)
    assert stored.labels[0].corners.tolist() == raw.labels[0].corners.tolist() == [[600, 350, 639.5, 359.5]]
    found = raw.source.histograms(stored.windows[:4], 10, "rvt", raw.region)
    np.testing.assert_array_equal(stored.histograms(0, 4, 10, "rvt"), found)


def test_windows_before_the_first_label_lead_up_to_it(made):
    (recording,) = opened(root_of(made), "gen1", RVT).recordings("test")
    assert recording.labelled.tolist() == [3, 8, 13, 18, 23]
    assert opened(root_of(made), "gen1", RVT).describe()["windows"].startswith("as RVT's archive holds them")


def test_archives_of_the_public_script_are_refused_by_name(tmp_path):
    folder = make(tmp_path, windows_per_period=2)
    message = (
        r"timestamps_us\.npy: windows of 50 ms are 125 ms apart, so that events between them are missing; "
        r"give RVT's own archive, or the raw recordings; its public script makes this one"
    )
    with pytest.raises(UserError, match=message):
        opened(root_of(folder), "gen1", RVT).recordings("test")


def test_spacing_may_vary_as_label_times_do(tmp_path):
    rng = np.random.default_rng(0)
    check_spacing(tmp_path, np.cumsum(50_000 + rng.integers(-400, 401, 1000)))
    check_spacing(tmp_path, np.array([70_000]))
    for spacing in (25_000, 100_000, 125_000):
        with pytest.raises(UserError, match=f"windows of 50 ms are {spacing // 1000} ms apart"):
            check_spacing(tmp_path, spacing * np.arange(1, 9))


def _sum_of(source_and_window):
    source, window = source_and_window
    return int(source.histograms(source.windows()[window : window + 1], 10, "rvt", source.region).sum())


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 on, where other tests left threads
def test_forked_workers_read_one_archive_at_the_same_time(made):
    source = ArchiveSource(made)
    tasks = [(source, window) for window in range(24)]
    here = list(map(_sum_of, tasks))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(_sum_of, tasks, chunksize=1) == here


def test_a_source_is_small_when_it_is_sent_to_a_worker(made):
    source = ArchiveSource(made)
    source.histograms(source.windows()[:1], 10, "rvt", source.region)
    assert len(pickle.dumps(source)) < 1000


REQUESTS = {
    "bins": ((5, "rvt", Region(240, 304)), r"holds histograms with bins 10, not 5; give --set bins=10"),
    "rule": ((10, "edges", Region(240, 304)), r"holds histograms with rule rvt, not edges; give --set rule=rvt"),
    "size": ((10, "rvt", Region(120, 152, 2)), r"cannot be downsampled; set downsample\.factor=1"),
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_what_an_archive_cannot_give_is_said(made, kind):
    request, message = REQUESTS[kind]
    source = ArchiveSource(made)
    with pytest.raises(UserError, match=message):
        source.histograms(source.windows()[:1], *request)


def test_other_windows_and_events_are_refused(made):
    source = ArchiveSource(made)
    for end in (1_250_001, 101_000, 1):
        windows = np.array([[end - 50_000, end], [50_000, 100_000]])
        with pytest.raises(UserError, match="has no histogram of one of the windows; give the raw recordings"):
            source.histograms(windows, 10, "rvt", source.region)
    with pytest.raises(UserError, match="a: holds histograms, not events; give the raw recordings"):
        _ = source.stream


@pytest.mark.parametrize(("value", "asked"), [("40", "40 ms"), ("null", "all events since the previous label")])
def test_other_lengths_of_windows_are_refused(made, value, asked):
    found = opened(root_of(made), "gen1", RVT, f"window_ms={value}")
    with pytest.raises(UserError, match=f"holds windows of 50 ms, not of {asked}; give --set window_ms=50"):
        found.recordings("test")


def change_array(folder, name, change):
    path = folder / name
    np.save(path, change(np.load(path)))


def change_labels(folder, **changes):
    with np.load(folder / LABELS) as content:
        stored = dict(content)
    np.savez(folder / LABELS, **{name: changes.get(name, lambda kept: kept)(kept) for name, kept in stored.items()})


def with_field(name, value):
    def change(stored):
        stored[name] = value
        return stored

    return change


def change_frames(folder, change):
    path = ArchiveSource(folder).file
    with h5py.File(path) as file:
        stored = change(file["data"][:])
    with h5py.File(path, "w") as file:
        file["data"] = stored


TIMES_FILE, PLACES_FILE = (REPRESENTATIONS / f"{name}.npy" for name in ("timestamps_us", "objframe_idx_2_repr_idx"))
FIRST = "objframe_idx_2_label_idx"
BROKEN = {
    "no times": (lambda folder: (folder / TIMES_FILE).unlink(), r"timestamps_us\.npy: not a readable \.npy file"),
    "fewer times": (lambda folder: change_array(folder, TIMES_FILE, lambda times: times[:-1]),
                    r"timestamps_us\.npy: is int64 \(23,\) for 24 histograms"),
    "times step back": (lambda folder: change_array(folder, TIMES_FILE, lambda times: times[::-1]),
                        r"timestamps_us\.npy: holds no times, or times that step back"),
    "times of another recording": (lambda folder: change_array(folder, TIMES_FILE, lambda times: times + 7),
                                   r"labels\.npz: has boxes at other times than the histograms they belong to"),
    "places beyond": (lambda folder: change_array(folder, PLACES_FILE, lambda places: places + 1),
                      r"repr_idx\.npy: points at other places than the 24 histograms, in order"),
    "places out of order": (lambda folder: change_array(folder, PLACES_FILE, lambda places: places[::-1]),
                            r"repr_idx\.npy: points at other places"),
    "fewer places": (lambda folder: change_array(folder, PLACES_FILE, lambda places: places[1:]),
                     r"repr_idx\.npy: has \(4,\) entries for \(5,\) label frames"),
    "places as real numbers": (lambda folder: change_array(folder, PLACES_FILE, lambda places: places / 1),
                               r"repr_idx\.npy: holds indices of type float64, not whole numbers"),
    "no labels": (lambda folder: (folder / LABELS).unlink(), r"labels\.npz: no such file; copy it again"),
    "torn labels": (lambda folder: (folder / LABELS).write_bytes((folder / LABELS).read_bytes()[:200]),
                    r"labels\.npz: not a readable .npz file"),
    "first boxes beyond": (lambda folder: change_labels(folder, **{FIRST: lambda first: first + 1}),
                           r"labels\.npz: objframe_idx_2_label_idx does not fit the labels"),
    "fewer label frames": (lambda folder: change_labels(folder, **{FIRST: lambda first: first[:-1]}),
                                     r"repr_idx\.npy: has \(5,\) entries for \(4,\) label frames"),
    "an unknown class": (lambda folder: change_labels(folder, labels=with_field("class_id", 2)),
                         r"labels\.npz: box 0 has a class other than 0 to 1"),
    "no place": (lambda folder: change_labels(folder, labels=with_field("x", np.nan)),
                 r"labels\.npz: box 0 has a place or size that is no number"),
    "no histograms": (lambda folder: ArchiveSource(folder).file.unlink(),
                      r"nbins=10: holds neither event_representations\.h5 nor event_representations_ds2_nearest\.h5"),
    "other bins": (lambda folder: change_frames(folder, lambda frames: frames[:, ::2]),
                   r"data is uint8 \(24, 10, 240, 304\) instead of uint8 \(windows, 20, H, W\)"),
    "another type": (lambda folder: change_frames(folder, lambda frames: frames.astype(np.uint16)),
                     r"data is uint16"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_what_is_wrong_with_an_archive_is_said(folder, kind):
    change, message = BROKEN[kind]
    change(folder)
    with pytest.raises(UserError, match=message):
        opened(root_of(folder), "gen1", RVT).recordings("test")


def test_counts_that_no_archive_holds_are_refused(folder):
    change_frames(folder, lambda frames: np.where(np.arange(len(frames))[:, None, None, None] == 3, 11, frames))
    (recording,) = opened(root_of(folder), "gen1", RVT).recordings("test")
    assert recording.histograms(0, 3, 10, "rvt").max() <= 10
    with pytest.raises(UserError, match=r"event_representations\.h5: holds counts above 10"):
        recording.histograms(2, 3, 10, "rvt")


def test_an_archive_without_boxes_is_refused(folder):
    change_labels(folder, labels=lambda stored: stored[:0], **{FIRST: lambda first: first[:0]})
    change_array(folder, PLACES_FILE, lambda places: places[:0])
    with pytest.raises(UserError, match=r"labels\.npz: holds no boxes"):
        opened(root_of(folder), "gen1", RVT).recordings("test")

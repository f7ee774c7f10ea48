import pytest

from tespec.core.errors import UserError
from tespec.datasets.prophesee import ARCHIVE, DAT, H5, find_root, labels_without_events, recordings_in
from tespec.datasets.rvt_archive import FILES, LABELS, REPRESENTATIONS


def touch(*paths):
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def test_recordings_are_found_by_name_in_every_layout(tmp_path):
    files = [tmp_path / name for name in ("b_td.dat", "a_td.h5", "c_td.dat.h5")]
    touch(*files, tmp_path / "b_bbox.npy", tmp_path / "readme.txt", tmp_path / "other.dat")
    touch(tmp_path / "d_td.dat.store" / "header.json", tmp_path / "e" / REPRESENTATIONS / FILES[1])
    (tmp_path / "empty").mkdir()
    assert recordings_in(tmp_path) == {
        "a": (files[1], H5),
        "b": (files[0], DAT),
        "c": (files[2], H5),
        "d": (tmp_path / "d_td.dat", DAT),
        "e": (tmp_path / "e", ARCHIVE),
    }
    assert list(recordings_in(tmp_path)) == sorted("abcde")
    assert recordings_in(tmp_path / "nowhere") == {}


def test_a_store_beside_its_file_is_the_same_recording(tmp_path):
    touch(tmp_path / "a_td.dat", tmp_path / "a_td.dat.store" / "header.json")
    assert recordings_in(tmp_path) == {"a": (tmp_path / "a_td.dat", DAT)}


@pytest.mark.parametrize("part", [REPRESENTATIONS / "event_representations_in_progress.h5", LABELS])
def test_half_an_archive_is_not_passed_over(tmp_path, part):
    touch(tmp_path / "a" / part)
    assert recordings_in(tmp_path) == {"a": (tmp_path / "a", ARCHIVE)}


def test_a_recording_that_is_there_twice_is_refused(tmp_path):
    touch(tmp_path / "a_td.dat", tmp_path / "a_td.dat.h5")
    with pytest.raises(UserError, match=r"a_td\.dat\.h5: is there as a_td\.dat as well; keep one of them"):
        recordings_in(tmp_path)


def test_boxes_without_events_are_found(tmp_path):
    touch(tmp_path / "a_bbox.npy", tmp_path / "b_bbox.npy", tmp_path / "a_td.dat", tmp_path / "c.npy")
    assert labels_without_events(tmp_path, ["a"]) == [tmp_path / "b_bbox.npy"]
    assert labels_without_events(tmp_path / "nowhere", []) == []


def test_the_folder_above_is_taken_where_it_says_enough(tmp_path):
    touch(tmp_path / "gen1" / "test" / "a_td.dat", tmp_path / "notes" / "a.txt", tmp_path / "file")
    assert find_root(tmp_path) == tmp_path / "gen1"
    assert find_root(tmp_path / "gen1") == tmp_path / "gen1"
    touch(tmp_path / "gen1 again" / "train" / "a_td.dat")
    with pytest.raises(UserError, match=r"holds no folders train, val, test \(2 folders in it do\); give the folder"):
        find_root(tmp_path)
    with pytest.raises(UserError, match=r"notes: holds no folders train, val, test \(none\)"):
        find_root(tmp_path / "notes")

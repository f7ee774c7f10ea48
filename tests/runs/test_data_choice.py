from pathlib import Path

import pytest

from tespec.core.errors import UserError
from tespec.runs.data import Data, find_data, find_unlabelled
from tespec.sample import world_folder

pytestmark = pytest.mark.usefixtures("without_data")


def recording_in(folder, name):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).touch()
    return folder / name


def test_given_data_is_taken_as_it_is(tmp_path):
    recording = recording_in(tmp_path / "my archive", "night drive-2.raw")
    data = find_data("ddd17", recording.parent)
    assert (data.root, data.label, data.profile, data.notice) == (recording.parent, "ddd17", "paper", "")
    assert find_unlabelled("1mpx", recording).label == "night_drive_2"


def test_sample_data_is_known_by_its_description(tmp_path):
    recording = recording_in(tmp_path / "sample", "street_td.dat")
    with pytest.raises(UserError, match="has the name of the sample world; rename it"):
        find_unlabelled("1mpx", tmp_path / "sample")
    (tmp_path / "dataset.json").write_text('{"data": "sample"}')
    data = find_data("ddd17", tmp_path)
    assert (data.is_sample, data.profile) == (True, "sample")
    assert find_unlabelled("1mpx", recording).is_sample


def test_official_recordings_are_known_wherever_they_are(tmp_path):
    recording = recording_in(tmp_path / "gen4" / "train", "moorea_2019-02-15_001_td_0_60000000_td.dat")
    archive, link = tmp_path / "gen4", tmp_path / "1mpx"
    link.symlink_to(archive)
    for given in (archive, recording.parent, recording, link, link / "train"):
        assert find_unlabelled("1mpx", given).label == "1mpx"
    assert find_data("1mpx", archive).label == "1mpx"


def test_own_recordings_have_the_given_name_or_that_of_their_description(tmp_path):
    drives = recording_in(tmp_path / "drives", "monday.raw").parent
    (tmp_path / "1mpx").symlink_to(drives)
    assert find_unlabelled("gen1", drives).label == "drives"
    assert find_unlabelled("1mpx", tmp_path / "1mpx").label == "1mpx"
    assert find_data("gen1", drives).label == "gen1"
    (tmp_path / "dataset.json").write_text('{"data": "winter"}')
    for find in (find_data, find_unlabelled):
        assert find("gen1", drives).label == "winter"


@pytest.mark.parametrize("parent", ["data", "elsewhere"])
def test_data_is_found_in_its_places(tmp_path, monkeypatch, parent):
    root = tmp_path / parent / "ddd17"
    root.mkdir(parents=True)
    if parent == "elsewhere":
        monkeypatch.setenv("TESPEC_DATA", str(root.parent))
    data = find_data("ddd17", None)
    assert (data.root.resolve(), data.label, data.notice) == (root, "ddd17", "")


def test_the_sample_world_stands_in_and_says_so(tmp_path):
    data = find_data("ddd17", None)
    assert (data.root, data.label) == (world_folder() / "ddd17", "sample")
    assert data.notice == "no ddd17 data given or found in ./data/ddd17: using the synthetic sample world"
    assert find_data("ddd17", None, "tiny") == find_data("ddd17", None, "sample") == data


@pytest.mark.parametrize("profile", ["paper", "study", "medium"])
def test_a_profile_of_real_data_never_gets_the_sample_world_unasked(tmp_path, profile):
    refused = rf"--profile {profile}: no 1mpx data given or found in ./data/1mpx; give --data FOLDER, or --data sample"
    for find in (find_data, find_unlabelled):
        with pytest.raises(UserError, match=refused):
            find("1mpx", None, profile)
        assert find("1mpx", Path("sample"), profile) == Data(world_folder() / "1mpx", "sample")


REFUSED = [
    ("gone", None, "gone: no such file or folder; check the path given to --data"),
    ("sample", None, r"--data sample: a folder here has this name, .* give the full path"),
    ("broken", None, r"dataset\.json: not a valid data set description"),
    (None, "gone", r"TESPEC_DATA=.*gone: no such folder; give --data FOLDER, or"),
    (None, "archives", r"TESPEC_DATA=.*archives: contains no folder ddd17; give --data FOLDER, or"),
]


@pytest.mark.parametrize(("given", "variable", "message"), REFUSED)
@pytest.mark.parametrize("profile", [None, "sample", "paper"])
def test_data_is_never_replaced(tmp_path, monkeypatch, profile, given, variable, message):
    for folder in ("sample", "broken", "archives/gen1"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "broken" / "dataset.json").write_text("{")
    if variable:
        monkeypatch.setenv("TESPEC_DATA", str(tmp_path / variable))
    with pytest.raises(UserError, match=message):
        find_data("ddd17", given and Path(given), profile)
    if variable == "archives":
        assert find_data("gen1", None, profile).root == tmp_path / "archives" / "gen1"

from pathlib import Path

import pytest

from tespec.core import config
from tespec.core.errors import UserError
from tespec.runs.data import Data, find_data
from tespec.sample import world_folder

pytestmark = pytest.mark.usefixtures("without_data")


OFFICIAL = "moorea_2019-02-15_001_td_0_60000000_td.dat"
RECORDINGS = [
    ("ddd17", "my archive/night drive-2.raw", "night_drive_2"),
    *(
        ("1mpx", path, "1mpx")
        for path in ("gen4", "gen4/train", f"gen4/train/{OFFICIAL}", "link/1mpx/train")
    ),
    ("gen1", "drives", "drives"),
    ("1mpx", "mine/1mpx", "1mpx"),
]


@pytest.mark.parametrize(("dataset", "given", "label"), RECORDINGS)
def test_given_data_is_taken_and_named_after_its_description_official_names_or_folder(
    tmp_path, dataset, given, label
):
    for folder, recording in (
        ("my archive", "night drive-2.raw"),
        ("gen4/train", OFFICIAL),
        ("drives", "monday.raw"),
    ):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder / recording).touch()
    for link, folder in (("link", "gen4"), ("mine", "drives")):
        (tmp_path / link).mkdir()
        (tmp_path / link / "1mpx").symlink_to(tmp_path / folder)
    assert find_data(dataset, tmp_path / given) == Data(tmp_path / given, dataset)
    found = find_data(dataset, tmp_path / given, labelled=False)
    assert found == Data(tmp_path / given, label)
    (tmp_path / "dataset.json").write_text('{"data": "winter"}')
    for labelled in (True, False):
        assert find_data(dataset, tmp_path / given, labelled=labelled).label == "winter"


def test_sample_data_is_known_by_its_description(tmp_path):
    recording = tmp_path / "sample" / "street_td.dat"
    recording.parent.mkdir()
    recording.touch()
    with pytest.raises(UserError, match="has the name of the sample world; rename it"):
        find_data("1mpx", tmp_path / "sample", labelled=False)
    (tmp_path / "dataset.json").write_text('{"data": "sample"}')
    data = find_data("ddd17", tmp_path)
    assert (data.is_sample, data.profile) == (True, "sample")
    assert find_data("1mpx", recording, labelled=False).is_sample


@pytest.mark.parametrize("parent", ["data", "elsewhere"])
def test_data_is_found_in_its_places(tmp_path, monkeypatch, parent):
    root = tmp_path / parent / "ddd17"
    root.mkdir(parents=True)
    if parent == "elsewhere":
        monkeypatch.setenv("TESPEC_DATA", str(root.parent))
    data = find_data("ddd17", None)
    assert (data.root.resolve(), data.label, data.profile, data.notice) == (
        root,
        "ddd17",
        "paper",
        "",
    )


def test_the_sample_world_stands_in_and_says_so(tmp_path):
    data = find_data("ddd17", None)
    assert (data.root, data.label) == (world_folder() / "ddd17", "sample")
    assert (
        data.notice
        == "no ddd17 data given or found in ./data/ddd17: using the synthetic sample world"
    )
    assert find_data("ddd17", None, "smoke") == find_data("ddd17", None, "sample") == data


@pytest.mark.parametrize("profile", ["paper", "study", "medium"])
def test_a_profile_of_real_data_never_gets_the_sample_world_unasked(tmp_path, profile):
    missing = f"--profile {profile}: no 1mpx data given or found in ./data/1mpx"
    refused = f"{missing}; give --data FOLDER, or --data sample"
    with pytest.raises(UserError, match=refused):
        find_data("1mpx", None, profile)
    assert find_data("1mpx", Path("sample"), profile) == Data(world_folder() / "1mpx", "sample")


REFUSED = [
    ("gone", None, "gone: no such file or folder; check the path"),
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


def test_a_task_of_ones_own_uses_the_sample_worlds_data_of_its_base(tmp_path, monkeypatch):
    monkeypatch.setattr(config, "_added", {})
    (tmp_path / "mine.yaml").write_text("base: gen1\n")
    task = config.add_file("tasks", tmp_path / "mine.yaml")
    assert find_data(task, Path("sample")) == Data(world_folder() / "gen1", "sample")
    assert find_data(task, None, "sample").root == world_folder() / "gen1"

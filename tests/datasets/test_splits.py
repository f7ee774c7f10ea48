"""Nothing that is tested or validated on is trained on: with a dataset.json and without, in every layout."""

import json
import shutil
from pathlib import Path

import pytest
import yaml
from PIL import Image
from twins.layouts import LAYOUTS, relayout

from tespec.core import config
from tespec.core.config import finetuning_settings, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.paths import CONFIGS
from tespec.core.settings import Downsample
from tespec.datasets.finding import find_recordings
from tespec.datasets.images import open_images
from tespec.datasets.splits import Splits
from tespec.datasets.unlabelled import divide
from tespec.events import load_events
from tespec.events.packing import pack
from tespec.pretraining.objective import build_objective

WHOLE = Downsample(1, "nearest")
# What a path of the tiny world's twins holds where it belongs to the official test split.
TESTED = {
    "ddd17": ("dir1",),
    "mvsec": ("outdoor_day1", "outdoor_night1"),
    "dsec": ("zurich_city_13_a",),
    "gen1": ("test/", "17-04-13_15-05-13"),
    "1mpx": ("test/", "moorea_2019-02-19_002"),
}
TRAINED = {
    "ddd17": {"dir0", "dir2"},
    "mvsec": {"outdoor_day2"},
    "dsec": {"zurich_city_00_a", "zurich_city_01_a"},
    "gen1": {"17-04-13_15-05-10", "17-04-13_15-05-11"},
    "1mpx": {"moorea_2019-02-19_000"},
}
# What a path holds where it belongs to the twin's validation split.
VALIDATED = {
    "ddd17": "dir3",
    "mvsec": "outdoor_day3",
    "dsec": "zurich_city_09_a",
    "gen1": "17-04-13_15-05-12",
    "1mpx": "moorea_2019-02-19_001",
}
NEEDS_MORE = ("no-size", "125ms")  # layouts that cannot be read without being told more, or not at all
EVERY_LAYOUT = [
    (dataset, layout) for dataset in LAYOUTS for layout in LAYOUTS[dataset] if not layout.endswith(NEEDS_MORE)
]


def official(world, folder, dataset, layout=""):
    """A twin as its official archive is: without a dataset.json."""
    root = folder / dataset
    shutil.copytree(world / dataset, root)
    if layout:
        relayout(root, dataset, layout)
    for path in root.rglob("dataset.json"):
        path.unlink()
    return root


def described(world, folder, dataset):
    """A twin whose dataset.json names the splits that the configs name."""
    root = official(world, folder, dataset)
    splits = finetuning_settings(dataset, "recurrent", "paper").splits
    there = {split: [name for name in names if any(root.rglob(f"{name}*"))] for split, names in splits.items()}
    return describe(root, world / dataset, there)


def describe(root, twin, splits):
    facts = json.loads((twin / "dataset.json").read_text())
    (root / "dataset.json").write_text(json.dumps(facts | {"splits": splits}))
    return root


def assert_fair(dataset, names):
    names = [f"{name}/" for name in names]
    assert names
    assert not [name for name in names if any(f"{each.rstrip('/')}" in name for each in TESTED[dataset])]


def test_the_names_above_are_those_that_the_tasks_are_tested_on(tiny_world):
    for dataset in ("ddd17", "mvsec", "dsec"):
        splits = finetuning_settings(dataset, "recurrent", "paper").splits
        assert set(TESTED[dataset]) <= set(splits["test"])
        found = "\n".join(path.as_posix() for path in find_recordings(tiny_world / dataset))
        assert all(name in found for name in (*TESTED[dataset], *TRAINED[dataset]))


@pytest.mark.parametrize(("dataset", "layout"), EVERY_LAYOUT)
def test_no_layout_lets_a_test_recording_in(tiny_world, tmp_path, dataset, layout):
    division = divide(official(tiny_world, tmp_path, dataset, layout), 50, WHOLE)
    names = [recording.name for part in (division.train, division.held_out) for recording in part]
    assert_fair(dataset, names)
    trained = "\n".join(recording.name for recording in division.train)
    assert all(name in trained for name in TRAINED[dataset])
    assert division.tested_on
    assert all(any(each in f"{name}/" for each in TESTED[dataset]) for name in division.tested_on)


@pytest.mark.parametrize("dataset", ["gen1", "1mpx"])
def test_what_archives_validate_on_is_held_out(tiny_world, tmp_path, dataset):
    division = divide(official(tiny_world, tmp_path, dataset), 50, WHOLE)
    assert {Path(recording.name).parts[0] for recording in division.train} == {"train"}
    assert {Path(recording.name).parts[0] for recording in division.held_out} == {"val"}


def assert_validated_apart(dataset, train, held_out):
    assert train
    assert not [name for name in train if VALIDATED[dataset] in f"{name}/"]
    assert held_out
    assert all(VALIDATED[dataset] in name for name in held_out)


@pytest.mark.parametrize(("dataset", "layout"), [each for each in EVERY_LAYOUT if each[1] != "outer"])
def test_what_a_description_validates_on_is_held_out_and_nothing_else(tiny_world, tmp_path, dataset, layout):
    root = official(tiny_world, tmp_path, dataset, layout)
    shutil.copy(tiny_world / dataset / "dataset.json", root)
    division = divide(root, 50, WHOLE)
    train, held_out = ([recording.name for recording in part] for part in (division.train, division.held_out))
    assert_validated_apart(dataset, train, held_out)
    assert division.tested_on


@pytest.fixture
def no_added_configs(monkeypatch):
    monkeypatch.setattr(config, "_added", {})


@pytest.mark.usefixtures("no_added_configs")
@pytest.mark.parametrize("dataset", ["ddd17", "mvsec", "dsec"])
def test_what_a_config_of_ones_own_validates_on_is_held_out(tiny_world, tmp_path, dataset):
    text = (CONFIGS / "tasks" / f"{dataset}.yaml").read_text()
    facts = yaml.safe_load(text)
    facts["splits"]["val"] = [VALIDATED[dataset]]
    facts["splits"]["train"] = [name for name in facts["splits"]["train"] if name != VALIDATED[dataset]]
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(facts | {"name": "own"}))
    config.add_file("tasks", tmp_path / "own.yaml")
    root = official(tiny_world, tmp_path, dataset, "flat" if dataset == "dsec" else "")
    division = divide(root, 50, WHOLE)
    train, held_out = ([recording.name for recording in part] for part in (division.train, division.held_out))
    assert_validated_apart(dataset, train, held_out)


@pytest.mark.parametrize(("method", "dataset"), [("ecdp", "ddd17"), ("moby", "ddd17"), ("moby", "dsec")])
def test_images_and_pairs_are_trained_on_without_what_is_validated_on(tiny_world, dataset, method):
    network = "resnet" if method == "ecdp" else "swin"
    task = build_objective(pretraining_settings(method, "sample", [], network), tiny_world / dataset)
    found = task.recordings()
    train, held_out = ([name for name, each in found.items() if part in each] for part in ("train", "held_out"))
    assert_validated_apart(dataset, train, held_out)


@pytest.mark.parametrize("dataset", TESTED)
@pytest.mark.parametrize("make", [official, described])
@pytest.mark.parametrize("objective", ["masked_reconstruction", "cpc", "ecddp"])
def test_objectives_on_events_see_no_test_recording(tiny_world, tmp_path, dataset, make, objective):
    if make is described and dataset in ("gen1", "1mpx"):
        pytest.skip("the config names folders")
    settings = pretraining_settings("tespec", "sample", [f"objective={objective}"])
    recordings = build_objective(settings, make(tiny_world, tmp_path, dataset)).recordings()
    assert_fair(dataset, recordings)
    assert any("train" in each for each in recordings.values())
    assert any("held_out" in each for each in recordings.values())


@pytest.mark.parametrize("make", [official, described])
def test_pairs_of_events_and_images_are_of_no_test_recording(tiny_world, tmp_path, make):
    task = build_objective(pretraining_settings("ecdp", "sample", [], "resnet"), make(tiny_world, tmp_path, "ddd17"))
    assert_fair("ddd17", task.recordings())
    images = {path.parents[1].name for each in (*task._train, *task._held_out) for path in each.images}
    assert "dir0" in images
    assert "dir1" not in images


@pytest.mark.parametrize(("method", "dataset"), [("moby", "ddd17"), ("moby", "dsec"), ("imagenet", "dsec")])
@pytest.mark.parametrize("make", [official, described])
def test_images_are_of_no_test_recording(tiny_world, tmp_path, dataset, make, method):
    root = make(tiny_world, tmp_path, dataset)
    task = build_objective(pretraining_settings(method, "sample"), root)
    assert_fair(dataset, task.recordings())
    assert_fair(dataset, [path.relative_to(root).as_posix() for path in (*task.images.train, *task.images.held_out)])
    assert task.notes


TEST_RECORDINGS = {
    "ddd17": "dir1",
    "mvsec": "outdoor_night1_data.hdf5",
    "dsec": "test/zurich_city_13_a/events/left/events.h5",
    "gen1": "test",
    "1mpx": "test/moorea_2019-02-19_002_td_500000_8500000_td.dat",
}


@pytest.mark.parametrize("dataset", TEST_RECORDINGS)
def test_a_test_recording_that_is_pointed_at_is_refused(tiny_world, tmp_path, dataset):
    path = official(tiny_world, tmp_path, dataset) / TEST_RECORDINGS[dataset]
    with pytest.raises(UserError, match=r"is of a test split, which nothing is pre-trained on; give recordings"):
        divide(path, 50, WHOLE)
    with pytest.raises(UserError, match=r"dir2: is of a test split"):  # by its dataset.json
        divide(tiny_world / "ddd17" / "dir2", 50, WHOLE)


def test_a_description_that_names_other_splits_is_believed(tiny_world, tmp_path):
    root = official(tiny_world, tmp_path, "ddd17")
    describe(root, tiny_world / "ddd17", {"train": ["dir1"], "val": ["dir0"]})
    division = divide(root, 50, WHOLE)
    assert [recording.name for recording in division.train] == ["dir1"]
    assert [recording.name for recording in division.held_out] == ["dir0"]
    assert divide(root / "dir1", 50, WHOLE).train


def test_several_archives_below_one_folder_each_keep_their_splits(tiny_world, tmp_path):
    official(tiny_world, tmp_path / "data", "dsec")
    official(tiny_world, tmp_path / "data", "mvsec")
    shutil.copytree(tiny_world / "gen1", tmp_path / "data" / "gen1")
    split = Splits(tmp_path / "data").sort(find_recordings(tmp_path / "data"))
    names = "\n".join(path.as_posix() for name in ("train", "val") for path in split[name])
    for dataset in ("dsec", "mvsec", "gen1"):
        assert all(name in names for name in TRAINED[dataset])
        assert not any(name in names for name in TESTED[dataset])


def test_packed_renamed_and_linked_test_recordings_are_known(tiny_world, tmp_path):
    root = official(tiny_world, tmp_path, "ddd17")
    pack(load_events(root / "dir1"), tmp_path / "packed" / "drive.store", root / "dir1")
    (tmp_path / "linked").mkdir()
    (tmp_path / "linked" / "drive").symlink_to(root / "dir1")
    pack(load_events(root / "dir1"), root / "dir1" / "events.store", root / "dir1")
    (root / "dir1" / "events.dat.t").unlink()
    for path in (tmp_path / "packed" / "drive.store", tmp_path / "linked" / "drive", root / "dir1"):
        with pytest.raises(UserError, match="is of a test split"):
            divide(path, 50, WHOLE)


@pytest.mark.parametrize(
    "name", ["17-04-13_15-05-13_500000_8500000_td.dat", "moorea_2019-02-19_002_td_500000_8500000_td.dat"]
)
def test_what_may_be_tested_on_and_does_not_show_it_is_refused(tiny_world, tmp_path, name):
    (path,) = tiny_world.glob(f"*/test/{name}")
    shutil.copy(path, tmp_path)
    with pytest.raises(UserError, match=r"lies in no folder train, val, test: it may be tested on; keep the archive's"):
        divide(tmp_path, 50, WHOLE)


def test_recordings_of_ones_own_are_left_out_by_no_name(tiny_world, tmp_path):
    path = next((tiny_world / "1mpx" / "train").glob("*_td.dat"))
    for place in ("dir1/drive.dat", "a/dir1/one.dat", "train/two.dat", "outdoor_day10/three.dat"):
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, tmp_path / place)
    division = divide(tmp_path, 50, WHOLE)
    assert len({recording.path for part in (division.train, division.held_out) for recording in part}) == 4
    assert not division.tested_on


def test_folders_of_images_may_have_the_names_of_splits_and_recordings(tmp_path):
    for folder in ("train", "dir1", "bus"):
        for number in range(3):
            (tmp_path / "classes" / folder).mkdir(parents=True, exist_ok=True)
            Image.new("L", (8, 8)).save(tmp_path / "classes" / folder / f"{number}.png")
    images = open_images(tmp_path / "classes")
    assert images.classes == ("bus", "dir1", "train")
    assert len(images.train) + len(images.held_out) == 9
    for split in ("train", "val", "test"):
        shutil.copytree(tmp_path / "classes", tmp_path / "splits" / split)
    images = open_images(tmp_path / "splits")
    assert (len(images.train), len(images.held_out), images.classes) == (9, 9, ("bus", "dir1", "train"))
    assert images.tested_on == ("test/bus", "test/dir1", "test/train")

"""The example of a user-defined data set: check, preview, training, and exclusion of its test
recordings.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest
from event_files import whole
from guides import follow, forgotten_afterwards, section
from PIL import Image
from twins import opened

from tespec.core import config
from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.core.settings import Downsample
from tespec.datasets.folder import split_train_val
from tespec.datasets.labels import IGNORE
from tespec.events.readers.dat import write_dat
from tespec.registry import DATASETS, find_registered, import_files
from tespec.tasks import build_task, import_tasks
from tespec.tasks.base import open_dataset

PROGRAM = REPOSITORY / "examples" / "my_dataset.py"
OWN = ["--import", str(PROGRAM)]


@pytest.fixture(scope="module")
def drives(tiny_world, tmp_path_factory):
    """Folder of recordings of the sample world in the example's layout."""
    root = tmp_path_factory.mktemp("own") / "drives"
    dataset = opened(tiny_world / "ddd17", "ddd17")
    recordings = [*dataset.recordings("train"), *dataset.recordings("test")]
    for recording, place in zip(
        recordings, ("train/alley", "train/bridge", "test/canal"), strict=True
    ):
        folder, stream = root / place, recording.stream
        (folder / "masks").mkdir(parents=True)
        write_dat(folder / "events.dat", *whole(stream), stream.height, stream.width)
        for number in range(len(recording.labels)):
            mask = np.pad(
                recording.labels[number], ((0, stream.height - 64), (0, 0)), constant_values=IGNORE
            )
            Image.fromarray(mask).save(folder / "masks" / f"{number:06d}.png")
        (folder / "times.txt").write_text("".join(f"{time}\n" for time in recording.label_times))
    return root


@pytest.fixture
def settings():
    """Settings of the example's config, with its class registered until the end of the test."""
    import_tasks()
    with forgotten_afterwards():
        import_files([PROGRAM])
        yield config.finetuning_settings("drives", "recurrent", "smoke")


def test_it_is_checked_and_looked_at(drives, tmp_path):
    commands = (
        f"check drives {drives}",
        f"preview drives {drives} --count 1 --out a.png",
        "download-guide drives",
    )
    checked, _, guide = (
        follow(f"python benchmarks/data.py {command}", tmp_path, *OWN)[0] for command in commands
    )
    assert "no problems: 3 recordings" in checked
    assert (tmp_path / "a.png").stat().st_size > 10_000
    assert "drives/train/alley/events.dat" in guide


def test_boxes_of_ones_own_are_checked_and_tested_on(tiny_world, tmp_path):
    """The example of boxes reads recordings that have the names of no archive."""
    root = tmp_path / "traffic"
    shutil.copytree(tiny_world / "gen1", root, ignore=shutil.ignore_patterns("dataset.json"))
    for number, path in enumerate(sorted(root.glob("*/*_td.dat"))):
        boxes = path.with_name(path.name.replace("_td.dat", "_bbox.npy"))
        path.rename(path.with_name(f"drive{number}_td.dat"))
        boxes.rename(path.with_name(f"drive{number}_bbox.npy"))
    plugin = REPOSITORY / "examples" / "my_boxes.py"
    command = f"python benchmarks/data.py check traffic {root} --import {plugin}"
    checked, _ = follow(command, tmp_path)
    assert "no problems: 4 recordings, 16 labels" in checked  # every 250 ms, used 500
    with forgotten_afterwards():
        import_files([plugin])
        split = split_train_val(root, 50, Downsample(1, "nearest"))
    assert [Path(name).name for name in split.excluded_test] == ["drive0_td.dat"]


def test_labels_are_those_on_disk_and_trained_on_and_scored(drives, settings):
    (canal,) = open_dataset(settings, drives).recordings("test")
    folder = drives / "test" / "canal"
    np.testing.assert_array_equal(canal.labels[7], Image.open(folder / "masks" / "000007.png"))
    assert canal.label_times.tolist() == [*map(int, (folder / "times.txt").read_text().split())]
    task = build_task(settings, drives)
    batch, model = task.steps(seed=0)[0], task.model()
    assert batch["labels"].shape[1:] == task.size == (80, 96)
    assert model.loss(batch, None)[0]["loss"].isfinite()
    assert set(task.evaluate(model, batch["histograms"].device).overall().metrics()) >= {"miou"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda times: times // 1000, "its labels are at .* us, the events at .* clock, in us"),
        (lambda times: times[::-1], "recording canal: its label times step back or"),
    ],
    ids=["ms", "not rising"],
)
def test_times_that_are_not_those_of_the_events_are_refused(
    drives, settings, tmp_path, change, message
):
    root = shutil.copytree(drives, tmp_path / "drives")
    stamps = root / "test" / "canal" / "times.txt"
    times = change(np.loadtxt(stamps, np.int64))
    stamps.write_text("\n".join(map(str, times)))
    with pytest.raises(UserError, match=message):
        open_dataset(settings, root).recordings("test")


@pytest.mark.usefixtures("settings")
def test_it_opens_by_itself_with_the_classes_of_its_config(drives):
    kind = find_registered(DATASETS, "Drives", "dataset")
    data = kind(drives, "test", window_ms=50)
    assert data.classes[:2] == ("flat", "background")
    histogram, mask, name, time = data[7]
    np.testing.assert_array_equal(
        mask, Image.open(drives / "test" / "canal" / "masks" / "000007.png")
    )
    assert (histogram.shape, name, time) == (
        (20, 80, 96),
        "canal",
        data.recordings("test")[0].label_times[7],
    )


def test_what_it_tests_on_is_known_wherever_it_lies(drives, settings, tmp_path):
    shutil.copytree(drives / "test" / "canal", tmp_path / "canal")
    with pytest.raises(
        UserError, match=r"events.dat: belongs to a test split, which pre-training must not use"
    ):
        split_train_val(tmp_path, 50, Downsample(1, "nearest"))
    assert [
        name.split("/")[1]
        for name in split_train_val(drives, 50, Downsample(1, "nearest")).excluded_test
    ] == ["canal"]


@pytest.mark.slow
def test_the_guides_commands_lead_to_a_table(drives, tmp_path):
    shutil.copytree(REPOSITORY / "examples", tmp_path / "examples")
    for command in section("A data set")[1]:
        script, more = command.split()[1], []
        if script.endswith(("run.py", "tables.py")):
            more += ["--results", "results"]
        if script.endswith("run.py"):
            more += ["--runs", "runs", "--device", "cpu"]
        command = command.replace("/data/drives", str(drives)).replace(
            "--profile sample", "--profile smoke"
        )
        follow(command, tmp_path, *more)
    assert "drives" in (tmp_path / "results" / "tables" / "task_drives.md").read_text()

"""The guide to a dataset of one's own, step by step as it stands."""

import io
import pickle
import re
import shutil
import zipfile
from pathlib import Path

import numpy as np
import pytest
import yaml
from guides import follow, forgotten_afterwards
from PIL import Image

from tespec.core import config
from tespec.core.errors import UserError
from tespec.core.registry import import_file
from tespec.core.settings import Downsample
from tespec.datasets.ddd17 import image_index
from tespec.datasets.labels import IGNORE
from tespec.datasets.prepare import prepare
from tespec.datasets.recording import fingerprint
from tespec.datasets.survey import problems, require_sound, survey
from tespec.datasets.unlabelled import divide
from tespec.events import open_events
from tespec.events.readers.prophesee import write_dat
from tespec.tasks import build_task, import_tasks
from tespec.tasks.base import open_dataset

REPOSITORY = Path(__file__).parents[2]
GUIDE = (REPOSITORY / "docs" / "add_a_dataset.md").read_text()
(PROGRAM,) = re.findall(r"```python\n(.*?)```", GUIDE, re.DOTALL)
(CONFIG,) = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)
COMMANDS = [line for block in re.findall(r"```sh\n(.*?)\n```", GUIDE, re.DOTALL) for line in block.splitlines()]
DRIVES = {"alley": ("dir0", "train"), "bridge": ("dir1", "train"), "canal": ("dir2", "test")}


@pytest.fixture(scope="module")
def drives(tiny_world, tmp_path_factory):
    """Recordings of the sample world as the guide lays them."""
    root = tmp_path_factory.mktemp("own") / "drives"
    for name, (recording, split) in DRIVES.items():
        source, folder = tiny_world / "ddd17" / recording, root / split / name
        stream = open_events(source)
        (folder / "masks").mkdir(parents=True)
        events = stream.slice(stream.t_first, stream.t_last + 1)
        write_dat(folder / "events.dat", *events, stream.height, stream.width)
        times, _ = image_index(source)
        with zipfile.ZipFile(source / "segmentation_masks.zip") as archive:
            numbers = [int(member[-12:-4]) for member in archive.namelist()]
            for place, member in enumerate(archive.namelist()):
                mask = np.asarray(Image.open(io.BytesIO(archive.read(member))))
                whole = np.pad(mask, ((0, stream.height - len(mask)), (0, 0)), constant_values=IGNORE)
                Image.fromarray(whole).save(folder / "masks" / f"{place:06d}.png")
        (folder / "times.txt").write_text("".join(f"{times[number - 1]}\n" for number in numbers))
    return root


@pytest.fixture
def program(tmp_path):
    """The guide's file, imported; what it registers is forgotten afterwards."""
    path = tmp_path / "my_dataset.py"
    path.write_text(PROGRAM)
    with forgotten_afterwards():
        import_file(path)
        yield path


@pytest.fixture
def settings(tmp_path, monkeypatch):
    """Those of the guide's config, with few steps; the config is forgotten afterwards."""
    import_tasks()
    monkeypatch.setattr(config, "_added", {})
    path = tmp_path / "my_configs" / "tasks" / "drives.yaml"
    path.parent.mkdir(parents=True)
    path.write_text(CONFIG)
    config.add_folder(tmp_path / "my_configs")
    return config.finetuning_settings("drives", "recurrent", "tiny")


def test_the_config_has_every_setting_and_no_other():
    known = yaml.safe_load((REPOSITORY / "configs" / "tasks" / "ddd17.yaml").read_text())
    assert yaml.safe_load(CONFIG).keys() == known.keys()


def test_it_is_sound_and_its_labels_are_those_on_disk(drives, program, settings):
    dataset = open_dataset(settings, drives)
    require_sound(dataset)
    (canal,) = dataset.recordings("test")
    shown = np.asarray(Image.open(drives / "test" / "canal" / "masks" / "000007.png"))
    assert (canal.labels[7] == shown).all()
    stamps = (drives / "test" / "canal" / "times.txt").read_text().split()
    assert canal.label_times.tolist() == [int(stamp) for stamp in stamps]
    assert dataset.describe()["layout"] == "a folder for each recording, below train and test"


def test_labels_by_another_clock_than_the_events_are_refused(drives, program, settings, tmp_path):
    root = shutil.copytree(drives, tmp_path / "drives")
    stamps = root / "test" / "canal" / "times.txt"
    stamps.write_text("".join(f"{int(stamp) + 3_600_000_000}\n" for stamp in stamps.read_text().split()))
    (problem,) = problems(list(survey(open_dataset(settings, root), quick=True)))
    assert re.search(r"recording canal: its labels lie at 36\d{8} to 36\d{8} us, the events at ", problem)


def test_other_processes_survey_it(drives, program, settings):
    dataset = open_dataset(settings, drives)
    found = list(survey(dataset, quick=True, processes=2))
    assert problems(found) == []
    assert {(facts.split, facts.name) for facts in found} == {(split, name) for name, (_, split) in DRIVES.items()}
    again = pickle.loads(pickle.dumps(dataset))
    assert type(again) is type(dataset)
    assert again.__dict__ == dataset.__dict__


def test_it_is_trained_on_and_scored(drives, program, settings):
    task = build_task(settings, drives)
    batch = task.steps(seed=0)[0]
    assert batch["labels"].shape[1:] == task.size == (80, 96)
    model = task.model()
    losses, _ = model.loss(batch, None)
    assert losses["loss"].isfinite()
    assert set(task.evaluate(model, batch["histograms"].device).metrics) >= {"miou"}


def test_it_is_packed(drives, program, settings, tmp_path):
    dataset = open_dataset(settings, drives)
    before = fingerprint(dataset.recordings("test"))
    packed = tmp_path / "packed"
    prepare(dataset, packed)
    assert fingerprint(open_dataset(settings, packed).recordings("test")) == before


def test_what_the_config_tests_on_is_known_wherever_it_lies(drives, program, settings, tmp_path):
    shutil.copytree(drives / "test" / "canal", tmp_path / "elsewhere" / "canal")
    with pytest.raises(UserError, match=r"events.dat: is of a test split, which nothing is pre-trained on"):
        divide(tmp_path / "elsewhere", 50, Downsample(1, "nearest"))


def test_folders_train_and_test_are_split_without_a_config(drives):
    division = divide(drives, 50, Downsample(1, "nearest"))
    assert [name.split("/")[:2] for name in division.tested_on] == [["test", "canal"]]
    assert {recording.name.split("/")[0] for recording in (*division.train, *division.held_out)} == {"train"}


def test_what_is_missing_is_named(drives, program, settings):
    (drives / "train" / "alley" / "times.txt").rename(drives / "times.txt")
    with pytest.raises(UserError, match=r"times.txt: no such file"):
        open_dataset(settings, drives).recordings("train")
    (drives / "times.txt").rename(drives / "train" / "alley" / "times.txt")


@pytest.mark.slow
def test_the_guides_commands_lead_to_a_table(drives, tmp_path):
    (tmp_path / "my_dataset.py").write_text(PROGRAM)
    (tmp_path / "my_configs" / "tasks").mkdir(parents=True)
    (tmp_path / "my_configs" / "tasks" / "drives.yaml").write_text(CONFIG)
    outputs = []
    for command in COMMANDS:
        script, more = command.split()[1], []
        if script.endswith(("run.py", "tables.py")):
            more += ["--results", "results"]
        if script.endswith("run.py"):
            more += ["--runs", "runs", "--device", "cpu", "--profile", "tiny"]
        outputs.append(follow(command.replace("/data/drives", str(drives)), tmp_path, *more)[0])
    check, *_, run, _ = outputs
    assert "fine: 3 recordings" in check
    assert run.startswith("scratch on drives (recurrent, data: drives): miou")
    tables = [path.read_text() for path in (tmp_path / "results" / "tables").rglob("*.md")]
    assert any("Drives" in table for table in tables)

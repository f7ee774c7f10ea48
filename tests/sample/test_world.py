"""The worlds on disk: same bytes, contents, concurrency, mistakes."""

import hashlib
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.core.registry import register_methods
from tespec.runs.data import Data, settings_of
from tespec.sample import make_world
from tespec.sample.__main__ import main
from tespec.sample.ddd17 import CLASSES, image_index, mask
from tespec.sample.paths import drive
from tespec.sample.prophesee import ONE_MPX, frame_boxes
from tespec.sample.recordings import CONTENTS, DATASETS, recordings_of
from tespec.sample.street import Street
from tespec.tasks import build_task
from tespec.tasks.base import groups_of

GOLDEN = Path(__file__).with_name("tiny.json")
TASKS = ("dsec", "ddd17", "gen1", "1mpx", "mvsec")


def hashes(folder):
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_bytes_are_those_of_the_version(tiny_world, dataset):
    """A change of a single byte needs a new VERSION, and with it a new tiny.json."""
    lines = "".join(f"{name} {digest}\n" for name, digest in hashes(tiny_world / dataset).items())
    found = {"folder": tiny_world.name, "sha256": hashlib.sha256(lines.encode()).hexdigest()}
    assert found == json.loads(GOLDEN.read_text())[dataset]


def test_two_processes_make_the_same_bytes_as_one(tiny_world, tmp_path):
    states, datasets = [], ("1mpx", "mvsec")
    again = make_world("tiny", 0, tmp_path, 2, lambda *state: states.append(state), datasets)
    assert states == [(done, 7) for done in range(1, 8)]
    assert all(hashes(again / each) == hashes(tiny_world / each) for each in datasets)


def make_in(folder):
    make_world("tiny", root=folder, processes=1, datasets=("gen1",))


def test_two_callers_at_once_get_one_complete_world_and_leftovers_go(tiny_world, tmp_path):
    leftover = tmp_path / tiny_world.name / ".gen1.unfinished"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("x")
    context = multiprocessing.get_context("spawn")
    callers = [context.Process(target=make_in, args=(tmp_path,)) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
        assert caller.exitcode == 0
    made = tmp_path / tiny_world.name
    assert sorted(path.name for path in made.iterdir()) == ["gen1"]
    assert hashes(made / "gen1") == hashes(tiny_world / "gen1")


def test_only_what_is_missing_of_a_world_is_made(tiny_world, tmp_path):
    made = []
    for datasets, count in ((("mvsec",), 4), (("gen1", "mvsec"), 4), (("gen1",), 0)):
        make_world("tiny", 0, tmp_path, 1, lambda *state: made.append(state), datasets)
        assert len(made) == count
        made.clear()


SCRIPT = """
from pathlib import Path
from tespec.sample import make_world
make_world("tiny", root=Path({root!r}), processes=2)
"""


def test_a_script_without_a_guarded_main_is_told_so(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.format(root=str(tmp_path / "worlds")))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert ended.returncode != 0
    assert "is imported by each process that makes the sample world; put what it does below" in ended.stderr


def test_mistakes_are_named(tmp_path, capsys):
    with pytest.raises(UserError, match="no such size; choose one of tiny, demo, small, medium"):
        make_world("huge", root=tmp_path)
    with pytest.raises(UserError, match="no such dataset; choose from ddd17, 1mpx, gen1, dsec, mvsec"):
        make_world("tiny", root=tmp_path, datasets=("one_mpx",))
    assert main(["--size", "tiny", "--seed", "-1", "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: seed -1")
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_folder_or_draws_a_picture(tiny_world, tmp_path, capsys):
    assert main(["--size", "tiny", "--root", str(tiny_world.parent), "--datasets", "ddd17"]) == 0
    prior, folder = capsys.readouterr().out.splitlines()
    assert folder == str(tiny_world)
    assert 0 < float(prior.removeprefix("label prior, ddd17: miou ").split(",")[0]) < 20
    assert main(["--picture", str(tmp_path / "a.png")]) == 0
    with Image.open(tmp_path / "a.png") as picture:
        assert picture.width > 1000


def test_ddd17_is_written_as_in_the_archive(tiny_world):
    for folder in tiny_world.glob("ddd17/dir*"):
        times = np.fromfile(folder / "events.dat.t", np.int64)
        assert (np.diff(times) >= 0).all()
        assert 1.9e9 < times[-1] < 2e9  # ns
        places = np.fromfile(folder / "events.dat.xyp", np.int16).reshape(-1, 3)
        assert (places.min(axis=0) == 0).all()
        assert (places.max(axis=0) == [95, 79, 1]).all()
        for span in (10, 50, 250):
            for stamp, at_image, earlier in np.load(folder / "index" / f"index_{span}ms.npy"):
                assert at_image == np.count_nonzero(times < stamp)
                assert earlier == np.count_nonzero(times < stamp - span * 1_000_000)
    index = image_index(np.array([0, 5, 10, 10, 20]), np.array([10, 30]), 10)
    assert index.tolist() == [[10_000, 2, 0], [30_000, 5, 4]]


def test_recordings_of_a_world_and_of_two_worlds_never_share_a_street():
    for size in CONTENTS:
        found = [each for seed in (0, 1) for dataset in CONTENTS[size] for each in recordings_of(size, seed, dataset)]
        assert len({each.seed for each in found}) == len(found)


@pytest.mark.parametrize("dataset", TASKS)
@pytest.mark.parametrize("size", ["small", "medium"])
def test_test_recordings_are_of_day_and_night_moving_and_standing(size, dataset):
    tested = [each for each in recordings_of(size, 0, dataset) if each.split == "test"]
    assert 0 < sum(each.night for each in tested) < len(tested)
    standing = np.mean([np.mean(drive(each.seed, each.seconds).speed < 0.1) for each in tested])
    assert 1 / 3 < standing < 2 / 3


@pytest.mark.parametrize("task", TASKS)
def test_moving_and_standing_frames_are_told_apart_in_every_layout(tiny_world, task):
    assert task in names("tasks")
    register_methods()
    data = Data(tiny_world / task, "sample")
    built = build_task(settings_of(data, task, "recurrent"), data.root)
    for recording in built.scored:
        groups = {groups_of(recording, label) for label in range(len(recording.labelled))}
        assert groups <= {("moving",), ("standing",)}


def test_what_stops_stays_labelled_without_an_event_of_its_own():
    """Before a standing camera, a standing car is the same box at the same place for as long as it stands."""
    recording = recordings_of("small", 0, "1mpx")[0]
    street = Street(recording.seed, recording.seconds)
    first = np.flatnonzero(street.ego_speed < 1e-9)[0]
    assert street.ego_speed[first + 50] < 1e-9
    camera = street.camera(*recording.sensor)
    before, after = (
        {tuple(box[["track_id", "x", "y", "w", "h"]].tolist()) for box in frame_boxes(frame, ONE_MPX)}
        for frame in (street.render(camera, first), street.render(camera, first + 50))
    )
    assert before & after


def test_every_class_of_ddd17_covers_enough_to_be_learned():
    counts = np.zeros(len(CLASSES))
    for recording in [each for each in recordings_of("small", 0, "ddd17") if each.split == "test"]:
        street = Street(recording.seed, recording.seconds, recording.night)
        for frame in range(0, street.frames, 250):
            label = street.render(street.camera(*recording.sensor), frame).label
            counts += np.bincount(mask(label, recording.sensor.label_rows).ravel(), minlength=len(CLASSES))
    assert (counts / counts.sum()).min() > 0.015

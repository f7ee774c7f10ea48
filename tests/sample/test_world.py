"""Sample worlds on disk: reproducible bytes, contents, concurrent creation and user errors."""

import hashlib
import json
import multiprocessing
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path

import numpy as np
import pytest

from tespec.cli.main import call
from tespec.core.errors import UserError
from tespec.registry import register_methods
from tespec.runs.data import Data, settings_of
from tespec.sample import CONTENTS, DATASETS, make_world, recordings_of
from tespec.sample.__main__ import app
from tespec.sample.street import Street
from tespec.tasks import build_task
from tespec.tasks.base import groups_of

TASKS = ("dsec", "ddd17", "gen1", "1mpx", "mvsec")


def digest(folder):
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    lines = [
        f"{path.relative_to(folder)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n"
        for path in files
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


@pytest.mark.parametrize("dataset", DATASETS)
def test_the_bytes_are_those_of_the_version(tiny_world, dataset):
    """A change of a single byte needs a new VERSION and a new tiny.json."""
    golden = json.loads(Path(__file__).with_name("tiny.json").read_text())
    assert (tiny_world.name, digest(tiny_world / dataset)) == (golden["folder"], golden[dataset])


@pytest.mark.slow
def test_callers_at_once_get_what_is_missing_made_once_by_any_number_of_processes(
    tiny_world, tmp_path
):
    world = tmp_path / tiny_world.name
    for name in ("gen1", ".mvsec.unfinished"):
        (world / name).mkdir(parents=True)
        (world / name / "there").touch()
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as callers:
        made = [
            callers.submit(make_world, "tiny", 0, tmp_path, 2, ("gen1", "mvsec")) for _ in range(2)
        ]
        assert [future.result() for future in made] == [world] * 2
    assert sorted(path.name for path in world.iterdir()) == ["gen1", "mvsec"]
    assert [path.name for path in (world / "gen1").iterdir()] == ["there"]
    assert digest(world / "mvsec") == digest(tiny_world / "mvsec")


@pytest.mark.slow
def test_a_script_without_a_guarded_main_is_told_so(tmp_path):
    (tmp_path / "script.py").write_text(
        "from pathlib import Path\nfrom tespec.sample import make_world\n"
        "make_world('tiny', root=Path(), processes=2)"
    )
    ended = subprocess.run(
        [sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100
    )
    assert ended.returncode != 0
    assert (
        "is imported by each worker process that makes the sample world; move its code under"
        in ended.stderr
    )


def test_mistakes_are_named(tmp_path):
    with pytest.raises(UserError, match="no such size; choose from tiny, small"):
        make_world("huge", root=tmp_path)
    with pytest.raises(
        UserError, match="no such dataset; choose from ddd17, 1mpx, gen1, dsec, mvsec"
    ):
        make_world("tiny", root=tmp_path, datasets=("one_mpx",))
    with pytest.raises(UserError, match="seed -4 of the sample world: is negative; give 0 or more"):
        make_world("tiny", -4, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_command_prints_the_folder(tiny_world, capsys):
    call(app, ["--size", "tiny", "--root", str(tiny_world.parent), "--datasets", "ddd17"])
    assert capsys.readouterr().out.splitlines() == [str(tiny_world)]


def test_recordings_of_a_world_and_of_two_worlds_never_share_a_street():
    for size in CONTENTS:
        recordings = []
        for seed, dataset in product((0, 1), CONTENTS[size]):
            recordings += recordings_of(size, seed, dataset)
        assert len({recording.seed for recording in recordings}) == len(recordings)


@pytest.mark.parametrize("dataset", TASKS)
def test_test_recordings_are_of_day_and_night_moving_and_standing(dataset):
    recordings = recordings_of("small", 0, dataset)
    tested = [recording for recording in recordings if recording.split == "test"][:4]
    assert 0 < sum(recording.night for recording in tested) < len(tested)
    streets = [Street(recording.seed, recording.seconds) for recording in tested]
    standing = np.mean([np.mean(street.ego_speed < 0.1) for street in streets])
    assert 0.3 < standing < 0.7


@pytest.mark.parametrize("task", TASKS)
def test_moving_and_standing_frames_are_told_apart_in_every_layout(tiny_world, task):
    register_methods()
    data = Data(tiny_world / task, "sample")
    for recording in build_task(settings_of(data, task, "recurrent"), data.root).scored:
        groups = {groups_of(recording, label) for label in range(len(recording.label_indices))}
        assert groups <= {("moving",), ("standing",)}

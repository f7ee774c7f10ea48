"""The worlds on disk: layout, determinism, concurrency, mistakes."""

from __future__ import annotations

import io
import json
import multiprocessing
import subprocess
import sys
import zipfile

import numpy as np
import pytest
from PIL import Image

from tespec.core.errors import UserError
from tespec.events import open_events
from tespec.world import make_world
from tespec.world.__main__ import main
from tespec.world.contents import CONTENTS, DATASETS, VERSION, takes
from tespec.world.layouts.ddd17 import image_index


def description(world, dataset):
    return json.loads((world / dataset / "dataset.json").read_text())


def ddd17_recordings(world):
    splits = description(world, "ddd17")["splits"]
    return [world / "ddd17" / name for names in splits.values() for name in names]


def stored_events(recording):
    t = np.memmap(recording / "events.dat.t", np.int64, "r")
    xyp = np.memmap(recording / "events.dat.xyp", np.int16, "r").reshape(-1, 3)
    return t, xyp


def masks(recording):
    with zipfile.ZipFile(recording / "segmentation_masks.zip") as archive:
        return {name: np.asarray(Image.open(io.BytesIO(archive.read(name)))) for name in archive.namelist()}


def contents(folder):
    return {str(f.relative_to(folder)): f.read_bytes() for f in sorted(folder.rglob("*")) if f.is_file()}


def test_dataset_files_describe_the_world(tiny_world):
    ddd17 = description(tiny_world, "ddd17")
    assert ddd17["data"] == "sample"
    assert ddd17["world"] == {"version": VERSION, "seed": 0, "size": "tiny"}
    assert ddd17["sensor"] == {"height": 80, "width": 96}
    assert ddd17["label_rows"] == 64
    assert ddd17["splits"] == {"train": ["dir0", "dir1"], "test": ["dir2"], "val": ["dir3"]}
    assert len(ddd17["classes"]) == 6
    one_mpx = description(tiny_world, "1mpx")
    for split, names in one_mpx["splits"].items():
        for name in names:
            stream = open_events(tiny_world / "1mpx" / split / f"{name}_td.dat")
            assert (stream.height, stream.width) == (64, 96)
            assert stream.count > 1000
            assert 1_900_000 < stream.t_last < 2_000_000


def test_ddd17_events_have_the_archives_types_and_ranges(tiny_world):
    for recording in ddd17_recordings(tiny_world):
        t, xyp = stored_events(recording)
        assert len(t) == len(xyp) > 1000
        assert (np.diff(t) >= 0).all()
        assert 1.9e9 < t[-1] < 2e9
        assert (t % 1000 == 0).all()
        assert (xyp.min(axis=0) == 0).all()
        assert (xyp.max(axis=0) <= [95, 79, 1]).all()


@pytest.mark.parametrize("span", [10, 50, 250])
def test_ddd17_index_points_at_the_events_of_each_image(tiny_world, span):
    for recording in ddd17_recordings(tiny_world):
        t, _ = stored_events(recording)
        index = np.load(recording / "index" / f"index_{span}ms.npy")
        assert index.dtype == np.int64
        assert np.median(np.diff(index[:, 0])) == 30e6
        for stamp, at_image, earlier in index:
            assert at_image == np.count_nonzero(t < stamp)
            assert earlier == np.count_nonzero(t < stamp - span * 1_000_000)


def test_ddd17_masks_start_after_enough_events_and_hold_six_classes(tiny_world):
    counts = np.zeros(6)
    for recording in ddd17_recordings(tiny_world):
        index = np.load(recording / "index" / "index_50ms.npy")
        found = masks(recording)
        numbers = [int(name.split("_")[-1].removesuffix(".png")) for name in found]
        assert numbers == list(range(numbers[0], len(index) + 1))
        assert index[numbers[0] - 1, 0] >= 100e6
        for mask in found.values():
            assert mask.shape == (64, 96)
            assert mask.dtype == np.uint8
            counts += np.bincount(mask.ravel(), minlength=6)
    assert (counts / counts.sum() > 0.005).all()


def test_ddd17_side_files_have_one_entry_per_image(tiny_world):
    for recording in ddd17_recordings(tiny_world):
        images = len(np.load(recording / "index" / "index_50ms.npy"))
        speed = np.load(recording / "ego_speed.npy")
        assert speed.dtype == np.float32
        assert speed.shape == (images,)
        assert speed.min() >= 0
        assert len(list((recording / "imgs").iterdir())) == images


def test_image_index_counts_events_strictly_before_the_image():
    index = image_index(np.array([0, 5, 10, 10, 20]), np.array([10, 30]), 10)
    assert index.tolist() == [[10_000, 2, 0], [30_000, 5, 4]]


def test_recordings_of_a_world_and_of_two_worlds_never_share_a_street():
    for size in CONTENTS:
        seeds = [take.seed for seed in (0, 1) for dataset in DATASETS for take in takes(size, seed, dataset)]
        assert len(set(seeds)) == len(seeds)


def test_small_world_has_day_and_night_in_training_and_test():
    for dataset, split in (("ddd17", "train"), ("ddd17", "test"), ("1mpx", "train"), ("gen1", "test")):
        nights = [take.night for take in takes("small", 0, dataset) if take.split == split]
        assert 0 < sum(nights) < len(nights) / 2


def test_two_processes_make_the_same_bytes_as_one(tiny_world, tmp_path):
    made = []
    again = make_world(
        "tiny",
        root=tmp_path,
        processes=2,
        progress=lambda done, total: made.append((done, total)),
        datasets=DATASETS,
    )
    assert made == [(k, 22) for k in range(1, 23)]
    assert contents(again) == contents(tiny_world)


def test_a_made_world_is_found_not_made_again(tiny_world):
    def fail(done, total):
        raise AssertionError("made again")

    assert make_world("tiny", root=tiny_world.parent, progress=fail) == tiny_world


def make_in(folder):
    make_world("tiny", root=folder, processes=1, datasets=("ddd17", "dsec"))


def test_two_callers_at_once_get_one_complete_world(tiny_world, tmp_path):
    context = multiprocessing.get_context("spawn")
    callers = [context.Process(target=make_in, args=(tmp_path,)) for _ in range(2)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
        assert caller.exitcode == 0
    for dataset in ("ddd17", "dsec"):
        assert contents(tmp_path / tiny_world.name / dataset) == contents(tiny_world / dataset)
    assert sorted(path.name for path in (tmp_path / tiny_world.name).iterdir()) == ["ddd17", "dsec"]


def test_leftovers_of_a_killed_run_are_cleared(tiny_world, tmp_path):
    leftover = tmp_path / tiny_world.name / ".gen1.unfinished"
    leftover.mkdir(parents=True)
    (leftover / "half").write_text("x")
    made = make_world("tiny", root=tmp_path, processes=1, datasets=("gen1",))
    assert contents(made / "gen1") == contents(tiny_world / "gen1")
    assert [path.name for path in made.iterdir()] == ["gen1"]


def test_what_is_missing_of_a_world_is_made(tiny_world, tmp_path):
    made = []
    for datasets, count in ((("mvsec",), 4), (("gen1", "mvsec"), 4), (("gen1",), 0)):
        make_world("tiny", root=tmp_path, processes=1, progress=lambda *state: made.append(state), datasets=datasets)
        assert len(made) == count
        made.clear()


UNGUARDED = """
from pathlib import Path
from tespec.world import make_world
make_world("tiny", root=Path({root!r}), processes=2)
"""


def test_an_unguarded_script_is_told_instead_of_hanging(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED.format(root=str(tmp_path / "worlds")))
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100)
    assert ended.returncode != 0
    assert "is imported by each process that makes the sample world; put what it does below" in ended.stderr
    assert "a process that made it ended before it was done" in ended.stderr


def test_mistakes_are_named(tmp_path, capsys):
    with pytest.raises(UserError, match="no such size; choose one of tiny, small"):
        make_world("huge", root=tmp_path)
    with pytest.raises(UserError, match="no such dataset; choose from ddd17, 1mpx, gen1, dsec, mvsec"):
        make_world("tiny", root=tmp_path, datasets=("one_mpx",))
    with pytest.raises(UserError, match="is negative"):
        make_world("tiny", seed=-1, root=tmp_path)
    assert main(["--size", "tiny", "--seed", "-1", "--root", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("error: seed -1")
    assert not list(tmp_path.iterdir())


def test_command_prints_the_folder(tiny_world, capsys):
    assert main(["--size", "tiny", "--root", str(tiny_world.parent)]) == 0
    assert capsys.readouterr().out.strip() == str(tiny_world)

"""Result of checking recordings, and the moments and images of a preview."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from ddd17_copies import extract, png
from twins import copied, opened

from tespec.core.errors import UserError
from tespec.core.settings import Binning
from tespec.datasets.check import (
    Moment,
    check,
    choose,
    draw,
    moment,
    problems,
    table,
    windows_at,
)
from tespec.datasets.folder import ALL, EventFolder
from tespec.datasets.sources import EventSource
from tespec.events import open_events
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.runs.data import Data, settings_of
from tespec.tasks import build_task


@pytest.mark.parametrize("task", ["ddd17", "gen1", "dsec", "mvsec"])
def test_a_recording_that_is_not_packed_is_read_through_and_not_held(tiny_world, monkeypatch, task):
    monkeypatch.setattr(EventSource, "stream", None)
    for each in check(opened(tiny_world / task, task)):
        assert each.problems == ()
        stream = open_events(
            opened(tiny_world / task, task).find(each.split, each.name).source.path
        )
        found = {
            name: each.facts[f"events_{name}"]
            for name in ("height", "width", "count", "t_first", "t_last")
        }
        assert found == {name: getattr(stream, name) for name in found}


def test_what_is_wrong_is_told_for_each_recording(tiny_world, tmp_path):
    root = copied(tiny_world, tmp_path / "drive: the second; again", "ddd17")
    shutil.rmtree(root / "dir1")
    min(extract(root / "dir2").iterdir()).write_bytes(png(np.zeros((3, 3), np.uint8)))
    min(extract(root / "dir0").iterdir()).write_bytes(png(np.full((64, 96), 255, np.uint8)))
    found = list(check(opened(root, "ddd17")))
    missing, size = problems(found)
    assert missing.startswith(f"{root / 'dir1'}: recording of the train split is missing; ")
    assert "mask has 3x3 px, but the histograms have 96x64; " in size
    assert found[0].facts["labels_empty"] == 1
    assert found[2].facts["events_count"] > 0
    assert "labels_count" not in found[2].facts
    assert len(table(found).splitlines()) == 5


@pytest.mark.parametrize(
    ("task", "name", "paths"),
    [
        ("ddd17", "dir0", ["dir0"]),
        ("gen1", "a", ["train"]),
        ("mvsec", "outdoor_day2", ["outdoor_day2_data.hdf5"]),
        (
            "dsec",
            "zurich_city_00_a",
            [f"zurich_city_00_a/{path}" for path in ("11classes/0.png", "events/left/events.h5")],
        ),
    ],
)
def test_no_description_below_the_given_folder_is_ignored(tmp_path, task, name, paths):
    inner = tmp_path / "data"
    for path in paths:
        (inner / path).mkdir(parents=True)
    description = inner / "dataset.json"
    for content in (
        {"splits": {"train": ["a"], "val": ["b"]}},
        {"label_rows": 9},
        {"classes": ["c"]},
    ):
        description.write_text(json.dumps(content))
        remedy = re.escape(f"below the given one, {tmp_path}; give {inner}")
        with pytest.raises(UserError, match=rf"dataset\.json: would be ignored, .*{remedy}$"):
            opened(tmp_path, task).find("train", name)
    description.write_text('{"sensor": {"height": 9, "width": 9}}')  # read for each recording
    opened(tmp_path, task).refuse_description(inner)


def test_recordings_of_different_sizes_are_found_and_not_trained_on(tiny_world, tmp_path):
    root = copied(tiny_world, tmp_path, "gen1")
    path = min(root.glob("train/*.dat"))
    path.write_bytes(path.read_bytes().replace(b"Width 80", b"Width 82"))
    sizes = r"8[02]x64 \(.*\), 8[02]x64 \(.*\) px"
    what = rf"recordings of different sizes: {sizes}; give recordings of one size"
    (problem,) = problems(list(check(opened(root, "gen1"))))
    assert re.search(what, problem)
    with pytest.raises(UserError, match=what):
        build_task(settings_of(Data(root, "sample"), "gen1", "recurrent"), root)


def test_labels_of_other_kinds_are_drawn_by_their_task(tmp_path):
    drawn = []
    shown = Moment("a", np.zeros((2, 4, 5), np.uint8), *np.zeros((2, 4, 5)), {"speed": 3.0})
    path = draw([shown], (), tmp_path, "a", 1, False, lambda axis, label: drawn.append(label))
    assert drawn == [{"speed": 3.0}]
    assert path.is_file()


@pytest.fixture(scope="module")
def recording():
    return EventFolder(Path(__file__).parents[1] / "data" / "evt3_640x480_2.08s.raw").recordings(
        ALL
    )[0]


def test_no_moment_is_shown_twice_while_there_are_others(recording):
    for count in (3, len(recording)):
        assert len({window for _, window in choose([recording], count, "edges")}) == count
    assert len(choose([recording], len(recording) + 2, "edges")) == len(recording)


def test_moments_are_windows_that_have_ended(recording):
    assert windows_at(recording, [0.05, 0.1, 0.149, 2.0]) == [0, 1, 39]
    for outside in (0.04, 2.2):
        with pytest.raises(
            UserError, match=r"s is outside of the recording; give times from 0.05 to 2.05 s"
        ):
            windows_at(recording, [outside])


def test_both_intensities_are_those_of_the_recording_from_its_start(recording):
    shown = moment(recording, 4, "edges", 500.0)
    counts = torch.from_numpy(recording.histograms(0, 5, Binning(10, "edges")))[None]
    estimates = estimate_intensity(counts, norm_events=500.0), estimate_high_pass(counts)
    for image, (video, _) in zip((shown.intensity, shown.high_pass), estimates, strict=True):
        np.testing.assert_allclose(image, video[0, -1], rtol=1e-4, atol=1e-5)
    assert shown.title.splitlines()[1].startswith("0.25 s: ")

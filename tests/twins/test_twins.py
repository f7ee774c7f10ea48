"""Every twin in every layout, and broken in every way: read alike, refused in one line, or handled as it says."""

import dataclasses
import re
import shutil

import numpy as np
import pytest

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.datasets import check as report
from tespec.datasets.check import check
from tespec.runs.data import Data, settings_of
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset
from twins.broken import WAYS, damage
from twins.layouts import LAYOUTS, relayout

OF_EVENTS = [
    (dataset, layout)
    for dataset, layouts in LAYOUTS.items()
    for layout in layouts
    if not layout.startswith("rvt-archive")
]


def opened(root, dataset, *changes):
    import_tasks()
    settings = settings_of(Data(root, "sample"), dataset, "recurrent", "sample", ["downsample.factor=1", *changes])
    return open_dataset(settings, root)


@pytest.fixture
def twin(tiny_world, tmp_path):
    def copy(dataset):
        target = tmp_path / "Daten ü" / dataset
        shutil.copytree(tiny_world / dataset, target, ignore=shutil.ignore_patterns("imgs"))
        return target

    return copy


def arrays(label):
    return [label.corners, label.label] if isinstance(label, Boxes) else [label]


def same_recordings(one, other, *, events=True):
    for split in one.splits:
        for first, second in zip(one.recordings(split), other.recordings(split), strict=True):
            assert first.name == second.name
            assert first.label_times.tolist() == second.label_times.tolist()
            for index in range(0, len(first.labels), 5):
                for a, b in zip(arrays(first.labels[index]), arrays(second.labels[index]), strict=True):
                    np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(first.ego_speed, second.ego_speed)
            if events:
                np.testing.assert_array_equal(first.windows, second.windows)
                for window in (0, len(first) // 2):
                    args = (window, min(2, len(first) - window), 10, "edges")
                    np.testing.assert_array_equal(first.histograms(*args), second.histograms(*args))


@pytest.mark.parametrize(("dataset", "layout"), OF_EVENTS)
def test_every_layout_holds_the_same_recordings(tiny_world, twin, dataset, layout):
    root = twin(dataset)
    relayout(root, dataset, layout)
    found = opened(root, dataset)
    same_recordings(opened(tiny_world / dataset, dataset), found)
    facts = list(check(found))
    assert report.problems(facts) == []
    assert found.describe()["layout"] == found.layout


@pytest.mark.parametrize("dataset", ["gen1", "1mpx"])
def test_an_archive_holds_what_the_raw_recordings_give(tiny_world, twin, dataset):
    root = twin(dataset)
    relayout(root, dataset, "rvt-archive")
    raw_settings = ["downsample.factor=2", "protocol.min_side=3"] if dataset == "1mpx" else []
    raw = opened(tiny_world / dataset, dataset, *raw_settings, "downsample.keep=nearest")
    found = opened(root, dataset)
    same_recordings(raw, found, events=False)
    for split in raw.splits:
        for plain, stored in zip(raw.recordings(split), found.recordings(split), strict=True):
            size = (stored.region.height, stored.region.width)
            assert size == (plain.region.height, plain.region.width)
            np.testing.assert_array_equal(plain.windows[plain.labelled[1:], 0], stored.windows[stored.labelled[1:], 0])
            same = dataclasses.replace(plain, windows=stored.windows)
            for window in range(0, len(stored), 3):
                np.testing.assert_array_equal(
                    stored.histograms(window, 1, 10, "rvt"), same.histograms(window, 1, 10, "rvt")
                )
    with pytest.raises(UserError, match=r"holds histograms with rule rvt, not edges; give --set rule=rvt"):
        found.recordings("test")[0].histograms(0, 1, 10, "edges")
    with pytest.raises(UserError, match="holds histograms, not events"):
        _ = found.recordings("test")[0].stream


def test_an_archive_with_gaps_is_refused_by_name(twin):
    root = twin("gen1")
    relayout(root, "gen1", "rvt-archive-125ms")
    (problem, *_) = report.problems(list(check(opened(root, "gen1"))))
    assert "windows of 50 ms are 125 ms apart" in problem
    assert "its public script makes this one" in problem


@pytest.mark.parametrize(("dataset", "way"), [(dataset, way) for dataset, ways in WAYS.items() for way in ways])
def test_every_broken_twin_is_refused_in_a_line_or_handled(twin, dataset, way):
    root = twin(dataset)
    done = damage(root, dataset, way)
    try:
        found = list(check(opened(root, dataset)))
        problems, notes = report.problems(found), list(report.notes(found))
    except UserError as error:
        problems, notes = [str(error)], []
    assert all("\n" not in line and line.count("; ") >= 1 for line in problems)
    if not done.outcome:
        assert done.handled
        assert problems == []
        assert "counted" not in done.handled or any("timestamps decrease" in note for note in notes)
        return
    assert any(part in problem for part in done.outcome.split("|") for problem in problems), problems
    assert all(str(root) in problem for problem in problems)
    # A dry run looks quickly; of what these twins have it misses nothing.
    with pytest.raises(UserError, match="|".join(map(re.escape, done.outcome.split("|")))):
        raise next(each for found in check(opened(root, dataset), quick=True) for each in found.problems)

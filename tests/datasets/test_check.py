import io
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tespec.core.boxes import make_boxes
from tespec.core.registry import DATASETS
from tespec.datasets.check import check, check_recording, event_facts, label_facts, per_second, problems, table
from tespec.datasets.folder import EventFolder
from tespec.datasets.recording import LabelledRecording
from tespec.events import ArrayStream, Events
from tespec.events.spatial import Region
from tespec.runs.data import Data, settings_of
from tespec.tasks import import_tasks
from tespec.tasks.base import open_dataset

REAL = Path(__file__).parents[1] / "data"


def dataset_in(root):
    import_tasks()
    return open_dataset(settings_of(Data(root, "sample"), "ddd17", "recurrent"), root)


def stream(t, x=None, height=4, width=5):
    t = np.asarray(t, np.int64)
    x = np.zeros(len(t), np.uint16) if x is None else np.asarray(x, np.uint16)
    return ArrayStream(x, np.zeros(len(t), np.uint16), t, np.arange(len(t), dtype=np.uint8) % 2, height, width)


def test_events_are_counted_by_hand():
    facts = event_facts(stream([5, 5, 900_000, 1_000_003, 1_000_004, 3_000_005]))
    assert {name.removeprefix("events_"): value for name, value in facts.items()} == {
        "height": 4, "width": 5, "count": 6, "t_first": 5, "t_last": 3_000_005, "clamped": 0,
        "positive": 0.5, "repeated": 0.0, "peak": 5.0,
    }  # fmt: skip
    zeros = np.zeros(4, int)
    assert event_facts(ArrayStream(zeros, zeros, np.array([1, 1, 2, 2]), zeros, 4, 5))["events_repeated"] == 0.5


@pytest.mark.parametrize("span", [0, 1, 130_000, 999_999, 1_000_000, 1_000_001, 1_500_000, 7_654_321])
@pytest.mark.parametrize("where", ["evenly", "at both ends", "at the end"])
def test_no_peak_lies_below_the_mean(span, where):
    shares = {"evenly": np.arange(101) / 100, "at both ends": np.arange(101) > 50, "at the end": np.arange(101) > 0}
    facts = event_facts(stream(np.round(shares[where] * span)))
    mean = per_second(101, span)
    assert facts["events_peak"] >= mean
    assert span > 1_000_000 or facts["events_peak"] == mean


class Broken(ArrayStream):
    def slice(self, t0, t1):
        x, y, t, p = super().slice(t0, t1)
        return Events(x[1:], y[1:], t[1:], p[1:])


def test_a_reader_that_loses_events_is_found():
    columns = stream([1, 2, 3]).slice(0, 4)
    with pytest.raises(ValueError, match="2 events were read of 3"):
        event_facts(Broken(*columns, 4, 5))


class Listed(list):
    def checksums(self):
        return [0] * len(self)


def labelled(labels):
    windows = np.stack([np.arange(len(labels)), np.arange(1, len(labels) + 1)], axis=1) * 50_000
    return LabelledRecording("r", None, Region(4, 5), windows, Listed(labels), np.arange(len(labels)))


def test_labels_of_each_kind():
    mask = np.full((4, 5), 255, np.uint8)
    mask[0] = 1
    depth = np.full((4, 5), np.nan, np.float32)
    depth[0, :2] = (3, 70)
    boxes = make_boxes(np.array([[0, 0, 2, 3], [1, 1, 5, 2]]), np.array([1, 1]))
    of_masks = label_facts(labelled([mask, mask, np.full_like(mask, 255)]), ("a", "b"))
    of_depths = label_facts(labelled([depth]), ())
    of_boxes = label_facts(labelled([boxes, boxes.keep(np.zeros(2, bool))]), ("a", "b"))
    names = ("count", "empty", "first", "last", "spacing_ms_median", "unlabelled", "extent_min", "extent_max")
    figures = [[facts[f"labels_{name}"] for name in names] for facts in (of_masks, of_depths, of_boxes)]
    assert figures[0] == pytest.approx([3, 1, 50_000, 150_000, 50, 50 / 60, 0, 0])
    assert figures[1] == [1, 0, 50_000, 50_000, 0, 18 / 20, 3, 70]
    assert figures[2] == [2, 1, 50_000, 100_000, 50, 0, 1, 4]
    assert [(facts["class_a"], facts["class_b"]) for facts in (of_masks, of_boxes)] == [(0, 10), (0, 2)]


def test_a_whole_data_set(tiny_world):
    dataset = dataset_in(tiny_world / "ddd17")
    found = list(check(dataset))
    names = [("train", "dir0"), ("train", "dir1"), ("test", "dir2"), ("val", "dir3")]
    assert [(each.split, each.name) for each in found] == names
    assert problems(found) == []
    for each in found:
        stamps = np.fromfile(tiny_world / "ddd17" / each.name / "events.dat.t", "<i8")
        assert each.facts["events_count"] == len(stamps)
        assert each.facts["labels_count"] == each.facts["windows"] > 50
    assert len({len(line) for line in table(found).splitlines()}) == 1
    assert next(check(dataset, quick=True)).facts["events_count"] == found[0].facts["events_count"]
    assert sorted(check(dataset, processes=2), key=str) == sorted(found, key=str)


def test_what_is_wrong_is_told_for_each_recording(tiny_world, tmp_path):
    root = tmp_path / "ddd17"
    shutil.copytree(tiny_world / "ddd17", root, ignore=shutil.ignore_patterns("imgs"))
    shutil.rmtree(root / "dir1")
    buffer = io.BytesIO()
    Image.new("L", (3, 3)).save(buffer, "PNG")
    shutil.unpack_archive(root / "dir2" / "segmentation_masks.zip", root / "dir2")
    (root / "dir2" / "segmentation_masks.zip").unlink()
    min((root / "dir2" / "segmentation_masks").iterdir()).write_bytes(buffer.getvalue())
    found = list(check(dataset_in(root)))
    missing, size = problems(found)
    assert missing.startswith(f"{root / 'dir1'}: recording of the train split is missing; ")
    assert "mask has 3x3 px, the histograms have 96x64; " in size
    assert found[2].facts["events_count"] > 0
    assert "labels_count" not in found[2].facts
    assert len(table(found).splitlines()) == 5


def test_a_recording_that_is_not_named_is_left_alone(tiny_world):
    dataset = DATASETS.get("Ddd17")(tiny_world / "ddd17", {"test": ["dir2"]}, (), protocol={"rows": 64})
    facts = check_recording(dataset, "test", "dir9")
    assert "dir9: recording of the test split is missing" in str(facts.problems[0])


def test_a_mistake_keeps_its_parts_whatever_they_hold(tmp_path):
    path = tmp_path / "drive: the second; again" / "a.dat"
    path.parent.mkdir()
    path.write_bytes(b"% Height 4\n% Width 4\n" + bytes((12, 8)) + bytes(12))
    (facts,) = check(EventFolder(path))
    (problem,) = facts.problems
    assert (problem.where, problem.remedy) == (str(path), "copy it again")
    again = pickle.loads(pickle.dumps(problem))
    assert (again.where, again.what, again.remedy) == (problem.where, problem.what, problem.remedy)

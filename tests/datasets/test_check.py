import numpy as np
import pytest
from ddd17_copies import copy_archive, extract, png
from twins import opened

from tespec.datasets import sources
from tespec.datasets.check import check, problems, table
from tespec.events import load_events


@pytest.mark.parametrize("task", ["ddd17", "gen1", "dsec", "mvsec"])
def test_a_recording_that_is_not_packed_is_read_through_and_not_held(tiny_world, monkeypatch, task):
    monkeypatch.setattr(sources, "load_events", None)
    for each in check(opened(tiny_world / task, task)):
        assert each.problems == ()
        stream = load_events(opened(tiny_world / task, task).find(each.split, each.name).source.path)
        found = {name: each.facts[f"events_{name}"] for name in ("height", "width", "count", "t_first", "t_last")}
        assert found == {name: getattr(stream, name) for name in found}


def test_a_whole_data_set(tiny_world):
    dataset = opened(tiny_world / "ddd17", "ddd17")
    found = list(check(dataset))
    assert [(each.split, each.name) for each in found] == [
        ("train", "dir0"), ("train", "dir1"), ("test", "dir2"), ("val", "dir3"),
    ]  # fmt: skip
    assert problems(found) == []
    for each in found:
        stamps = np.fromfile(tiny_world / "ddd17" / each.name / "events.dat.t", "<i8")
        assert (each.facts["events_count"], each.facts["labels_count"] > 50) == (len(stamps), True)
    assert len({len(line) for line in table(found).splitlines()}) == 1
    assert list(check(dataset, processes=2)) == found


def test_what_is_wrong_is_told_for_each_recording(tiny_world, tmp_path):
    root = copy_archive(tiny_world, tmp_path / "drive: the second; again", ("dir0", "dir2", "dir3"))
    min(extract(root / "dir2").iterdir()).write_bytes(png(np.zeros((3, 3), np.uint8)))
    found = list(check(opened(root, "ddd17")))
    missing, size = problems(found)
    assert missing.startswith(f"{root / 'dir1'}: recording of the train split is missing; ")
    assert "mask has 3x3 px, the histograms have 96x64; " in size
    assert found[2].facts["events_count"] > 0
    assert "labels_count" not in found[2].facts
    assert len(table(found).splitlines()) == 5

import json

import pytest

from tespec.core.description import Description, described_size, descriptions_above, read_description
from tespec.core.errors import UserError


def test_official_archives_have_none(tmp_path):
    assert read_description(tmp_path) == Description()
    assert list(descriptions_above(tmp_path)) == []
    assert described_size(tmp_path) is None


def test_the_sample_world_describes_itself(tiny_world):
    ddd17 = read_description(tiny_world / "ddd17")
    assert ddd17.splits == {"train": ("dir0", "dir1"), "test": ("dir2",), "val": ("dir3",)}
    assert (len(ddd17.classes), ddd17.label_rows) == (6, 64)
    assert read_description(tiny_world / "1mpx").classes is None


def test_the_nearest_one_that_states_a_sensor_within_five_folders_gives_its_size(tmp_path):
    recording = tmp_path / "a" / "b" / "c" / "d" / "e" / "drive.dat"
    recording.parent.mkdir(parents=True)
    (tmp_path / "dataset.json").write_text('{"sensor": {"height": 9, "width": 9}}')
    assert described_size(recording) is None  # six folders up
    assert [folder for folder, _ in descriptions_above(recording, tmp_path)] == [tmp_path]
    (tmp_path / "a" / "dataset.json").write_text('{"sensor": {"height": 480, "width": 640}}')
    assert described_size(recording) == (480, 640)
    (recording.parent / "dataset.json").write_text('{"splits": {"train": ["drive"]}}')
    assert described_size(recording) == (480, 640)
    (recording.parents[1] / "dataset.json").write_text('{"sensor": {"height": 80, "width": 96}}')
    assert described_size(recording) == (80, 96)


NAMES = ["../../home", "/etc", "a/../../b", "", "a\0b", "a\nb"]  # which lead out of the folder, or are none


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("", ""),
        ("{", ""),
        (b"\xff\xfe", ""),
        ("3", "content: "),
        ('{"splits": ["dir0"]}', "splits: "),
        ('{"splits": {"train": 1}}', "splits.train: "),
        *(
            (json.dumps({"splits": {"train": [name]}}), r"splits.train.0: .* is no name of a recording")
            for name in NAMES
        ),
        ('{"classes": 6}', "classes: "),
        ('{"label_rows": Infinity}', "label_rows: "),
        ('{"sensor": 7}', "sensor: "),
        ('{"sensor": {"height": 1e999, "width": 96}}', "sensor.height: "),
        ('{"sensor": {"height": -80, "width": 96}}', "names a sensor of 96x-80 px"),
        ('{"sensor": {"height": 80, "width": 1000000}}', "names a sensor of 1000000x80 px"),
    ],
)
def test_anything_else_is_refused(tmp_path, content, what):
    (tmp_path / "dataset.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    message = what if what.startswith("names") else rf"not a description of a data set.*{what}"
    with pytest.raises(UserError, match=rf"dataset\.json: {message}") as caught:
        described_size(tmp_path)
    assert "\n" not in str(caught.value)

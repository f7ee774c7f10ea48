import pytest

from tespec.core.description import Description, described_size, descriptions_above, read_description
from tespec.core.errors import UserError


def test_the_nearest_one_that_states_a_sensor_within_five_folders_gives_its_size(tmp_path):
    recording = tmp_path / "a" / "b" / "c" / "d" / "e" / "drive.dat"
    recording.parent.mkdir(parents=True)
    assert (read_description(tmp_path), described_size(recording)) == (Description(), None)  # as official archives
    (tmp_path / "dataset.json").write_text('{"sensor": {"height": 9, "width": 9}}')
    assert described_size(recording) is None  # six folders up
    assert [folder for folder, _ in descriptions_above(recording, tmp_path)] == [tmp_path]
    (tmp_path / "a" / "dataset.json").write_text('{"sensor": {"height": 480, "width": 640}}')
    assert described_size(recording) == (480, 640)
    (recording.parent / "dataset.json").write_text('{"splits": {"train": ["drive"]}}')
    assert described_size(recording) == (480, 640)
    (recording.parents[1] / "dataset.json").write_text('{"sensor": {"height": 80, "width": 96}}')
    assert described_size(recording) == (80, 96)


BROKEN = {
    "": "",
    "{": "",
    "3": "content: ",
    '{"splits": {"train": 1}}': "splits.train: ",
    '{"sensor": {"height": 80, "width": 1000000}}': "sensor.width: ",
    # Names which lead out of the folder, or are none.
    '{"splits": {"train": ["a/../../b"]}}': r"splits.train.0: .* is no name of a recording",
    '{"splits": {"train": ["/etc"]}}': r"splits.train.0: .* is no name of a recording",
}


@pytest.mark.parametrize("content", BROKEN)
def test_anything_else_is_refused(tmp_path, content):
    (tmp_path / "dataset.json").write_text(content)
    with pytest.raises(
        UserError, match=rf"dataset\.json: not a description of a data set.*{BROKEN[content]}"
    ) as caught:
        described_size(tmp_path)
    assert "\n" not in str(caught.value)

import json

import pytest

from tespec.core.errors import UserError
from tespec.datasets.description import Description, read_description


def test_official_archives_have_none(tmp_path):
    assert read_description(tmp_path) == Description({})


def test_the_sample_world_describes_itself(tiny_world):
    ddd17 = read_description(tiny_world / "ddd17")
    assert ddd17.splits == {"train": ("dir0", "dir1"), "test": ("dir2",), "val": ("dir3",)}
    assert (len(ddd17.classes), ddd17.label_rows) == (6, 64)
    assert read_description(tiny_world / "1mpx").classes is None


@pytest.mark.parametrize("content", ["", "{", "3", '{"splits": ["dir0"]}', '{"splits": {"train": 1}}', '{"classes": 6}',
                                     '{"label_rows": Infinity}', b"\xff\xfe"])  # fmt: skip
def test_anything_else_is_refused(tmp_path, content):
    (tmp_path / "dataset.json").write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UserError, match=r"dataset.json: not a description of a data set"):
        read_description(tmp_path)


@pytest.mark.parametrize("name", ["../../home", "/etc", "a/../../b", "", "a\0b", "a\nb"])
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    (tmp_path / "dataset.json").write_text(json.dumps({"splits": {"train": [name]}}))
    with pytest.raises(UserError, match=r"dataset.json: not a description of a data set"):
        read_description(tmp_path)

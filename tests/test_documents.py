from __future__ import annotations

from pathlib import Path

import pytest

from tespec.comparison.records import find_record
from tespec.core.config import finetuning_settings
from tespec.core.description import described_size, read_description
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, parse_yaml, read_json, read_yaml
from tespec.events.store import header_of

DEEP = "[" * 200_000


def test_values_come_back(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"ä": [1, 2.5, null]}', encoding="utf-8")
    (tmp_path / "a.yaml").write_text("ä: [1, 2.5, null, true]", encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"ä": [1, 2.5, None]}
    assert read_yaml(tmp_path / "a.yaml") == {"ä": [1, 2.5, None, True]}


@pytest.mark.parametrize(
    "text",
    [
        DEEP, "!!python/object/apply:os.getcwd []", "!!bool maybe", "!!int ''", "!!timestamp now",
        "!!float ''", "!!binary ä", "9" * 5000, "2026-99-99", "a: [", "{[a]: b}", "\0",
    ],
)  # fmt: skip
def test_no_text_is_read_as_more_than_plain_values(text: str) -> None:
    with pytest.raises(UNREADABLE):
        parse_yaml(text)


def test_every_reader_refuses_depth_in_one_line(tmp_path: Path) -> None:
    for folder in ("a", "runs"):
        (tmp_path / folder).mkdir()
    for name in ("dataset.json", "header.json", "runs/record.json"):
        (tmp_path / name).write_text(DEEP)

    for read in (
        lambda: find_record(tmp_path, "record"),
        lambda: read_description(tmp_path),
        lambda: described_size(tmp_path / "a" / "b"),
        lambda: header_of(tmp_path),
        lambda: finetuning_settings("ddd17", "recurrent", "sample", [f"batch_size={DEEP}"]),
        lambda: finetuning_settings("ddd17", "recurrent", "sample", ["batch_size=!!bool maybe"]),
    ):
        with pytest.raises(UserError) as raised:
            read()
        assert len(str(raised.value).splitlines()) == 1

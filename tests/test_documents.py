from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tespec.comparison.records import find_record
from tespec.core.config import finetuning_settings
from tespec.core.description import described_size, read_description
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, parse_yaml, read_json, read_yaml
from tespec.events.store import header_of

DEEP = "[" * 200_000
LAUGHS = "a: &a [x, x]\n" + "".join(f"{b}: &{b} [*{a}, *{a}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True))


def test_values_come_back(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"ä": [1, 2.5, null]}', encoding="utf-8")
    (tmp_path / "a.yaml").write_text("ä: [1, 2.5, null, true]", encoding="utf-8")
    assert read_json(tmp_path / "a.json") == {"ä": [1, 2.5, None]}
    assert read_yaml(tmp_path / "a.yaml") == {"ä": [1, 2.5, None, True]}


@pytest.mark.parametrize(
    "text",
    [
        DEEP, LAUGHS, "&a [*a]", "!!python/object/apply:os.getcwd []", "!!bool maybe", "!!int ''", "!!timestamp now",
        "!!float ''", "!!binary ä", "9" * 5000, "2026-99-99", "a: [", "{[a]: b}", "\0", "0x" + "f" * 5000,
        "1" + ":1" * 2000,
    ],
)  # fmt: skip
def test_no_text_is_read_as_more_than_plain_values(text: str) -> None:
    with pytest.raises(UNREADABLE):
        parse_yaml(text)


@pytest.mark.parametrize("read", [read_json, read_yaml])
def test_neither_size_nor_depth_nor_kind_of_a_file_does_harm(tmp_path: Path, read: Callable[[Path], Any]) -> None:
    for content in (DEEP.encode(), b'"' + b"x" * (1 << 25) + b'"', b"\xff\xfe\xff"):
        (tmp_path / "a").write_bytes(content)
        with pytest.raises(UNREADABLE):
            read(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero")):
        with pytest.raises(OSError, match=r"no regular file|directory"):
            read(path)


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

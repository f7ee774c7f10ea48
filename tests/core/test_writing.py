"""Files are written atomically, and read as plain values or refused."""

import errno
import math
import os
import shutil
from itertools import pairwise
from pathlib import Path

import pytest
import torch

from tespec.core.files import UNREADABLE, atomic_write, file_lock, parse_json, parse_yaml, write_all
from tespec.training.checkpoint import save_checkpoint
from tespec.weights.files import write_weights


def test_a_file_appears_complete_in_a_folder_that_is_made_or_stays_as_it_was(tmp_path):
    path = tmp_path / "new" / "file.txt"
    with atomic_write(path) as unfinished:
        unfinished.write_text("half")
        assert not path.exists()
        unfinished.write_text("complete")

    with pytest.raises(RuntimeError, match="disk"), atomic_write(path) as unfinished:  # noqa: PT012
        unfinished.write_text("half")
        raise RuntimeError("disk")
    assert path.read_text() == "complete"
    assert list(path.parent.iterdir()) == [path]


def test_several_files_appear_together_or_not_at_all(tmp_path, monkeypatch):
    paths = [tmp_path / name for name in ("a", "b", "c")]
    write_all(dict.fromkeys(paths[:2], "old"))
    real = Path.write_text
    written = []

    def full(self, text, **how):
        real(self, text, **how)
        written.append(self)
        if len(written) == 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_all(dict.fromkeys(paths, "new"))
    assert raised.value.filename == str(paths[2])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old", "b": "old"}


BOMB = list(pairwise("abcdefghij"))  # each is nine of the one before


def test_a_name_of_the_maximum_length_is_written(tmp_path):
    path = tmp_path / ("ä" * 127 + "x")
    write_all({path: "text"})
    assert [other.read_text() for other in tmp_path.iterdir()] == ["text"]


def test_a_folder_that_vanishes_is_named(tmp_path):
    path = tmp_path / "folder" / "a"
    with pytest.raises(FileNotFoundError) as raised, atomic_write(path) as unfinished:  # noqa: PT012
        unfinished.write_text("text")
        shutil.rmtree(path.parent)
    assert raised.value.filename == str(path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("umask", [0o002, 0o027])
def test_files_have_the_mode_of_the_umask(tmp_path, umask):
    previous = os.umask(umask)
    try:
        write_all({tmp_path / "a": "text"})
        write_weights(tmp_path / "b", {"weight": torch.ones(1)}, {})
        save_checkpoint(tmp_path, 1, {})
        with file_lock(tmp_path / "c"):
            modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    finally:
        os.umask(previous)
    assert modes == dict.fromkeys(("a", "b", "step-000000001.pt", ".c.lock"), 0o666 & ~umask)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 1_000,
        "!!python/object/apply:os.getcwd []",
        "!!bool maybe",
        "!!timestamp 2026-01-01",
        "!!float ''",
        "!!binary YQ==",
        "9" * 5000,
        "a: [",
        "{[a]: b}",
        "&a [*a]",
        "\0",
        "\n".join(
            f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'] if n else '11')}]" for n in range(9)
        ),
    ],
)
def test_no_text_is_read_as_more_than_plain_values(text):
    with pytest.raises(UNREADABLE):
        parse_yaml(text)


@pytest.mark.parametrize("parse", [parse_yaml, parse_json])
def test_a_repeated_key_is_refused_by_name_at_every_depth(parse):
    with pytest.raises(ValueError, match="the key 'steps' is repeated"):
        parse('{"a": [{"steps": 1, "b": {"steps": 2}, "steps": 3}]}')
    assert parse('{"a": {"steps": 1}, "b": {"steps": 1}}')["b"] == {"steps": 1}


def test_the_line_of_an_error_is_named():
    with pytest.raises(ValueError, match=r"^line 3: the key 'a' is repeated$"):
        parse_yaml("a: 1\nb: 2\na: 3")


# The core schema of YAML 1.2, section 10.3.2, and scalars that YAML 1.1 reads otherwise.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-2E+4", -2e4),
        (".5e1", 5.0),
        ("-.5", -0.5),
        ("[3.e2]", [300.0]),
        ("'1e-3'", "1e-3"),
        ("1e3x", "1e3x"),
        ("010", 10),
        ("-050", -50),
        ("0o10", 8),
        ("0x1F", 31),
        ("[-.inf, +.INF]", [-math.inf, math.inf]),
        ("[~, null, '', a:]", [None, None, "", {"a": None}]),
        ("[true, False]", [True, False]),
        ("{<<: {a: 1}, =: 2}", {"<<": {"a": 1}, "=": 2}),
        ("[&x [1], *x]", [[1], [1]]),
        *((text, text) for text in ("yes", "no", "on", "off", "y", "12:00:00", "1_000", "0b11")),
        *((text, text) for text in ("2026-01-02", "1.2.3", "+", ".", "0o8", "0xg", "1:30.5")),
    ],
)
def test_scalars_are_those_of_yaml_1_2(text, value):
    parsed = parse_yaml(text)
    assert (parsed, type(parsed)) == (value, type(value))

"""Files are written atomically, and read as plain values or refused."""

import errno
from pathlib import Path

import pytest

from tespec.core.files import UNREADABLE, atomic_write, parse_yaml, write_all


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

    def full(self, text, **how):
        real(self, text, **how)
        if self.name.startswith(".c."):
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left") as raised:
        write_all(dict.fromkeys(paths, "new"))
    assert raised.value.filename == str(paths[2])
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old", "b": "old"}


@pytest.mark.parametrize(
    "text",
    [
        "[" * 200_000,
        "!!python/object/apply:os.getcwd []",
        "!!bool maybe",
        "!!timestamp now",
        "!!float ''",
        "!!binary ä",
        "9" * 5000,
        "2026-99-99",
        "a: [",
        "{[a]: b}",
        "\0",
    ],
)
def test_no_text_is_read_as_more_than_plain_values(text):
    with pytest.raises(UNREADABLE):
        parse_yaml(text)


# The core schema of YAML 1.2, section 10.3.2.
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-3", 0.001),
        ("-2E+4", -2e4),
        (".5e1", 5.0),
        ("[3.e2]", [300.0]),
        ("'1e-3'", "1e-3"),
        ("1e3x", "1e3x"),
    ],
)
def test_a_number_with_an_exponent_is_a_number(text, value):
    assert parse_yaml(text) == value

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tespec.core.files import whole_file, write_all, write_whole


def test_a_file_appears_whole_in_a_folder_that_is_made(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with whole_file(path) as unfinished:
        unfinished.write_text("half")
        assert not path.exists()
        unfinished.write_text("whole")
    assert path.read_text() == "whole"
    assert list(path.parent.iterdir()) == [path]


def test_what_fails_leaves_the_file_as_it_was(tmp_path: Path) -> None:
    path = write_whole(tmp_path / "file.txt", "old")

    def fail() -> None:
        with whole_file(path) as unfinished:
            unfinished.write_text("half")
            raise RuntimeError("disk")

    with pytest.raises(RuntimeError, match="disk"):
        fail()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_written_as_others_are(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("x")
    written = write_whole(tmp_path / "file.txt", "ä\n")
    assert written.read_bytes() == "ä\n".encode()
    assert written.stat().st_mode == (tmp_path / "plain.txt").stat().st_mode


def test_several_files_appear_together_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / name for name in ("a", "b", "c")]
    write_all(dict.fromkeys(paths[:2], "old"))
    real = Path.write_text

    def full(self: Path, text: str, encoding: str | None = None) -> int:
        if self.name.startswith(".c."):
            real(self, text[:1], encoding=encoding)
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(self, text, encoding=encoding)

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space left"):
        write_all(dict.fromkeys(paths, "new"))
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"a": "old", "b": "old"}

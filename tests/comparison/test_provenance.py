from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tespec.comparison import records as module
from tespec.comparison.records import Record, environment, plugin_sha256


def test_revision_says_whether_files_were_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    assert (environment()["revision"], environment()["modified"]) == ("", None)

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    (tmp_path / "tespec").mkdir()
    (tmp_path / "tespec" / "file.py").write_text("one")
    git("add", ".")
    git("commit", "-m", "first")
    assert (environment()["revision"], environment()["modified"]) == (git("rev-parse", "HEAD"), False)
    (tmp_path / "results.json").write_text("made by a run")
    assert environment()["modified"] is False
    (tmp_path / "tespec" / "file.py").write_text("two")
    assert environment()["modified"] is True


def test_files_from_outside_of_the_package_are_hashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    source, settings = tmp_path / "my_method_file.py", tmp_path / "own.yaml"
    source.write_text("class Mine: pass\n")
    settings.write_text("a: 1")
    from my_method_file import Mine

    assert plugin_sha256([Record]) == ""
    first = plugin_sha256([Mine], [settings])
    assert first == plugin_sha256([Mine, Record], [settings])
    settings.write_text("a: 2")
    assert plugin_sha256([Mine], [settings]) != first

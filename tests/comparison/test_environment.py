from __future__ import annotations

import hashlib
import importlib.metadata
import json
import platform
import subprocess
import sys
from pathlib import Path

import pytest

from tespec.comparison import identity as module
from tespec.comparison.identity import environment


def test_versions_are_those_installed() -> None:
    found = environment(device="cpu")
    assert found["python"] == platform.python_version()
    assert found["packages"]["numpy"] == importlib.metadata.version("numpy")
    assert found["device"] == "cpu"
    assert found["cores"] > 0
    assert found["cpu"]
    json.dumps(found, allow_nan=False)


def test_a_package_that_is_not_installed_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LIBRARIES", ("no-such-package",))
    assert environment()["packages"] == {"no-such-package": ""}


def test_revision_says_whether_files_were_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REPOSITORY", tmp_path)
    assert (environment()["revision"], environment()["modified"]) == ("", None)

    def git(*arguments: str) -> str:
        identity = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        command = ["git", "-C", str(tmp_path), *identity, *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()

    git("init")
    source = tmp_path / "tespec" / "models" / "file.py"
    source.parent.mkdir(parents=True)
    source.write_text("one")
    git("add", ".")
    git("commit", "-m", "first")
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "record.json").write_text("no source")
    assert (environment()["revision"], environment()["modified"]) == (git("rev-parse", "HEAD"), False)
    source.write_text("two")
    assert environment()["modified"] is True
    source.write_text("one")
    assert environment()["modified"] is False
    cache = source.parent / "__pycache__"
    cache.mkdir()
    (cache / "file.cpython-310.pyc").write_bytes(b"")
    (tmp_path / ".gitignore").write_text("__pycache__/\nignored.py\n*.pth\n*.egg-info/\n")
    (tmp_path / "tespec.egg-info").mkdir()
    (tmp_path / "tespec.egg-info" / "PKG-INFO").write_text("of an installation")
    source.with_name("weights.pth").write_bytes(b"")
    assert environment()["modified"] is False
    for new in ("new.py", "ignored.py"):
        source.with_name(new).write_text("not known to git")
        assert environment()["modified"] is True
        source.with_name(new).unlink()
    (tmp_path / "configs").mkdir()
    (tmp_path / "configs" / "own.yaml").write_text("a: 1")
    assert environment()["modified"] is True


def test_a_revision_that_git_says_nothing_of_is_not_called_unmodified(monkeypatch: pytest.MonkeyPatch) -> None:
    original = module._git
    monkeypatch.setattr(module, "_git", lambda *a: None if "status" in a else original(*a))
    assert environment()["modified"] is None


def test_plugins_are_recorded_by_name_and_hash(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text("x = 1\n")
    sha256 = hashlib.sha256(b"x = 1\n").hexdigest()
    assert environment(plugins=[("mine.py", path)])["plugins"] == {"mine.py": sha256}


def test_no_torch_is_imported() -> None:
    code = (
        "import sys; from tespec.comparison.identity import environment; environment(); "
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

"""The hash of the code that determines results."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tespec.comparison import identity as module
from tespec.comparison.identity import LEFT_OUT, counted, left_out, meaning, package_code, plugin_files, run_code
from tespec.core.paths import REPOSITORY
from tespec.core.registry import register_methods
from tespec.pretraining.method import find_method

PLAIN = b"""
def loss(x):
    return x * 2
"""
SAME = [
    b"def loss(x):\n    return x * 2",
    b'"""Of the module."""\n\ndef loss(x):\n    """Twice."""\n    return x * 2\n',
    b"def loss(\n    x,\n):  # twice\n    return (x  *\n        2)\n",
    b'def loss(x):\n    return x * 2\n\nRECIPE = """\nname: mine  # its values are in the settings\n"""\n',
]
OTHER = [b"def loss(x):\n    return x * 3\n", b"def loss(x):\n    return -x * 2\n", b"def loss(x):\n    x * 2\n"]
OTHER += [PLAIN + b"TEXT = 'a'\n", PLAIN + b"RECIPE = read()\n"]


@pytest.mark.parametrize("source", SAME)
def test_comments_docstrings_and_formatting_do_not_count(source: bytes) -> None:
    assert meaning(source) == meaning(PLAIN)


@pytest.mark.parametrize("source", OTHER)
def test_what_is_computed_counts(source: bytes) -> None:
    assert meaning(source) != meaning(PLAIN)


def test_every_file_counts_or_is_left_out_for_a_reason() -> None:
    every = {path for package in module.PACKAGES for path in (REPOSITORY / package).rglob("*.py")}
    files = {path.relative_to(REPOSITORY).as_posix() for path in every}
    kept = {path.relative_to(REPOSITORY).as_posix() for path in counted()}
    assert kept | {file for file in files if left_out(file)} == files
    for place, reason in LEFT_OUT.items():
        assert reason, place
        assert any(file == place or (place.endswith("/") and file.startswith(place)) for file in files), place
    # What certainly counts.
    assert {"tespec/tasks/segmentation.py", "tespec/training/loop.py", "baselines/moby.py"} <= kept


# What runs do with numbers, or show while they compute them: no number comes back from there.
BESIDE = {
    "tespec/comparison/identity.py",
    "tespec/comparison/pretrained.py",  # names of curves
    "tespec/comparison/records.py",
    "tespec/pictures/panels.py",
    "tespec/pictures/pretraining.py",
    "tespec/pictures/labels.py",
    "tespec/comparison/results.py",  # tespec.results, for users
    "tespec/inference/load.py",  # tespec.load, for users
    "tespec/runs/lock.py",
    "tespec/core/progress.py",
    "tespec/runs/resources.py",
    "tespec/training/status.py",
    "tespec/world/__init__.py",  # makes data, which is told apart by its fingerprint
    "tespec/world/frames.py",  # draws the same streets once more; tests/world/test_true_frames.py holds it to them
}


def test_what_is_left_out_gives_no_number_to_what_counts() -> None:
    crossing = {target for path in counted() for target in imported(path) if left_out(target)}
    assert crossing <= BESIDE, (
        "count what gives numbers (tespec/comparison/identity.py), or say here that it gives none"
    )
    assert all((REPOSITORY / file).is_file() for file in BESIDE)


def test_configs_reach_results_through_settings_alone() -> None:
    """Resolved settings are part of a run's identity as they are; no counted file reads configs beside them."""
    readers = {path.relative_to(REPOSITORY).as_posix() for path in counted() if "CONFIGS" in path.read_text()}
    assert readers == {"tespec/core/config.py", "tespec/core/paths.py"}


def imported(path: Path) -> Iterator[str]:
    """Files of the harness that a file imports anywhere in it."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, path
            names = [f"{node.module}.{alias.name}" for alias in node.names] + [str(node.module)]
        else:
            continue
        for name in names:
            file = REPOSITORY / name.replace(".", "/")
            yield from (
                each.relative_to(REPOSITORY).as_posix()
                for each in (file.with_suffix(".py"), file / "__init__.py")
                if each.is_file()
            )


def test_an_edit_of_a_counted_file_changes_the_hash(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for file, text in (("tespec/models/a.py", "x = 1\n"), ("tespec/report/b.py", "y = 1\n"), ("baselines/c.py", "")):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text(text)
    monkeypatch.setattr(module, "REPOSITORY", tmp_path)

    def changed(file: str, text: str) -> bool:
        package_code.cache_clear()
        before = package_code()
        (tmp_path / file).write_text(text)
        package_code.cache_clear()
        return package_code() != before

    try:
        assert changed("tespec/models/a.py", "x = 2\n")
        assert not changed("tespec/models/a.py", "x = 2  # two\n")
        assert not changed("tespec/report/b.py", "y = 2\n")
        assert changed("tespec/models/new.py", "z = 1\n")
        assert changed("baselines/c.py", "z = 1\n")
    finally:
        package_code.cache_clear()


def test_files_of_a_plugin_count(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(PLAIN.decode())
    before = run_code([("mine.py", path)])
    assert before != package_code() == run_code([])
    path.write_text(SAME[1].decode())
    assert run_code([("mine.py", path)]) == before
    path.write_text(OTHER[0].decode())
    assert run_code([("mine.py", path)]) != before


def test_a_method_brings_the_package_it_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "someone"
    (package / "inner").mkdir(parents=True)
    for file in ("__init__.py", "inner/__init__.py", "inner/losses.py"):
        (package / file).write_text("")
    (package / "method.py").write_text("class Mine:\n    pass\n")
    (tmp_path / "single.py").write_text("class Mine:\n    pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("someone.method", "single"):
        kind = importlib.import_module(name).Mine
        found = [name for name, _ in plugin_files(kind, [])]
        if name == "single":
            assert found == ["single.py"]
        else:
            assert found == [f"someone/{file}" for file in ("__init__.py", "inner/__init__.py", "inner/losses.py", "method.py")]  # fmt: skip # noqa: E501
        monkeypatch.delitem(sys.modules, name.partition(".")[0])
    register_methods()
    assert plugin_files(type(find_method("scratch")), []) == []


def test_no_torch_is_imported() -> None:
    script = """
import sys
from tespec.comparison.identity import package_code

package_code()
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)

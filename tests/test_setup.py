"""The set-up: interpreters it refuses, OpenCV without a display, targets."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
Setup = Callable[..., "subprocess.CompletedProcess[str]"]


def test_opencv_needs_no_display_libraries() -> None:
    """On a bare server libGL and libglib are missing, so neither may be mapped by the import."""
    program = "import cv2; print(cv2.__file__); print(open('/proc/self/maps').read())"
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert "/cv2/" in result.stdout
    assert not re.findall(r"lib(?:GL|EGL|glib|gthread|X11|xcb)[-.\w]*", result.stdout)


@pytest.fixture
def setup(tmp_path: Path) -> Setup:
    """Runs the set-up script of an empty clone with a PATH that holds only the given interpreters."""

    def run(python: str = "", **interpreters: str) -> subprocess.CompletedProcess[str]:
        clone, path = tmp_path / "a clone", tmp_path / "bin"
        (clone / "tools").mkdir(parents=True)
        shutil.copy(ROOT / "tools" / "setup.sh", clone / "tools")
        path.mkdir()
        for tool in ("bash", "dirname", "tail"):
            (path / tool).symlink_to(str(shutil.which(tool)))
        for name, script in interpreters.items():
            program = path / name.replace("_", ".")
            program.write_text(f"#!{shutil.which('sh')}\n{script}\n")
            program.chmod(0o755)
        result = subprocess.run(
            [str(path / "bash"), str(clone / "tools" / "setup.sh")],
            env={"PATH": str(path), "PYTHON": python},
            capture_output=True,
            text=True,
            check=False,
        )
        assert not (clone / ".venv").exists()
        return result

    return run


BROKEN_SHIM = "echo 'python: command not found' >&2; exit 127"
PYTHON_314 = 'if [ "$1" = --version ]; then echo "Python 3.14.0"; else exit 1; fi'
WITHOUT_VENV_AND_PIP = 'case "$*" in *version_info*) exit 0;; *) exit 1;; esac'


UNSUPPORTED = r"error: no Python 3.10 to 3.13 among.*Python 3.14.0.*make PYTHON="


@pytest.mark.parametrize(
    ("chosen", "python3", "said"),
    [
        ("python3", PYTHON_314, UNSUPPORTED),
        ("", WITHOUT_VENV_AND_PIP, "error: python3: .*apt install python3-venv"),
    ],
)
def test_a_python_that_does_not_serve_is_refused_in_one_line(
    setup: Setup, chosen: str, python3: str, said: str
) -> None:
    result = setup(chosen, python3_11=BROKEN_SHIM, python3=python3)
    assert result.returncode == 2
    (line,) = result.stderr.splitlines()
    assert re.match(said, line)


def test_a_broken_shim_is_passed_over(setup: Setup) -> None:
    reached = 'case "$*" in *"-m venv"*) echo "making it" >&2; exit 5;; *) exit 0;; esac'
    result = setup(python3_11=BROKEN_SHIM, python3_12=reached)
    assert (result.returncode, result.stderr) == (5, "making it\n")


def test_help_names_every_target() -> None:
    if shutil.which("make") is None:
        pytest.skip("needs make")
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    text = subprocess.run(["make", "-s"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    assert {line.split()[0] for line in text.splitlines()[1:]} == set(phony.split())

"""Installation: choice of the interpreter, OpenCV without a display, Makefile."""

import re
import shutil
import subprocess
import sys

import pytest

from tespec.core.paths import REPOSITORY


def test_opencv_needs_no_display_libraries():
    """A bare server lacks libGL and libglib, so importing cv2 must not load them."""
    program = "import cv2; print(cv2.__file__); print(open('/proc/self/maps').read())"
    result = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert "/cv2/" in result.stdout
    assert not re.findall(r"lib(?:GL|EGL|glib|gthread|X11|xcb)[-.\w]*", result.stdout)


BROKEN_SHIM = "echo 'python: command not found' >&2; exit 127"
PYTHON_314 = 'if [ "$1" = --version ]; then echo "Python 3.14.0"; else exit 1; fi'
WITHOUT_VENV_AND_PIP = 'case "$*" in *version_info*) exit 0;; *) exit 1;; esac'
GOOD = 'case "$*" in *"-m venv"*) echo "making it" >&2; exit 5;; *) exit 0;; esac'


@pytest.mark.parametrize(
    ("name", "script", "code", "said"),
    [
        (
            "python3",
            PYTHON_314,
            2,
            r"error: no Python 3.10 to 3.13 among.*Python 3.14.0.*make PYTHON=.*\n",
        ),
        ("python3", WITHOUT_VENV_AND_PIP, 2, "error: python3: .*apt install python3-venv.*\n"),
        ("python3.12", GOOD, 5, "making it\n"),
    ],
)
def test_a_python_that_serves_is_found_or_what_is_wrong_is_told_in_one_line(
    tmp_path, name, script, code, said
):
    """In a new clone, with a broken python3.11 and one other interpreter on PATH."""
    clone, path = tmp_path / "a clone", tmp_path / "bin"
    (clone / "tools").mkdir(parents=True)
    shutil.copy(REPOSITORY / "tools" / "setup.sh", clone / "tools")
    path.mkdir()
    for tool in ("bash", "dirname", "tail"):
        (path / tool).symlink_to(shutil.which(tool))
    for each, text in (("python3.11", BROKEN_SHIM), (name, script)):
        (path / each).write_text(f"#!{shutil.which('sh')}\n{text}\n")
        (path / each).chmod(0o755)
    called = [str(path / "bash"), str(clone / "tools" / "setup.sh")]
    result = subprocess.run(
        called, env={"PATH": str(path)}, capture_output=True, text=True, check=False
    )
    assert result.returncode == code
    assert re.fullmatch(said, result.stderr)
    assert not (clone / ".venv").exists()


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_help_names_every_target():
    (phony,) = re.findall(r"^\.PHONY: (.*)$", (REPOSITORY / "Makefile").read_text(), re.MULTILINE)
    text = subprocess.run(
        ["make", "-s"], cwd=REPOSITORY, capture_output=True, text=True, check=True
    ).stdout
    assert {line.split()[0] for line in text.splitlines()[1:]} == set(phony.split())

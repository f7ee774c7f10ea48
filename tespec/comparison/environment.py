"""What computed a result: code, software and machine, without importing any of it."""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tespec
from tespec.paths import REPOSITORY

PACKAGES = ("torch", "timm", "mmengine", "numpy")
# Where a change, or a file that git does not know, is one of the code.
SOURCES = ("tespec", "baselines", "benchmarks", "configs")


def environment(device: str = "", plugins: Iterable[tuple[str, Path]] = ()) -> dict[str, Any]:
    """Versions and machine for a record.

    Args:
        device: name of the device the run used, "" if it used none.
        plugins: names and files of code from outside of the harness.
    """
    return {
        "tespec": tespec.__version__,
        **_revision(REPOSITORY),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
        "plugins": {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in plugins},
        "device": device,
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "platform": platform.platform(),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _revision(repository: Path) -> dict[str, Any]:
    """Git revision and whether sources differ from it or are new; empty and None outside a git checkout."""
    revision = _git(repository, "rev-parse", "HEAD")
    if not (repository / ".git").exists() or revision is None:
        return {"revision": "", "modified": None}
    changes = _git(repository, "status", "--porcelain", "--untracked-files=all", "--", *SOURCES)
    return {"revision": revision, "modified": bool(changes)}


def _git(repository: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(repository), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    if information.is_file():
        for line in information.read_text(errors="replace").splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()

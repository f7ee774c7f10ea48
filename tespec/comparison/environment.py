"""What computed a result: code, software and machine, without importing any of it."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tespec
from tespec.paths import REPOSITORY

PACKAGES = ("torch", "timm", "mmengine", "numpy")


def environment(device: str = "") -> dict[str, Any]:
    """Versions and machine for a record.

    Args:
        device: name of the device the run used, "" if it used none.
    """
    return {
        "tespec": tespec.__version__,
        **_revision(REPOSITORY),
        "python": platform.python_version(),
        "packages": {name: _version(name) for name in PACKAGES},
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
    """Git revision and whether files differ from it; empty and None outside a git checkout."""
    revision = _git(repository, "rev-parse", "HEAD")
    if not (repository / ".git").exists() or revision is None:
        return {"revision": "", "modified": None}
    return {"revision": revision, "modified": bool(_git(repository, "status", "--porcelain", "--untracked-files=no"))}


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

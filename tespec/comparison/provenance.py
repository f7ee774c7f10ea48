"""What made a result: versions, git revision and machine. Recorded with it, never part of its identity."""

from __future__ import annotations

import hashlib
import inspect
import os
import platform
import re
import subprocess
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import tespec
from tespec.core.paths import REPOSITORY

LIBRARIES = ("torch", "timm", "mmengine", "numpy", "numba")
PACKAGES = ("tespec", "baselines")


def environment(device: str = "") -> dict[str, Any]:
    """Versions and machine for a record; `device` is the name of the one the run used."""
    return {
        "tespec": tespec.__version__,
        **_revision(REPOSITORY),
        "python": platform.python_version(),
        "packages": {name: version(name) for name in LIBRARIES},
        "device": device,
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "platform": platform.platform(),
    }


def plugin_sha256(kinds: Iterable[type], files: Iterable[Path] = ()) -> str:
    """Hash of the files from outside of the package that a run uses, "" for none.

    Args:
        kinds: classes that the run uses; those of the package's own do not count.
        files: settings of the user's own that it uses.
    """
    sources = {Path(inspect.getfile(kind)) for kind in kinds if kind.__module__.partition(".")[0] not in PACKAGES}
    contents = sorted(path.read_bytes() for path in {*sources, *files})
    return hashlib.sha256(b"\0".join(contents)).hexdigest()[:12] if contents else ""


def _revision(repository: Path) -> dict[str, Any]:
    """Git revision and whether sources differ from it; "" and None where git does not say."""
    revision = _git(repository, "rev-parse", "HEAD") if (repository / ".git").exists() else None
    changes = None if revision is None else _git(repository, "status", "--porcelain", "--", *PACKAGES, "configs")
    return {"revision": revision or "", "modified": None if changes is None else bool(changes)}


def _git(repository: Path, *arguments: str) -> str | None:
    command = ["git", "-C", str(repository), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=10).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    names = re.findall(r"^model name\s*:(.*)", information.read_text(), re.MULTILINE) if information.is_file() else ()
    return " ".join(names[0].split()) if names else platform.processor() or platform.machine()

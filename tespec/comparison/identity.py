"""What determines a result, as a hash and a name that are known before it is computed."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import tespec
from tespec.core.paths import BASELINES, INSTALLED, REPOSITORY

PACKAGES = ("tespec", "baselines")
DIGITS = 8
# Files and folders that change no number, and why. All others count.
LEFT_OUT = {
    "tespec/cli/": "reads options, and tells the processor what changes no bit (tests/cli/test_processor.py)",
    "tespec/comparison/": "names, reads, checks and compares numbers that are there",
    "tespec/core/progress.py": "shows how far a run is",
    "tespec/datasets/extract.py": "makes files ahead of runs, which are told apart by what is in them",
    "tespec/datasets/prepare.py": "makes files ahead of runs, which are told apart by what is in them",
    "tespec/datasets/preview.py": "draws",
    "tespec/datasets/preview_intensity.py": "draws",
    "tespec/datasets/survey.py": "checks and counts data, and changes none",
    "tespec/inference/": "draws what trained networks say, and loads them for others",
    "tespec/pictures/": "draws",
    "tespec/plan/": "starts runs, and says which are missing",
    "tespec/report/": "draws pages and charts of records",
    "tespec/runs/cost.py": "counts what a run would take",
    "tespec/runs/cost_page.py": "writes a page of what runs would take",
    "tespec/runs/lock.py": "decides which process computes a run",
    "tespec/runs/meta.py": "counts what a step would take",
    "tespec/runs/resources.py": "measures what a run takes",
    "tespec/training/status.py": "tells others how far a run is",
    "tespec/weights/inspection.py": "prints what is in a weights file",
    "tespec/weights/publish.py": "writes copies of trained weights for others, and finds those of others",
    "tespec/world/": "makes data ahead of runs, which are told apart by what is in them",
}


def code_version() -> str:
    """Version of the harness and hash of its code, for records."""
    return f"{tespec.__version__}+{package_code()}"


@cache
def package_code() -> str:
    """Hash of the harness's code as far as results depend on it; read once in a process."""
    return _hash((name_of(path), path) for path in counted())


def run_code(plugins: Iterable[tuple[str, Path]]) -> str:
    """Hash of the harness's code and that of plug-ins (see `plugin_files`) a run is computed with."""
    own = list(plugins)
    together = f"{package_code()} {_hash(own)}"
    return hashlib.sha256(together.encode()).hexdigest()[:DIGITS] if own else package_code()


def counted() -> list[Path]:
    """Files of the harness that results depend on, in order of their names."""
    roots = [BASELINES if INSTALLED and package == "baselines" else REPOSITORY / package for package in PACKAGES]
    every = {path for root in roots for path in root.rglob("*.py")}
    return sorted((path for path in every if not left_out(name_of(path))), key=name_of)


def name_of(path: Path) -> str:
    """Path of one of the harness's files as it is in a checkout, wherever it is installed."""
    if INSTALLED and path.is_relative_to(BASELINES):
        return f"baselines/{path.relative_to(BASELINES).as_posix()}"
    return path.relative_to(REPOSITORY).as_posix()


def left_out(file: str) -> bool:
    """Whether a file, by its path in the repository, can change no number."""
    return any(file.startswith(place) if place.endswith("/") else file == place for place in LEFT_OUT)


def plugin_files(kind: type, imported: Sequence[Path]) -> list[tuple[str, Path]]:
    """Names and paths of the source files a run has from outside of the harness.

    Args:
        kind: class of the run's method; all files of the package it comes from count, which may be an installed one.
        imported: files that the user had imported; they may register anything, so all of them count.
    """
    files = [(path.name, path) for path in imported]
    module = sys.modules[kind.__module__.partition(".")[0]]
    if module.__name__ in PACKAGES or Path(module.__file__ or "") in [path.absolute() for path in imported]:
        return files
    if module.__file__ and not hasattr(module, "__path__"):
        return [*files, (Path(module.__file__).name, Path(module.__file__))]
    roots = [Path(root) for root in module.__path__]
    return files + [
        (path.relative_to(root.parent).as_posix(), path) for root in roots for path in sorted(root.rglob("*.py"))
    ]


def _hash(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in files:
        digest.update(f"\n{name} ".encode())
        digest.update(meaning(path.read_bytes()).encode())
    return digest.hexdigest()[:DIGITS]


def meaning(source: bytes) -> str:
    """Python source without what Python does not act on; the same for every Python that can run it."""
    return " ".join(_tokens(ast.parse(source)))


def _tokens(node: object) -> Iterator[str]:
    # Not `ast.dump`, whose form depends on Python's version, as the empty fields of nodes do.
    if isinstance(node, ast.AST):
        yield f"({type(node).__name__}"
        for name, value in ast.iter_fields(node):
            if value is not None and value != []:
                yield f"{name}="
                yield from _tokens(value)
        yield ")"
    elif isinstance(node, list):
        yield "["
        for each in node:
            if not _says_nothing(each):
                yield from _tokens(each)
        yield "]"
    else:
        yield repr(node)


def _says_nothing(node: object) -> bool:
    """Whether it is a docstring or a comment, or a method's recipe, whose values are among a run's settings."""
    if isinstance(node, ast.Assign) and isinstance(node.value, ast.Constant):
        return [target.id for target in node.targets if isinstance(target, ast.Name)] == ["RECIPE"]
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


SCHEMA = 3
SPLITS = TEST, VAL = "test", "val"  # that scores are of
# Part of every identity; unlike the layout of records it stays, so that a new field renames nothing.
IDENTITY = 1


def canonical(value: object) -> str:
    """JSON in which equal values have equal text: sorted keys, no blanks, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)


def identity(
    *,
    kind: str,
    method: str,
    task: str,
    arch: str,
    profile: str,
    seed: int,
    config: Mapping[str, Any],
    data_fingerprint: str,
    weights_sha256: str,
    code: str,
    split: str = TEST,
) -> str:
    """All that determines a result, known before it is computed: twelve hexadecimal digits of SHA-256, "-", and `code`.

    The digits are over all but the code, so that runs which differ in it alone share them.

    Args:
        kind: "evaluation", "pretraining", "probe" or "reference".
        method: registered name.
        task: task of an evaluation, data of a pre-training.
        arch: "recurrent" or "feedforward".
        profile: name of the profile.
        seed: of everything random.
        config: resolved settings, of JSON's types.
        data_fingerprint: hash of the recordings.
        weights_sha256: hash of the weights file the run starts from, "" for none.
        code: see `run_code`.
        split: "test" or "val", that of an evaluation's scores.
    """
    parts = {
        "schema": IDENTITY,
        "kind": kind,
        "method": method,
        "task": task,
        "arch": arch,
        "profile": profile,
        "seed": seed,
        "config": dict(config),
        "data_fingerprint": data_fingerprint,
        "weights_sha256": weights_sha256,
    }
    if split != TEST:
        parts["split"] = split
    return f"{hashlib.sha256(canonical(parts).encode()).hexdigest()[:12]}-{code}"


def record_name(kind: str, method: str, task: str, arch: str, seed: int, id: str) -> str:
    """Name of a record and of its run's folder."""
    return f"{kind}-{method}-{task}-{arch}-s{seed}-{id}"


LIBRARIES = ("torch", "timm", "mmengine", "numpy")
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
        "packages": {name: _version(name) for name in LIBRARIES},
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
    """Git revision and whether sources differ from it or are new; empty or None where git does not say.

    New files count even where git is told to ignore them.
    """
    revision = _git(repository, "rev-parse", "HEAD")
    if not (repository / ".git").exists() or revision is None:
        return {"revision": "", "modified": None}
    # Without the slash, git also names ignored folders whose names only begin so (tespec.egg-info).
    folders = [f"{source}/" for source in SOURCES]
    asked = ("--porcelain", "-z", "--untracked-files=all", "--ignored=matching", "--", *folders)
    changes = _git(repository, "status", *asked)
    if changes is None:
        return {"revision": revision, "modified": None}
    return {"revision": revision, "modified": any(map(_changes_something, filter(None, changes.split("\0"))))}


def _changes_something(line: str) -> bool:
    """Whether a line of git's status is of a source; what is ignored may be weights, or what Python makes of it."""
    return not line.startswith("!!") or ("__pycache__" not in line and line.endswith((".py", ".yaml", "/")))


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

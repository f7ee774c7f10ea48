"""Which code determines a result, as a hash that comments, docstrings and formatting leave as it is."""

from __future__ import annotations

import ast
import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

import tespec
from tespec.paths import REPOSITORY

PACKAGES = ("tespec", "baselines")
DIGITS = 8
# Files and folders that change no number, and why. All others count.
LEFT_OUT = {
    "tespec/comparison/": "names, reads, checks and compares numbers that are there",
    "tespec/report/": "draws pages and charts of records",
    "tespec/inference/": "draws what trained networks say, and loads them for others",
    "tespec/datasets/care/": "makes files ahead of runs, which are told apart by what is in them",
    "tespec/datasets/survey/": "checks and counts data, and changes none",
    "tespec/datasets/sample/damage/": "breaks copies of the sample world for tests of the checks",
    "tespec/evaluation/pictures.py": "draws",
    "tespec/evaluation/curve_pictures.py": "draws",
    "tespec/evaluation/label_pictures.py": "draws",
    "tespec/training/forecast.py": "measures what a run would cost, without one",
    "tespec/training/lock.py": "decides who computes a run, not what",
    "tespec/training/once.py": "decides whether a run is computed, not what",
    "tespec/training/progress.py": "shows how far a run is",
    "tespec/training/resources.py": "measures memory and energy",
    "tespec/training/status.py": "tells others how far a run is",
    "tespec/training/tracking.py": "hands curves to trackers",
    "tespec/weights/export.py": "writes copies of trained weights for others",
    "tespec/weights/inspection.py": "prints what is in a weights file",
    "tespec/weights/model_card.py": "writes about weights",
}


def code_version() -> str:
    """Version of the harness and hash of its code, for records."""
    return f"{tespec.__version__}+{package_code()}"


@cache
def package_code() -> str:
    """Hash of the harness's code as far as results depend on it; read once in a process."""
    return _hash((path.relative_to(REPOSITORY).as_posix(), path) for path in counted())


def run_code(plugins: Iterable[tuple[str, Path]]) -> str:
    """Hash of the harness's code and that of plug-ins (see `plugin_files`) a run is computed with."""
    own = list(plugins)
    together = f"{package_code()} {_hash(own)}"
    return hashlib.sha256(together.encode()).hexdigest()[:DIGITS] if own else package_code()


def counted() -> list[Path]:
    """Files of the harness that results depend on, in order of their paths."""
    every = (path for package in PACKAGES for path in (REPOSITORY / package).rglob("*.py"))
    return sorted(path for path in every if not left_out(path.relative_to(REPOSITORY).as_posix()))


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
            # A string that stands by itself is a docstring or a comment.
            if not (isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)):
                yield from _tokens(each)
        yield "]"
    else:
        yield repr(node)

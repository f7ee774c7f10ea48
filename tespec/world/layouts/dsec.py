"""DSEC-Semantic: labels as its README, the code of ESS, and the label archive lay them, in train and test or not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

CLASSES = ("11classes", "19classes")


def _sequences(root: Path) -> list[Path]:
    return sorted(path.parents[2] for path in root.glob("**/events/left/events.h5"))


def ess_readme(root: Path) -> None:
    """semantic/left/<n>classes/data, as the README of ESS has it."""
    for folder in _sequences(root):
        for classes in CLASSES:
            _into_data(folder / "semantic" / "left" / classes)


def ess(root: Path) -> None:
    """semantic/<n>classes/data, as the code of ESS reads it."""
    for folder in _sequences(root):
        for classes in CLASSES:
            shutil.move(folder / "semantic" / "left" / classes, folder / "semantic" / classes)
            _into_data(folder / "semantic" / classes)
        (folder / "semantic" / "left").rmdir()


def archive(root: Path) -> None:
    """<n>classes and <sequence>_semantic_timestamps.txt, as the archive of the labels unpacks."""
    for folder in _sequences(root):
        for classes in CLASSES:
            shutil.move(folder / "semantic" / "left" / classes, folder / classes)
        shutil.move(folder / "semantic" / "timestamps.txt", folder / f"{folder.name}_semantic_timestamps.txt")
        shutil.rmtree(folder / "semantic")


def flat(root: Path) -> None:
    """Sequences directly in the folder."""
    for folder in _sequences(root):
        shutil.move(folder, root / folder.name)


def flat_archive(root: Path) -> None:
    """Sequences directly in the folder, each with its labels as their archive unpacks."""
    archive(root)
    flat(root)


def _into_data(folder: Path) -> None:
    masks = sorted(folder.glob("*.png"))
    (folder / "data").mkdir()
    for path in masks:
        shutil.move(path, folder / "data" / path.name)


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "readme": lambda root: None,
    "ess-readme": ess_readme,
    "ess": ess,
    "archive": archive,
    "flat": flat,
    "flat-archive": flat_archive,
}

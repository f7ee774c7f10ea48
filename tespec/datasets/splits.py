"""Which split a recording, or a folder of images, belongs to, so that nothing that is tested on is pre-trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from pathlib import Path

from tespec.core.config import official_splits
from tespec.core.errors import UserError
from tespec.core.registry import DATASETS, find_registered, import_modules
from tespec.datasets.base import HELD_OUT, SPLITS, TEST, TRAIN, UNKNOWN, LabelledDataset
from tespec.datasets.description import Description, read_description
from tespec.datasets.finding import names_of
from tespec.events.readers.sensor import LEVELS
from tespec.events.store import HEADER, header_of

LEFT_OUT = "left out"  # lies beside splits and is in none of them


class Splits:
    """Splits of what lies at or below a folder.

    Args:
        root: the folder, or a single recording.
    """

    def __init__(self, root: Path) -> None:
        self._root = root.absolute()
        self._descriptions: dict[Path, Description] = {}
        self._inhabited: set[Path] = set()
        self._beside: dict[Path, bool] = {}

    def sort(self, paths: Sequence[Path]) -> dict[str, list[Path]]:
        """Recordings, or folders of images, by their split: "train", "val", "test" or "left out".

        The nearest `dataset.json` above a recording that names splits has the first word. Where it names others and not
        this one, it is left out; where it names none, and where there is no such file, the names of the official
        archives decide, as the configs of the tasks hold them, then folders train, val and test. What is in no split
        can be trained on.

        Raises:
            UserError: all of them are tested on, one may be and does not show it, or a `dataset.json` is damaged.
        """
        found: dict[str, list[Path]] = {name: [] for name in (*SPLITS, LEFT_OUT)}
        self._beside.clear()
        self._inhabited = {folder for path in paths for folder in self._above(path.absolute())}
        described = {path: self._of_description(path.absolute()) for path in paths}
        selective = {folder for folder, split in described.values() if split is not None}
        for path, (folder, split) in described.items():
            if split is None:
                split = LEFT_OUT if folder in selective else self._of_layout(path.absolute())
            found[split].append(path)
        if found[TEST] and not found[TRAIN] and not found[HELD_OUT]:
            what = "is of a test split, which nothing is pre-trained on"
            raise UserError(found[TEST][0], what, "give recordings to train on; a dataset.json can name other splits")
        return found

    def _of_description(self, path: Path) -> tuple[Path | None, str | None]:
        """Folder of the nearest description with splits, and which of them it gives `path`."""
        for folder in self._above(path):
            if splits := self._described(folder).splits:
                names = names_of(path.relative_to(folder))
                found = [split for split, each in splits.items() if not names.isdisjoint(each)]
                # What is named twice is tested on as well; splits of other names are not trained on.
                known = next((split for split in (TEST, HELD_OUT, TRAIN) if split in found), LEFT_OUT)
                return folder, known if found else None
        return None, None

    def _of_layout(self, path: Path) -> str:
        by_folder = self._of_folders(self._above(path))
        official = self._of_archive(path)
        return official if official in (TEST, HELD_OUT) else by_folder

    def _above(self, path: Path) -> list[Path]:
        """A recording and the folders above it that may say something of it."""
        return [
            folder
            for level, folder in enumerate((path, *path.parents))
            if level <= LEVELS or folder.is_relative_to(self._root)
        ]

    def _described(self, folder: Path) -> Description:
        if folder not in self._descriptions:
            self._descriptions[folder] = read_description(folder)
        return self._descriptions[folder]

    def _of_archive(self, path: Path) -> str | None:
        called = _called(path)
        said = {dataset.split_of(each, splits): dataset for dataset, splits in self._archives for each in called}
        found = next((split for split in (TEST, HELD_OUT, TRAIN) if split in said), None)
        if found is None and UNKNOWN in said:
            what = f"is named as a recording of {said[UNKNOWN].title}, but lies in no folder {', '.join(SPLITS)}"
            raise UserError(path, f"{what}: it may be tested on", "keep the archive's folders")
        return found

    @cached_property
    def _archives(self) -> list[tuple[type[LabelledDataset], Mapping[str, Sequence[str]]]]:
        import_modules("tespec.datasets")
        return [(find_registered(DATASETS, name, "dataset"), splits) for name, splits in official_splits()]

    def _of_folders(self, folders: Sequence[Path]) -> str:
        for inner, folder in pairwise(folders):
            below = folder.is_relative_to(self._root)
            beside = self._are_beside(folder)
            if inner.name in SPLITS and (beside or (below and inner.name != TRAIN)):
                return inner.name
            if beside and below:
                return LEFT_OUT
        return TRAIN

    def _are_beside(self, folder: Path) -> bool:
        """Whether a folder has one to train on and another one of those, below the root with recordings in them."""
        if folder not in self._beside:
            below = folder.is_relative_to(self._root)
            inside = [folder / name for name in SPLITS]
            there = [each.name for each in inside if (each in self._inhabited if below else each.is_dir())]
            self._beside[folder] = TRAIN in there and len(there) > 1
        return self._beside[folder]


def _called(path: Path) -> set[Path]:
    """Paths of a recording: its own, what it links to, and what it was packed from."""
    found = {path, path.resolve()}
    if (path / HEADER).is_file() and (made_from := header_of(path)["source"]) is not None:
        found.add(path.parent / str(made_from["name"]))
    return found

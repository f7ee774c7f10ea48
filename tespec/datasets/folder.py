"""Find recordings of any kind in folders, and split them without training on test data."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tespec.core.config import dataset_and_splits, names
from tespec.core.description import LEVELS, descriptions_above, read_description
from tespec.core.errors import UserError
from tespec.core.settings import Downsample, Size
from tespec.datasets.archive import BINS, WINDOW_US, is_archive, source_of
from tespec.datasets.base import (
    HELD_OUT,
    SPLITS,
    TEST,
    TRAIN,
    UNKNOWN,
    LabelledDataset,
    RecordingFiles,
)
from tespec.datasets.labels import MaskFiles
from tespec.datasets.mvsec import DATA
from tespec.datasets.prophesee import EVENT_FILES
from tespec.datasets.recording import LabelledRecording, Recording, fixed_windows, require_one_size
from tespec.datasets.sources import pack_missing, raise_or_leave_out
from tespec.datasets.splits import UNDERSTOOD, split_folders, split_named
from tespec.events.opening import FILES, format_of
from tespec.events.readers import arrays
from tespec.events.readers.hdf5 import SUFFIXES
from tespec.events.store import HEADER, STORE, header_of
from tespec.registry import DATASETS, find_registered

ENDINGS = (*EVENT_FILES, DATA)  # of event files, after the recording's name
ALL = "all"  # split of an `EventFolder`
# in place of a split: not named by a `dataset.json` that names others, or next to split folders
LEFT_OUT = "left out"
HELD_OUT_SHARE = 0.2
ENOUGH = 5  # recordings; with fewer, the last part of each is held out
HELD_OUT_TIME = 0.25


def find_recordings(root: Path) -> list[Path]:
    """Find every recording at or under `root`, sorted by path.

    Recordings are what `open_events` reads, and folders of RVT's archives. A packed store next to
    its recording is listed under the recording's path. HDF5 files and arrays with other content are
    ignored. Unreadable files, broken links and parts of DDD17 recordings are listed, since opening
    them reports the error.
    """
    if not root.exists():
        raise UserError(root, "no such file or folder", "check the path")
    if root.is_file() or _is_recording(root):
        return [root]
    found = {_packed_from(path) for path in map(Path, entries_below(root)) if _is_recording(path)}
    if not found:
        kinds = ", ".join(
            (*FILES, *SUFFIXES, "packed store", "DDD17 recording", "RVT's preprocessed archive")
        )
        raise UserError(root, f"holds no recording ({kinds})", "give another file or folder")
    return sorted(found)


def entries_below(root: Path) -> Iterator[os.DirEntry[str]]:
    """Yield every entry at any depth below a folder that is not hidden, without a `stat` of each file.

    Links to folders are followed once all other folders are read, unless they lead to one of these.
    """
    folders, links, seen = [str(root)], list[str](), set[tuple[int, int]]()
    while folders or links:
        folder = folders.pop() if folders else links.pop()
        try:
            facts = os.stat(folder)
            if (place := (facts.st_dev, facts.st_ino)) in seen:
                continue
            seen.add(place)
            with os.scandir(folder) as entries:
                found = [
                    entry
                    for entry in entries
                    if entry.name[0] != "." and entry.name != "lost+found"
                ]
        except OSError as error:
            raise UserError(
                folder, f"cannot be read ({error.strerror})", "change its permissions"
            ) from error
        yield from found
        folders += [entry.path for entry in found if entry.is_dir(follow_symlinks=False)]
        links += [entry.path for entry in found if entry.is_symlink() and os.path.isdir(entry.path)]
        links.sort(reverse=True)


def _is_recording(path: Path) -> bool:
    if not (
        path.is_file() or path.is_dir()
    ):  # a broken link, or a pipe or device that must not be opened
        return not path.exists() and path.suffix.lower() in ("", STORE, *FILES, *SUFFIXES)
    suffix = path.suffix.lower() if path.is_file() else ""
    if suffix == ".npz":
        return arrays.holds_events(path)
    try:
        return (
            suffix in FILES
            or (path / HEADER).is_file()
            or is_archive(path)
            or format_of(path) is not None
        )
    except (UserError, OSError):
        return True  # too damaged to tell


def _packed_from(path: Path) -> Path:
    """Path of the recording next to a packed store with the suffix `.store`; other paths are returned unchanged."""
    if path.suffix != STORE or not (path / HEADER).is_file():
        return path
    return path.parent if path.stem == "events" else path.with_name(path.stem)


def name_of(root: Path, path: Path) -> str:
    """Name, in records and messages, of the recording `path` at or under `root`."""
    return path.name if path == root else path.relative_to(root).as_posix()


class EventFolder(LabelledDataset):
    """Every recording at or below `root`, without labels; `sensor` is the size of those that do not name it."""

    title = "recordings"
    layout = "events without labels"

    def __init__(self, root: Path, sensor: Size | None = None) -> None:
        folder = root.parent if root.is_file() else root
        super().__init__(
            folder,
            ALL,
            window_ms=WINDOW_US / 1000,
            bins=BINS,
            rule="edges",
            classes=(),
            splits={ALL: [path.relative_to(folder).as_posix() for path in find_recordings(root)]},
            sensor=sensor,
            downsample=Downsample(1, "nearest"),
            protocol={},
        )

    def find(self, split: str, name: str) -> RecordingFiles:
        return RecordingFiles(name, split, source_of(self.root / name, self.given_sensor), ())

    def open(self, files: RecordingFiles) -> LabelledRecording:
        """Open one recording, cut into windows of 50 ms, at least one."""
        cut = fixed_windows(
            files.name, files.source, WINDOW_US / 1000, Downsample(1, "nearest"), at_least_one=True
        )
        return LabelledRecording(
            **vars(cut), labels=MaskFiles(Path(), ()), labelled=np.empty(0, np.int64)
        )

    def describe(self) -> dict[str, str]:
        return {"layout": self.layout}


def split_recordings(root: Path, paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Group recordings, or folders of images, at or below `root` by split: "train", "val", "test" or "left out".

    The nearest `dataset.json` with splits above a recording decides; if it names others but not
    this one, the recording is left out. Otherwise the official splits of data sets and task configs
    decide, and folders that are named after a split (see `split_named`), next to which other
    folders are left out. Recordings in no split are used for training.

    Raises:
        UserError: if a recording may be in a test split, since its folder is called "Test_2", for
            example.
    """
    found: dict[str, list[Path]] = {name: [] for name in (*SPLITS, LEFT_OUT)}
    base = Path(os.path.abspath(root))
    archives = [(kind, kind.splits) for kind in DATASETS.module_dict.values()]
    of_tasks = map(dataset_and_splits, names("tasks"))
    archives += [
        (find_registered(DATASETS, dataset, "dataset"), splits) for dataset, splits in of_tasks
    ]
    whole = {path: Path(os.path.abspath(path)) for path in paths}
    holding = {folder for path in whole.values() for folder in (path, *path.parents)}

    @cache  # since a folder is above many recordings
    def splits_in(folder: Path) -> frozenset[str]:
        """Splits that have a folder in this one; below the root, only if it holds recordings."""
        counted = holding.__contains__ if folder.is_relative_to(base) else Path.is_dir
        return frozenset(split for split, path in split_folders(folder) if counted(path))

    with_train = {path.parent for path in paths if TRAIN in path.name.casefold()}
    described = {path: _described_split(whole[path], base) for path in paths}
    selective = {folder for folder, split in described.values() if split is not None}
    for path, (folder, split) in described.items():
        if split is None and folder not in selective:
            official = _split_of_archive(whole[path], archives)
            places = {whole[path], whole[path].resolve()}  # a link may lead to a test recording
            of_places, doubts = zip(
                *(_split_of_folders(place, base, splits_in) for place in places), strict=True
            )
            of_folders, doubtful = _first_of(of_places), next(filter(None, doubts), None)
            named = path.stem.casefold()
            if (
                split_named(path.stem) == UNKNOWN
                and TRAIN not in named
                and path.parent in with_train
            ):
                doubtful = path  # such as "drive_test" next to "drive_train"
            if official is None and doubtful is not None:
                what = f"may be a split, but its name is none of {', '.join(UNDERSTOOD)}"
                raise UserError(doubtful, what, "rename it, or list the splits in a dataset.json")
            split = _first_of((official, of_folders)) or TRAIN
        found[split or LEFT_OUT].append(path)
    if found[TEST] and not found[TRAIN] and not found[HELD_OUT]:
        what = "belongs to a test split, which pre-training must not use"
        raise UserError(
            found[TEST][0], what, "give training recordings; a dataset.json can define other splits"
        )
    return found


def _first_of(found: Collection[str | None]) -> str | None:
    """The split with precedence among those that a recording is in; None if it is in no known split."""
    return next((split for split in (TEST, HELD_OUT, LEFT_OUT, TRAIN) if split in found), None)


def _described_split(path: Path, root: Path) -> tuple[Path | None, str | None]:
    """Folder of the nearest description that names splits, and the split that it assigns to a recording."""
    for folder, description in descriptions_above(path, root):
        if description.splits:
            names = _names_of(path.relative_to(folder))
            named = [
                split for split, each in description.splits.items() if not names.isdisjoint(each)
            ]
            return folder, (_first_of(named) or LEFT_OUT) if named else None
    return None, None


def _names_of(path: Path) -> set[str]:
    """Names that a data set's splits may use for a recording at the relative `path`: its file, or folders above it."""
    return {*path.parts, path.stem, *(path.name.removesuffix(ending) for ending in ENDINGS)}


def _split_of_folders(
    path: Path, root: Path, splits_in: Callable[[Path], frozenset[str]]
) -> tuple[str | None, Path | None]:
    """Split by the split folders above a recording, and the folder above it that may be a split, if any.

    Next to a train folder and another split folder, other folders are left out. Above `root`, split
    folders count only next to a train folder, and nothing is left out. A folder inside a split
    folder is no other split. `splits_in` returns the splits that have a folder in a folder.
    """
    found: list[str] = []
    doubtful: Path | None = None
    for level, folder in enumerate((path, *path.parents)):
        below = folder.parent.is_relative_to(root)
        if level >= LEVELS and not below:
            break
        siblings, split = (
            splits_in(folder.parent),
            split_named(folder.stem if level == 0 else folder.name),
        )
        if split == UNKNOWN and (below or TRAIN in siblings) and (level or folder.is_dir()):
            doubtful = folder
        elif split in SPLITS and (below or TRAIN in siblings):
            found.append(str(split))
            doubtful = None
        elif below and TRAIN in siblings and len(siblings) > 1:
            found.append(LEFT_OUT)
    return _first_of(found), doubtful


def _split_of_archive(
    path: Path, archives: list[tuple[Any, Mapping[str, Sequence[str]]]]
) -> str | None:
    """Split of an official recording by its path, its link target, or the name that it was packed from."""
    called = {path, path.resolve()}
    if (path / HEADER).is_file():
        called.add(path.parent / str(header_of(path)["source"]["name"]))
    splits = {kind.split_of(each, of_kind): kind for kind, of_kind in archives for each in called}
    found = _first_of(splits)
    if found is None and UNKNOWN in splits:
        what = f"is named like a {splits[UNKNOWN].title} recording, but is not in a train, val or test folder"
        raise UserError(
            path, f"{what}, so it may be a test recording", "keep the archive's folders"
        )
    return found


class TrainValSplit(NamedTuple):
    """Recordings for pre-training, or parts of them: at least one to train on, and at least one held out."""

    train: list[Recording]
    held_out: list[Recording]
    # names of recordings that are left out because they are in a test split
    excluded_test: tuple[str, ...]
    # names of recordings that are next to split folders, or not in a `dataset.json`
    left_out: tuple[str, ...]
    damaged: dict[str, UserError]  # errors of skipped recordings by name


def divide(
    root: Path,
    window_ms: float,
    downsample: Downsample,
    sensor: Size | None = None,
    skip_damaged: bool = False,
) -> TrainValSplit:
    """Split the recordings at or under `root` into training and validation, cut into contiguous windows.

    Test recordings are never opened, and validation recordings are held out: see
    `split_recordings`. Without validation recordings, the fifth of five or more recordings whose
    names have the lowest hashes is held out; with fewer recordings, the last quarter of each
    recording's time. `sensor` is (height, width) in px, for recordings that do not name it;
    `skip_damaged` leaves out unreadable recordings, as long as their split has others.
    """
    paths = find_recordings(root)
    split, named = split_recordings(root, paths), read_description(root).splits
    there = {name for path in paths for name in _names_of(path.relative_to(root))}
    if missing := [
        name for each in (TRAIN, HELD_OUT) for name in named.get(each, ()) if name not in there
    ]:
        raise UserError(
            root, f"recording {missing[0]}, listed in its dataset.json, is missing", "copy it again"
        )
    if not split[TRAIN]:
        raise UserError(
            root, "has no recordings to train on", "add some, or list others in its dataset.json"
        )
    sources = {path: source_of(path, sensor) for path in (*split[TRAIN], *split[HELD_OUT])}
    pack_missing(sources.values(), skip_damaged=skip_damaged)
    found: dict[Path, Recording] = {}
    damaged: dict[str, UserError] = {}
    for path, source in sources.items():
        try:
            found[path] = fixed_windows(name_of(root, path), source, window_ms, downsample)
        except UserError as error:
            damaged[name_of(root, path)] = raise_or_leave_out(error, skip_damaged, len(sources))
    train, held_out = (
        [found[path] for path in split[name] if path in found] for name in (TRAIN, HELD_OUT)
    )
    if not train or (split[HELD_OUT] and not held_out):
        raise next(iter(damaged.values()))
    every = [*train, *held_out]
    if not any(map(len, every)):
        seconds = max(
            (recording.stream.t_last - recording.stream.t_first) / 1e6 for recording in every
        )
        raise UserError(
            root,
            f"lasts {seconds:.3f} s, less than one window of {window_ms:g} ms",
            "give longer ones",
        )
    require_one_size(root, ((recording.name, recording.region) for recording in every))
    if not held_out and len(train) >= ENOUGH:
        by_hash = sorted(
            train, key=lambda recording: hashlib.sha256(recording.name.encode()).digest()
        )
        border = round(HELD_OUT_SHARE * len(by_hash))
        held_out, train = (
            sorted(part, key=lambda each: each.name)
            for part in (by_hash[:border], by_hash[border:])
        )
    elif not held_out:
        train, held_out = map(list, zip(*map(_halves, train), strict=True))
    excluded_test, left_out = (
        tuple(name_of(root, path) for path in split[name]) for name in (TEST, LEFT_OUT)
    )
    return TrainValSplit(train, held_out, excluded_test, left_out, damaged)


def _halves(recording: Recording) -> tuple[Recording, Recording]:
    border, share = (
        int((1 - HELD_OUT_TIME) * len(recording)),
        f"{1 - HELD_OUT_TIME:.0%} of its time",
    )
    return (
        replace(
            recording, name=f"{recording.name} (first {share})", windows=recording.windows[:border]
        ),
        replace(
            recording, name=f"{recording.name} (after {share})", windows=recording.windows[border:]
        ),
    )

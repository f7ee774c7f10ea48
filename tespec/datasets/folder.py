"""Find recordings of any kind in folders, and split them without training on test data."""

import hashlib
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tespec.core.config import dataset_and_splits, names
from tespec.core.description import LEVELS_ABOVE, descriptions_above, read_description
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
from tespec.datasets.prophesee import ARCHIVE, EVENT_FILES
from tespec.datasets.recording import LabelledRecording, Recording, fixed_windows, require_one_size
from tespec.datasets.sources import pack_missing, raise_or_leave_out
from tespec.datasets.splits import UNDERSTOOD, split_folders, split_named
from tespec.events.opening import FILES, format_of, require_file_or_folder
from tespec.events.readers import arrays
from tespec.events.readers.hdf5 import SUFFIXES
from tespec.events.store import HEADER, STORE, header_of
from tespec.registry import DATASETS, find_registered

ENDINGS = (*EVENT_FILES, DATA)  # of event files, after the recording's name
ALL = "all"  # split of an `EventFolder`
# in place of a split: not named by a `dataset.json` that names others, or next to split folders
LEFT_OUT = "left out"
PRECEDENCE = (TEST, HELD_OUT, LEFT_OUT, TRAIN)  # of the splits of one recording
HELD_OUT_FRACTION = 0.2  # of five or more recordings
ENOUGH = 5  # recordings; with fewer, the last part of each is held out
HELD_OUT_TIME = 0.25


def find_recordings(root: Path) -> list[Path]:
    """Find every recording at or under `root`, sorted by path.

    Recordings are what `open_events` reads, and folders of RVT's archives. A packed store next to
    its recording is listed under the recording's path. HDF5 files and arrays with other content are
    ignored. Unreadable files, broken links and parts of DDD17 recordings are listed, since opening
    them reports the error.
    """
    require_file_or_folder(root)
    if root.is_file() or _is_recording(root):
        return [root]
    below = (
        Path(folder, name) for folder, folders, files in walk(root) for name in (*folders, *files)
    )
    paths = {_packed_from(path) for path in below if _is_recording(path)}
    if not paths:
        formats = ", ".join((*FILES, *SUFFIXES, "packed store", "DDD17 recording", ARCHIVE))
        raise UserError(root, f"holds no recording ({formats})", "give another file or folder")
    return sorted(paths)


def walk(root: Path) -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield each folder at or below `root` with the names in it, as `os.walk`, but no hidden ones.

    Links to folders are followed once all other folders are read, unless they lead to one of these.
    Files are listed without a `stat` of each.
    """
    visited: set[str] = set()
    tops = [str(root)]
    for top in tops:
        for folder, folders, files in os.walk(top, onerror=_refuse_unreadable):
            real = os.path.realpath(folder)
            if real in visited:
                folders.clear()
                continue
            visited.add(real)
            folders[:] = sorted(name for name in folders if name[0] != "." and name != "lost+found")
            tops += filter(os.path.islink, (os.path.join(folder, name) for name in folders))
            yield folder, folders, [name for name in files if name[0] != "."]


def _refuse_unreadable(error: OSError) -> None:
    what = f"cannot be read ({error.strerror})"
    raise UserError(error.filename, what, "check the path and its permissions") from error


def _is_recording(path: Path) -> bool:
    suffix = path.suffix.lower()
    if not (path.is_file() or path.is_dir()):
        # a broken link, or a pipe or device that must not be opened
        return not path.exists() and suffix in ("", STORE, *FILES, *SUFFIXES)
    try:
        if path.is_file() and suffix in FILES:
            return suffix != ".npz" or arrays.holds_events(path)
        return (path / HEADER).is_file() or is_archive(path) or format_of(path) is not None
    except (UserError, OSError):
        return True  # too damaged to tell


def _packed_from(path: Path) -> Path:
    """Path of the recording that a store `<recording>.store` was packed from; others as given."""
    if path.suffix != STORE or not (path / HEADER).is_file():
        return path
    return path.parent if path.stem == "events" else path.with_name(path.stem)


def recording_name(root: Path, path: Path) -> str:
    """Name a recording in records and messages.

    Args:
        root: folder that was searched, or the recording itself.
        path: recording at or under `root`.
    """
    return path.name if path == root else path.relative_to(root).as_posix()


class EventFolder(LabelledDataset):
    """All recordings at or below a folder, without labels.

    Args:
        root: folder, or a single recording.
        sensor: (height, width) in px of recordings that do not name it.
    """

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
        return RecordingFiles(name, split, source_of(self.root / name, self.user_sensor), ())

    def open(self, files: RecordingFiles) -> LabelledRecording:
        """Open one recording, cut into windows of 50 ms, at least one."""
        recording = fixed_windows(
            files.name, files.source, WINDOW_US / 1000, self.downsample, at_least_one=True
        )
        labels = MaskFiles(Path(), ())
        return LabelledRecording(
            **vars(recording), labels=labels, label_indices=np.empty(0, np.int64)
        )

    def describe(self) -> dict[str, str]:
        return {"layout": self.layout}


def split_recordings(root: Path, paths: Sequence[Path]) -> dict[str, list[Path]]:
    """Group recordings, or folders of images, by split.

    The nearest `dataset.json` with splits above a recording decides; if it names others but not
    this one, the recording is left out. Otherwise the official splits of data sets and task configs
    decide, and folders that are named after a split (see `split_named`), next to which other
    folders are left out. Recordings in no split are used for training.

    Args:
        root: folder that was searched.
        paths: recordings at or below `root`.

    Returns:
        The paths in "train", "val", "test" and "left out".

    Raises:
        UserError: if a recording may be in a test split, since its folder is called "Test_2", for
            example, or if all of them are in a test split.
    """
    groups: dict[str, list[Path]] = {split: [] for split in PRECEDENCE}
    base = Path(os.path.abspath(root))
    archives = [(kind, kind.splits) for kind in DATASETS.module_dict.values()]
    archives += [
        (find_registered(DATASETS, dataset, "dataset"), splits)
        for dataset, splits in map(dataset_and_splits, names("tasks"))
    ]
    absolute = {path: Path(os.path.abspath(path)) for path in paths}
    occupied = {folder for path in absolute.values() for folder in (path, *path.parents)}

    @cache  # since a folder is above many recordings
    def splits_in(folder: Path) -> frozenset[str]:
        """Splits that have a folder in this one; below the root, only if it holds recordings."""
        counts = occupied.__contains__ if folder.is_relative_to(base) else Path.is_dir
        return frozenset(split for split, path in split_folders(folder) if counts(path))

    with_train = {path.parent for path in paths if TRAIN in path.name.casefold()}
    described = {path: _described_split(absolute[path], base) for path in paths}
    selective = {folder for folder, split in described.values() if split is not None}
    for path, (folder, split) in described.items():
        if split is None and folder not in selective:
            official = _split_of_archive(absolute[path], archives)
            locations = {absolute[path], absolute[path].resolve()}  # a link may lead to a test one
            by_folders = [_split_of_folders(location, base, splits_in) for location in locations]
            doubtful = next((doubt for _, doubt in by_folders if doubt), None)
            is_like_split = split_named(path.stem) == UNKNOWN and TRAIN not in path.stem.casefold()
            if is_like_split and path.parent in with_train:
                doubtful = path  # such as "drive_test" next to "drive_train"
            if official is None and doubtful is not None:
                raise UserError(
                    doubtful,
                    f"may be a split, but its name is none of {', '.join(UNDERSTOOD)}",
                    "rename it, or list the splits in a dataset.json",
                )
            split = _first_of((official, *(split for split, _ in by_folders))) or TRAIN
        groups[split or LEFT_OUT].append(path)
    if groups[TEST] and not groups[TRAIN] and not groups[HELD_OUT]:
        raise UserError(
            groups[TEST][0],
            "belongs to a test split, which pre-training must not use",
            "give training recordings; a dataset.json can define other splits",
        )
    return groups


def _first_of(splits: Collection[str | None]) -> str | None:
    """The split with precedence among those that a recording is in; None if all are unknown."""
    return next((split for split in PRECEDENCE if split in splits), None)


def _described_split(path: Path, root: Path) -> tuple[Path | None, str | None]:
    """Folder of the nearest description that names splits, and the split of a recording in it."""
    for folder, description in descriptions_above(path, root):
        if description.splits:
            aliases = _names_of(path.relative_to(folder))
            listed = description.splits.items()
            splits = [split for split, names in listed if not aliases.isdisjoint(names)]
            return folder, (_first_of(splits) or LEFT_OUT) if splits else None
    return None, None


def _names_of(path: Path) -> set[str]:
    """Names that splits may use for a recording: those of its file, or of folders above it."""
    return {*path.parts, path.stem, *(path.name.removesuffix(ending) for ending in ENDINGS)}


def _split_of_folders(
    path: Path, root: Path, splits_in: Callable[[Path], frozenset[str]]
) -> tuple[str | None, Path | None]:
    """Split by the split folders above a recording, and the folder above it that may be a split.

    Next to a train folder and another split folder, other folders are left out. Above `root`, split
    folders count only next to a train folder, and nothing is left out. A folder inside a split
    folder is no other split. `splits_in` returns the splits that have a folder in a folder.
    """
    splits: list[str] = []
    doubtful: Path | None = None
    for level, folder in enumerate((path, *path.parents)):
        is_below = folder.parent.is_relative_to(root)
        if level >= LEVELS_ABOVE and not is_below:
            break
        siblings = splits_in(folder.parent)
        split = split_named(folder.stem if level == 0 else folder.name)
        counts = is_below or TRAIN in siblings
        if split == UNKNOWN and counts and (level or folder.is_dir()):
            doubtful = folder
        elif split in SPLITS and counts:
            splits.append(str(split))
            doubtful = None
        elif is_below and TRAIN in siblings and len(siblings) > 1:
            splits.append(LEFT_OUT)
    return _first_of(splits), doubtful


def _split_of_archive(
    path: Path, archives: list[tuple[Any, Mapping[str, Sequence[str]]]]
) -> str | None:
    """Split of an official recording, by its path, its link target, or its name when packed."""
    aliases = {path, path.resolve()}
    if (path / HEADER).is_file():
        aliases.add(path.parent / str(header_of(path)["source"]["name"]))
    kinds = {kind.split_of(alias, splits): kind for kind, splits in archives for alias in aliases}
    split = _first_of(kinds)
    if split is None and UNKNOWN in kinds:
        raise UserError(
            path,
            f"is named like a {kinds[UNKNOWN].title} recording, but is not in a train, val or test "
            "folder, so it may be a test recording",
            "keep the archive's folders",
        )
    return split


class TrainValSplit(NamedTuple):
    """Recordings, or parts of them, for pre-training: at least one to train on and one held out."""

    train: list[Recording]
    held_out: list[Recording]
    # names of recordings that are left out because they are in a test split
    excluded_test: tuple[str, ...]
    # names of recordings that are next to split folders, or not in a `dataset.json`
    left_out: tuple[str, ...]
    damaged: dict[str, UserError]  # errors of skipped recordings by name


def split_train_val(
    root: Path,
    window_ms: float,
    downsample: Downsample,
    sensor: Size | None = None,
    skip_damaged: bool = False,
) -> TrainValSplit:
    """Split recordings into training and validation, cut into contiguous windows.

    Test recordings are never opened, and validation recordings are held out: see
    `split_recordings`. Without validation recordings, the fifth of five or more recordings whose
    names have the lowest hashes is held out; with fewer recordings, the last quarter of each
    recording's time.

    Args:
        root: folder of recordings, or a single recording.
        window_ms: length of a window in ms.
        downsample: spatial downsampling of the events.
        sensor: (height, width) in px, for recordings that do not name it.
        skip_damaged: leave out unreadable recordings, as long as their split has others.

    Raises:
        UserError: if no recording can be trained on, a listed one is missing, or they differ in
            size.
    """
    paths = find_recordings(root)
    split = split_recordings(root, paths)
    listed = read_description(root).splits
    present = {name for path in paths for name in _names_of(path.relative_to(root))}
    for name in (*listed.get(TRAIN, ()), *listed.get(HELD_OUT, ())):
        if name not in present:
            raise UserError(
                root, f"recording {name}, listed in its dataset.json, is missing", "copy it again"
            )
    if not split[TRAIN]:
        raise UserError(
            root, "has no recordings to train on", "add some, or list others in its dataset.json"
        )
    sources = {path: source_of(path, sensor) for path in (*split[TRAIN], *split[HELD_OUT])}
    pack_missing(sources.values(), skip_damaged=skip_damaged)
    readable: dict[Path, Recording] = {}
    damaged: dict[str, UserError] = {}
    for path, source in sources.items():
        try:
            readable[path] = fixed_windows(
                recording_name(root, path), source, window_ms, downsample
            )
        except UserError as error:
            damaged[recording_name(root, path)] = raise_or_leave_out(
                error, skip_damaged, len(sources)
            )
    train = [readable[path] for path in split[TRAIN] if path in readable]
    held_out = [readable[path] for path in split[HELD_OUT] if path in readable]
    if not train or (split[HELD_OUT] and not held_out):
        raise next(iter(damaged.values()))
    regions = ((recording.name, recording.region) for recording in (*train, *held_out))
    require_one_size(root, regions)
    if not held_out and len(train) >= ENOUGH:
        train.sort(key=lambda recording: name_hash(recording.name))
        border = round(HELD_OUT_FRACTION * len(train))
        held_out = sorted(train[:border], key=attrgetter("name"))
        train = sorted(train[border:], key=attrgetter("name"))
    elif not held_out:
        train, held_out = map(list, zip(*map(_split_in_time, train), strict=True))
    return TrainValSplit(
        train,
        held_out,
        excluded_test=tuple(recording_name(root, path) for path in split[TEST]),
        left_out=tuple(recording_name(root, path) for path in split[LEFT_OUT]),
        damaged=damaged,
    )


def name_hash(name: str) -> bytes:
    """Hash a name, for a random order that depends only on the names."""
    return hashlib.sha256(name.encode(errors="surrogateescape")).digest()


def _split_in_time(recording: Recording) -> tuple[Recording, Recording]:
    """The first 75 % and the last 25 % of a recording's windows."""
    border = int((1 - HELD_OUT_TIME) * len(recording))
    part = f"{1 - HELD_OUT_TIME:.0%} of its time"
    names = (f"{recording.name} (first {part})", f"{recording.name} (after {part})")
    return (
        replace(recording, name=names[0], windows=recording.windows[:border]),
        replace(recording, name=names[1], windows=recording.windows[border:]),
    )

"""Recordings for pre-training, from a file or a folder, with a part held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tespec.core.errors import UserError
from tespec.core.settings import Downsample, Size
from tespec.datasets.base import HELD_OUT, TEST, TRAIN
from tespec.datasets.description import read_description
from tespec.datasets.finding import find_recordings, names_of
from tespec.datasets.prepare import pack_missing
from tespec.datasets.recording import Recording, reduced
from tespec.datasets.rvt_archive import WINDOW_US, ArchiveSource, archive_of, is_archive
from tespec.datasets.sources import EventSource
from tespec.datasets.splits import Splits
from tespec.datasets.windows import windows_side_by_side

HELD_OUT_SHARE = 0.2
ENOUGH = 5  # recordings; with fewer, the last part of each is held out
HELD_OUT_TIME = 0.25
LONGEST_US = 7 * 24 * 3600 * 1_000_000  # no recording is longer; a damaged time would ask for windows without end


@dataclass(frozen=True)
class Division:
    """Recordings to train on, and those (or the parts of recordings) held out.

    Attributes:
        train: at least one.
        held_out: at least one.
        clamped: number of events whose time stepped back and was raised, of each recording that has any.
        tested_on: names of recordings that were left alone.
        damaged: what is wrong with recordings that were left out for it, by name.
    """

    train: list[Recording]
    held_out: list[Recording]
    clamped: dict[Path, int]
    tested_on: tuple[str, ...]
    damaged: dict[str, UserError]

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the histograms in px."""
        return self.train[0].region.height, self.train[0].region.width


def lengths_by_split(train: Sequence[Recording], held_out: Sequence[Recording]) -> dict[str, dict[str, float]]:
    """Number of windows of each recording, as "train" or "held_out"."""
    return {
        recording.name: {name: len(recording)}
        for name, split in (("train", train), ("held_out", held_out))
        for recording in split
    }


def divide(
    root: Path, window_ms: float, downsample: Downsample, sensor: Size | None = None, skip_damaged: bool = False
) -> Division:
    """Recordings at or under `root`, cut into windows side by side.

    What is tested on is never opened, and what is validated on is held out: see `Splits`. Where nothing is, the fifth
    of the recordings whose names have the lowest hashes is held out if there are five or more; else the last quarter
    of each recording's time.

    Args:
        root: a recording, or a folder that holds some at any depth.
        window_ms: length of the windows in ms.
        downsample: how coordinates are reduced.
        sensor: (height, width) in px, for recordings that do not name it.
        skip_damaged: leave out recordings that cannot be read, as long as there are others of their split.

    Raises:
        UserError: no recording to train on, one that cannot be read, none as long as a window, or sensors of different
            sizes.
    """
    split = Splits(root).sort(found := find_recordings(root))
    _check_description(root, found)
    train, held_out = split[TRAIN], split[HELD_OUT]
    if not train:
        raise UserError(root, "names no recording to train on", "give some, or name others in its dataset.json")
    recordings: dict[Path, Recording] = {}
    clamped: dict[Path, int] = {}
    damaged: dict[str, UserError] = {}
    every = (*train, *held_out)
    pack_missing((EventSource(path, sensor) for path in every if not is_archive(path)), skip_damaged)
    for path in every:
        try:
            recordings[path] = cut(root, path, window_ms, downsample, sensor)
        except UserError as error:
            if not skip_damaged:
                others = ", or leave it out with --skip-damaged" if len(every) > 1 else ""
                raise UserError(error.where, error.what, error.remedy + others) from error
            damaged[name_of(root, path)] = error
            continue
        if isinstance(recordings[path].source, EventSource) and recordings[path].stream.clamped:
            clamped[path] = recordings[path].stream.clamped
    for split_of in filter(None, (train, held_out)):
        if not recordings.keys() & split_of:
            raise next(iter(damaged.values()))
    train, held_out = ([path for path in paths if path in recordings] for paths in (train, held_out))
    _check(root, list(recordings.values()), window_ms)
    if held_out:
        parts = [recordings[path] for path in train], [recordings[path] for path in held_out]
    elif len(train) >= ENOUGH:
        by_hash = sorted(recordings.values(), key=lambda recording: hashlib.sha256(recording.name.encode()).digest())
        count = round(HELD_OUT_SHARE * len(by_hash))
        parts = _by_name(by_hash[count:]), _by_name(by_hash[:count])
    else:
        halves = [_part_in_time(recording) for recording in recordings.values()]
        parts = [before for before, _ in halves], [after for _, after in halves]
    return Division(*parts, clamped, tuple(name_of(root, path) for path in split[TEST]), damaged)


def _check_description(root: Path, paths: Sequence[Path]) -> None:
    """Refuse a `dataset.json` in `root` that names recordings which are not there."""
    named = read_description(root).splits
    there: set[str] = set().union(*(names_of(path.relative_to(root)) for path in paths)) if named else set()
    missing = [name for split in (TRAIN, HELD_OUT) for name in named.get(split, ()) if name not in there]
    if missing:
        raise UserError(root, f"recording {missing[0]} of its dataset.json is missing", "copy it again")


def cut(root: Path, path: Path, window_ms: float, downsample: Downsample, sensor: Size | None = None) -> Recording:
    """The recording `path` at or under `root`, in windows side by side of `window_ms`.

    Raises:
        UserError: it cannot be read, or one of its times is damaged.
    """
    name = name_of(root, path)
    if is_archive(path):
        return _of_archive(name, archive_of(path, sensor), window_ms)
    source = EventSource(path, sensor)
    stream = source.stream
    if stream.t_last - stream.t_first > LONGEST_US:
        hours = (stream.t_last - stream.t_first) / 3.6e9
        raise UserError(path, f"lasts {hours:,.0f} h by its time stamps, so one is damaged", "copy it again")
    windows = windows_side_by_side(stream.t_first, stream.t_last + 1, round(window_ms * 1000))
    return Recording(name, source, reduced(stream.height, stream.width, downsample), windows)


def name_of(root: Path, path: Path) -> str:
    """What records and messages call the recording `path` at or under `root`."""
    return path.name if path == root else path.relative_to(root).as_posix()


def _of_archive(name: str, source: ArchiveSource, window_ms: float) -> Recording:
    if window_ms * 1000 != WINDOW_US:
        what = f"holds windows of {WINDOW_US / 1000:g} ms, not {window_ms:g}"
        raise UserError(source.path, what, f"give --set window_ms={WINDOW_US // 1000}, or the raw recordings")
    return Recording(name, source, source.region, source.windows())


def _check(root: Path, recordings: Sequence[Recording], window_ms: float) -> None:
    if not any(map(len, recordings)):
        seconds = max((recording.stream.t_last - recording.stream.t_first) / 1e6 for recording in recordings)
        raise UserError(root, f"lasts {seconds:.3f} s, less than one window of {window_ms:g} ms", "give longer ones")
    sizes = {(recording.region.height, recording.region.width): recording.name for recording in recordings}
    if len(sizes) > 1:
        found = ", ".join(f"{width}x{height} ({name})" for (height, width), name in sizes.items())
        raise UserError(root, f"recordings of different sizes: {found} px", "give those of one sensor")


def _by_name(recordings: Sequence[Recording]) -> list[Recording]:
    return sorted(recordings, key=lambda recording: recording.name)


def _part_in_time(recording: Recording) -> tuple[Recording, Recording]:
    """The part to train on and the part held out."""
    border = int((1 - HELD_OUT_TIME) * len(recording))
    share = f"{1 - HELD_OUT_TIME:.0%}"
    parts = ((f"first {share}", recording.windows[:border]), (f"after {share}", recording.windows[border:]))
    before, after = (
        replace(recording, name=f"{recording.name} ({part} of its time)", windows=windows) for part, windows in parts
    )
    return before, after

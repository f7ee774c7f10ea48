"""Recordings for pre-training, from a file or a folder, with a part held out."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tespec.datasets.ddd17 import facts_of
from tespec.datasets.recording import Recording, windows_side_by_side
from tespec.errors import UserError
from tespec.events import EventStream, open_events
from tespec.events.opening import READERS
from tespec.events.spatial import Region
from tespec.events.store import HEADER
from tespec.settings import Downsample

HELD_OUT_SHARE = 0.2
ENOUGH = 5  # recordings; with fewer, the last part of each is held out
HELD_OUT_TIME = 0.25


class Division(NamedTuple):
    """Recordings to train on, and those (or the parts of recordings) held out."""

    train: list[Recording]
    held_out: list[Recording]

    @property
    def size(self) -> tuple[int, int]:
        """(H, W) of the histograms in px."""
        return self.train[0].region.height, self.train[0].region.width


def divide(root: Path, window_ms: float, downsample: Downsample) -> Division:
    """Recordings under `root`, cut into windows side by side.

    A `dataset.json` with splits "train" and "val" decides what is held out; else, of five or more recordings, every
    fifth one by a hash of its name; else the last quarter of each recording's time.

    Raises:
        UserError: no recording, one that cannot be read, or sensors of different sizes.
    """
    paths = find_recordings(root)
    recordings = [_cut(path, window_ms, downsample) for path in paths]
    sizes = {(recording.region.height, recording.region.width): recording.name for recording in recordings}
    if len(sizes) > 1:
        found = ", ".join(f"{width}x{height} ({name})" for (height, width), name in sizes.items())
        raise UserError(root, f"recordings of different sizes: {found} px", "give those of one sensor")
    splits = facts_of(root).get("splits") if root.is_dir() else None
    if splits:
        return _divide_by_name(root, recordings, splits)
    if len(recordings) >= ENOUGH:
        by_hash = sorted(recordings, key=lambda recording: hashlib.sha256(recording.name.encode()).digest())
        count = max(1, round(HELD_OUT_SHARE * len(recordings)))
        return Division(sorted(by_hash[count:], key=lambda r: r.name), sorted(by_hash[:count], key=lambda r: r.name))
    return Division(
        [_part(recording, 0.0, 1 - HELD_OUT_TIME) for recording in recordings],
        [_part(recording, 1 - HELD_OUT_TIME, 1.0) for recording in recordings],
    )


def find_recordings(root: Path) -> list[Path]:
    """Every recording that `open_events` reads at or under `root`, sorted by path.

    Raises:
        UserError: there is none.
    """
    if not root.exists():
        raise UserError(root, "no such file or folder", "check the path given to --data")
    if root.is_file() or (root / HEADER).is_file():
        return [root]
    files = [path for path in root.rglob("*") if path.suffix in READERS and path.is_file()]
    stores = [path.parent for path in root.rglob(HEADER)]
    if not files and not stores:
        raise UserError(root, f"holds no recording ({', '.join(READERS)} or packed store)", "give another folder")
    return sorted([*files, *stores])


def _cut(path: Path, window_ms: float, downsample: Downsample) -> Recording:
    stream = open_events(path)
    windows = windows_side_by_side(stream.t_first, stream.t_last + 1, round(window_ms * 1000))
    if not len(windows):
        seconds = (stream.t_last - stream.t_first) / 1e6
        raise UserError(path, f"lasts {seconds:.3f} s, less than one window of {window_ms:g} ms", "leave it out")
    return Recording(path.name, path, _region(stream, downsample), windows)


def _region(stream: EventStream, downsample: Downsample) -> Region:
    if downsample.factor == "auto":
        factor = -(-stream.width // (downsample.to_width or stream.width))
    elif isinstance(downsample.factor, int):
        factor = downsample.factor
    else:
        raise UserError("downsample.factor", f"unknown value {downsample.factor!r}", "give a whole number or auto")
    return Region(stream.height // factor, stream.width // factor, factor, downsample.keep)


def _divide_by_name(root: Path, recordings: list[Recording], splits: dict[str, list[str]]) -> Division:
    by_name = {recording.name.removesuffix("_td.dat"): recording for recording in recordings}
    by_name |= {recording.name: recording for recording in recordings}
    parts = []
    for split in ("train", "val"):
        missing = [name for name in splits.get(split, []) if name not in by_name]
        if missing or not splits.get(split):
            raise UserError(
                root, f"recording {missing[0] if missing else 'list'} of split {split} is missing", "copy it"
            )
        parts.append([by_name[name] for name in splits[split]])
    return Division(*parts)


def _part(recording: Recording, begin: float, end: float) -> Recording:
    limits = np.array([begin, end]) * len(recording)
    first, last = (int(limit) for limit in limits)
    name = f"{recording.name} ({begin:.0%} to {end:.0%} of its time)"
    return Recording(name, recording.path, recording.region, recording.windows[first:last])

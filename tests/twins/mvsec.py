"""Broken twins of MVSEC; each breaks one sequence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from tespec.world.layouts.dsec import BLOSC
from tespec.world.layouts.mvsec import EVENTS
from twins.files import Way, cut, first_with, other_filter, repeating, rewrite, stepping_back

Change = Callable[[npt.NDArray[Any]], npt.NDArray[Any]]
DEPTH, STAMPS = "davis/left/depth_image_raw", "davis/left/depth_image_raw_ts"
X, T, P = 0, 2, 3


def _data(root: Path) -> Path:
    return root / "outdoor_day1_data.hdf5"


def _truth(root: Path) -> Path:
    return root / "outdoor_day1_gt.hdf5"


def _column(root: Path, column: int, change: Change) -> None:
    def of_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        rows[:, column] = change(rows[:, column])
        return rows

    rewrite(_data(root), EVENTS, of_rows)


def _codec(root: Path) -> None:
    with h5py.File(_data(root), "a") as file:
        rows = file[EVENTS][()]
        del file[EVENTS]
        file.create_dataset(EVENTS, data=rows, track_times=False, chunks=True, **BLOSC)
    other_filter(_data(root))


def _swapped(root: Path) -> None:
    _data(root).rename(root / "data")
    _truth(root).rename(_data(root))
    (root / "data").rename(_truth(root))


def _twice(root: Path) -> None:
    (root / "again").mkdir()
    for path in (_data(root), _truth(root)):
        shutil.copy(path, root / "again" / path.name)


WAYS = {
    "truncated": Way(lambda root: cut(_data(root), 0.6), "not a whole HDF5 file"),
    "empty": Way(lambda root: cut(_data(root), 0), "not a whole HDF5 file"),
    "no events": Way(lambda root: rewrite(_data(root), EVENTS, lambda rows: rows[:0]), "holds no events"),
    "wrong codec": Way(_codec, "compressed by filter 32766"),
    "wrong dtype": Way(
        lambda root: rewrite(_data(root), EVENTS, lambda rows: rows.astype(np.int64)), "davis/left/events is int64"
    ),
    "wrong shape": Way(lambda root: rewrite(_data(root), EVENTS, lambda rows: rows[:, :3]), "instead of (events, 4)"),
    "transposed": Way(lambda root: rewrite(_data(root), EVENTS, lambda rows: rows.T), "instead of (events, 4)"),
    "times in single precision": Way(
        lambda root: rewrite(_data(root), EVENTS, lambda rows: rows.astype(np.float32)), "its depth lies at"
    ),
    "times from the start": Way(lambda root: _column(root, T, lambda times: times - times[0]), "its depth lies at"),
    "times in us": Way(lambda root: _column(root, T, lambda times: 1e6 * times), "holds times that are none"),
    "no times": Way(lambda root: _column(root, T, first_with(np.nan)), "holds times that are none"),
    "unsorted": Way(lambda root: _column(root, T, stepping_back), handled="raised to the latest before, counted"),
    "repeated": Way(lambda root: _column(root, T, repeating), handled="events may share a time"),
    "outside": Way(lambda root: _column(root, X, first_with(9999.0)), "x from"),
    "half pixels": Way(lambda root: _column(root, X, lambda x: x + 0.5), "no whole numbers"),
    "polarity": Way(lambda root: _column(root, P, first_with(7.0)), "polarities from"),
    "polarity 0 and 1": Way(lambda root: _column(root, P, lambda p: (p + 1) / 2), handled="read like -1 and 1"),
    "labels without events": Way(lambda root: _data(root).unlink(), "recording of the test split is missing"),
    "events without labels": Way(lambda root: _truth(root).unlink(), "outdoor_day1_gt.hdf5: no such file"),
    "files swapped": Way(_swapped, "holds no events"),
    "twice": Way(_twice, "more than once"),
    "torn truth": Way(lambda root: cut(_truth(root), 0.5), "not a whole HDF5 file"),
    "no depth": Way(lambda root: rewrite(_truth(root), DEPTH, lambda _: None), "has no dataset"),
    "depth of another size": Way(
        lambda root: rewrite(_truth(root), DEPTH, lambda maps: maps[:, :-1]), "depth_image_raw has maps of"
    ),
    "depth in whole mm": Way(
        lambda root: rewrite(_truth(root), DEPTH, lambda maps: np.nan_to_num(1000 * maps).astype(np.int32)),
        "depth_image_raw is int32",
    ),
    "depth below zero": Way(lambda root: rewrite(_truth(root), DEPTH, lambda maps: 0 * maps - 1), "depths below zero"),
    "depth NaN everywhere": Way(
        lambda root: rewrite(_truth(root), DEPTH, lambda maps: np.full_like(maps, np.nan)),
        handled="labels without depth are kept, and skipped by the score",
    ),
    "depth 0 for none": Way(
        lambda root: rewrite(_truth(root), DEPTH, lambda maps: np.nan_to_num(maps)), handled="read like NaN"
    ),
    "no depth times": Way(lambda root: rewrite(_truth(root), STAMPS, lambda _: None), "has no dataset"),
    "a time too few": Way(lambda root: rewrite(_truth(root), STAMPS, lambda times: times[1:]), "maps for"),
    "times step back": Way(lambda root: rewrite(_truth(root), STAMPS, lambda times: times[::-1]), "step back"),
    "times repeat": Way(lambda root: rewrite(_truth(root), STAMPS, repeating), "step back or repeat"),
    "another clock": Way(lambda root: rewrite(_truth(root), STAMPS, lambda times: times - 1e9), "its depth lies at"),
}

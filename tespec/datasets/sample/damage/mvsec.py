"""Broken twins of MVSEC; each breaks one sequence."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tespec.datasets.sample.damage.files import Way, cut, first_with, repeating, rewrite, stepping_back

EVENTS, DEPTH = "davis/left/events", "davis/left/depth_image_raw"
X, T, P = 0, 2, 3


def _data(root: Path) -> Path:
    return root / "outdoor_day1_data.hdf5"


def _truth(root: Path) -> Path:
    return root / "outdoor_day1_gt.hdf5"


def _column(root: Path, column: int, change: Any) -> None:
    def of_rows(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        rows[:, column] = change(rows[:, column])
        return rows

    rewrite(_data(root), EVENTS, of_rows)


def _twice(root: Path) -> None:
    (root / "again").mkdir()
    for path in (_data(root), _truth(root)):
        shutil.copy(path, root / "again" / path.name)


WAYS = {
    "truncated": Way(lambda root: cut(_data(root), 0.6), "not a whole HDF5 file"),
    "empty": Way(lambda root: cut(_data(root), 0), "not a whole HDF5 file"),
    "wrong dtype": Way(
        lambda root: rewrite(_data(root), EVENTS, lambda rows: rows.astype(np.int64)), "davis/left/events is int64"
    ),
    "wrong shape": Way(lambda root: rewrite(_data(root), EVENTS, lambda rows: rows[:, :3]), "instead of (events, 4)"),
    "unsorted": Way(lambda root: _column(root, T, stepping_back), handled="raised to the latest before, counted"),
    "repeated": Way(lambda root: _column(root, T, repeating), handled="events may share a time"),
    "outside": Way(lambda root: _column(root, X, first_with(9999.0)), "x from"),
    "half pixels": Way(lambda root: _column(root, X, lambda x: x + 0.5), "no whole numbers"),
    "polarity 0 and 1": Way(lambda root: _column(root, P, lambda p: (p + 1) / 2), handled="read like -1 and 1"),
    "no times": Way(lambda root: _column(root, T, first_with(np.nan)), "holds times that are none"),
    "labels without events": Way(lambda root: _data(root).unlink(), "recording of the test split is missing"),
    "events without labels": Way(lambda root: _truth(root).unlink(), "outdoor_day1_gt.hdf5: no such file"),
    "no depth": Way(lambda root: rewrite(_truth(root), DEPTH, lambda _: None), "has no dataset"),
    "depth of another size": Way(
        lambda root: rewrite(_truth(root), DEPTH, lambda maps: maps[:, :-1]), "depth_image_raw has maps of"
    ),
    "depth below zero": Way(lambda root: rewrite(_truth(root), DEPTH, lambda maps: 0 * maps - 1), "depths below zero"),
    "depth NaN everywhere": Way(
        lambda root: rewrite(_truth(root), DEPTH, lambda maps: np.full_like(maps, np.nan)),
        handled="labels without depth are kept, and skipped by the score",
    ),
    "a time too few": Way(lambda root: rewrite(_truth(root), f"{DEPTH}_ts", lambda ts: ts[1:]), "maps for"),
    "times step back": Way(lambda root: rewrite(_truth(root), f"{DEPTH}_ts", lambda ts: ts[::-1]), "step back"),
    "another clock": Way(lambda root: rewrite(_truth(root), f"{DEPTH}_ts", lambda ts: ts - 1e9), "its depth lies at"),
    "twice": Way(_twice, "more than once"),
    "torn truth": Way(lambda root: cut(_truth(root), 0.5), "not a whole HDF5 file"),
}

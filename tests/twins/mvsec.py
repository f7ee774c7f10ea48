"""Broken twins of MVSEC; each breaks one sequence."""

from __future__ import annotations

import shutil
from pathlib import Path

import h5py
import numpy as np

from tespec.world.layouts.dsec import BLOSC
from tespec.world.layouts.mvsec import EVENTS
from twins.files import (
    Change,
    Spoil,
    Way,
    at,
    column,
    cut,
    first_with,
    hdf5,
    other_filter,
    removed,
    repeating,
    stepping_back,
)

X, T, P = 0, 2, 3


def data(root: Path) -> Path:
    return root / "outdoor_day1_data.hdf5"


def truth(root: Path) -> Path:
    return root / "outdoor_day1_gt.hdf5"


def events(change: Change) -> Spoil:
    return at(data, hdf5(EVENTS, change))


def depth(change: Change) -> Spoil:
    return at(truth, hdf5("davis/left/depth_image_raw", change))


def stamps(change: Change) -> Spoil:
    return at(truth, hdf5("davis/left/depth_image_raw_ts", change))


def unknown_codec(path: Path) -> None:
    with h5py.File(path, "a") as file:
        rows = file[EVENTS][()]
        del file[EVENTS]
        file.create_dataset(EVENTS, data=rows, track_times=False, chunks=True, **BLOSC)
    other_filter(path)


def swapped(root: Path) -> None:
    data(root).rename(root / "data")
    truth(root).rename(data(root))
    (root / "data").rename(truth(root))


def twice(root: Path) -> None:
    (root / "again").mkdir()
    for path in (data(root), truth(root)):
        shutil.copy(path, root / "again" / path.name)


WAYS = {
    "truncated": Way(at(data, cut(0.6)), "not a whole HDF5 file"),
    "empty": Way(at(data, cut(0)), "not a whole HDF5 file"),
    "no events": Way(events(lambda rows: rows[:0]), "holds no events"),
    "wrong codec": Way(at(data, unknown_codec), "compressed by filter 32766"),
    "wrong dtype": Way(events(lambda rows: rows.astype(np.int64)), "davis/left/events is int64"),
    "wrong shape": Way(events(lambda rows: rows[:, :3]), "instead of (events, 4)"),
    "transposed": Way(events(lambda rows: rows.T), "instead of (events, 4)"),
    "times in single precision": Way(events(lambda rows: rows.astype(np.float32)), "its depth lies at"),
    "times from the start": Way(events(column(T, lambda times: times - times[0])), "its depth lies at"),
    "times in us": Way(events(column(T, lambda times: 1e6 * times)), "holds times that are none"),
    "no times": Way(events(column(T, first_with(np.nan))), "holds times that are none"),
    "unsorted": Way(events(column(T, stepping_back)), handled="raised to the latest before, counted"),
    "repeated": Way(events(column(T, repeating)), handled="events may share a time"),
    "outside": Way(events(column(X, first_with(9999.0))), "x from"),
    "half pixels": Way(events(column(X, lambda x: x + 0.5)), "no whole numbers"),
    "polarity": Way(events(column(P, first_with(7.0))), "polarities from"),
    "polarity 0 and 1": Way(events(column(P, lambda p: (p + 1) / 2)), handled="read like -1 and 1"),
    "labels without events": Way(at(data, Path.unlink), "recording of the test split is missing"),
    "events without labels": Way(at(truth, Path.unlink), "outdoor_day1_gt.hdf5: no such file"),
    "files swapped": Way(swapped, "holds no events"),
    "twice": Way(twice, "more than once"),
    "torn truth": Way(at(truth, cut(0.5)), "not a whole HDF5 file"),
    "no depth": Way(depth(removed), "has no dataset"),
    "depth of another size": Way(depth(lambda maps: maps[:, :-1]), "depth_image_raw has maps of"),
    "depth in whole mm": Way(
        depth(lambda maps: np.nan_to_num(1000 * maps).astype(np.int32)), "depth_image_raw is int32"
    ),
    "depth below zero": Way(depth(lambda maps: 0 * maps - 1), "depths below zero"),
    "depth NaN everywhere": Way(
        depth(lambda maps: np.full_like(maps, np.nan)),
        handled="labels without depth are kept, and skipped by the score",
    ),
    "depth 0 for none": Way(depth(np.nan_to_num), handled="read like NaN"),
    "no depth times": Way(stamps(removed), "has no dataset"),
    "a time too few": Way(stamps(lambda times: times[1:]), "maps for"),
    "times step back": Way(stamps(lambda times: times[::-1]), "step back"),
    "times repeat": Way(stamps(repeating), "step back or repeat"),
    "another clock": Way(stamps(lambda times: times - 1e9), "its depth lies at"),
}

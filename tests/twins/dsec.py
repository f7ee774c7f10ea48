"""Broken twins of DSEC-Semantic; each breaks one sequence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np

from tespec.world.layouts.dsec import archive
from twins.files import (
    Change,
    Spoil,
    Way,
    all_of,
    at,
    cut,
    first_with,
    hdf5,
    image,
    negative_for_0,
    other_filter,
    removed,
    repeating,
    stepping_back,
    tiny,
    with_colours,
)


def one(root: Path) -> Path:
    return min((root / "test").iterdir())


def events_file(root: Path) -> Path:
    return one(root) / "events" / "left" / "events.h5"


def map_file(root: Path) -> Path:
    return one(root) / "events" / "left" / "rectify_map.h5"


def masks(root: Path) -> Path:
    return one(root) / "semantic" / "left" / "11classes"


def mask(root: Path) -> Path:
    return min(masks(root).iterdir())


def stamps(root: Path) -> Path:
    return one(root) / "semantic" / "timestamps.txt"


def events(name: str, change: Change) -> Spoil:
    return at(events_file, hdf5(name, change))


def places(change: Change) -> Spoil:
    return at(map_file, hdf5("rectify_map", change))


def lines(change: Callable[[list[str]], list[str]]) -> Spoil:
    def spoil(root: Path) -> None:
        changed = change(stamps(root).read_text().splitlines())
        stamps(root).write_text("".join(f"{line}\n" for line in changed))

    return spoil


def mixed(root: Path) -> None:
    other = root.with_name(f".{root.name}.other")
    shutil.copytree(root, other)
    archive(other)
    shutil.rmtree(one(root))
    shutil.move(one(other), root / "test")
    shutil.rmtree(other)


def repeated_with_index(root: Path) -> None:
    events("events/t", repeating)(root)
    with h5py.File(events_file(root), "r") as file:
        times = file["events/t"][()]
    events("ms_to_idx", lambda index: np.searchsorted(times, 1000 * np.arange(len(index))).astype(index.dtype))(root)


def without_events(root: Path) -> None:
    for name in "xytp":
        events(f"events/{name}", lambda values: values[:0])(root)


WAYS = {
    "truncated": Way(at(events_file, cut(0.6)), "not a whole HDF5 file"),
    "empty": Way(at(events_file, cut(0)), "not a whole HDF5 file"),
    "no events": Way(without_events, "holds no events"),
    "wrong codec": Way(at(events_file, other_filter), "compressed by filter 32766"),
    "wrong dtype": Way(events("events/x", lambda x: x.astype(np.float32)), "events/x is float32"),
    "columns of different lengths": Way(events("events/x", lambda x: x[:-1]), "its columns have different lengths"),
    "unsorted": Way(events("events/t", stepping_back), handled="raised to the latest before, counted"),
    "repeated": Way(events("events/t", repeating), "ms_to_idx does not fit"),
    "repeated in the index, too": Way(repeated_with_index, handled="events may share a time"),
    "outside": Way(events("events/x", first_with(9999)), "x from"),
    "polarity": Way(events("events/p", first_with(7)), "polarities from"),
    "polarity -1 and 1": Way(events("events/p", negative_for_0), handled="read like 0 and 1"),
    "lying index": Way(events("ms_to_idx", lambda index: 0 * index), "ms_to_idx does not fit"),
    "no offset": Way(events("t_offset", removed), "has no dataset t_offset"),
    "another clock": Way(events("t_offset", lambda offset: offset + 10**9), "its labels lie at"),
    "no rectification": Way(at(map_file, Path.unlink), "labels need rectified events"),
    "rectification of another size": Way(places(lambda map_: map_[:-1]), "rectify_map has the shape"),
    "rectification in whole pixels": Way(places(lambda map_: map_.astype(np.int16)), "rectify_map is int16"),
    "rectification with NaN": Way(places(first_with(np.nan)), "places that are no numbers"),
    "labels without events": Way(at(events_file, Path.unlink), "events.h5: no such file"),
    "events without labels": Way(lambda root: shutil.rmtree(one(root) / "semantic"), "holds no masks of 11 classes"),
    "masks of 19 classes alone": Way(at(masks, shutil.rmtree), "holds no masks of 11 classes"),
    "a mask too few": Way(at(mask, Path.unlink), "times for 39 masks"),
    "a mask twice": Way(at(mask, lambda path: shutil.copy(path, path.with_name("0.png"))), "are both mask 0"),
    "traces of macOS": Way(
        at(mask, lambda path: path.with_name(f"._{path.name}").write_bytes(b"\0\5\x16\7")),
        handled="names that begin with a dot are left alone",
    ),
    "a time too few": Way(lines(lambda times: times[1:]), "39 times for"),
    "no times": Way(at(stamps, Path.unlink), "the file with the times of the masks is missing"),
    "times step back": Way(lines(lambda times: times[::-1]), "step back or repeat"),
    "times are words": Way(lines(lambda times: ["soon", *times[1:]]), "whole number"),
    "times in ms": Way(lines(lambda times: [time[:-3] for time in times]), "its labels lie at"),
    "missing recording": Way(at(one, shutil.rmtree), "recording of the test split is missing"),
    "two layouts": Way(mixed, "two layouts are mixed"),
    "mask of another size": Way(at(mask, image(tiny)), "has 3x3 px instead of"),
    "unknown class": Way(at(mask, image(all_of(77))), "holds class 77 of 11"),
    "coloured mask": Way(at(mask, image(lambda opened: opened.convert("RGB"))), "one byte per pixel"),
    "mask of 16 bits": Way(at(mask, image(lambda opened: opened.convert("I;16"))), "one byte per pixel"),
    "mask with a palette": Way(at(mask, image(with_colours)), handled="numbers of colours are classes"),
    "nothing labelled": Way(at(mask, image(all_of(255))), handled="the score skips it"),
    "torn mask": Way(at(mask, cut(0.5)), "not a readable PNG"),
}

"""Broken twins of DSEC-Semantic; each breaks one sequence."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.world.layouts.dsec import archive
from twins.files import (
    Way,
    cut,
    first_with,
    negative_for_0,
    other_filter,
    repeating,
    rewrite,
    stepping_back,
    with_colours,
)

MILLISECOND = 1000  # us


def _one(root: Path) -> Path:
    return min((root / "test").iterdir())


def _events(root: Path) -> Path:
    return _one(root) / "events" / "left" / "events.h5"


def _rectify(root: Path) -> Path:
    return _one(root) / "events" / "left" / "rectify_map.h5"


def _masks(root: Path) -> Path:
    return _one(root) / "semantic" / "left" / "11classes"


def _mask(root: Path) -> Path:
    return min(_masks(root).iterdir())


def _stamps(root: Path) -> Path:
    return _one(root) / "semantic" / "timestamps.txt"


def _save(root: Path, change: Callable[[Image.Image], Image.Image]) -> None:
    with Image.open(_mask(root)) as image:
        changed = change(image)
    changed.save(_mask(root))


def _stamp_lines(root: Path, change: Callable[[list[str]], list[str]]) -> None:
    lines = change(_stamps(root).read_text().splitlines())
    _stamps(root).write_text("".join(f"{line}\n" for line in lines))


def _mixed(root: Path) -> None:
    other = root.with_name(f".{root.name}.other")
    shutil.copytree(root, other)
    archive(other)
    shutil.rmtree(_one(root))
    shutil.move(_one(other), root / "test")
    shutil.rmtree(other)


def _repeated_with_index(root: Path) -> None:
    rewrite(_events(root), "events/t", repeating)
    with h5py.File(_events(root), "r") as file:
        times = file["events/t"][()]

    def of_index(index: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return np.searchsorted(times, MILLISECOND * np.arange(len(index))).astype(index.dtype)

    rewrite(_events(root), "ms_to_idx", of_index)


def _without_events(root: Path) -> None:
    for name in "xytp":
        rewrite(_events(root), f"events/{name}", lambda values: values[:0])


WAYS = {
    "truncated": Way(lambda root: cut(_events(root), 0.6), "not a whole HDF5 file"),
    "empty": Way(lambda root: _events(root).write_bytes(b""), "not a whole HDF5 file"),
    "no events": Way(_without_events, "holds no events"),
    "wrong codec": Way(lambda root: other_filter(_events(root)), "compressed by filter 32766"),
    "wrong dtype": Way(
        lambda root: rewrite(_events(root), "events/x", lambda x: x.astype(np.float32)), "events/x is float32"
    ),
    "columns of different lengths": Way(
        lambda root: rewrite(_events(root), "events/x", lambda x: x[:-1]), "its columns have different lengths"
    ),
    "unsorted": Way(
        lambda root: rewrite(_events(root), "events/t", stepping_back), handled="raised to the latest before, counted"
    ),
    "repeated": Way(lambda root: rewrite(_events(root), "events/t", repeating), "ms_to_idx does not fit"),
    "repeated in the index, too": Way(_repeated_with_index, handled="events may share a time"),
    "outside": Way(lambda root: rewrite(_events(root), "events/x", first_with(9999)), "x from"),
    "polarity": Way(lambda root: rewrite(_events(root), "events/p", first_with(7)), "polarities from"),
    "polarity -1 and 1": Way(
        lambda root: rewrite(_events(root), "events/p", negative_for_0), handled="read like 0 and 1"
    ),
    "lying index": Way(lambda root: rewrite(_events(root), "ms_to_idx", lambda i: 0 * i), "ms_to_idx does not fit"),
    "no offset": Way(lambda root: rewrite(_events(root), "t_offset", lambda _: None), "has no dataset t_offset"),
    "another clock": Way(
        lambda root: rewrite(_events(root), "t_offset", lambda offset: offset + 10**9), "its labels lie at"
    ),
    "no rectification": Way(lambda root: _rectify(root).unlink(), "labels need rectified events"),
    "rectification of another size": Way(
        lambda root: rewrite(_rectify(root), "rectify_map", lambda places: places[:-1]), "rectify_map has the shape"
    ),
    "rectification in whole pixels": Way(
        lambda root: rewrite(_rectify(root), "rectify_map", lambda places: places.astype(np.int16)),
        "rectify_map is int16",
    ),
    "rectification with NaN": Way(
        lambda root: rewrite(_rectify(root), "rectify_map", first_with(np.nan)), "places that are no numbers"
    ),
    "labels without events": Way(lambda root: _events(root).unlink(), "events.h5: no such file"),
    "events without labels": Way(lambda root: shutil.rmtree(_one(root) / "semantic"), "holds no masks of 11 classes"),
    "masks of 19 classes alone": Way(lambda root: shutil.rmtree(_masks(root)), "holds no masks of 11 classes"),
    "a mask too few": Way(lambda root: _mask(root).unlink(), "times for 39 masks"),
    "a mask twice": Way(lambda root: shutil.copy(_mask(root), _masks(root) / "0.png"), "are both mask 0"),
    "traces of macOS": Way(
        lambda root: (_masks(root) / f"._{_mask(root).name}").write_bytes(b"\0\5\x16\7"),
        handled="names that begin with a dot are left alone",
    ),
    "a time too few": Way(lambda root: _stamp_lines(root, lambda lines: lines[1:]), "39 times for"),
    "no times": Way(lambda root: _stamps(root).unlink(), "the file with the times of the masks is missing"),
    "times step back": Way(lambda root: _stamp_lines(root, lambda lines: lines[::-1]), "step back or repeat"),
    "times are words": Way(lambda root: _stamp_lines(root, lambda lines: ["soon", *lines[1:]]), "whole number"),
    "times in ms": Way(
        lambda root: _stamp_lines(root, lambda lines: [line[:-3] for line in lines]), "its labels lie at"
    ),
    "missing recording": Way(lambda root: shutil.rmtree(_one(root)), "recording of the test split is missing"),
    "two layouts": Way(_mixed, "two layouts are mixed"),
    "mask of another size": Way(lambda root: _save(root, lambda _: Image.new("L", (3, 3))), "has 3x3 px instead of"),
    "unknown class": Way(lambda root: _save(root, lambda mask: Image.new("L", mask.size, 77)), "holds class 77 of 11"),
    "coloured mask": Way(lambda root: _save(root, lambda mask: mask.convert("RGB")), "one byte per pixel"),
    "mask of 16 bits": Way(lambda root: _save(root, lambda mask: mask.convert("I;16")), "one byte per pixel"),
    "mask with a palette": Way(lambda root: _save(root, with_colours), handled="numbers of colours are classes"),
    "nothing labelled": Way(
        lambda root: _save(root, lambda mask: Image.new("L", mask.size, 255)), handled="the score skips it"
    ),
    "torn mask": Way(lambda root: cut(_mask(root), 0.5), "not a readable PNG"),
}

"""Broken twins of DSEC-Semantic; each breaks one sequence."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from tespec.datasets.sample.damage.files import Way, cut, first_with, other_filter, repeating, rewrite, stepping_back
from tespec.datasets.sample.layouts.dsec import archive


def _one(root: Path) -> Path:
    return min((root / "test").iterdir())


def _events(root: Path) -> Path:
    return _one(root) / "events" / "left" / "events.h5"


def _rectify(root: Path) -> Path:
    return _one(root) / "events" / "left" / "rectify_map.h5"


def _masks(root: Path) -> Path:
    return _one(root) / "semantic" / "left" / "11classes"


def _stamps(root: Path) -> Path:
    return _one(root) / "semantic" / "timestamps.txt"


def _save(root: Path, image: Image.Image) -> None:
    image.save(min(_masks(root).iterdir()))


def _stamp_lines(root: Path, change: object) -> None:
    lines = change(_stamps(root).read_text().splitlines())  # type: ignore[operator]
    _stamps(root).write_text("".join(f"{line}\n" for line in lines))


def _mixed(root: Path) -> None:
    other = root.with_name(f".{root.name}.other")
    shutil.copytree(root, other)
    archive(other)
    shutil.rmtree(_one(root))
    shutil.move(_one(other), root / "test")
    shutil.rmtree(other)


def _height(root: Path) -> tuple[int, int]:
    with Image.open(min(_masks(root).iterdir())) as image:
        return image.size


WAYS = {
    "truncated": Way(lambda root: cut(_events(root), 0.6), "not a whole HDF5 file"),
    "empty": Way(lambda root: _events(root).write_bytes(b""), "not a whole HDF5 file"),
    "wrong codec": Way(lambda root: other_filter(_events(root)), "compressed by filter 32766"),
    "wrong dtype": Way(
        lambda root: rewrite(_events(root), "events/x", lambda x: x.astype(np.float32)), "events/x is float32"
    ),
    "unsorted": Way(
        lambda root: rewrite(_events(root), "events/t", stepping_back), handled="raised to the latest before, counted"
    ),
    "repeated": Way(lambda root: rewrite(_events(root), "events/t", repeating), "ms_to_idx does not fit"),
    "outside": Way(lambda root: rewrite(_events(root), "events/x", first_with(9999)), "x from"),
    "polarity": Way(lambda root: rewrite(_events(root), "events/p", first_with(7)), "polarities from"),
    "lying index": Way(lambda root: rewrite(_events(root), "ms_to_idx", lambda i: 0 * i), "ms_to_idx does not fit"),
    "no offset": Way(lambda root: rewrite(_events(root), "t_offset", lambda _: None), "has no dataset t_offset"),
    "another clock": Way(
        lambda root: rewrite(_events(root), "t_offset", lambda offset: offset + 10**9), "its labels lie at"
    ),
    "no rectification": Way(lambda root: _rectify(root).unlink(), "labels need rectified events"),
    "rectification of another size": Way(
        lambda root: rewrite(_rectify(root), "rectify_map", lambda places: places[:-1]), "rectify_map is float32"
    ),
    "rectification with NaN": Way(
        lambda root: rewrite(_rectify(root), "rectify_map", first_with(np.nan)), "places that are no numbers"
    ),
    "labels without events": Way(lambda root: _events(root).unlink(), "events.h5: no such file"),
    "events without labels": Way(lambda root: shutil.rmtree(_one(root) / "semantic"), "holds no masks of 11 classes"),
    "a mask too few": Way(lambda root: min(_masks(root).iterdir()).unlink(), r"times for 39 masks"),
    "a time too few": Way(lambda root: _stamp_lines(root, lambda lines: lines[1:]), "39 times for"),
    "no times": Way(lambda root: _stamps(root).unlink(), "the file with the times of the masks is missing"),
    "times step back": Way(lambda root: _stamp_lines(root, lambda lines: lines[::-1]), "step back or repeat"),
    "times are words": Way(lambda root: _stamp_lines(root, lambda lines: ["soon", *lines[1:]]), "whole number"),
    "missing recording": Way(lambda root: shutil.rmtree(_one(root)), "recording of the test split is missing"),
    "two layouts": Way(_mixed, "two layouts are mixed"),
    "mask of another size": Way(lambda root: _save(root, Image.new("L", (3, 3))), "has 3x3 px instead of"),
    "unknown class": Way(lambda root: _save(root, Image.new("L", _height(root), 77)), "holds class 77 of 11"),
    "coloured mask": Way(lambda root: _save(root, Image.new("RGB", _height(root))), "one byte per pixel"),
    "torn mask": Way(lambda root: cut(min(_masks(root).iterdir()), 0.5), "not a readable PNG"),
}

"""Broken twins of Gen1 and 1Mpx; each breaks one recording."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.world.layouts.prophesee import rvt_files
from twins.files import Change, Spoil, Way, at, cut, first_with, npy, repeating, stepping_back

EVENT_TYPE = b"\x0c\x08"


def one(root: Path) -> Path:
    return min((root / "test").glob("*_td.dat"))


def boxes(root: Path) -> Path:
    return one(root).with_name(one(root).name.replace("_td.dat", "_bbox.npy"))


def events(field: str, change: Change) -> Spoil:
    def spoil(root: Path) -> None:
        path = one(root)
        header, mark, body = path.read_bytes().partition(EVENT_TYPE)
        records = np.frombuffer(body, [("t", "<u4"), ("word", "<u4")]).copy()
        records[field] = change(records[field])
        path.write_bytes(header + mark + records.tobytes())

    return spoil


def box(field: str, change: Change) -> Spoil:
    def of_boxes(stored: NDArray[Any]) -> NDArray[Any]:
        stored[field] = change(stored[field])
        return stored

    return at(boxes, npy(of_boxes))


def without_width(stored: NDArray[Any]) -> NDArray[Any]:
    return stored[[name for name in stored.dtype.names or () if name != "w"]].copy()


def replaced(old: bytes, new: bytes) -> Spoil:
    return lambda path: path.write_bytes(path.read_bytes().replace(old, new, 1))


def mixed(root: Path) -> None:
    other = root.with_name(f".{root.name}.other")
    shutil.copytree(root, other)
    rvt_files(other, "_td.h5")
    one(root).unlink()
    shutil.copy(min((other / "test").glob("*_td.h5")), root / "test")
    shutil.rmtree(other)


WAYS = {
    "truncated": Way(at(one, lambda path: path.write_bytes(path.read_bytes()[:-3])), "truncated: 5 bytes"),
    "empty": Way(at(one, cut(0)), "the file is empty"),
    "garbage header": Way(at(one, lambda path: path.write_bytes(b"hello" * 99)), "does not begin with a header"),
    "another event type": Way(at(one, replaced(EVENT_TYPE, b"\x0e\x08")), "its event type is 14"),
    "unsorted": Way(events("t", stepping_back), handled="raised to the latest before, counted"),
    "repeated": Way(events("t", repeating), handled="events may share a time"),
    "outside": Way(events("word", first_with(9999)), "has events on"),
    "labels without events": Way(at(one, Path.unlink), "is missing|holds no recordings"),
    "events without labels": Way(at(boxes, Path.unlink), "no such file, but there are events"),
    "labels after the last event": Way(box("t", lambda times: times + 10**9), "the events end at"),
    "no boxes": Way(at(boxes, npy(lambda stored: stored[:0])), "holds no boxes"),
    "torn boxes": Way(at(boxes, cut(0.5)), "not a readable .npy file"),
    "boxes without width": Way(at(boxes, npy(without_width)), "has no field w"),
    "box with NaN": Way(box("x", first_with(float("nan"))), "a place or size that is no number"),
    "box of negative size": Way(box("w", first_with(-3)), "a negative size"),
    "unknown class": Way(box("class_id", first_with(99)), "a class other than 0 to"),
    "boxes step back": Way(box("t", first_with(10**9)), "a time before that of the box before it"),
    "all boxes outside": Way(box("x", lambda x: 0 * x + 9999), "no label frame left after the filters"),
    "box partly outside": Way(box("x", first_with(-2)), handled="cropped to the sensor"),
    "missing split": Way(lambda root: shutil.rmtree(root / "test"), "is missing|holds no recordings"),
    "two layouts": Way(mixed, "two layouts are mixed"),
}

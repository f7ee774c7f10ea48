"""Broken twins of Gen1 and 1Mpx; each breaks one recording."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tespec.world.layouts.prophesee import rvt_files
from twins.files import Way, cut, repeating, stepping_back

EVENT_TYPE = b"\x0c\x08"


def _one(root: Path) -> Path:
    return min((root / "test").glob("*_td.dat"))


def _boxes(root: Path) -> Path:
    return _one(root).with_name(_one(root).name.replace("_td.dat", "_bbox.npy"))


def _records(root: Path, change: Any) -> None:
    path = _one(root)
    header, mark, body = path.read_bytes().partition(EVENT_TYPE)
    records = np.frombuffer(body, [("t", "<u4"), ("word", "<u4")]).copy()
    change(records)
    path.write_bytes(header + mark + records.tobytes())


def _times(root: Path, change: Any) -> None:
    def of_records(records: npt.NDArray[np.void]) -> None:
        records["t"] = change(records["t"])

    _records(root, of_records)


def _outside(root: Path) -> None:
    def of_records(records: npt.NDArray[np.void]) -> None:
        records["word"][0] = 9999

    _records(root, of_records)


def _box(root: Path, field: str, value: float, every: bool = False) -> None:
    boxes = np.load(_boxes(root))
    boxes[field][slice(None) if every else 0] = value
    np.save(_boxes(root), boxes)


def _shift(root: Path, shift: int) -> None:
    boxes = np.load(_boxes(root))
    boxes["t"] += shift
    np.save(_boxes(root), boxes)


def _drop_field(root: Path) -> None:
    boxes = np.load(_boxes(root))
    np.save(_boxes(root), boxes[[name for name in boxes.dtype.names or () if name != "w"]].copy())


def _mixed(root: Path) -> None:
    other = root.with_name(f".{root.name}.other")
    shutil.copytree(root, other)
    rvt_files(other, "_td.h5")
    _one(root).unlink()
    shutil.copy(min((other / "test").glob("*_td.h5")), root / "test")
    shutil.rmtree(other)


WAYS = {
    "truncated": Way(lambda root: _one(root).write_bytes(_one(root).read_bytes()[:-3]), "truncated: 5 bytes"),
    "empty": Way(lambda root: cut(_one(root), 0), "the file is empty"),
    "garbage header": Way(lambda root: _one(root).write_bytes(b"hello" * 99), "does not begin with a header"),
    "another event type": Way(
        lambda root: _one(root).write_bytes(_one(root).read_bytes().replace(EVENT_TYPE, b"\x0e\x08", 1)) and None,
        "its event type is 14",
    ),
    "unsorted": Way(lambda root: _times(root, stepping_back), handled="raised to the latest before, counted"),
    "repeated": Way(lambda root: _times(root, repeating), handled="events may share a time"),
    "outside": Way(_outside, "has events on"),
    "labels without events": Way(lambda root: _one(root).unlink(), "is missing|holds no recordings"),
    "events without labels": Way(lambda root: _boxes(root).unlink(), "no such file, but there are events"),
    "labels after the last event": Way(lambda root: _shift(root, 10**9), "the events end at"),
    "no boxes": Way(lambda root: np.save(_boxes(root), np.load(_boxes(root))[:0]), "holds no boxes"),
    "torn boxes": Way(lambda root: cut(_boxes(root), 0.5), "not a readable .npy file"),
    "boxes without width": Way(_drop_field, "has no field w"),
    "box with NaN": Way(lambda root: _box(root, "x", float("nan")), "a place or size that is no number"),
    "box of negative size": Way(lambda root: _box(root, "w", -3), "a negative size"),
    "unknown class": Way(lambda root: _box(root, "class_id", 99), "a class other than 0 to"),
    "boxes step back": Way(lambda root: _box(root, "t", 10**9), "a time before that of the box before it"),
    "all boxes outside": Way(lambda root: _box(root, "x", 9999, every=True), "no label frame left after the filters"),
    "box partly outside": Way(lambda root: _box(root, "x", -2), handled="cropped to the sensor"),
    "missing split": Way(lambda root: shutil.rmtree(root / "test"), "is missing|holds no recordings"),
    "two layouts": Way(_mixed, "two layouts are mixed"),
}

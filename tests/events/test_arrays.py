"""Events in .npy and .npz files, and what is no such file."""

import struct
import zipfile

import numpy as np
import pytest
from event_cases import assert_refused, assert_same_events, random_events, read

from tespec.core.errors import UserError
from tespec.datasets.folder import find_recordings
from tespec.events import load_events
from tespec.events.readers import arrays
from tespec.events.readers.arrays import load_array, load_arrays

SIZE = (48, 64)
EVENTS = random_events(5_000, height=48, width=64)
KINDS = {
    "as they are": {},
    "signed": {"p": 2 * EVENTS.p.astype("i1") - 1},
    "bool": {"p": EVENTS.p.astype(bool)},
    "float polarity": {"p": 2.0 * EVENTS.p - 1},
    "float pixels": {"x": EVENTS.x.astype("f4"), "y": EVENTS.y.astype("f8")},
    "unsigned times": {"t": EVENTS.t.astype("u4")},
    "seconds": {"t": EVENTS.t / 1e6},
}


def structured(path, columns):
    rows = np.zeros(len(columns["t"]), [(name, columns[name].dtype) for name in "ptyx"])
    for name in "xytp":
        rows[name] = columns[name]
    np.save(path, rows)


def table(path, columns):
    np.save(path, np.stack([columns[name] for name in "xytp"], axis=1))


def archive(path, columns):
    np.savez_compressed(path.with_suffix(".npz"), **columns, other=np.zeros(3))
    return path.with_suffix(".npz")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("write", [structured, table, archive])
def test_every_coding_gives_the_same_events(tmp_path, monkeypatch, write, kind):
    monkeypatch.setattr(arrays, "BLOCK", 1_234)
    columns = EVENTS._asdict() | KINDS[kind]
    if write is table and kind.startswith("float"):
        columns["t"] = EVENTS.t / 1e6  # an array of floats has its times in seconds
    path = write(tmp_path / "a.npy", columns) or tmp_path / "a.npy"
    assert_same_events(read(path, *SIZE), EVENTS)


def test_times_that_step_back_are_raised_and_counted(tmp_path):
    t = EVENTS.t.copy()
    t[1_000] += 5_000
    table(tmp_path / "a.npy", EVENTS._asdict() | {"t": t})
    wanted = np.maximum.accumulate(t)
    np.testing.assert_array_equal(read(tmp_path / "a.npy", *SIZE).t, wanted)
    assert load_events(tmp_path / "a.npy", *SIZE).clamped == (wanted != t).sum() > 0


def test_arrays_of_other_things_in_a_folder_are_no_recordings(tmp_path):
    structured(tmp_path / "a.npy", EVENTS._asdict())
    archive(tmp_path / "b", EVENTS._asdict())
    (tmp_path / "torn.npy").write_bytes((tmp_path / "a.npy").read_bytes()[:-5])
    np.save(tmp_path / "a_bbox.npy", np.zeros(3, [("t", "<i8"), ("x", "<f4"), ("y", "<f4"), ("class_id", "u1")]))
    np.savez(tmp_path / "labels.npz", labels=np.zeros(3))
    assert [path.name for path in find_recordings(tmp_path)] == ["a.npy", "b.npz", "torn.npy"]


def described(dtype, shape, content=b"", length=None):
    text = f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}\n".encode()
    return b"\x93NUMPY\2\0" + struct.pack("<I", length or len(text)) + text + content


TORN = {
    "empty": b"",
    "text": b"hello",
    "10^12 numbers": described("<i8", "(1000000000000,)", bytes(80)),
    "one more than there are": described("<i8", "(11,)", bytes(80)),
    "beyond all whole numbers": described("<i8", f"({10**30},)", bytes(80)),
    "a giant item": described("|V2147483647", "(4,)", bytes(80)),
    "objects": described("|O", "(1,)", b"cos\nsystem\n(S'true'\ntR."),
    "an endless header": described("<i8", "(1,)", b" " * 100_000, 2**32 - 1),
}


@pytest.mark.parametrize("kind", TORN)
def test_arrays_that_files_do_not_hold_are_refused(tmp_path, kind):
    (tmp_path / "a.npy").write_bytes(TORN[kind])
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", TORN[kind])
    assert_refused(tmp_path / "a.npy", "not a readable .npy file; copy it again", *SIZE)
    assert_refused(tmp_path / "a.npz", "not a readable .npz file; copy it again", *SIZE)
    for load in (lambda: load_array(tmp_path / "a.npy"), lambda: load_arrays(tmp_path / "a.npz", "x")):
        with pytest.raises(UserError, match=r"a.np[yz]: not a readable"):
            load()


BAD = {
    "polarity 2": ({"p": EVENTS.p + 1}, "polarities from 1 to 2; write them as 0 and 1"),
    "polarity 255": ({"p": np.where(EVENTS.p, 1, 255)}, "polarities from 1 to 255"),
    "polarities of two codings": ({"p": np.arange(5_000) % 3 - 1}, "polarities from -1 to 1"),
    "half a polarity": ({"p": EVENTS.p / 2}, "polarities from 0.0 to 0.5"),
    "outside": ({"x": EVENTS.x + 9}, r"x from 9 to \d+ on a sensor of 64x48 px"),
    "below zero": ({"y": EVENTS.y.astype("i2") - 1}, "y from -1 to 46 on a sensor"),
    "half pixels": ({"x": EVENTS.x + 0.5}, "holds coordinates x that are no whole numbers|on a sensor"),
    "no number": ({"x": np.where(EVENTS.x, EVENTS.x, np.nan)}, "x from nan to nan"),
    "microseconds as floats": ({"t": EVENTS.t.astype("f8")}, "whole numbers stored as floats.*; write microseconds as"),
    "no times": ({"t": EVENTS.t * np.nan}, "holds times that are none"),
    "nanoseconds": ({"t": EVENTS.t + 1_790_000_000 * 10**9}, "after the year 5138"),
    "text": ({"p": EVENTS.p.astype("S1")}, "its x, y, t, p are uint16 "),
    "complex": ({"t": EVENTS.t * 1j}, "its x, y, t, p are uint16 "),
}


@pytest.mark.parametrize("kind", BAD)
def test_bad_columns_are_refused(tmp_path, kind):
    columns, message = BAD[kind]
    structured(tmp_path / "a.npy", EVENTS._asdict() | columns)
    assert_refused(tmp_path / "a.npy", message, *SIZE)


def test_other_arrays_are_refused(tmp_path):
    for name, array in (("a", np.zeros((9, 5))), ("b", np.zeros(9, [("x", "u2"), ("y", "u2")])), ("c", np.zeros(()))):
        np.save(tmp_path / f"{name}.npy", array)
        assert_refused(tmp_path / f"{name}.npy", "holds neither fields x, y, t, p nor four columns", *SIZE)
    np.savez(tmp_path / "a.npz", x=np.zeros(3), y=np.zeros(3), p=np.zeros(3))
    assert_refused(tmp_path / "a.npz", "holds no array t; give a file with the arrays x, y, t, p", *SIZE)
    np.savez(tmp_path / "b.npz", **(EVENTS._asdict() | {"x": EVENTS.x[:9]}))
    assert_refused(tmp_path / "b.npz", r"uint16 \(9,\), uint16 \(5000,\)", *SIZE)
    table(tmp_path / "d.npy", EVENTS._asdict())
    assert_refused(tmp_path / "d.npy", "does not name the sensor's size; give --sensor WIDTHxHEIGHT")
    np.save(tmp_path / "e.npy", np.zeros((0, 4), int))
    assert_refused(tmp_path / "e.npy", "holds no events", *SIZE)

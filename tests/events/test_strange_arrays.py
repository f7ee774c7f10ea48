import resource
import struct
import zipfile

import numpy as np
import pytest

from tespec.core.errors import UserError
from tespec.events import open_events
from tespec.events.readers.arrays import load_array, load_arrays
from tespec.events.readers.prophesee import read_header


def npy(header, content=b"", version=(1, 0)):
    text = header.encode() + b"\n"
    length = struct.pack("<H" if version == (1, 0) else "<I", len(text))
    return b"\x93NUMPY" + bytes(version) + length + text + content


def described(dtype, shape):
    return f"{{'descr': {dtype!r}, 'fortran_order': False, 'shape': {shape}}}"


LIES = {
    "10^12 numbers": npy(described("<i8", "(1000000000000,)"), bytes(80)),
    "one more than there are": npy(described("<i8", "(11,)"), bytes(80)),
    "nothing, many times": npy(described("|V0", "(1000000000000,)")),
    "beyond all whole numbers": npy(described("<i8", f"({10**30},)"), bytes(80)),
    "a giant item": npy(described("|V2147483647", "(4,)"), bytes(80)),
    "objects": npy(described("|O", "(1,)"), b"cos\nsystem\n(S'true'\ntR."),
    "the third version": npy(described("<i8", "(10,)"), bytes(80), (3, 0)),
    "an endless header": b"\x93NUMPY\2\0" + struct.pack("<I", 2**32 - 1) + b" " * 100_000,
}


@pytest.mark.parametrize("lie", LIES)
def test_an_array_that_the_file_does_not_hold_is_refused(tmp_path, lie):
    (tmp_path / "a.npy").write_bytes(LIES[lie])
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as archive:
        archive.writestr("a.npy", LIES[lie])
    with pytest.raises(UserError, match=r"not a readable .npy file"):
        load_array(tmp_path / "a.npy")
    with pytest.raises(UserError, match=r"not a readable .npz file"):
        load_arrays(tmp_path / "a.npz", ["a"])


def test_arrays_come_back(tmp_path):
    boxes = np.zeros(3, [("t", "<i8"), ("x", "<f4")])
    np.savez_compressed(tmp_path / "a.npz", boxes=boxes, first=np.arange(4))
    found = load_arrays(tmp_path / "a.npz", ["first", "boxes"])
    np.testing.assert_array_equal(found[0], np.arange(4))
    np.testing.assert_array_equal(found[1], boxes)


def test_an_array_that_unpacks_to_more_than_any_is_refused_before_it_is(tmp_path):
    with (
        zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive,
        archive.open("a.npy", "w", force_zip64=True) as file,
    ):
        file.write(npy(described("|u1", f"({300 << 20},)")))
        for _ in range(300):
            file.write(bytes(1 << 20))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(UserError, match=r"its array a has 314,57\d,\d+ bytes"):
        load_arrays(tmp_path / "a.npz", ["a"])
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000  # kB


def test_neither_a_missing_file_nor_a_missing_array_is_a_defect(tmp_path):
    np.savez(tmp_path / "a.npz", b=np.arange(3))
    with pytest.raises(UserError, match="not a readable"):
        load_arrays(tmp_path / "a.npz", ["a"])
    with pytest.raises(UserError, match="no such file"):
        load_arrays(tmp_path / "b.npz", ["a"])


@pytest.mark.parametrize(
    "lines", ["Height {0}\n% Width {0}", "geometry {0}x{0}", "format EVT3;height={0};width={0}", "Height ٣\n% Width ٣"]
)
def test_a_number_without_end_is_no_size(tmp_path, lines):
    (tmp_path / "a.raw").write_bytes(f"% {lines.format('9' * 5000)}\n% evt 3.0\n% end\n".encode())
    assert read_header(tmp_path / "a.raw").sensor is None
    with pytest.raises(UserError, match="does not name the sensor's size"):
        open_events(tmp_path / "a.raw")

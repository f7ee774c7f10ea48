"""Readers of real recordings, and paths that are no recording."""

import os
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
from event_files import assert_refused, dat, read

from tespec.core.errors import UserError
from tespec.events import open_events, readers

DATA = Path(__file__).parents[1] / "data"
SIZE = (48, 64)


# CRC-32 of columns (u2, u2, i8, u1) as decoded by evlib 0.13.2 and aedat 2.3.0.
@pytest.mark.parametrize(
    ("name", "facts", "checksums"),
    [
        (
            "evt3_640x480_2.08s.raw",
            (480, 640, 343_474, 0),
            [1_020_540_681, 2_671_808_845, 1_163_852_150, 2_041_904_026],
        ),
        (
            "davis.aedat4",
            (260, 346, 117_667, 0),
            [1_580_470_145, 1_777_519_670, 4_267_156_144, 3_380_914_417],
        ),
    ],
)
def test_every_event_of_a_real_recording_is_that_of_another_decoder(
    monkeypatch, name, facts, checksums
):
    monkeypatch.setattr(readers, "BLOCK", 77_777)
    stream = open_events(DATA / name)
    assert (stream.height, stream.width, stream.count, stream.clamped) == facts
    assert [
        zlib.crc32(np.ascontiguousarray(column).tobytes()) for column in read(DATA / name)
    ] == checksums


DAT = [(3, 2, 1, 1)]
BAD = {
    "gone.raw": (lambda path: None, "no such file or folder; check the path"),
    "pipe.dat": (os.mkfifo, "not a regular file; check the path"),
    "notes.md": (Path.touch, r"holds no events in a supported format; give a \.dat, \.raw, "),
    "folder.dat": (Path.mkdir, r"holds no events in a supported format; give a \.dat, \.raw, "),
    "outside.dat": (
        lambda path: dat(path, DAT, header="% Height 9\n% Width 2\n"),
        "events on 4x3 px, but its sensor",
    ),
    "none.dat": (lambda path: dat(path, []), "holds no events"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(tmp_path, name):
    make, message = BAD[name]
    path = tmp_path / f"recording ü {name}"
    make(path)
    size = None if path.suffix in (".dat", ".raw") else SIZE
    assert_refused(path, message, size)
    with pytest.raises(UserError, match=re.escape(f"{path}: ")):
        open_events(path, size)

"""Any recording by what it is."""

import pytest
from event_cases import assert_same_events, random_events
from recording_files import ddd17, evt3, evt3_events

from tespec.core.errors import UserError
from tespec.events import ArrayStream, EventStream, open_events
from tespec.events.packing import pack
from tespec.events.readers.prophesee import write_dat

EVENTS = random_events(400, height=260, width=346, end=200_000)


def as_raw(folder):
    return evt3(folder / "a.raw", *evt3_events(EVENTS))


def as_dat(folder):
    write_dat(folder / "a.DAT", *EVENTS, 260, 346)
    return folder / "a.DAT"


def as_store(folder):
    return pack(ArrayStream(*EVENTS, 260, 346), folder / "a")


def as_ddd17(folder):
    return ddd17(folder / "dir0", EVENTS)


@pytest.mark.parametrize("write", [as_raw, as_dat, as_store, as_ddd17])
@pytest.mark.parametrize("as_text", [False, True])
def test_every_format_gives_the_same_events(tmp_path, write, as_text):
    path = write(tmp_path)
    stream = open_events(str(path) if as_text else path)
    assert isinstance(stream, EventStream)
    assert (stream.count, stream.t_first, stream.t_last) == (400, EVENTS.t[0], EVENTS.t[-1])
    assert_same_events(stream.slice(0, 200_000), EVENTS)
    kept = (EVENTS.t >= 50_123) & (EVENTS.t < 61_007)
    assert_same_events(stream.slice(50_123, 61_007), type(EVENTS)(*(column[kept] for column in EVENTS)))
    assert len(stream.slice(61_007, 50_123).t) == 0


def test_what_is_no_recording_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("no events")
    (tmp_path / "plain").write_text("no events")
    (tmp_path / "empty.raw").write_bytes(b"")
    (tmp_path / "folder.dat").mkdir()
    for name, message in (
        ("gone.raw", "no such file or folder; check the path"),
        ("notes.txt", r"no reader for '\.txt'; give a file of \.aedat4, \.dat, \.raw"),
        ("plain", "no reader for 'files without a suffix'"),
        ("empty.raw", "the file is empty; copy it again"),
        ("folder.dat", "neither a packed store nor a DDD17 recording"),
    ):
        with pytest.raises(UserError, match=message) as caught:
            open_events(tmp_path / name)
        assert str(tmp_path / name) in str(caught.value)


def test_half_a_size_is_refused(tmp_path):
    with pytest.raises(ValueError, match="both height and width"):
        open_events(as_raw(tmp_path), height=480)


def test_a_size_that_is_not_the_stores_is_refused(tmp_path):
    folder = as_store(tmp_path)
    assert open_events(folder, 260, 346).height == 260
    with pytest.raises(UserError, match="its sensor is 346x260 px, not 640x480"):
        open_events(folder, 480, 640)

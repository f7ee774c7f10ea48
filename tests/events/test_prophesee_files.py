"""Prophesee's .dat and .raw files, against other programs and word by word."""

import zlib
from pathlib import Path

import numpy as np
import pytest
from event_cases import assert_refused, assert_same_events, event_arrays, read
from hypothesis import HealthCheck, given, settings
from recording_files import (
    ADDR_X,
    ADDR_Y,
    BASE_X,
    CONTINUED_4,
    EXT_TRIGGER,
    TIME_HIGH,
    TIME_LOW,
    VECT_8,
    VECT_12,
    dat,
    evt2,
    evt3,
    evt3_time,
)

from tespec.events import Events, load_events
from tespec.events.readers import prophesee
from tespec.events.readers.prophesee import read_header, write_dat

DATA = Path(__file__).parents[1] / "data"
REAL = DATA / "evt3_640x480_2.08s.raw"
EVLIB = [1_020_540_681, 2_671_808_845, 1_163_852_150, 2_041_904_026]
POSITIVE = 1 << 11
PERIOD, G = 1 << 32, (0, 1_500_000_000, 3_000_000_000)


def test_a_real_evt3_recording():
    """Every event equals that of the decoder `evlib` 0.13.2, whose columns (u2, u2, i8, u1) these checksums are of."""
    stream = load_events(REAL)
    assert (stream.height, stream.width, stream.count, stream.clamped) == (480, 640, 343_474, 0)
    assert [zlib.crc32(np.ascontiguousarray(column).tobytes()) for column in read(REAL)] == EVLIB


@pytest.mark.parametrize("encoding", ["dat", "evt2"])
def test_files_that_expelliarmus_wrote(tmp_path, encoding):
    """2,600 events, most of the real recording, in files of `expelliarmus` 1.1.12, which name no sensor."""
    content = np.load(DATA / "expelliarmus.npz")
    path = tmp_path / ("a.dat" if encoding == "dat" else "a.raw")
    path.write_bytes(content[encoding].tobytes())
    assert_same_events(read(path, 480, 640), Events(*(content[name] for name in "xytp")))


def test_words_of_dat_are_read_as_described(tmp_path):
    for kind in ((0, 8), (12, 8)):
        path = dat(tmp_path / "a_td.dat", [(3, 2, 100, 1), (639, 479, 2**31 + 5, 0)], kind=kind)
        assert [column.tolist() for column in read(path)] == [[3, 639], [2, 479], [100, 2**31 + 5], [1, 0]]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(event_arrays(start=0))
def test_what_is_written_as_dat_is_read(tmp_path, events):
    write_dat(tmp_path / "a.dat", *events, 6, 8)
    if len(events.t):
        assert_same_events(read(tmp_path / "a.dat"), events)
    else:
        assert_refused(tmp_path / "a.dat", "holds no events")


@pytest.mark.parametrize("t", [[-1, 5], [5, 2**32]])
def test_times_that_do_not_fit_are_not_written(tmp_path, t):
    zeros = np.zeros(2, int)
    with pytest.raises(ValueError, match="do not fit 32 bits"):
        write_dat(tmp_path / "a.dat", zeros, zeros, np.array(t), zeros, 4, 4)
    assert not list(tmp_path.iterdir())


def test_words_of_evt3_are_read_as_described(tmp_path):
    words = [
        (ADDR_X, 2), (BASE_X, 0), (VECT_12, 0xFFF), (TIME_LOW, 9),  # before the first time: skipped
        *evt3_time(5_000), (ADDR_Y, 7), (BASE_X, POSITIVE | 100), (VECT_12, 0b1000_0000_0001), (VECT_8, 0b1000_0010),
        (VECT_12, 0b10),
        (EXT_TRIGGER, 1), (CONTINUED_4, 3), (14, 7), (15, 9),  # no events
        (ADDR_Y, 9), (ADDR_X, 1), (ADDR_X, POSITIVE | 2), *evt3_time(5_008), (ADDR_X, 3),
        (TIME_HIGH, 2), (ADDR_X, 4),  # the low word starts again with a new high one
    ]  # fmt: skip
    x, y, t, p = (column.tolist() for column in read(evt3(tmp_path / "a.raw", *words)))
    assert x == [100, 111, 113, 119, 121, 1, 2, 3, 4]
    assert y == [7] * 5 + [9] * 4
    assert t == [5_000] * 7 + [5_008, 8_192]
    assert p == [1] * 5 + [0, 1, 0, 0]


def test_a_low_word_that_steps_back_adds_no_wrap(tmp_path):
    words = [(TIME_HIGH, 2), *(word for low in (500, 497, 503) for word in ((TIME_LOW, low), (ADDR_X, 1)))]
    stream = load_events(evt3(tmp_path / "a.raw", *words))
    assert stream.slice(0, 9_000).t.tolist() == [8_692, 8_692, 8_695]
    assert stream.clamped == 1


# Times by the high words: of EVT3 one counts 2^12 us and there are 2^12 of them, of EVT2 one counts 2^6 us of 2^28.
TOP3, TOP2 = (1 << 24) - 4096, (1 << 34) - 64


@pytest.mark.parametrize(
    ("highs", "clamped", "evt3_wanted", "evt2_wanted"),
    [
        ([-1, 0, 1], 0, [TOP3, 1 << 24, (1 << 24) + 4096], [TOP2, 1 << 34, (1 << 34) + 64]),
        # A step back across the overflow is no other overflow.
        ([-1, 0, -1, 0, 1], 1, [TOP3, *[1 << 24] * 3, (1 << 24) + 4096], [TOP2, *[1 << 34] * 3, (1 << 34) + 64]),
        ([0, -1, 0, 1], 1, [0, 0, 0, 4096], [0, 0, 0, 64]),  # nor is one right after the counter's start
        ([-2, -1, -2, 0], 1, [TOP3 - 4096, TOP3, TOP3, 1 << 24], [TOP2 - 64, TOP2, TOP2, 1 << 34]),
    ],
)
def test_high_words_go_on_at_an_overflow_and_step_back_beside_it(tmp_path, highs, clamped, evt3_wanted, evt2_wanted):
    words3 = [word for high in highs for word in ((TIME_HIGH, high & 0xFFF), (ADDR_X, 1))]
    words2 = [word for high in highs for word in ((8, high & 0xFFFFFFF), (1, 1))]
    for path, wanted in (
        (evt3(tmp_path / "a.raw", *words3), evt3_wanted),
        (evt2(tmp_path / "b.raw", *words2), evt2_wanted),
    ):
        assert read(path).t.tolist() == wanted
        assert load_events(path).clamped == clamped


@pytest.mark.parametrize("block", [1 << 16, 1])
@pytest.mark.parametrize(
    ("times", "wanted"),
    [
        ([3_000_000_000, 1_000_000_000, 3_000_000_001], [3_000_000_000, 3_000_000_000, 3_000_000_001]),
        ([3_000_000_000, 800_000_000], [3_000_000_000, PERIOD + 800_000_000]),  # half of the clock decides
        ([3, PERIOD - 2, 5], [3, 3, 5]),  # right after the clock's start as well
        ([PERIOD - 1, 0, PERIOD - 2, 1], [PERIOD - 1, PERIOD, PERIOD, PERIOD + 1]),
        ([G[2], 2, G[1], G[2], 4], [G[2], PERIOD + 2, PERIOD + G[1], PERIOD + G[2], 2 * PERIOD + 4]),
    ],
)
def test_the_clock_of_dat_goes_on_at_its_end_and_steps_back_beside_it(tmp_path, monkeypatch, times, wanted, block):
    monkeypatch.setattr(prophesee, "BLOCK", block)
    path = dat(tmp_path / "a.dat", [(1, 1, t, 1) for t in times])
    stream = load_events(path)
    assert stream.slice(0, 3 * PERIOD).t.tolist() == wanted
    assert stream.clamped == sum(t % PERIOD != w % PERIOD for t, w in zip(times, wanted, strict=True))


@pytest.mark.parametrize("words", [1_000, 77_777])
def test_blocks_of_any_length_give_the_same_events(monkeypatch, words):
    whole = read(REAL)
    monkeypatch.setattr(prophesee, "BLOCK", words)
    assert_same_events(read(REAL), whole)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"% evt 3.0\n% Height 720\n% Width 1280\n% end\n", (720, 1280)),
        (b"% format EVT3;height=480;width=640\n", (480, 640)),
        (b"% date 2020-01-01\n% geometry 640x480\n% evt 3.0\n", (480, 640)),
        (b"% evt 3.0\n% geometry 640\n% height 480\n", None),
        *((b"% evt 3.0\n% " + each + b"\n", None) for each in (b"Height 9" + b"9" * 999, "geometry ٣x٣".encode())),
    ],
)
def test_headers_of_several_recorders(tmp_path, header, size):
    assert read_header(evt3(tmp_path / "a.raw", header=header)).sensor == size


DAT, SIZED = [(3, 2, 1, 1)], "% Height 480\n% Width 640\n"
AROUND = [*evt3_time(5), (BASE_X, 0), *[(VECT_12, 0)] * ((1 << 16) // 12 + 2), (VECT_12, 1)]
BAD = {
    "empty.dat": (lambda path: path.write_bytes(b""), "the file is empty; copy it again"),
    "text.raw": (lambda path: path.write_text("hello"), "does not begin with a header"),
    "endless.dat": (lambda path: path.write_bytes(b"% Height 480"), "its header does not end"),
    "old.dat": (lambda path: dat(path, DAT, header=f"% Version 1\n{SIZED}"), "is version 1 of the format; give .* 2"),
    "other.dat": (lambda path: dat(path, DAT, kind=(14, 8)), "event type is 14 of 8 bytes"),
    "large.dat": (lambda path: dat(path, DAT, kind=(12, 16)), "event type is 12 of 16 bytes"),
    "untyped.dat": (lambda path: dat(path, [], kind=()), "event type is missing"),
    "nameless.dat": (lambda path: dat(path, DAT, header="% Version 2\n"), "does not name the sensor's size; give"),
    "flat.dat": (lambda path: dat(path, [], header="% Height 480\n% Width 0\n"), "a sensor of 0x480 px"),
    "outside.dat": (lambda path: dat(path, DAT, header="% Height 9\n% Width 2\n"), "events on 4x3 px, its sensor is"),
    "none.dat": (lambda path: dat(path, []), "holds no events"),
    "torn.dat": (lambda path: cut(dat(path, DAT * 5), 3), "truncated: 5 bytes after the last whole event; copy"),
    "evt21.raw": (lambda path: evt3(path, header=b"% evt 2.1\n"), "names the encoding '2.1'; give an EVT2 or EVT3 rec"),
    "unknown.raw": (lambda path: evt3(path, header=b"% geometry 9x9\n"), "does not name an encoding"),
    "none.raw": (evt3, "holds no events"),
    "triggers.raw": (lambda path: evt3(path, (TIME_HIGH, 1), (EXT_TRIGGER, 1)), "holds no events"),
    "outside.raw": (lambda path: evt3(path, (TIME_HIGH, 1), (ADDR_X, 640)), "events on 641x1 px, its sensor is 640x"),
    "around.raw": (lambda path: evt3(path, *AROUND), "its sensor is 640x480"),  # and not back onto it
    "torn3.raw": (lambda path: cut(evt3(path, (8, 1), (2, 1)), 1), "truncated: 1 bytes after the last whole word"),
    "torn2.raw": (lambda path: cut(evt2(path, (8, 1), (0, 1)), 1), "truncated: 3 bytes after the last whole word"),
}  # fmt: skip


def cut(path, count):
    path.write_bytes(path.read_bytes()[:-count])


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(tmp_path, name):
    make, message = BAD[name]
    make(tmp_path / name)
    assert_refused(tmp_path / name, message)

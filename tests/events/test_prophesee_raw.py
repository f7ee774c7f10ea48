"""Prophesee .raw files in EVT3 and EVT2."""

from pathlib import Path

import numpy as np
import pytest
from event_cases import assert_same_events, random_events
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
    evt2,
    evt2_event,
    evt3,
    evt3_events,
    evt3_time,
)

from tespec.core.errors import UserError
from tespec.events import open_events
from tespec.events.readers import prophesee

REAL = Path(__file__).parents[1] / "data" / "evt3_640x480_2.08s.raw"
POSITIVE = 1 << 11


def everything(stream):
    return stream.slice(stream.t_first, stream.t_last + 1)


def times(stream):
    return everything(stream).t.tolist()


def test_a_real_recording():
    stream = open_events(REAL)
    events = everything(stream)
    assert (stream.height, stream.width) == (480, 640)
    assert stream.count == len(events.t) == 343_474
    assert np.bincount(events.p).tolist() == [218_291, 125_183]
    assert stream.t_last - stream.t_first == 2_078_178
    assert stream.clamped == 0
    assert np.diff(events.t).max() < 4_096  # no wrap added where there is none


def test_single_events(tmp_path):
    events = random_events(300, height=480, width=640, end=100_000)
    stream = open_events(evt3(tmp_path / "a.raw", *evt3_events(events)))
    assert_same_events(everything(stream), events)


def test_vectors_hold_events_of_one_row_time_and_polarity(tmp_path):
    words = [
        *evt3_time(5_000),
        (ADDR_Y, 7),
        (BASE_X, POSITIVE | 100),
        (VECT_12, 0b1000_0000_0001),
        (VECT_8, 0b1000_0010),
        (VECT_12, 0b10),
    ]
    events = everything(open_events(evt3(tmp_path / "a.raw", *words)))
    assert events.x.tolist() == [100, 111, 113, 119, 121]
    assert set(events.y.tolist()) == {7}
    assert set(events.t.tolist()) == {5_000}
    assert events.p.tolist() == [1] * 5


def test_vectors_that_run_off_the_sensor_do_not_come_back_onto_it(tmp_path):
    beyond = (1 << 16) // 12 + 2
    words = [*evt3_time(5), (ADDR_Y, 7), (BASE_X, 0), *[(VECT_12, 0)] * beyond, (VECT_12, 1)]
    with pytest.raises(UserError, match="its sensor is 640x480"):
        open_events(evt3(tmp_path / "a.raw", *words))


def test_words_that_are_no_events_are_skipped(tmp_path):
    words = [*evt3_time(10), (EXT_TRIGGER, 1), (CONTINUED_4, 3), (14, 7), (15, 9), (ADDR_Y, 1), (ADDR_X, 2)]
    assert open_events(evt3(tmp_path / "a.raw", *words)).count == 1


def test_events_before_the_first_time_are_skipped(tmp_path):
    words = [
        (ADDR_Y, 1),
        (ADDR_X, 2),
        (BASE_X, 0),
        (VECT_12, 0xFFF),
        (TIME_LOW, 9),
        *evt3_time(4_096 + 50),
        (ADDR_X, 3),
    ]
    assert times(open_events(evt3(tmp_path / "a.raw", *words))) == [4_146]


def test_a_low_word_that_steps_back_adds_no_wrap(tmp_path):
    lows = [500, 497, 503]
    words = [(TIME_HIGH, 2), *(word for low in lows for word in ((TIME_LOW, low), (ADDR_X, 1)))]
    stream = open_events(evt3(tmp_path / "a.raw", *words))
    assert times(stream) == [8_692, 8_692, 8_695]
    assert stream.clamped == 1


def test_the_low_word_starts_again_with_a_new_high_word(tmp_path):
    words = [(TIME_HIGH, 2), (TIME_LOW, 4_090), (ADDR_X, 1), (TIME_HIGH, 3), (ADDR_X, 1), (TIME_LOW, 4), (ADDR_X, 1)]
    assert times(open_events(evt3(tmp_path / "a.raw", *words))) == [12_282, 12_288, 12_292]


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
    for stream, wanted in (
        (open_events(evt3(tmp_path / "a.raw", *words3)), evt3_wanted),
        (open_events(evt2(tmp_path / "b.raw", *words2)), evt2_wanted),
    ):
        assert times(stream) == wanted
        assert stream.clamped == clamped


def test_evt2(tmp_path):
    events = random_events(300, height=480, width=640, end=100_000)
    words = [word for event in zip(*(c.tolist() for c in events), strict=True) for word in evt2_event(*event)]
    stream = open_events(evt2(tmp_path / "a.raw", (0, 5), *words[:4], (10, 0x123), (14, 7), *words[4:]))
    assert (stream.height, stream.width) == (480, 640)
    assert_same_events(everything(stream), events)


@pytest.mark.parametrize(
    ("header", "size"),
    [
        (b"% evt 3.0\n% Height 720\n% Width 1280\n% end\n", (720, 1280)),
        (b"% format EVT3;height=480;width=640\n", (480, 640)),
        (b"% date 2020-01-01\n% geometry 640x480\n% evt 3.0\n", (480, 640)),
    ],
)
def test_headers_of_several_recorders(tmp_path, header, size):
    stream = open_events(evt3(tmp_path / "a.raw", *evt3_time(5), (ADDR_X, 1), header=header))
    assert (stream.height, stream.width) == size


def test_a_given_size_that_contradicts_the_header_is_refused(tmp_path):
    path = evt3(tmp_path / "a.raw", *evt3_time(5), (ADDR_X, 600))
    assert open_events(path, height=480, width=640).width == 640
    with pytest.raises(UserError, match="its sensor is 640x480 px, not 1280x720; leave --sensor out"):
        open_events(path, height=720, width=1280)


@pytest.mark.parametrize(
    ("header", "words", "message"),
    [
        (b"% evt 2.1\n% geometry 640x480\n", [(ADDR_X, 1)], "names the encoding '2.1'; give an EVT2 or EVT3"),
        (b"% geometry 640x480\n", [(ADDR_X, 1)], "does not name an encoding"),
        (b"% evt 3.0\n", [(ADDR_X, 1)], "does not name the sensor's size"),
        (b"", [(ADDR_X, 1)], "does not begin with a header"),
        (b"% evt 3.0\n% geometry 640x480\n", [], "holds no events"),
        (b"% evt 3.0\n% geometry 640x480\n", [(TIME_HIGH, 1), (EXT_TRIGGER, 1)], "holds no events"),
        (
            b"% evt 3.0\n% geometry 640x480\n",
            [(TIME_HIGH, 1), (ADDR_X, 640)],
            "events on 641x1 px, its sensor is 640x480",
        ),
    ],
)
def test_files_that_cannot_be_read_are_refused(tmp_path, header, words, message):
    path = evt3(tmp_path / "a.raw", *words, header=header)
    with pytest.raises(UserError, match=message) as caught:
        open_events(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(("writer", "event", "rest"), [(evt3, (ADDR_X, 1), 1), (evt2, (0, 1), 3)])
def test_a_truncated_file_is_refused(tmp_path, writer, event, rest):
    path = writer(tmp_path / "a.raw", (8, 1), event, event)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"truncated: {rest} bytes after the last whole word"):
        open_events(path)


def test_rows_stay_as_they_were_between_words(tmp_path):
    words = [*evt3_time(5), (ADDR_Y, 9), (ADDR_X, 1), (ADDR_X, POSITIVE | 2), *evt3_time(8), (ADDR_X, 3)]
    events = everything(open_events(evt3(tmp_path / "a.raw", *words)))
    assert events.y.tolist() == [9, 9, 9]
    assert events.p.tolist() == [0, 1, 0]


@pytest.mark.parametrize("words", [1_000, 77_777])
def test_blocks_of_any_length_give_the_same_events(monkeypatch, tmp_path, words):
    whole = open_events(REAL)
    monkeypatch.setattr(prophesee, "BLOCK", words)
    monkeypatch.setenv("TESPEC_CACHE", str(tmp_path / "cache"))  # of no other length
    stream = open_events(REAL)
    assert (stream.count, stream.clamped, stream.t_first, stream.t_last) == (
        whole.count,
        whole.clamped,
        whole.t_first,
        whole.t_last,
    )
    rng = np.random.default_rng(0)
    for t0, t1 in [(whole.t_first, whole.t_last + 1), *np.sort(rng.integers(0, 2_200_000, (40, 2))).tolist()]:
        t0, t1 = t0 + (t0 < whole.t_first) * whole.t_first, t1 + (t1 < whole.t_first) * whole.t_first
        assert_same_events(stream.slice(t0, t1), whole.slice(t0, t1))

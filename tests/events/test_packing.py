"""Events off the sensor and times that step back: dropped, corrected or refused."""

import numpy as np
import pytest
from event_files import assert_same_events, in_memory, random_events, reader_of, whole
from hypothesis import given, settings
from hypothesis import strategies as st

from tespec.core.errors import UserError
from tespec.events import Events, packing
from tespec.events.packing import pack, pack_in_memory, scan
from tespec.events.readers import Reader
from tespec.events.store import Facts, open_store

SECONDS = 4
BUSY = random_events(20_000, end=SECONDS * 10**6)


def plain_rule(events, height, width):
    """Mend a recording event by event, in Python's integers; None if it is to be refused."""
    on_sensor = [event for event in zip(*(column.tolist() for column in events), strict=True)
                 if event[0] < width and event[1] < height]  # fmt: skip
    total, count = len(events.t), len(on_sensor)
    if not count or total - count > max(1, total // 1000):
        return None
    times = [t for _, _, t, _ in on_sensor]
    mended, latest = [], None
    for i, t in enumerate(times):
        successors = times[i + 1 : i + 3]
        if successors and successors[0] < t and (latest is None or successors[0] >= latest):
            steps = [t - later for later in successors]
            if steps[0] > 10_000 or (len(steps) == 2 and min(steps) > 1_000):
                t = successors[0]
        if latest is not None and latest - t > 10_000:
            return None
        latest = t if latest is None else max(t, latest)
        mended.append(latest)
    clamped = sum(new != old for new, old in zip(mended, times, strict=True))
    if clamped > max(1, count // 1000):
        return None
    return mended, Facts(height, width, count, mended[0], mended[-1], clamped, total - count)


@st.composite
def damaged_streams(draw):
    """Events with some wrong times or pixels, cut into chunks, and the length of blocks."""
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count = draw(st.sampled_from([1, 2, 3, 4, 30, 1_200, 2_500]))
    events = random_events(
        count, start=-3_000, end=draw(st.sampled_from([0, 50_000, 10**6])), seed=count
    )
    x, t = events.x.copy(), events.t.copy()
    for _ in range(draw(st.integers(0, 3))):
        at = (
            draw(st.sampled_from([0, 1, count - 1, count - 2, int(generator.integers(count))]))
            % count
        )
        step = draw(st.sampled_from([1, 900, 1_001, 5_000, 10_000, 10_001, 2_000_000]))
        t[at : at + draw(st.sampled_from([1, 1, 1, 2, 40]))] += (
            draw(st.sampled_from([1, 1, -1])) * step
        )
    if draw(st.booleans()):
        x[generator.integers(count, size=draw(st.integers(1, 4)))] = draw(
            st.sampled_from([8, 65535])
        )
    cuts = np.sort(generator.integers(0, count + 1, draw(st.integers(0, 5))))
    chunks = [
        Events(*part)
        for part in zip(
            *(np.split(column, cuts) for column in events._replace(x=x, t=t)), strict=True
        )
    ]
    return events._replace(x=x, t=t), chunks, draw(st.sampled_from([3, 100, 1 << 16]))


@settings(max_examples=100)
@given(damaged_streams())
def test_packing_follows_the_rule_whatever_the_chunks(tmp_path_factory, stream):
    events, chunks, block = stream
    reader = reader_of(tmp_path_factory.getbasetemp() / "damaged", *chunks)
    expected = plain_rule(events, 6, 8)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packing, "BLOCK", block)
        if expected is None:
            for read in (pack_in_memory, scan):
                with pytest.raises(UserError):
                    read(reader)
            return
        assert scan(reader) == pack_in_memory(reader).facts == expected[1]
        inside = events.x < 8
        wanted = Events(*(column[inside] for column in events))._replace(t=np.array(expected[0]))
        assert_same_events(whole(pack_in_memory(reader)), wanted)


def late(t, at, by_us=1_200_000, number=1):
    t = t.copy()
    t[at : at + number] += by_us
    return t


@pytest.mark.parametrize(
    "at", [0, 1, 4_000, 19_998], ids=["first", "second", "middle", "last but one"]
)
@pytest.mark.parametrize("by_us", [30_000, 1_200_000, 2**31, 9 * 10**18])
def test_one_event_ahead_of_the_others_is_lowered_and_no_other_changes(at, by_us):
    stream, wanted = in_memory(*BUSY._replace(t=late(BUSY.t, at, by_us))), BUSY.t.copy()
    wanted[at] = BUSY.t[at + 1]
    assert stream.clamped == 1
    assert whole(stream).t.tolist() == wanted.tolist()


def test_an_event_that_is_a_little_early_is_raised():
    t = BUSY.t.copy()
    t[7_000] -= 9_000
    stream = in_memory(*BUSY._replace(t=t))
    assert (stream.clamped, whole(stream).t[7_000]) == (1, t[6_999])


def swapped(t, number):
    """Swap neighbours at `number` places."""
    at = np.arange(1, number + 1) * 700
    t = t.copy()
    t[at], t[at + 1] = t[at + 1], t[at]
    return t


QUIET = random_events(36_000, end=3_600 * 10**6)  # 10 per s for an hour
DAMAGED = {
    "clock reset": (
        np.r_[BUSY.t[:9_000], BUSY.t[9_000:] - BUSY.t[9_000]],
        r"event 9,000 at 0 us is 1\.\d+ s earlier",
    ),
    "overflow": (
        late(BUSY.t, 9_000, -(2**31), 11_000),
        r"event 9,000 at -2,14\d,\d+,\d+ us is 2,147\.48\d s earlier",
    ),
    "concatenated": (
        np.concatenate([BUSY.t[::5]] * 5),
        r"event 4,000 at \d+ us is 3\.99\d s earlier",
    ),
    "late burst": (
        late(BUSY.t, 9_000, number=2),
        r"event 9,002 at 1,\d+,\d+ us is 1\.\d+ s earlier",
    ),
    "sorted by polarity": (
        np.r_[BUSY.t[::2], BUSY.t[1::2]],
        r"event 10,000 at \d+ us is 3\.99\d s earlier",
    ),
    "many small steps": (
        swapped(BUSY.t, 21),
        r"21 of 20,000 times are not in order, the first is \S+ us of event 701",
    ),
    "year 5139": (
        late(BUSY.t, 9_000, 10**17, 11_000),
        r"to 100,0\S+ us, over 8 h or after the year 5138",
    ),
    "nanoseconds of a day": (
        BUSY.t + 1_700_000_000 * 10**9,
        r"to 1,7\S+ us, over 8 h or after the year 5138",
    ),
    "9 h": (late(BUSY.t, 9_000, 9 * 3_600 * 10**6, 11_000), r"to 32,403,9\S+ us, over 8 h or"),
    "float32 since 1970": (
        ((1.5e9 + BUSY.t / 1e4).astype("f4").astype("f8") * 1e6).astype("i8"),
        r"its 20,000 events have 4 different times, more than 1 ms apart: too coarse for bins",
    ),
    "one time": (np.full(20_000, 5), r"its 20,000 events have 1 different times"),
    "frames of 500 Hz": (BUSY.t // 2_000 * 2_000, r"its 20,000 events have 2,000 different times"),
    "nanoseconds": (
        BUSY.t * 1_000,
        r"its 20,000 events last 1\.1 h, so its times are probably in nanoseconds",
    ),
}


@pytest.mark.parametrize("damage", DAMAGED)
def test_clocks_that_cannot_be_mended_are_refused_with_the_place(tmp_path, damage):
    t, message = DAMAGED[damage]
    reader = reader_of(tmp_path / "a", BUSY._replace(t=t), height=480, width=640)
    for read in (pack_in_memory, scan, lambda reader: pack(reader, tmp_path / "store")):
        with pytest.raises(UserError, match=message) as caught:
            read(reader)
        assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize(
    "events",
    [
        BUSY._replace(t=swapped(BUSY.t, 20)),
        BUSY._replace(t=BUSY.t // 1_000 * 1_000),  # a clock of 1 ms
        # silent for 40 minutes
        BUSY._replace(t=np.r_[BUSY.t[:9_000], BUSY.t[9_000:] + 2_400_000_000]),
        QUIET,
        random_events(9_999, end=4_000 * 10**6),  # too few to tell
        Events(*(column[:5] for column in BUSY))._replace(t=np.arange(5) * 10**9),
    ],
    ids=[
        "20 small steps",
        "milliseconds",
        "silence",
        "a quiet hour",
        "a quiet and short hour",
        "5 events",
    ],
)
def test_unusual_clocks_are_read(tmp_path, events):
    stream = pack_in_memory(reader_of(tmp_path / "a", events, height=480, width=640))
    assert whole(stream).t.tolist() == np.maximum.accumulate(events.t).tolist()


@pytest.mark.parametrize(
    ("number", "dropped"), [(20_000, 20), (20_000, 21), (2, 1), (2, 2), (1, 1)]
)
def test_few_events_off_the_sensor_are_dropped_and_counted(tmp_path, number, dropped):
    events = random_events(number)
    events.x[:dropped] = 1308
    reader, folder = reader_of(tmp_path / "a", events), tmp_path / "store"
    if dropped > 20 or dropped == number:
        for read in (pack_in_memory, scan, lambda reader: pack(reader, folder)):
            with pytest.raises(
                UserError,
                match=r"has events on 1309x[46] px, but its sensor has 8x6 px; copy it again",
            ):
                read(reader)
        return
    for stream in (pack_in_memory(reader), open_store(pack(reader, folder))):
        assert (stream.count, stream.dropped, stream.clamped) == (number - dropped, dropped, 0)
        assert_same_events(whole(stream), Events(*(column[dropped:] for column in events)))
    assert scan(reader) == open_store(folder).facts


def test_a_wrong_sensor_size_is_refused_without_reading_on(tmp_path):
    def chunks():
        yield random_events(200, width=20)
        pytest.fail("the rest of the recording was read")

    (tmp_path / "a").touch()
    with pytest.raises(UserError, match=r"has events on 20x6 px, but its sensor has 8x6 px"):
        scan(Reader(tmp_path / "a", 6, 8, 10_000, chunks))

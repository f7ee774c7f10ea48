"""Prophesee's `.dat`, `.raw` and HDF5: clocks, headers, words of all encodings, other decoders."""

import struct
from functools import partial
from pathlib import Path

import h5py
import numpy as np
import pytest
from event_files import (
    assert_refused,
    assert_same_events,
    cut,
    dat,
    evt3,
    evt3_time,
    random_events,
    write_h5,
)

from tespec.events import Events, readers
from tespec.events.opening import open_reader
from tespec.events.readers import ecf
from tespec.events.readers.dat import write_dat
from tespec.events.readers.prophesee import read_header, sensor_size

DATA = Path(__file__).parents[1] / "data"
SIZE = (48, 64)
EVENTS = random_events(3_000, height=48, width=64, end=120_000)
POSITIVE, PERIOD, MINUTE = 1 << 11, 1 << 32, 60_000_000
ECF = ecf.ECF_FILTER_ID
UNCERTAIN = "has invalid polarities from"
ROW = np.dtype(
    {
        "names": ["x", "y", "p", "t"],
        "formats": ["<u2", "<u2", "<i2", "<i8"],
        "itemsize": 16,
        "offsets": [0, 2, 4, 8],
    }
)


def decoded(path, sensor=None):
    """Events of a file as its reader gives them."""
    return Events(*map(np.concatenate, zip(*open_reader(path, sensor).chunks(), strict=True)))


def evt2(path, *words, header=b"% evt 2.0\n% geometry 640x480\n% end\n"):
    path.write_bytes(
        header + np.array([kind << 28 | value for kind, value in words], "<u4").tobytes()
    )
    return path


def evt21(
    path,
    *words,
    halves="little",
    header="% format EVT21;endianness={};width=640;height=480\n% end\n",
):
    """Write words (kind, lower 28 bits, mask) as GenX320 ("little") or IMX636 ("legacy") does."""
    pairs = [(kind << 28 | value, mask) for kind, value, mask in words]
    step = 1 if halves == "legacy" else -1
    path.write_bytes(header.format(halves).encode() + np.array(pairs, "<u4")[:, ::step].tobytes())
    return path


def cd_word(x, y, t):
    """Lower 28 bits of an EVT2 or EVT2.1 word with events."""
    return (t & 63) << 22 | x << 11 | y


def ecf_file(path, content, chunk, count, attributes, filters=(ECF,)):
    """Write `CD/events` of `count` events from encoded chunks of `chunk` events."""
    with h5py.File(path, "w") as file:
        file.create_group("CD")
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((chunk,))
        for number in filters:
            properties.set_filter(number, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((count,), (h5py.h5s.UNLIMITED,))
        rows = h5py.h5d.create(file.id, b"CD/events", h5py.h5t.py_create(ROW), space, properties)
        for index, encoded in enumerate(content):
            rows.write_direct_chunk((index * chunk,), encoded)
        file.attrs.update(attributes)
    return path


def ecf_chunks():
    content = np.load(DATA / "ecf.npz")
    return [
        part.tobytes() for part in np.split(content["chunks"], np.cumsum(content["sizes"])[:-1])
    ]


def rows_of(events):
    rows = np.zeros(len(events.t), ROW)
    for name, column in zip("xytp", events, strict=True):
        rows[name] = column
    return rows


@pytest.mark.parametrize("encoding", ["dat", "evt2"])
def test_files_that_expelliarmus_wrote(tmp_path, encoding):
    """2,600 events in files of `expelliarmus` 1.1.12, which do not specify a sensor."""
    content = np.load(DATA / "expelliarmus.npz")
    path = tmp_path / ("a.dat" if encoding == "dat" else "a.raw")
    path.write_bytes(content[encoding].tobytes())
    assert_same_events(decoded(path, (480, 640)), Events(*(content[name] for name in "xytp")))


def test_words_of_dat_are_read_as_described_and_written(tmp_path):
    for kind in ((0, 8), (12, 8)):
        path = dat(tmp_path / "a_td.dat", [(3, 2, 100, 1), (639, 479, 2**31 + 5, 0)], kind=kind)
        assert [column.tolist() for column in decoded(path)] == [
            [3, 639],
            [2, 479],
            [100, 2**31 + 5],
            [1, 0],
        ]
    write_dat(tmp_path / "b.dat", *EVENTS, *SIZE)
    assert_same_events(decoded(tmp_path / "b.dat"), EVENTS)
    for t in ([-1, 5], [5, 2**32]):
        with pytest.raises(ValueError, match="do not fit in 32 bits"):
            write_dat(
                tmp_path / "c.dat", *(np.zeros(2, int),) * 2, np.array(t), np.zeros(2, int), 4, 4
            )
    assert not (tmp_path / "c.dat").exists()


LAST, SILENCE, G = PERIOD - 1, 40 * MINUTE, 10**9


@pytest.mark.parametrize("block", [1 << 16, 2, 1])
@pytest.mark.parametrize(
    ("words", "times"),
    [
        # A silence of any length up to a minute less than the period of the clock.
        ([5, 6, SILENCE, SILENCE + 1], [5, 6, SILENCE, SILENCE + 1]),
        ([5, PERIOD - 2 * MINUTE, LAST], [5, PERIOD - 2 * MINUTE, LAST]),
        ([0, SILENCE, SILENCE + 9, LAST, 3], [0, SILENCE, SILENCE + 9, LAST, PERIOD + 3]),
        (
            [LAST, 3, 4, SILENCE, SILENCE + 1],
            [LAST, *(PERIOD + t for t in (3, 4, SILENCE, SILENCE + 1))],
        ),
        # Wrap-arounds, with and without a silence across them.
        ([LAST - 1, LAST, 0, 1], [LAST - 1, LAST, PERIOD, PERIOD + 1]),
        ([3_000_000_000, 800_000_000], [3_000_000_000, PERIOD + 800_000_000]),
        ([3 * G, 2, G, 3 * G, 4], [3 * G, PERIOD + 2, PERIOD + G, PERIOD + 3 * G, 2 * PERIOD + 4]),
        # Steps back beside a wrap-around are neither another one nor a silence.
        ([LAST, 0, PERIOD - 2, 1], [LAST, PERIOD, PERIOD - 2, PERIOD + 1]),
        (
            [LAST, 0, 1, PERIOD - 9, PERIOD - 8, 2, 3],
            [LAST, *(PERIOD + t for t in (0, 1, -9, -8, 2, 3))],
        ),
        ([3, PERIOD - 2, 5], [3, -2, 5]),
        # A step back of up to half the period stays one, for packing to refuse.
        ([3 * G, G, 3 * G + 1], [3 * G, G, 3 * G + 1]),
        # One bad time, far ahead or far behind, moves no other.
        ([7, 8, 4_000_000_000, 9, 10], [7, 8, 4_000_000_000, 9, 10]),
        ([4 * G, 5, 4 * G + 1, 4 * G + 2], [4 * G, PERIOD + 5, 4 * G + 1, 4 * G + 2]),
    ],
)  # fmt: skip
def test_the_clock_of_dat_goes_on_over_silences_and_wrap_arounds(
    tmp_path, monkeypatch, words, times, block
):
    monkeypatch.setattr(readers, "BLOCK", block)
    assert decoded(dat(tmp_path / "a.dat", [(1, 1, t, 1) for t in words])).t.tolist() == times


@pytest.mark.parametrize("block", [1 << 16, 5])
def test_words_of_evt3_are_read_as_described(tmp_path, monkeypatch, block):
    monkeypatch.setattr(readers, "BLOCK", block)
    words = [
        # before the first time: skipped
        ("ADDR_X", 2), ("BASE_X", 0), ("VECT_12", 0xFFF), ("TIME_LOW", 9),
        *evt3_time(5_000), ("ADDR_Y", 7), ("BASE_X", POSITIVE | 100),
        ("VECT_12", 0b1000_0000_0001), ("VECT_8", 0b1000_0010), ("VECT_12", 0b10),
        ("EXT_TRIGGER", 1), ("CONTINUED_4", 3), ("OTHERS", 7), ("CONTINUED_12", 9),  # no events
        ("ADDR_Y", 9), ("ADDR_X", 1), ("ADDR_X", POSITIVE | 2), *evt3_time(5_008), ("ADDR_X", 3),
        ("TIME_LOW", 905), ("ADDR_X", 5),  # a low word that steps back is not a wrap-around
        ("TIME_HIGH", 2), ("ADDR_X", 4),  # a new high word resets the low word
    ]  # fmt: skip
    x, y, t, p = (column.tolist() for column in decoded(evt3(tmp_path / "a.raw", *words)))
    assert x == [100, 111, 113, 119, 121, 1, 2, 3, 5, 4]
    assert y == [7] * 5 + [9] * 5
    assert t == [5_000] * 7 + [5_008, 5_001, 8_192]
    assert p == [1] * 5 + [0, 1, 0, 0, 0]


def test_columns_of_evt3_beyond_the_sensor_never_come_back_onto_it(tmp_path):
    words = [
        *evt3_time(5),
        ("BASE_X", 0),
        *[("VECT_12", 0)] * ((1 << 16) // 12 + 2),
        ("VECT_12", 1),
    ]
    assert decoded(evt3(tmp_path / "a.raw", *words)).x.tolist() == [1 << 14]


@pytest.mark.parametrize("halves", ["little", "legacy"])
def test_words_of_evt21_are_read_as_described(tmp_path, monkeypatch, halves):
    monkeypatch.setattr(readers, "BLOCK", 4)
    t = 5_000
    words = [
        (1, cd_word(32, 7, t), 0xFFFF),  # before the first time: skipped
        (8, t >> 6, 0), (1, cd_word(32, 7, t), 1 << 31 | 0b101),
        (0, cd_word(2047, 2046, t + 2), 0b11),  # the second one beyond any sensor: left out
        # no events
        (10, cd_word(1, 1, t), 1), (14, 0x14, 77), (15, 3, 0xFFFF), (0, cd_word(64, 9, t), 0),
        (8, (t >> 6) + 1, 0), (0, cd_word(64, 9, t), 0b10),
    ]  # fmt: skip
    x, y, t, p = (
        column.tolist() for column in decoded(evt21(tmp_path / "a.raw", *words, halves=halves))
    )
    assert x == [32, 34, 63, 2047, 65]
    assert y == [7, 7, 7, 2046, 9]
    assert t == [5_000] * 3 + [5_002, 5_064]
    assert p == [1, 1, 1, 0, 0]


# In one order the words below are an event at 320 us; in the other, words that hold no time.
@pytest.mark.parametrize(
    ("halves", "header"),
    [
        ("little", "% format EVT21;endianness=little;width=64;height=48\n% system_ID 49\n"),
        ("legacy", "% format EVT21;endianness=legacy;width=64;height=48\n% endianness little\n"),
        ("little", "% format EVT21;width=64;height=48\n% endianness little\n"),
        ("legacy", "% evt 2.1\n% endianness legacy\n% geometry 64x48\n% system_ID 64\n"),
        ("legacy", "% evt 2.1\n% system_ID 49\n"),
        ("legacy", "% evt 2.1\n% geometry 64x48\n"),
        ("little", "% evt 2.1\n% system_ID 55\n% geometry 64x48\n"),
        ("little", "% evt 2.1\n% system_ID 49\n% integrator_name Other\n% geometry 64x48\n"),
    ],
)
def test_the_order_of_halves_of_evt21_is_the_one_that_openeb_takes(tmp_path, halves, header):
    path = evt21(
        tmp_path / "a.raw",
        (8, 5, 0),
        (1, cd_word(0, 0, 0), 1),
        halves=halves,
        header=header + "% end\n",
    )
    assert decoded(path).t.tolist() == [320]


# Time in us of the largest high word: EVT3 has 2^12 values of 2^12 us, EVT2 has 2^28 values of 2^6
# us.
TOP3, TOP2 = (1 << 24) - 4096, (1 << 34) - 64


@pytest.mark.parametrize(
    ("highs", "evt3_times", "evt2_times"),
    [
        ([-1, 0, 1], [TOP3, 1 << 24, (1 << 24) + 4096], [TOP2, 1 << 34, (1 << 34) + 64]),
        # A step back across the wrap-around is not another one.
        ([-1, 0, -1, 0], [TOP3, 1 << 24, TOP3, 1 << 24], [TOP2, 1 << 34, TOP2, 1 << 34]),
        # nor is a step back right after the counter's start
        ([0, -1, 0, 1], [0, -4096, 0, 4096], [0, -64, 0, 64]),
        (
            [-2, -1, -2, 0],
            [TOP3 - 4096, TOP3, TOP3 - 4096, 1 << 24],
            [TOP2 - 64, TOP2, TOP2 - 64, 1 << 34],
        ),
    ],
)
def test_high_words_go_on_at_a_wrap_around_and_step_back_beside_it(
    tmp_path, highs, evt3_times, evt2_times
):
    words3 = [word for high in highs for word in (("TIME_HIGH", high & 0xFFF), ("ADDR_X", 1))]
    words2 = [word for high in highs for word in ((8, high & 0xFFFFFFF), (1, 1))]
    assert decoded(evt3(tmp_path / "a.raw", *words3)).t.tolist() == evt3_times
    assert decoded(evt2(tmp_path / "b.raw", *words2)).t.tolist() == evt2_times
    words21 = [(kind, value, kind) for kind, value in words2]
    assert decoded(evt21(tmp_path / "c.raw", *words21)).t.tolist() == evt2_times


@pytest.mark.parametrize(
    ("header", "size"),
    [
        ("% evt 3.0\n% Height 720\n% Width 1280\n% end\n", (720, 1280)),
        ("% format EVT3;height=480;width=640\n", (480, 640)),
        ("% date 2020-01-01\r\n% geometry 640x480\r\n% evt 3.0\r\n", (480, 640)),
        ("% evt 3.0\n% geometry 640\n% height 480\n", None),
        ("% evt 3.0\n% Height 9" + "9" * 999 + "\n", None),
        ("% evt 3.0\n% geometry ٣x٣\n", None),
        # Cameras by their system id; a size in the header goes first.
        ("% system_ID 49\n", (720, 1280)),
        ("% system_ID 40\n% integrator_name Prophesee\n", (480, 640)),
        ("% evt 3.0\n% system_ID 28\n% plugin_integrator_name Prophesee\n", (480, 640)),
        ("% evt 3.0\n% system_ID 39\n% geometry 304x240\n", (240, 304)),
        ("% evt 3.0\n% system_ID 59\n", None),  # OpenEB lists no size of a GenX320
        ("% evt 3.0\n% system_ID 49\n% camera_integrator_name Other\n", None),
        ("% evt 3.0\n% system_ID 4９\n", None),
    ],
)
def test_the_sensor_in_headers_of_several_recorders(tmp_path, header, size):
    assert sensor_size(read_header(evt3(tmp_path / "a.raw", header=header.encode()))[0]) == size


@pytest.mark.parametrize(
    ("number", "encoding"), [(49, "evt3"), (40, "evt3"), (39, "evt2"), (28, "evt2")]
)
def test_a_recording_with_only_a_system_id_opens(tmp_path, number, encoding):
    header = (
        f"% Date 2020-03-01 10:00:00\n% system_ID {number}\n% serial_number 00001495\n".encode()
    )
    if encoding == "evt3":
        path = evt3(tmp_path / "a.raw", *evt3_time(64), ("ADDR_Y", 3), ("ADDR_X", 2), header=header)
    else:
        path = evt2(tmp_path / "a.raw", (8, 1), (0, cd_word(2, 3, 0)), header=header)
    assert [column.tolist() for column in decoded(path)] == [[2], [3], [64], [0]]


# "%" with a high time word, a space, a line feed
@pytest.mark.parametrize("first", [0x8025, 0x2025, 0x0A25])
@pytest.mark.parametrize("end", [b"", b"% end\n"])
def test_data_that_begin_like_a_header_line_are_data(tmp_path, first, end):
    path = tmp_path / "a.raw"
    words = np.array([first, 0x8001, 0x6005, 0x0003, 0x2002, 0x800A], "<u2")
    path.write_bytes(b"% evt 3.0\n% geometry 640x480\n" + end + words.tobytes())
    assert read_header(path)[1] == 29 + len(end)
    assert [column.tolist() for column in decoded(path)] == [[2], [3], [4101], [0]]


def test_header_lines_in_another_character_set_are_header_lines(tmp_path):
    header = b"% integrator_name Universit\xe4t\n% evt 3.0\n% geometry 640x480\n% end\n"
    fields, size = read_header(evt3(tmp_path / "a.raw", *evt3_time(5), header=header))
    assert (fields["evt"], size) == ("3.0", len(header))


def test_ecf_is_decoded_as_by_its_authors(tmp_path):
    """3,602 events in four chunks of Prophesee's own encoder, see tests/data/NOTICE.md."""
    content, chunks = np.load(DATA / "ecf.npz"), ecf_chunks()
    events = Events(*(content[name] for name in "xytp"))
    # the three forms of rows, columns and polarities
    assert {part[0] & 3 for part in chunks} == {0, 1, 2}
    for first, encoded in zip(range(0, 3_602, 1_000), chunks, strict=True):
        end = 3_602 if first == 3_000 else first + 1_000
        assert_same_events(ecf.decode(encoded), Events(*(column[first:end] for column in events)))
    path = ecf_file(
        tmp_path / "a.hdf5", chunks, 1_000, 3_602, {"geometry": "1280x720", "version": "1.0"}
    )
    reader = open_reader(path)
    assert (reader.height, reader.width, reader.events) == (720, 1280, 3_602)
    assert_same_events(decoded(path), events)
    # A last chunk that HDF5 filled up.
    path = ecf_file(
        tmp_path / "b.hdf5", chunks, 1_000, 3_500, {"format": "EVT3;width=1280;height=720"}
    )
    assert_same_events(decoded(path), Events(*(column[:3_500] for column in events)))


def test_damaged_ecf_is_refused_or_decoded_to_the_end():
    chunks, rng, lengths = ecf_chunks(), np.random.default_rng(0), set()
    for case in range(2_000):
        damaged = bytearray(chunks[case % 4])
        at = int(rng.integers(len(damaged)))
        damaged[at : at + 1 + case % 3] = rng.bytes(int(rng.integers(0, 4)))
        events = ecf.decode(bytes(damaged))
        assert len({len(column) for column in events}) == 1
        lengths.add(len(events.t))
    assert 0 in lengths
    assert max(lengths) <= ecf.MAX_CHUNK_EVENTS
    for content in (b"", b"\0", chunks[0][:-1], chunks[0] + b"\0", b"\xff" * 99):
        assert len(ecf.decode(content).t) == 0


@pytest.mark.parametrize(
    "options", [{}, {"chunks": (700,), "compression": "gzip"}], ids=["contiguous", "gzip"]
)
@pytest.mark.parametrize(
    "attributes",
    [
        {"geometry": np.bytes_("64x48")},
        {"width": 64, "height": 48},
        {"Comment": "", "geometry": "64x48"},
    ],
)
def test_rows_of_events_without_ecf_are_read(tmp_path, options, attributes):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("CD/events", data=rows_of(EVENTS), **options)
        file["CD" if "width" in attributes else "/"].attrs.update(attributes)
    reader = open_reader(tmp_path / "a.h5")
    assert (reader.height, reader.width) == SIZE
    assert_same_events(decoded(tmp_path / "a.h5"), EVENTS)


def encoded(path, chunk, count=1_000, filters=(ECF,)):
    return ecf_file(path, [chunk], count, count, {"geometry": "640x480"}, filters)


def endless_heap(path, position, size):
    """Write a heap whose object at `position` has a wrong size: HDF5 would search it for ever."""
    encoded(path, ecf_chunks()[0])
    content = path.read_bytes()
    at = content.index(b"GCOL") + 16 + position + 8
    path.write_bytes(content[:at] + struct.pack("<Q", size) + content[at + 8 :])


def written_rows(path, dtype=ROW, **changes):
    rows = rows_of(EVENTS._replace(**changes)).astype(dtype)
    with h5py.File(write_h5(path, {"CD/events": rows}, codec={}), "r+") as file:
        file.attrs.update({"geometry": "64x48"} if changes else {})


WORDS = [(3, 2, 1, 1)]
SIZED = "% Height 480\n% Width 640\n"
UNSIZED = b"% evt 3.0\n% system_ID 59\n% end\n"
BAD = {
    "empty.dat": (Path.touch, "the file is empty; copy it again"),
    "text.raw": (lambda path: path.write_text("hello"), "does not start with a header"),
    "percent.raw": (lambda path: path.write_text("%"), "does not start with a header"),
    "endless.dat": (lambda path: path.write_bytes(b"% Height 480"), "its header is incomplete"),
    "old.dat": (
        lambda path: dat(path, WORDS, header=f"% Version 1\n{SIZED}"),
        "unsupported format version 1; give",
    ),
    "other.dat": (lambda path: dat(path, WORDS, kind=(14, 8)), "event type is 14 of 8 bytes"),
    "untyped.dat": (lambda path: dat(path, [], kind=()), "event type is missing"),
    "flat.dat": (
        lambda path: dat(path, [], header="% Height 480\n% Width 0\n"),
        "sensor size 0x480 px",
    ),
    "torn.dat": (
        lambda path: cut(dat(path, WORDS * 5), 3),
        "truncated: 5 bytes after the last complete event or word",
    ),
    "evt4.raw": (
        lambda path: evt3(path, header=b"% format EVT4;height=9;width=9\n"),
        "encoding 'EVT4'; give an EVT2",
    ),
    "frames.raw": (
        lambda path: evt3(path, header=b"% format HISTO3D\n"),
        "unsupported encoding 'HISTO3D'; give an",
    ),
    "evt1.raw": (
        lambda path: evt3(path, header=b"% evt 1.0\n% system_ID 49\n"),
        "unsupported encoding '1.0'; give an",
    ),
    "big.raw": (
        lambda path: evt21(path, (8, 5, 0), halves="big"),
        "unsupported encoding 'EVT21 big'; give an EVT2",
    ),
    "torn.raw": (
        lambda path: cut(evt21(path, (8, 5, 0)), 4),
        "truncated: 4 bytes after the last complete",
    ),
    "unknown.raw": (
        lambda path: evt3(path, header=b"% geometry 9x9\n"),
        "its header has no encoding",
    ),
    "unsized.raw": (
        lambda path: evt3(path, header=UNSIZED),
        "does not specify the sensor's size; give --sensor",
    ),
    "cut.hdf5": (
        lambda path: encoded(path, ecf_chunks()[0][:-1]),
        "events 0 to 1,000 of CD/events are damaged; copy it again",
    ),
    "shuffled.hdf5": (
        lambda path: encoded(path, ecf_chunks()[0], filters=(h5py.h5z.FILTER_SHUFFLE, ECF)),
        "cannot be read; copy it again|compressed with",
    ),
    "vast.hdf5": (
        lambda path: encoded(path, b"\xff" * (ecf.MAX_CHUNK_BYTES + 1), count=10**6),
        "events 0 to 1,000,000 of CD/events are damaged; copy it again",
    ),
    # the text of 7 bytes in 8, and then the free space
    "heap.hdf5": (partial(endless_heap, position=24, size=0), "its global heap is damaged; copy"),
    "text.hdf5": (partial(endless_heap, position=0, size=2**64 - 1), "its global heap is damaged"),
    "minus.h5": (lambda path: written_rows(path, p=-2 * EVENTS.p.astype(int)), UNCERTAIN),
    "two.h5": (lambda path: written_rows(path, p=EVENTS.p + 1), UNCERTAIN),
    "unsized.h5": (written_rows, "does not specify the sensor's size; give --sensor"),
    "floats.h5": (
        lambda path: write_h5(path, {"CD/events": np.zeros(3)}),
        "CD/events is float64 .* not rows of x",
    ),
    "short.h5": (
        lambda path: written_rows(path, [(name, "<i4") for name in "xypt"]),
        r"CD/events is .* not rows of x",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(tmp_path, name):
    make, message = BAD[name]
    make(tmp_path / name)
    assert_refused(tmp_path / name, message)

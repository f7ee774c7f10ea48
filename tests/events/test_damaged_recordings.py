"""Hundreds of damaged recordings: each opens and gives sound events, or is refused in one line."""

import json

import numpy as np
import pytest
from event_cases import random_events
from recording_files import ADDR_Y, BASE_X, VECT_8, VECT_12, ddd17, evt2, evt2_event, evt3, evt3_events, evt3_time

from tespec.errors import UserError
from tespec.events import ArrayStream, event_histogram, open_events
from tespec.events.readers.prophesee_dat import write_dat
from tespec.events.store import pack

EVENTS = random_events(60, height=260, width=346, end=150_000)
MUTATIONS = 150


def write_evt3(folder):
    vectors = [*evt3_time(160_000), (ADDR_Y, 9), (BASE_X, 40), *[(VECT_12, 0xF0F), (VECT_8, 0x81)] * 5]
    return evt3(folder / "a.raw", *evt3_events(EVENTS), *vectors)


def write_evt2(folder):
    rows = zip(*(column.tolist() for column in EVENTS), strict=True)
    return evt2(folder / "a.raw", *(word for row in rows for word in evt2_event(*row)))


def write_dat_file(folder):
    write_dat(folder / "a.dat", *EVENTS, 260, 346)
    return folder / "a.dat"


def write_store(folder):
    return pack(ArrayStream(*EVENTS, 260, 346), folder / "a")


def write_ddd17(folder):
    return ddd17(folder / "dir0", EVENTS)


def damage(path, rng):
    """Cut the file off, or change some of its bytes."""
    data = bytearray(path.read_bytes())
    if rng.random() < 0.25:
        data = data[: rng.integers(0, len(data))]
    else:
        for place in rng.integers(0, len(data), rng.integers(1, 6)):
            data[place] = rng.integers(0, 256)
    path.write_bytes(bytes(data))


def check_whole(stream):
    """What the interface promises of every stream."""
    spans = [(stream.t_first, stream.t_last + 1), (stream.t_first, stream.t_first + 40_000), (60_000, 61_500)]
    for t0, t1 in spans:
        events = stream.slice(t0, t1)
        assert (events.t[1:] >= events.t[:-1]).all()
        if t0 < t1 and len(events.t):
            assert t0 <= events.t[0] <= events.t[-1] < t1
            assert events.x.max() < stream.width
            assert events.y.max() < stream.height
        if max(stream.height, stream.width) < 2_000 and t0 < t1:
            event_histogram(*events, t_start=t0, t_end=t1, bins=2, height=stream.height, width=stream.width)
    assert len(stream.slice(stream.t_first, stream.t_last + 1).t) == stream.count


@pytest.mark.parametrize("write", [write_evt3, write_evt2, write_dat_file, write_store, write_ddd17])
def test_damage_is_survived_or_named(tmp_path, write):
    rng = np.random.default_rng(0)
    path = write(tmp_path)
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    sound = {file: file.read_bytes() for file in files}
    refusals = []
    for _ in range(MUTATIONS):
        file = files[rng.integers(len(files))]
        damage(file, rng)
        try:
            check_whole(open_events(path))
        except UserError as error:
            refusals.append(str(error))
        file.write_bytes(sound[file])
    assert 0 < len(refusals) < MUTATIONS
    assert all(line.startswith(str(path)) and "\n" not in line for line in refusals)
    check_whole(open_events(path))


def test_a_store_with_damaged_words_is_noticed_where_they_are_read(tmp_path):
    folder = write_store(tmp_path)
    words = np.fromfile(folder / "events.u32", "<u4")
    words[30] |= 0x3FF << 22
    words.tofile(folder / "events.u32")
    stream = open_events(folder)
    bad = int(EVENTS.t[30])
    assert len(stream.slice(0, bad // 1000 * 1000).t) == (EVENTS.t < bad // 1000 * 1000).sum()
    with pytest.raises(UserError, match="damaged"):
        stream.slice(bad, bad + 1)
    assert json.loads((folder / "header.json").read_text())["count"] == 60

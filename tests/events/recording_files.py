"""Writes recordings for tests, word by word, by the formats' descriptions."""

from __future__ import annotations

import numpy as np

EVT3_HEADER = b"% evt 3.0\n% format EVT3;height=480;width=640\n% end\n"
EVT2_HEADER = b"% evt 2.0\n% geometry 640x480\n% end\n"

# Kinds of EVT3 words, in their upper four bits.
ADDR_Y, ADDR_X, BASE_X, VECT_12, VECT_8, TIME_LOW, CONTINUED_4, TIME_HIGH, EXT_TRIGGER = 0, 2, 3, 4, 5, 6, 7, 8, 10


def evt3(path, *words, header=EVT3_HEADER):
    path.write_bytes(header + np.array([kind << 12 | value for kind, value in words], "<u2").tobytes())
    return path


def evt3_time(t):
    return (TIME_HIGH, t >> 12 & 0xFFF), (TIME_LOW, t & 0xFFF)


def evt3_events(events):
    """One word for each field of each event."""
    for x, y, t, p in zip(*(column.tolist() for column in events), strict=True):
        yield from (*evt3_time(t), (ADDR_Y, y), (ADDR_X, p << 11 | x))


def evt2(path, *words, header=EVT2_HEADER):
    path.write_bytes(header + np.array([kind << 28 | value for kind, value in words], "<u4").tobytes())
    return path


def evt2_event(x, y, t, p):
    return (8, t >> 6), (p, (t & 63) << 22 | x << 11 | y)


def dat(path, records, *, header="% Height 480\n% Width 640\n", kind=(12, 8)):
    """`records`: (x, y, t, p) each."""
    words = np.array([(t, p << 28 | y << 14 | x) for x, y, t, p in records], "<u4")
    path.write_bytes(header.encode() + bytes(kind) + words.tobytes())
    return path


def ddd17(folder, events, *, ticks_per_us=1000, frame_period_us=33_000, images=4):
    (folder / "index").mkdir(parents=True)
    (events.t.astype("<i8") * ticks_per_us).tofile(folder / "events.dat.t")
    np.stack([events.x, events.y, events.p], axis=1).astype("<i2").tofile(folder / "events.dat.xyp")
    stamps = int(events.t[0]) + frame_period_us * np.arange(1, images + 1)
    rows = [stamps * ticks_per_us, np.searchsorted(events.t, stamps), np.searchsorted(events.t, stamps - 50_000)]
    np.save(folder / "index" / "index_50ms.npy", np.stack(rows, axis=1).astype(np.int64))
    return folder

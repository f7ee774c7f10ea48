"""Random events, reference histograms and inputs, and writers that follow the formats."""

from pathlib import Path

import h5py
import hdf5plugin
import numpy as np
import pytest
from hypothesis import strategies as st

from tespec.core.errors import UserError
from tespec.events import Events, open_events
from tespec.events.packing import pack_in_memory
from tespec.events.readers import Reader

HEIGHT, WIDTH = 6, 8
# Types of EVT3 words, stored in their upper four bits.
EVT3 = {
    "ADDR_Y": 0,
    "ADDR_X": 2,
    "BASE_X": 3,
    "VECT_12": 4,
    "VECT_8": 5,
    "TIME_LOW": 6,
    "CONTINUED_4": 7,
}
EVT3 |= {"TIME_HIGH": 8, "EXT_TRIGGER": 10, "OTHERS": 14, "CONTINUED_12": 15}
BLOSC = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)


def random_events(count, *, height=HEIGHT, width=WIDTH, start=0, end=50_000, seed=0):
    rng = np.random.default_rng(seed)
    x, y, p = (rng.integers(0, side, count) for side in (width, height, 2))
    t = np.sort(rng.integers(start, end, count))
    return Events(x.astype(np.uint16), y.astype(np.uint16), t.astype(np.int64), p.astype(np.uint8))


@st.composite
def event_arrays(draw, *, start=-2_000, end=4_000):
    """Strategy for events: few or many, one polarity or both, on few pixels, with equal times."""
    count, span = (
        draw(st.sampled_from([1, 2, 5, 40, 400])),
        draw(st.sampled_from([1, 7, end - start])),
    )
    width, height = draw(st.sampled_from([(1, 1), (3, 2), (WIDTH, HEIGHT)]))
    first = draw(st.integers(start, end - span))
    seed, polarities = draw(st.integers(0, 2**32 - 1)), draw(st.sampled_from([[0], [1], [0, 1]]))
    events = random_events(
        count, height=height, width=width, start=first, end=first + span, seed=seed
    )
    return events._replace(p=np.random.default_rng(seed).choice(polarities, count).astype(np.uint8))


def plain_histogram(x, y, t, p, *, t_start, t_end, bins, height, width, rule="edges", most=10):
    """Reference histogram: integers for "edges", RVT's float32 and closed windows for "rvt"."""
    counts = np.zeros((2 * bins, height, width), np.int64)
    inside = (t >= t_start) & (t < t_end + (rule == "rvt"))
    x, y, t, p = (column[inside].astype(np.int64) for column in (x, y, t, p))
    if rule == "edges":
        k = (t - t_start) * bins // (t_end - t_start)
    elif len(t):
        share = (t - t[0]).astype(np.float32) / np.float32(max(t[-1] - t[0], 1))
        k = np.minimum(np.floor(share * np.float32(bins)).astype(np.int64), bins - 1)
    if len(t):
        np.add.at(counts, (k + bins * p, y, x), 1)
    return np.minimum(counts, most)


def plain_voxels(events, bins, size):
    grid = np.zeros((bins, *size))
    span = events[-1][2] - events[0][2] or 1
    for x, y, t, p in events:
        position = (bins - 1) * (t - events[0][2]) / span
        for k in range(bins):
            grid[k, y, x] += (1 if p else -1) * max(0, 1 - abs(position - k))
    return grid


def plain_counts(events, size):
    counts = np.zeros((2, *size))  # negative, positive
    for x, y, _, p in events:
        counts[p, y, x] += 1
    return counts


def plain_ecdp(events, bins, size):
    negative, positive = plain_counts(events, size)
    return np.stack([(c / (c.max() + 1) - 0.5) * 2 for c in (positive, negative)])


def plain_mem(events, bins, size):
    counts = plain_counts(events, size).astype(np.uint8) / 255  # as torchvision's ToTensor
    mean = counts.mean()
    deviation = np.sqrt(((counts - mean) ** 2).sum() / (counts.size - 1))
    for y, x in np.ndindex(size):
        if max(counts[:, y, x]) > mean + 10 * deviation:
            counts[:, y, x] = 0
    negative, positive = counts / counts.max() if counts.any() else counts
    return np.stack([positive, 0 * positive, negative])


def plain_gep(events, bins, size):
    shares = []
    for counts in plain_counts(events, size).astype(np.float32):
        limit = np.percentile(counts[counts > 0], 90) if counts.any() else 1
        shares.append(np.clip(counts, 0, limit) / np.float32(limit))
    picture = np.ones((*size, 3), np.float32)  # white, RGB
    for y, x in np.ndindex(size):
        negative, positive = shares[0][y, x], shares[1][y, x]
        if positive >= negative:
            picture[y, x] -= np.float32([0, 1, 1]) * positive  # red
        else:
            picture[y, x] -= np.float32([1, 1, 0]) * negative  # blue
    stored = (picture * 255).astype(np.uint8)[..., ::-1]  # cv2 takes it for BGR
    mean = (0.8993729784963826, 0.7969581014619264, 0.8928228776286392)
    deviation = (0.22043360769748688, 0.2921656668186188, 0.22049927711486816)
    return ((stored / 255 - mean) / deviation).transpose(2, 0, 1)


def plain_ecddp(events, bins, size):
    length = len(events) // bins
    parts = [events[k * length : (k + 1) * length] for k in range(bins)]
    return np.concatenate([plain_counts(part, size) for part in parts])


PLAIN = {
    "voxels": plain_voxels,
    "ecdp": plain_ecdp,
    "mem": plain_mem,
    "gep": plain_gep,
    "ecddp": plain_ecddp,
}


def rows_of(events):
    return [tuple(map(int, row)) for row in zip(*events, strict=True)]


def reader_of(path, *chunks, height=HEIGHT, width=WIDTH):
    path.touch()
    return Reader(
        path, height, width, sum(len(events.t) for events in chunks), lambda: iter(chunks)
    )


def in_memory(x, y, t, p, height=HEIGHT, width=WIDTH):
    return pack_in_memory(
        Reader(Path("arrays"), height, width, len(t), lambda: iter([Events(x, y, t, p)]))
    )


def whole(stream):
    return stream.slice(stream.t_first, stream.t_last + 1)


def read(path, sensor=None):
    return whole(open_events(path, sensor))


def assert_same_events(found, wanted):
    for name, dtype in zip(("x", "y", "t", "p"), ("u2", "u2", "i8", "u1"), strict=True):
        assert getattr(found, name).dtype == np.dtype(dtype)
        np.testing.assert_array_equal(getattr(found, name), getattr(wanted, name), err_msg=name)


def assert_refused(path, message, sensor=None):
    """Assert that loading raises a one-line error that begins with the path and has a remedy."""
    with pytest.raises(UserError, match=message) as caught:
        open_events(path, sensor)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert "; " in str(caught.value)


def cut(path, count):
    """Remove the last `count` bytes of a file, or that share of the file if `count` is below 1."""
    content = path.read_bytes()
    path.write_bytes(content[: -count if count >= 1 else int((1 - count) * len(content))])
    return path


def evt3(path, *words, header=b"% evt 3.0\n% format EVT3;height=480;width=640\n% end\n"):
    path.write_bytes(
        header + np.array([EVT3[kind] << 12 | value for kind, value in words], "<u2").tobytes()
    )
    return path


def evt3_time(t):
    return ("TIME_HIGH", t >> 12 & 0xFFF), ("TIME_LOW", t & 0xFFF)


def evt3_events(events):
    """Yield the words of each event: time, row and column."""
    for x, y, t, p in zip(*(column.tolist() for column in events), strict=True):
        yield from (*evt3_time(t), ("ADDR_Y", y), ("ADDR_X", p << 11 | x))


def dat(path, records, *, header="% Height 480\n% Width 640\n", kind=(12, 8)):
    """Write a DAT file of `records` (x, y, t, p)."""
    words = np.array([(t, p << 28 | y << 14 | x) for x, y, t, p in records], "<u4")
    path.write_bytes(header.encode() + bytes(kind) + words.tobytes())
    return path


def ddd17(folder, events, *, ticks_per_us=1000, frame_period_us=33_000, images=4):
    (folder / "index").mkdir(parents=True)
    (events.t.astype("<i8") * ticks_per_us).tofile(folder / "events.dat.t")
    np.stack([events.x, events.y, events.p], axis=1).astype("<i2").tofile(folder / "events.dat.xyp")
    stamps = int(events.t[0]) + frame_period_us * np.arange(1, images + 1)
    rows = [
        stamps * ticks_per_us,
        np.searchsorted(events.t, stamps),
        np.searchsorted(events.t, stamps - 50_000),
    ]
    np.save(folder / "index" / "index_50ms.npy", np.stack(rows, axis=1).astype(np.int64))
    return folder


def write_h5(path, content, codec=None):
    codec = BLOSC if codec is None else codec
    with h5py.File(path, "w") as file:
        for name, value in content.items():
            if value is not None:
                options = {"chunks": True, **codec} if codec and np.size(value) > 1 else {}
                file.create_dataset(name, data=value, **options)
    return path


def parts_of(events, count):
    return [
        Events(*part)
        for part in zip(*(np.array_split(column, count) for column in events), strict=True)
    ]


def change_middle_byte(path):
    """Change one byte in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)

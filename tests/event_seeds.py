"""A small valid recording of each event format, for `tools/fuzz.py`."""

import shutil
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import hdf5plugin
import numpy as np
from event_files import dat, ddd17, evt3, evt3_events, random_events, write_h5

DATA = Path(__file__).parent / "data"
HEIGHT, WIDTH = 48, 64
EVENTS = random_events(60, height=HEIGHT, width=WIDTH, end=150_000)
X, Y, T, P = (column.tolist() for column in EVENTS)
COLUMNS = {"x": EVENTS.x, "y": EVENTS.y, "t": EVENTS.t, "p": EVENTS.p}
RATE_US = 1000  # time between the entries of ms_to_idx and ms_map_idx
# Prophesee's events in HDF5: x, y, p, t in 16 bytes.
ROW = np.dtype(
    {
        "names": ["x", "y", "p", "t"],
        "formats": ["<u2", "<u2", "<i2", "<i8"],
        "itemsize": 16,
        "offsets": [0, 2, 4, 8],
    }
)


class Seed(NamedTuple):
    """File or folder and its writer; `sensor`: (height, width) in px, if the file has none."""

    name: str
    write: Callable[[Path], Any]
    sensor: tuple[int, int] | None = None


def evt2(path):
    """Write an EVT2 file: 32-bit words, a time word before each event."""
    words = [
        [8 << 28 | t >> 6, p << 28 | (t & 63) << 22 | x << 11 | y]
        for x, y, t, p in zip(X, Y, T, P, strict=True)
    ]
    header = f"% evt 2.0\n% geometry {WIDTH}x{HEIGHT}\n% end\n".encode()
    path.write_bytes(header + np.array(words, "<u4").tobytes())


def evt21(path):
    """Write an EVT2.1 file: 64-bit words, each with a mask of 32 pixels of a row."""
    words = []
    for x, y, t, p in zip(X, Y, T, P, strict=True):
        words += [
            8 << 60 | t >> 6 << 32,
            p << 60 | (t & 63) << 54 | (x & ~31) << 43 | y << 32 | 1 << (x & 31),
        ]
    sensor = f"width={WIDTH};height={HEIGHT}"
    header = f"% evt 2.1\n% format EVT21;endianness=little;{sensor}\n% end\n".encode()
    path.write_bytes(header + np.array(words, "<u8").tobytes())


def prophesee_rows(path):
    """Write Prophesee's HDF5 without its codec."""
    rows = np.zeros(len(T), ROW)
    for name, column in COLUMNS.items():
        rows[name] = column
    with h5py.File(path, "w") as file:
        file.create_dataset("CD/events", data=rows, chunks=(32,), compression="gzip")
        file.attrs["geometry"] = f"{WIDTH}x{HEIGHT}"


def ecf(path):
    """Write chunks that Prophesee's encoder made, see data/NOTICE.md."""
    content = np.load(DATA / "ecf.npz")
    with h5py.File(path, "w") as file:
        file.create_group("CD")
        properties = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        properties.set_chunk((1000,))
        properties.set_filter(0x8ECF, h5py.h5z.FLAG_OPTIONAL, ())
        space = h5py.h5s.create_simple((len(content["t"]),), (h5py.h5s.UNLIMITED,))
        rows = h5py.h5d.create(file.id, b"CD/events", h5py.h5t.py_create(ROW), space, properties)
        for index, chunk in enumerate(
            np.split(content["chunks"], np.cumsum(content["sizes"])[:-1])
        ):
            rows.write_direct_chunk((1000 * index,), chunk.tobytes())
        file.attrs["geometry"] = "1280x720"


def dsec(path):
    kinds = zip(COLUMNS.items(), ("<u2", "<u2", "<u4", "u1"), strict=True)
    index = np.searchsorted(EVENTS.t, RATE_US * np.arange(T[-1] // RATE_US + 2)).astype("<u8")
    columns = {f"events/{name}": column.astype(kind) for (name, column), kind in kinds}
    write_h5(
        path, columns | {"ms_to_idx": index, "t_offset": np.int64(10**10)}, dict(hdf5plugin.Zstd())
    )


def mvsec(path):
    table = np.stack([EVENTS.x, EVENTS.y, 1.5e9 + EVENTS.t / 1e6, 2.0 * EVENTS.p - 1], axis=1)
    write_h5(path, {"davis/left/events": table}, {"compression": "gzip"})


def rvt(path):
    """Write the HDF5 of RVT's first step."""
    columns = {f"events/{name}": column for name, column in COLUMNS.items()}
    write_h5(path, columns | {"events/height": np.int64(HEIGHT), "events/width": np.int64(WIDTH)})


def m3ed(path):
    index = np.searchsorted(EVENTS.t, RATE_US * np.arange(T[-1] // RATE_US + 1))
    columns = {f"prophesee/left/{name}": column for name, column in COLUMNS.items()}
    size = {"prophesee/left/calib/resolution": np.array([WIDTH, HEIGHT])}
    write_h5(path, columns | {"prophesee/left/ms_map_idx": index} | size, {"compression": "lzf"})


def e2calib(path):
    write_h5(path, dict(COLUMNS), {"compression": "lzf"})


def csv(path):
    lines = [f"{x},{y},{t},{p}" for x, y, t, p in zip(X, Y, T, P, strict=True)]
    path.write_text("\n".join(["x,y,t,p", *lines, ""]))


def metavision_csv(path):
    lines = [f"{x},{y},{p},{t}" for x, y, t, p in zip(X, Y, T, P, strict=True)]
    path.write_text("\n".join([f"% geometry:{WIDTH},{HEIGHT}", *lines, ""]))


def e2vid_text(path):
    lines = [f"{t / 1e6:.6f} {x} {y} {p}" for x, y, t, p in zip(X, Y, T, P, strict=True)]
    path.write_text("\n".join([f"{WIDTH} {HEIGHT}", *lines, ""]))


def ncaltech(path):
    """Write 5 bytes an event: x, y, then the polarity and 23 bits of the time, big-endian."""
    entries = [
        bytes([x, y]) + (p << 23 | t).to_bytes(3, "big")
        for x, y, t, p in zip(X, Y, T, P, strict=True)
    ]
    path.write_bytes(b"".join(entries))


def npy(path):
    rows = np.zeros(len(T), [("t", "<u8"), ("x", "<u2"), ("y", "<u2"), ("p", "u1")])
    for name, column in COLUMNS.items():
        rows[name] = column
    np.save(path, rows)


def rosbag(path):
    """Write a ROS 1 bag with one topic of dvs_msgs/EventArray."""
    from rosbags.rosbag1 import Writer
    from rosbags.typesys import Stores, get_types_from_msg, get_typestore

    store = get_typestore(Stores.ROS1_NOETIC)
    event, array = "dvs_msgs/msg/Event", "dvs_msgs/msg/EventArray"
    store.register(get_types_from_msg("uint16 x\nuint16 y\ntime ts\nbool polarity\n", event))
    fields = "std_msgs/Header header\nuint32 height\nuint32 width\ndvs_msgs/Event[] events\n"
    store.register(get_types_from_msg(fields, array))
    types = store.types
    time = types["builtin_interfaces/msg/Time"]
    rows = [
        types[event](x, y, time(0, 1000 * t), bool(p))
        for x, y, t, p in zip(X, Y, T, P, strict=True)
    ]
    with Writer(path) as writer:
        topic = writer.add_connection("/dvs/events", array, typestore=store)
        for first in range(0, len(rows), 20):
            header = types["std_msgs/msg/Header"](first, time(0, 0), "")
            message = types[array](header, HEIGHT, WIDTH, rows[first : first + 20])
            writer.write(topic, 1000 * T[first], store.serialize_ros1(message, array))


SIZE = (HEIGHT, WIDTH)
SEEDS = {
    "dat": Seed("a.dat", lambda path: dat(path, zip(X, Y, T, P, strict=True))),
    "evt2": Seed("a.raw", evt2),
    "evt21": Seed("a.raw", evt21),
    "evt3": Seed("a.raw", lambda path: evt3(path, *evt3_events(EVENTS))),
    "prophesee-h5": Seed("a.h5", prophesee_rows),
    "ecf": Seed("a.hdf5", ecf),
    "aedat4": Seed("a.aedat4", lambda path: shutil.copyfile(DATA / "davis.aedat4", path)),
    "npz": Seed("a.npz", lambda path: np.savez_compressed(path, **COLUMNS), SIZE),
    "npy": Seed("a.npy", npy, SIZE),
    "csv": Seed("a.csv", csv, SIZE),
    "metavision-csv": Seed("a.csv", metavision_csv, SIZE),
    "e2vid-text": Seed("a.txt", e2vid_text),
    "ncaltech": Seed("a.bin", ncaltech, SIZE),
    "dsec-h5": Seed("a.h5", dsec),
    "mvsec-h5": Seed("a.hdf5", mvsec),
    "rvt-h5": Seed("a.h5", rvt),
    "m3ed-h5": Seed("a.h5", m3ed),
    "e2calib-h5": Seed("a.h5", e2calib, SIZE),
    "ddd17-folder": Seed(
        "dir0", lambda path: ddd17(path, random_events(60, height=260, width=346, end=150_000))
    ),
}
if find_spec("rosbags"):
    SEEDS["rosbag"] = Seed("a.bag", rosbag)

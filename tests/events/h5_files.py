"""Writes HDF5 recordings for tests, in the dtypes and with the codec of the official files."""

import h5py
import hdf5plugin
import numpy as np

BLOSC = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)
OFFSET = 49_512_345_678
EPOCH = 1_506_117_800.123456


def dsec(path, x, y, t, p, **changes):
    """`changes`: datasets that replace the right ones, None for those that are left out."""
    t = np.asarray(t)
    milliseconds = np.arange(int(t.max()) // 1000 + 2) if len(t) else np.arange(1)
    index = np.searchsorted(t, 1000 * milliseconds).astype("<u8")
    content = {
        "events/x": np.asarray(x, "<u2"),
        "events/y": np.asarray(y, "<u2"),
        "events/t": t.astype("<u4"),
        "events/p": np.asarray(p, "u1"),
        "ms_to_idx": index,
        "t_offset": np.int64(OFFSET),
    } | {name.replace("__", "/"): value for name, value in changes.items()}
    return write(path, content)


def rvt(path, x, y, t, p, height=48, width=64, **changes):
    content = {
        "events/x": np.asarray(x, "<u2"),
        "events/y": np.asarray(y, "<u2"),
        "events/t": np.asarray(t, "<i8"),
        "events/p": np.asarray(p, "i1"),
        "events/height": np.int64(height),
        "events/width": np.int64(width),
    } | {name.replace("__", "/"): value for name, value in changes.items()}
    return write(path, content)


def mvsec(path, x, y, t, p, rows=None):
    """Times `t` in us after the epoch of the file."""
    seconds = EPOCH + np.asarray(t) / 1e6
    table = np.stack([x, y, seconds, 2.0 * np.asarray(p) - 1], axis=1) if rows is None else rows
    return write(path, {"davis/left/events": table}, codec={})


def write(path, content, codec=BLOSC):
    with h5py.File(path, "w") as file:
        for name, value in content.items():
            if value is None:
                continue
            options = codec if np.ndim(value) and np.size(value) else {}
            file.create_dataset(name, data=value, chunks=True if options else None, **options)
    return path

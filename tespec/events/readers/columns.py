"""HDF5 files with a column each for x, y, time and polarity, in the layouts of public repositories."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, hdf5, resolve_size
from tespec.events.readers.arrays import as_events


class Layout(NamedTuple):
    """Names of the columns x, y, t, p; type of the times; names of the sensor's width and height, in one or two."""

    names: tuple[str, ...]
    times: str  # `numpy.dtype.kind`s: integers are in us, floats in s
    size: tuple[str, ...] = ()


LAYOUTS = (
    # RVT's `_td.dat.h5` and `_td.h5`: uzh-rpg/RVT, scripts/genx/preprocess_dataset.py, H5Reader
    Layout(hdf5.COLUMNS, "iu", ("events/width", "events/height")),
    # M3ED, left camera: daniilidis-group/m3ed, build_system/bag_processing/rosbag2hdf5.py, Event
    # and insert_calibration
    Layout(
        tuple(f"prophesee/left/{name}" for name in "xytp"),
        "iu",
        ("prophesee/left/calib/resolution",),
    ),
    # TimoStoff/events_contrast_maximization, tools/event_packagers.py; the attribute
    # sensor_resolution may be a guess
    Layout(tuple(f"events/{name}s" for name in "xytp"), "f"),
    # uzh-rpg/e2calib, python/conversion/h5writer.py
    Layout(tuple("xytp"), "iu"),
)


def layout_of(path: Path) -> Layout | None:
    """Return the layout of an HDF5 file, or None; columns at the file's root are events only if all four are there."""
    for layout in LAYOUTS:
        held = [hdf5.holds(path, name) for name in layout.names]
        if all(held) or (any(held) and layout.names[0] != "x"):
            return layout
    return None


def reads(path: Path) -> bool:
    """Whether an HDF5 file has columns of events."""
    return path.suffix.lower() in hdf5.SUFFIXES and layout_of(path) is not None


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a file of one of the `LAYOUTS`, with integer times in us or floating-point times in s."""
    layout = layout_of(path)
    if layout is None:
        raise UserError(path, "has no columns of events", "save x, y, t, p as .npz")
    named = None
    if layout.size and all(hdf5.holds(path, name) for name in layout.size):
        with hdf5.translate_errors(path, "the size of the sensor"):
            width, height = (
                int(side) for name in layout.size for side in np.ravel(hdf5.part(path, name)[()])
            )
        named = height, width
    kind = hdf5.part(path, layout.names[2]).dtype
    if kind.kind not in layout.times:
        unit = "seconds as floats" if layout.times == "f" else "microseconds as integers"
        what = f"{layout.names[2]} is {kind}, but in this layout times are {unit}"
        raise UserError(path, what, "write them so, or save x, y, t, p as .npz")
    return read_columns(
        path, layout.names, layout.times, resolve_size(path, sensor, named, default)
    )


def read_columns(
    path: Path, names: Sequence[str], times: str, size: Size, offset: int = 0
) -> Reader:
    """Return the reader of four columns; `times` are `numpy.dtype.kind`s, and `offset` in us is added to each time."""
    kinds = ("iub", "iub", times, "iub")
    count, *others = (
        len(hdf5.dataset(path, name, kind)) for name, kind in zip(names, kinds, strict=True)
    )
    if any(length != count for length in others):
        raise UserError(
            path, f"its columns x, y, t, p have different lengths {[count, *others]}", hdf5.AGAIN
        )

    def chunks() -> Iterator[Events]:
        for columns in hdf5.read_slices(path, *names):
            events = as_events(path, *columns)
            yield events._replace(t=events.t + offset)

    return Reader(path, *size, count, chunks)

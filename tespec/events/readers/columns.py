"""HDF5 files with columns of x, y, time and polarity, in the layouts of public repositories."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, hdf5, resolve_size
from tespec.events.readers.arrays import as_events


class Layout(NamedTuple):
    """Names of the datasets in a published layout."""

    names: tuple[str, ...]  # of the columns x, y, t, p
    times: str  # `numpy.dtype.kind`s: integers are in us, floats in s
    size: tuple[str, ...] = ()  # width and height of the sensor, in one or two datasets


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
    """Return the layout of an HDF5 file, or None.

    Columns at the file's root are events only if it has all four.
    """
    for layout in LAYOUTS:
        exist = [hdf5.has_datasets(path, name) for name in layout.names]
        if all(exist) or (any(exist) and layout.names[0] != "x"):
            return layout
    return None


def reads(path: Path) -> bool:
    """Whether an HDF5 file has columns of events."""
    return path.suffix.lower() in hdf5.SUFFIXES and layout_of(path) is not None


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a file of one of the `LAYOUTS`, with integer times in us or floating-point times in s.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    layout = layout_of(path)
    if layout is None:
        raise UserError(path, "has no columns of events", "save x, y, t, p as .npz")
    named = None
    if layout.size and all(hdf5.has_datasets(path, name) for name in layout.size):
        with hdf5.translate_errors(path, "the size of the sensor"):
            sides = np.concatenate(
                [np.ravel(hdf5.checked_dataset(path, name)[()]) for name in layout.size]
            )
            width, height = map(int, sides)
        named = height, width
    dtype = hdf5.checked_dataset(path, layout.names[2]).dtype
    if dtype.kind not in layout.times:
        unit = "seconds as floats" if layout.times == "f" else "microseconds as integers"
        raise UserError(
            path,
            f"{layout.names[2]} is {dtype}, but in this layout times are {unit}",
            "write them so, or save x, y, t, p as .npz",
        )
    size = resolve_size(path, sensor, named, default)
    return read_columns(path, layout.names, layout.times, size)


def read_columns(
    path: Path, names: Sequence[str], times: str, size: Size, offset: int = 0
) -> Reader:
    """Return the reader of four columns.

    Args:
        path: the HDF5 file.
        names: names of the columns x, y, t, p.
        times: allowed `numpy.dtype.kind`s of the times.
        size: (height, width) of the sensor in px.
        offset: time in us that is added to t.
    """
    kinds = zip(names, ("iub", "iub", times, "iub"), strict=True)
    lengths = [len(hdf5.dataset(path, name, kind)) for name, kind in kinds]
    if len(set(lengths)) > 1:
        raise UserError(
            path, f"its columns x, y, t, p have different lengths {lengths}", hdf5.COPY_AGAIN
        )

    def chunks() -> Iterator[Events]:
        for columns in hdf5.read_slices(path, *names):
            events = as_events(path, *columns)
            yield events._replace(t=events.t + offset)

    return Reader(path, *size, lengths[0], chunks)

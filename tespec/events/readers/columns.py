"""HDF5 files with columns or rows of events, in the layouts of data sets and repositories."""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np

from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.events.readers import Events, Reader, hdf5, resolve_size
from tespec.events.readers.arrays import as_events

LARGEST_OFFSET = 1 << 60  # us; the sum with a 32-bit time fits 64 bits


class Layout(NamedTuple):
    """Names of the datasets in a published layout."""

    names: tuple[str, ...]  # of the columns x, y, t, p, or of one dataset with rows of them
    times: str  # `numpy.dtype.kind`s: integers are in us, floats in s
    size: tuple[str, ...] = ()  # width and height of the sensor, in one or two datasets
    sensor: Size | None = None  # (height, width) in px of the data set
    offset: str = ""  # time in us that is added to t
    ms_index: str = ""  # by which a file without the offset is recognised


# `events.h5`, with times on the clock of the labels
DSEC = Layout(hdf5.COLUMNS, "iu", sensor=(480, 640), offset="t_offset", ms_index="ms_to_idx")
# `_data.hdf5`, left camera: times since 1970, polarities -1 and 1
MVSEC = Layout(("davis/left/events",), "f", sensor=(260, 346))
# uzh-rpg/e2calib, python/conversion/h5writer.py: at the root, where part of the names says little
E2CALIB = Layout(tuple("xytp"), "iu")
LAYOUTS = (
    DSEC,
    MVSEC,
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
    E2CALIB,
)


def _is_in(path: Path, layout: Layout) -> bool:
    """Whether an HDF5 file has a layout, at least in part: a damaged file is refused later."""
    exist = [hdf5.has_datasets(path, name) for name in layout.names]
    has_events = all(exist) if layout is E2CALIB else any(exist)
    return has_events and (
        not layout.offset or hdf5.has_datasets(path, layout.offset, layout.ms_index)
    )


def reads(path: Path) -> bool:
    """Whether an HDF5 file has events in one of the `LAYOUTS`."""
    is_hdf5 = path.suffix.lower() in hdf5.SUFFIXES
    return is_hdf5 and any(_is_in(path, layout) for layout in LAYOUTS)


def open_recording(path: Path, sensor: Size | None = None, default: Size | None = None) -> Reader:
    """Open a file of one of the `LAYOUTS`, with integer times in us or floating-point times in s.

    Args:
        path: the file.
        sensor: (height, width) in px given by the user.
        default: (height, width) in px if nothing else names it, see `resolve_size`.
    """
    layout = next(layout for layout in LAYOUTS if _is_in(path, layout))
    size = resolve_size(path, sensor, _sensor_in(path, layout), default or layout.sensor)
    count = _count_events(path, layout)
    offset = 0
    if layout.offset:
        with hdf5.translate_errors(path, layout.offset):
            offset = int(hdf5.dataset(path, layout.offset, "iu", 0)[()])
        if abs(offset) > LARGEST_OFFSET:
            raise UserError(path, f"{layout.offset} is out of range: {offset}", hdf5.COPY_AGAIN)

    def chunks() -> Iterator[Events]:
        for columns in hdf5.read_slices(path, *layout.names):
            events = as_events(path, *(columns if len(columns) == 4 else columns[0].T))
            yield events._replace(t=events.t + offset)

    return Reader(path, *size, count, chunks)


def _sensor_in(path: Path, layout: Layout) -> Size | None:
    """Read the size of the sensor, if the file names it."""
    if not layout.size or not all(hdf5.has_datasets(path, name) for name in layout.size):
        return None
    with hdf5.translate_errors(path, "the size of the sensor"):
        sides = [np.ravel(hdf5.checked_dataset(path, name)[()]) for name in layout.size]
        width, height = map(int, np.concatenate(sides))
    return height, width


def _count_events(path: Path, layout: Layout) -> int:
    """Return the number of events; refuse columns of other types or different lengths."""
    if len(layout.names) == 1:
        shape = hdf5.dataset(path, *layout.names, "f", 2).shape
        if shape[1] != 4:
            raise UserError(
                path, f"{layout.names[0]} has the shape {shape}, not (events, 4)", hdf5.COPY_AGAIN
            )
        return int(shape[0])
    times = hdf5.checked_dataset(path, layout.names[2])
    if times.dtype.kind not in layout.times:
        unit = "seconds as floats" if layout.times == "f" else "microseconds as integers"
        raise UserError(
            path,
            f"{layout.names[2]} is {times.dtype}, but in this layout times are {unit}",
            "write them so, or save x, y, t, p as .npz",
        )
    lengths = [len(hdf5.dataset(path, name, "iub" + layout.times)) for name in layout.names]
    if len(set(lengths)) > 1:
        raise UserError(
            path, f"its columns x, y, t, p have different lengths {lengths}", hdf5.COPY_AGAIN
        )
    return lengths[0]

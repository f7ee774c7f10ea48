"""HDF5 files that are whole and lie: datasets of other kinds, shapes and filters, links, chunks that claim too much."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from harm import Rng
from target import Target
from targets_recordings import RECORDINGS, check_whole

KINDS: tuple[Any, ...] = (
    "<u2", "u1", "<i8", "<u8", "<f4", "<f8", "<f2", "?", "S7", "V3", h5py.string_dtype(), h5py.vlen_dtype(np.int32),
    np.dtype([("a", "<i4"), ("b", "<f8")]), np.dtype(("<f8", (1000,))), h5py.ref_dtype, "<c8",
)  # fmt: skip
LENGTHS = (0, 1, 9, 60, 61, 1 << 20, 10**9, 10**12, 2**62)
OTHERS = (None, 0, 1, 2, 4, 9, 12, 1 << 14, 10**9)
FILTERS: tuple[dict[str, Any], ...] = (
    {}, {"compression": "gzip"}, {"compression": "lzf"}, {"scaleoffset": 3}, {"shuffle": True}, {"fletcher32": True},
    dict(hdf5plugin.Zstd()), dict(hdf5plugin.LZ4()), dict(hdf5plugin.Blosc()), dict(hdf5plugin.Bitshuffle()),
    dict(hdf5plugin.Blosc2()), dict(hdf5plugin.BZip2()),
)  # fmt: skip


def harm_file(path: Path, rng: Rng) -> None:
    """Put something else in the place of a dataset, or write other bytes into one of its chunks."""
    with h5py.File(path, "r+") as file:
        names: list[str] = []
        file.visititems(lambda name, found: names.append(name) if isinstance(found, h5py.Dataset) else None)
        name = names[rng.integers(len(names))]
        if rng.random() < 0.4 and file[name].chunks:
            _write_chunk(file[name], rng)
            return
        del file[name]
        kind = rng.integers(7)
        if kind == 0:
            file[name] = h5py.SoftLink(names[rng.integers(len(names))])
        elif kind == 1:
            file[name] = h5py.ExternalLink(str(path.parent / "other.h5"), "/a")
        elif kind == 2:
            layout = h5py.VirtualLayout((60,), "<u2")
            layout[:] = h5py.VirtualSource(str(path), names[0], (60,))
            file.create_virtual_dataset(name, layout)
        elif kind == 3:
            file.create_group(name)
        else:
            _create(file, name, rng)


def _create(file: h5py.File, name: str, rng: Rng) -> None:
    shape = tuple(int(LENGTHS[rng.integers(len(LENGTHS))]) if not axis else _other(rng) for axis in range(4))
    shape = shape[: rng.integers(0, 5)]
    options: dict[str, Any] = {}
    if shape and all(shape) and rng.random() < 0.7:
        chunks = tuple(min(side, int(rng.choice([1, 4, 64, 1 << 12]))) for side in shape)
        options = {"chunks": chunks} | FILTERS[rng.integers(len(FILTERS))]
    try:
        file.create_dataset(name, shape, KINDS[rng.integers(len(KINDS))], **options)
    except (OSError, ValueError, TypeError, RuntimeError, OverflowError):
        file.attrs["impossible"] = True


def _other(rng: Rng) -> int:
    return int(OTHERS[rng.integers(1, len(OTHERS))] or 0)


def _write_chunk(found: h5py.Dataset, rng: Rng) -> None:
    place = (0,) * found.ndim
    skipped, packed = found.id.read_direct_chunk(place)
    content = bytearray(packed)
    kind = rng.integers(4)
    if kind == 0:
        content[4:8] = rng.bytes(4)
    elif kind == 1:
        content = bytearray(rng.bytes(int(rng.integers(0, 3000))))
    elif kind == 2:
        skipped = int(rng.integers(0, 4))
    for at in rng.integers(0, max(1, len(content)), 3):
        content[at : at + 1] = rng.bytes(1)
    found.id.write_direct_chunk(place, bytes(content), filter_mask=skipped)


def _read_any(path: Path) -> None:
    check_whole(path)
    require_within(path)


def _read_depth(path: Path) -> None:
    RECORDINGS["depth"].read(path)
    require_within(path)


def require_within(path: Path) -> None:
    """All of what was read lies in the file.

    Raises:
        AssertionError: some of it does not.
    """

    def look(name: str, link: Any) -> None:
        assert not isinstance(link, h5py.ExternalLink), f"{name} was read from another file"

    with h5py.File(path, "r") as file:
        file.visititems_links(look)


HDF5: dict[str, Target] = {
    "lying dsec": Target(RECORDINGS["dsec"].write, _read_any, harm_file),
    "lying rvt": Target(RECORDINGS["rvt"].write, _read_any, harm_file),
    "lying mvsec": Target(RECORDINGS["mvsec"].write, _read_any, harm_file),
    "lying depth": Target(RECORDINGS["depth"].write, _read_depth, harm_file),
}

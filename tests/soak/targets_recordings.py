"""Recordings and their labels, as tests/events writes them, and what readers promise of them."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import event_files
import numpy as np
from event_files import (
    ADDR_Y,
    BASE_X,
    VECT_8,
    VECT_12,
    aedat4,
    ddd17,
    evt2,
    evt2_event,
    evt3,
    evt3_events,
    evt3_time,
    packet,
    parts_of,
    random_events,
)
from harm import bytes_of_one
from PIL import Image
from target import Target

from tespec.core.errors import UserError
from tespec.datasets.dsec import NUMBER
from tespec.datasets.labels import DepthMaps, MaskFiles, mask_names
from tespec.datasets.mvsec import read_times
from tespec.datasets.prophesee import (
    LABELS,
    REPRESENTATIONS,
    ArchiveSource,
    PropheseeProtocol,
    box_labels,
    choose_boxes,
    choose_frames,
    raw_boxes,
)
from tespec.datasets.sources import read_rectification
from tespec.events import ArrayStream, event_histogram, load_events
from tespec.events.packing import pack
from tespec.events.readers.arrays import load_array
from tespec.events.readers.hdf5 import part
from tespec.events.readers.prophesee import write_dat
from tespec.sample.prophesee import BOX

RULES = PropheseeProtocol("rvt", "rvt", 250, False, 30, 10, 0.9, ())
EVENTS = random_events(60, height=260, width=346, end=150_000)
SMALL = random_events(60, height=48, width=64, end=150_000)
DEPTH = "davis/left/depth_image_raw"


def check_whole(path: Path) -> None:
    """Hold events to what the interface promises of every recording."""
    stream = load_events(path) if path.suffix not in (".npy", ".npz") else load_events(path, 260, 346)
    for t0, t1 in [(stream.t_first, stream.t_last + 1), (stream.t_first, stream.t_first + 40_000), (60_000, 61_500)]:
        events = stream.slice(t0, t1)
        assert (events.t[1:] >= events.t[:-1]).all()
        if len(events.t):
            assert t0 <= events.t[0] <= events.t[-1] < t1
            assert events.x.max() < stream.width
            assert events.y.max() < stream.height
            assert events.p.max() <= 1
        if max(stream.height, stream.width) < 2_000:
            event_histogram(*events, t_start=t0, t_end=t1, bins=2, height=stream.height, width=stream.width)
    assert len(stream.slice(stream.t_first, stream.t_last + 1).t) == stream.count


def write_evt3(folder: Path) -> Path:
    vectors = [*evt3_time(160_000), (ADDR_Y, 9), (BASE_X, 40), *[(VECT_12, 0xF0F), (VECT_8, 0x81)] * 5]
    return evt3(folder / "a.raw", *evt3_events(EVENTS), *vectors)


def write_evt2(folder: Path) -> Path:
    rows = zip(*(column.tolist() for column in EVENTS), strict=True)
    return evt2(folder / "a.raw", *(word for row in rows for word in evt2_event(*row)))


def saved(name: str, save: Callable[[Path], Any]) -> Callable[[Path], Path]:
    """Write a file of this name; gives its path."""

    def write(folder: Path) -> Path:
        save(folder / name)
        return folder / name

    return write


def save_boxes(path: Path) -> None:
    boxes = np.zeros(30, BOX)
    boxes["t"], boxes["w"], boxes["h"] = np.arange(30) * 250_000, 20, 30
    np.save(path, boxes)


def read_boxes(path: Path) -> None:
    kept = choose_boxes(raw_boxes(load_array(path), path, 2), RULES, 2, (240, 304), training=True)
    labels = box_labels(kept, choose_frames(kept.t, RULES), 1)
    assert all(np.isfinite(labels[index].corners).all() for index in range(len(labels)))


def save_archive(path: Path) -> None:
    place = path / REPRESENTATIONS
    place.mkdir(parents=True)
    (path / "labels_v2").mkdir()
    frames = np.random.default_rng(0).integers(0, 3, (9, 20, 6, 8), np.uint8)
    event_files.write_h5(place / "event_representations.h5", {"data": frames})
    np.save(place / "timestamps_us.npy", 50_000 * np.arange(1, 10))
    np.save(place / "objframe_idx_2_repr_idx.npy", np.array([3, 8]))
    boxes = np.zeros(5, BOX)
    boxes["t"] = 50_000 * np.array([4, 4, 4, 9, 9])
    np.savez(path / LABELS, labels=boxes, objframe_idx_2_label_idx=np.array([0, 3]))


def read_archive(path: Path) -> None:
    source = ArchiveSource(path)
    source.labels(2)
    assert source.histograms(source.windows(), 10, "rvt", source.region).max() <= 10


def write_depth(folder: Path) -> Path:
    maps = np.random.default_rng(0).uniform(1, 80, (6, 9, 12)).astype(np.float32)
    return event_files.write_h5(folder / "a_gt.hdf5", {DEPTH: maps, f"{DEPTH}_ts": 1.5e9 + np.arange(6) / 20}, codec={})


def read_depth(path: Path) -> None:
    count = len(part(path, DEPTH))
    if len(read_times(path, f"{DEPTH}_ts")) != count:
        raise UserError(path, "has other times than maps", "copy it again")  # as the dataset has it
    maps = DepthMaps(path, DEPTH, tuple(range(count)))
    assert all(not (maps[index] < 0).any() for index in range(len(maps)))


def write_masks(folder: Path) -> Path:
    (folder / "masks").mkdir()
    for number in range(3):
        mask = np.random.default_rng(number).integers(0, 6, (9, 12), np.uint8)
        Image.fromarray(mask).save(folder / "masks" / f"{number:06d}.png")
    shutil.make_archive(str(folder / "a"), "zip", folder / "masks")
    shutil.rmtree(folder / "masks")
    return folder / "a.zip"


def read_masks(path: Path) -> None:
    masks = MaskFiles(path, tuple(mask_names(path, NUMBER).values()))
    masks.checksums()
    assert all(masks[index].ndim == 2 for index in range(len(masks)))


EVENT_FILES: dict[str, Callable[[Path], Path]] = {
    "dat": saved("a.dat", lambda path: write_dat(path, *EVENTS, 260, 346)),
    "evt2": write_evt2,
    "evt3": write_evt3,
    "aedat4": lambda folder: aedat4(folder / "a.aedat4", *(packet(part) for part in parts_of(SMALL, 4))),
    "npy": saved("a.npy", lambda path: np.save(path, np.stack(EVENTS, axis=1))),
    "npz events": saved("a.npz", lambda path: np.savez_compressed(path, **EVENTS._asdict())),
    "store": lambda folder: pack(ArrayStream(*EVENTS, 260, 346), folder / "a"),
    "ddd17": lambda folder: ddd17(folder / "dir0", EVENTS),
    "dsec": lambda folder: event_files.dsec(folder / "a.h5", *EVENTS),
    "rvt": lambda folder: event_files.rvt(folder / "a.h5", *EVENTS, height=260, width=346),
    "mvsec": lambda folder: event_files.mvsec(folder / "a.hdf5", *EVENTS),
}
MAP = {"rectify_map": np.ones((9, 12, 2), np.float32)}
RECORDINGS: dict[str, Target] = {
    **{kind: Target(write, check_whole, bytes_of_one) for kind, write in EVENT_FILES.items()},
    "boxes": Target(saved("a_bbox.npy", save_boxes), read_boxes, bytes_of_one),
    "archive": Target(saved("a", save_archive), read_archive, bytes_of_one),
    "depth": Target(write_depth, read_depth, bytes_of_one),
    "masks": Target(write_masks, read_masks, bytes_of_one),
    "rectification": Target(
        lambda folder: event_files.write_h5(folder / "rectify_map.h5", MAP),
        lambda path: read_rectification(path, 9, 12),
        bytes_of_one,
    ),
}

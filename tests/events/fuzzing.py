"""Recordings and labels to be damaged: how each is written and read, and what readers promise."""

import shutil
import struct

import h5_files
import numpy as np
from event_cases import random_events
from PIL import Image
from recording_files import ADDR_Y, BASE_X, VECT_8, VECT_12, ddd17, evt2, evt2_event, evt3, evt3_events, evt3_time
from test_aedat4 import packet, parts_of, recording

from tespec.core.errors import UserError
from tespec.datasets.dsec import NUMBER as DSEC_NUMBER
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
from tespec.events import ArrayStream, event_histogram
from tespec.events.packing import pack
from tespec.events.readers.arrays import load_array
from tespec.events.readers.hdf5 import part
from tespec.events.readers.prophesee import write_dat
from tespec.sample.prophesee import BOX

RULES = PropheseeProtocol("rvt", "rvt", 250, False, 30, 10, 0.9, ())
EVENTS = random_events(60, height=260, width=346, end=150_000)
LENGTHS = (0, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**64 - 1)


def write_evt3(folder):
    vectors = [*evt3_time(160_000), (ADDR_Y, 9), (BASE_X, 40), *[(VECT_12, 0xF0F), (VECT_8, 0x81)] * 5]
    return evt3(folder / "a.raw", *evt3_events(EVENTS), *vectors)


def write_evt2(folder):
    rows = zip(*(column.tolist() for column in EVENTS), strict=True)
    return evt2(folder / "a.raw", *(word for row in rows for word in evt2_event(*row)))


def write_dat_file(folder):
    write_dat(folder / "a.dat", *EVENTS, 260, 346)
    return folder / "a.dat"


def write_aedat4(folder):
    return recording(folder / "a.aedat4", *(packet(part) for part in parts_of(EVENTS_SMALL, 4)))


EVENTS_SMALL = random_events(60, height=48, width=64, end=150_000)
WRITERS = {
    "dat": write_dat_file,
    "evt2": write_evt2,
    "evt3": write_evt3,
    "aedat4": write_aedat4,
    "store": lambda folder: pack(ArrayStream(*EVENTS, 260, 346), folder / "a"),
    "ddd17": lambda folder: ddd17(folder / "dir0", EVENTS),
    "dsec": lambda folder: h5_files.dsec(folder / "a.h5", *EVENTS),
    "rvt": lambda folder: h5_files.rvt(folder / "a.h5", *EVENTS, height=260, width=346),
    "mvsec": lambda folder: h5_files.mvsec(folder / "a.hdf5", *EVENTS),
}


def write_array(folder):
    boxes = np.zeros(30, [("t", "<i8"), ("x", "<f4"), ("class_id", "<u4")])
    np.save(folder / "a.npy", boxes)
    return folder / "a.npy"


WRITERS["npy"] = write_array
READERS = {"npy": load_array}


def write_boxes(folder):
    boxes = np.zeros(30, BOX)
    boxes["t"], boxes["w"], boxes["h"] = np.arange(30) * 250_000, 20, 30
    np.save(folder / "a_bbox.npy", boxes)
    return folder / "a_bbox.npy"


def read_all_boxes(path):
    boxes = raw_boxes(load_array(path), path, 2)
    kept = choose_boxes(boxes, RULES, 2, (240, 304), training=True)
    labels = box_labels(kept, choose_frames(kept.t, RULES), 1)
    assert all(np.isfinite(labels[index].corners).all() for index in range(len(labels)))


def write_archive(folder):
    place = folder / "a" / REPRESENTATIONS
    place.mkdir(parents=True)
    (folder / "a" / "labels_v2").mkdir()
    frames = np.random.default_rng(0).integers(0, 3, (9, 20, 6, 8), np.uint8)
    h5_files.write(place / "event_representations.h5", {"data": frames})
    np.save(place / "timestamps_us.npy", 50_000 * np.arange(1, 10))
    np.save(place / "objframe_idx_2_repr_idx.npy", np.array([3, 8]))
    np.savez(folder / "a" / LABELS, labels=np.zeros(5, BOX), objframe_idx_2_label_idx=np.array([0, 3]))
    return folder / "a"


def read_archive(path):
    source = ArchiveSource(path)
    windows = source.windows()
    source.labels(2)
    assert source.histograms(windows, 10, "rvt", source.region).max() <= 10


def write_depth(folder):
    maps = np.random.default_rng(0).uniform(1, 80, (6, 9, 12)).astype(np.float32)
    content = {"davis/left/depth_image_raw": maps, "davis/left/depth_image_raw_ts": 1.5e9 + np.arange(6) / 20}
    return h5_files.write(folder / "a_gt.hdf5", content, codec={})


def read_depth(path):
    count = len(part(path, "davis/left/depth_image_raw"))
    if len(read_times(path, "davis/left/depth_image_raw_ts")) != count:
        raise UserError(path, "has other times than maps", "copy it again")  # as the dataset has it
    maps = DepthMaps(path, "davis/left/depth_image_raw", tuple(range(count)))
    assert all(not (maps[index] < 0).any() for index in range(len(maps)))


def write_rectification(folder):
    return h5_files.write(folder / "rectify_map.h5", {"rectify_map": np.ones((9, 12, 2), np.float32)})


def write_masks(folder):
    (folder / "masks").mkdir()
    for number in range(3):
        mask = np.random.default_rng(number).integers(0, 6, (9, 12), np.uint8)
        Image.fromarray(mask).save(folder / "masks" / f"{number:06d}.png")
    shutil.make_archive(str(folder / "a"), "zip", folder / "masks")
    shutil.rmtree(folder / "masks")
    return folder / "a.zip"


def read_masks(path):
    masks = MaskFiles(path, tuple(mask_names(path, DSEC_NUMBER).values()))
    masks.checksums()
    assert all(masks[index].ndim == 2 for index in range(len(masks)))


WRITERS |= {
    "boxes": write_boxes,
    "archive": write_archive,
    "depth": write_depth,
    "rectification": write_rectification,
    "masks": write_masks,
}
READERS |= {
    "boxes": read_all_boxes,
    "archive": read_archive,
    "depth": read_depth,
    "rectification": lambda path: read_rectification(path, 9, 12),
    "masks": read_masks,
}


def damage(path, rng):
    """Cut the file off, change or insert bytes, or put a large number where a length may stand."""
    data = bytearray(path.read_bytes())
    if not data:
        return
    kind = rng.integers(0, 8)
    if kind == 0:
        data = data[: rng.integers(0, len(data))]
    elif kind == 1:
        place = int(rng.integers(0, len(data)))
        data[place:place] = rng.bytes(int(rng.integers(1, 40)))
    elif kind == 2 and len(data) > 8:
        place = int(rng.integers(0, len(data) - 8))
        data[place : place + 8] = struct.pack("<Q", LENGTHS[rng.integers(len(LENGTHS))])
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
            assert events.p.max() <= 1
        if max(stream.height, stream.width) < 2_000 and t0 < t1:
            event_histogram(*events, t_start=t0, t_end=t1, bins=2, height=stream.height, width=stream.width)
    assert len(stream.slice(stream.t_first, stream.t_last + 1).t) == stream.count

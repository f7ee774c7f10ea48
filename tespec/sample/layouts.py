"""Write recordings and their labels in the layouts of the data sets."""

import zipfile
from pathlib import Path
from typing import NamedTuple

import h5py
import hdf5plugin
import numpy as np
import numpy.typing as npt
from PIL import Image
from scipy.spatial import KDTree

from tespec.events.readers import Events
from tespec.events.readers.dat import write_dat
from tespec.sample.render import CAR, PERSON, RIDER, SIGN, TRUCK, TWO_WHEELER
from tespec.sample.street import FRAME_RATE, PERIOD_US, Film, Frame

DDD17_CLASSES = ("flat", "background", "object", "vegetation", "human", "vehicle")
DDD17_STRIDE = 3  # rendered frames per image: 30 ms
DDD17_FIRST_LABEL_US = 120_000

DSEC_MASKS = ("11classes", "19classes")
DSEC_STRIDE = 5  # rendered frames per label: 50 ms
DSEC_OFFSET_US = 49_500_000_000  # offset of the events' clock; labels have absolute timestamps
IGNORE = 255
DISTORTION = 0.09  # relative displacement of the image corners by the lens
BLOSC = hdf5plugin.Blosc(cname="zstd", clevel=1, shuffle=hdf5plugin.Blosc.SHUFFLE)

MVSEC_EPOCH_US = 1_506_118_000_123_456  # event timestamps are in seconds since 1970
DEPTH_STRIDE, IMAGE_STRIDE = 5, 2  # rendered frames per depth map and per image: 20 and 50 Hz
DEPTHS_BEFORE = 2  # depth maps with timestamps before the first event, as in the official files
EMPTY = 7  # index of a depth map without any return
RANGE = 100.0  # of the lidar, m
# limits of the lidar's field of view, as shares of the image height
LOWEST_BEAM, HIGHEST_BEAM = 0.95, 0.12
GAPS = 0.2  # share of pixels without a return
SHIFT = 2  # px by which rectified depth maps are shifted relative to raw ones

# 40 bytes per box (prophesee-ai/prophesee-automotive-dataset-toolbox, src/io/box_loading.py).
FIELDS = ("t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence")
BOX = np.dtype(
    list(zip(FIELDS, ("<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4"), strict=True)),
    align=True,
)
SEEN = 10  # visible px that an instance needs to get a box
BEYOND = 3.0  # px by which a box extends past the image border that cuts it off
SIGN_TRACK = 100_000  # track id of signs, which have no instances
LABEL_RATES = {"gen1": 4, "1mpx": 60}  # labels per second

OBJECTS = ("car", "truck", "person", "two_wheeler", "street")
OBJECT_STRIDE = 10  # rendered frames between two from which crops are taken
# min px of an object's shorter side; context on each side as a share of the longer one
SMALLEST, MARGIN = 12, 0.25
SIDE = 40  # px of a crop of empty street

# Label of each class of `render`, in their order; of DSEC's, only the 19 of Cityscapes separate sky
# and terrain.
DDD17_NUMBERS = np.array([0, 0, 3, 1, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5, 5], np.uint8)
DSEC_NUMBERS = np.array(
    [
        [5, 6, 7, 0, 1, 9, 2, 4, 10, 7, 3, 3, 8, 8, 8],
        [0, 1, 9, 10, 2, 3, 4, 5, 7, 8, 11, 12, 13, 14, 18],
    ],
    np.uint8,
)
# An instance with multiple classes gets the first one listed here: a bicycle and its rider are one
# two-wheeler.
BOX_NUMBERS = {
    "gen1": {TRUCK: 0, CAR: 0, PERSON: 1},
    "1mpx": {TWO_WHEELER: 1, RIDER: 1, TRUCK: 3, CAR: 2, PERSON: 0, SIGN: 5},
    "objects": {TWO_WHEELER: 3, RIDER: 3, TRUCK: 1, CAR: 0, PERSON: 2},
}


class SampleSensor(NamedTuple):
    """Height and width in px, and the number of labelled rows."""

    height: int
    width: int
    label_rows: int


class SampleRecording(NamedTuple):
    """Recording to make; `seed` is that of its street, unique within a world."""

    dataset: str
    split: str
    name: str
    sensor: SampleSensor
    seconds: float
    seed: int
    night: bool


def concatenate(parts: list[Events]) -> Events:
    """Concatenate the events of a film."""
    return Events(*map(np.concatenate, zip(*parts, strict=True)))


def write_ddd17(film: Film, root: Path, recording: SampleRecording) -> None:
    """Write `<name>/` in the ESS authors' layout (uzh-rpg/ess): events in ns, every third frame as an image.

    Images from `DDD17_FIRST_LABEL_US` on have masks. The additional file `ego_speed.npy` is float32
    (images,) in m/s.
    """
    folder = root / recording.name
    (folder / "index").mkdir(parents=True)
    (folder / "imgs").mkdir()
    parts: list[Events] = []
    times: list[int] = []
    speeds: list[float] = []
    with zipfile.ZipFile(folder / "segmentation_masks.zip", "w") as masks:
        for frame, events in film:
            parts.append(events)
            if frame.index % DDD17_STRIDE:
                continue
            times.append(frame.time_us)
            speeds.append(frame.ego_speed)
            Image.fromarray(frame.grey).save(
                folder / "imgs" / f"img_{len(times):08d}.png", compress_level=1
            )
            if frame.time_us >= DDD17_FIRST_LABEL_US:
                mask = Image.fromarray(DDD17_NUMBERS[frame.label[: recording.sensor.label_rows]])
                # A fixed date makes the bytes of a world reproducible.
                member = zipfile.ZipInfo(
                    f"segmentation_masks/mask_{len(times):08d}.png", (2000, 1, 1, 0, 0, 0)
                )
                with masks.open(member, "w") as file:
                    mask.save(file, "PNG", compress_level=1)
    x, y, t, p = concatenate(parts)
    (1000 * t).astype("<i8").tofile(folder / "events.dat.t")
    np.stack([x, y, p], axis=1).astype("<i2").tofile(folder / "events.dat.xyp")
    np.save(folder / "ego_speed.npy", np.array(speeds, np.float32))
    stamps = np.array(times, np.int64)
    for span in (10, 50, 250):
        # Time of each image in ns, number of events before it, and number of events more than
        # `span` ms before it.
        columns = (
            1000 * stamps,
            np.searchsorted(t, stamps),
            np.searchsorted(t, stamps - 1000 * span),
        )
        np.save(
            folder / "index" / f"index_{span}ms.npy", np.stack(columns, axis=1).astype(np.int64)
        )


def write_dsec(film: Film, root: Path, recording: SampleRecording) -> None:
    """Write `<split>/<name>/` as in DSEC-Semantic's README: events, rectification map, 11- and 19-class masks at 20 Hz.

    The film shows the rectified view: its events are moved to raw pixels by inverting the
    rectification map.
    """
    height, width, label_rows = recording.sensor
    folder = root / recording.split / recording.name
    left, masks = (
        folder / "events" / "left",
        [folder / "semantic" / "left" / classes for classes in DSEC_MASKS],
    )
    for each in (left, *masks):
        each.mkdir(parents=True)
    parts: list[Events] = []
    stamps: list[int] = []
    for frame, chunk in film:
        parts.append(chunk)
        if frame.index % DSEC_STRIDE:
            continue
        for place, numbers in zip(masks, DSEC_NUMBERS, strict=True):
            mask = numbers[frame.label[:label_rows]]
            mask[:, :1] = IGNORE
            Image.fromarray(mask).save(place / f"{len(stamps):06d}.png")
        stamps.append(DSEC_OFFSET_US + frame.time_us)
    events = concatenate(parts)
    (folder / "semantic" / "timestamps.txt").write_text("".join(f"{stamp}\n" for stamp in stamps))
    # Sub-pixel rectified x and y (H, W, 2) of each raw pixel, some outside of the image.
    centre = (np.array([width, height]) - 1) / 2
    places = np.mgrid[:height, :width][::-1].transpose(1, 2, 0) - centre
    stretch = 1 + DISTORTION * np.sum(places**2, axis=-1) / ((width / 2) ** 2 + (height / 2) ** 2)
    rectified = (places * stretch[..., None] + centre).astype(np.float32)
    nearest = KDTree(rectified.reshape(-1, 2)).query(
        np.mgrid[:height, :width][::-1].reshape(2, -1).T
    )[1]
    y, x = np.divmod(nearest.reshape(height, width)[events.y, events.x], width)
    packed = {"track_times": False, "chunks": True, **BLOSC}
    with h5py.File(left / "events.h5", "w") as file:
        for name, values, kind in (
            ("x", x, "<u2"),
            ("y", y, "<u2"),
            ("t", events.t, "<u4"),
            ("p", events.p, "u1"),
        ):
            file.create_dataset(f"events/{name}", data=values.astype(kind), **packed)
        index = np.searchsorted(events.t, 1000 * np.arange(int(events.t[-1]) // 1000 + 1))
        file.create_dataset("ms_to_idx", data=index.astype("<u8"), **packed)
        file.create_dataset("t_offset", data=np.int64(DSEC_OFFSET_US), track_times=False)
    with h5py.File(left / "rectify_map.h5", "w") as file:
        file.create_dataset("rectify_map", data=rectified, **packed)


def write_mvsec(film: Film, root: Path, recording: SampleRecording) -> None:
    """Write `<name>_data.hdf5` with events and images, and `<name>_gt.hdf5` with sparse depth maps of a lidar."""
    rng, height = np.random.default_rng(recording.seed), recording.sensor.height
    parts: list[Events] = []
    images: list[npt.NDArray[np.uint8]] = []
    depths: list[npt.NDArray[np.float32]] = []
    for frame, events in film:
        parts.append(events)
        if frame.index % IMAGE_STRIDE == 0:
            images.append(frame.grey)
        if frame.index % DEPTH_STRIDE == 0:
            seen = (
                (frame.depth < RANGE)
                & (rng.random(frame.depth.shape) >= GAPS)
                & (len(depths) != EMPTY)
            )
            seen[: round(HIGHEST_BEAM * height)] = False
            seen[round(LOWEST_BEAM * height) :] = False
            depths.append(np.where(seen, frame.depth, np.float32(np.nan)))

    def put(name: str, values: npt.NDArray[np.generic], **options: object) -> None:
        file.create_dataset(f"davis/left/{name}", data=values, track_times=False, **options)

    def seconds(times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return (MVSEC_EPOCH_US + times_us) / 1e6

    x, y, t, p = concatenate(parts)
    image_times = IMAGE_STRIDE * PERIOD_US * np.arange(1, len(images) + 1)
    with h5py.File(root / f"{recording.name}_data.hdf5", "w") as file:
        put(
            "events",
            np.stack([x, y, seconds(t), 2.0 * p - 1], axis=1),
            chunks=(min(1 << 14, len(t)), 4),
        )
        put("image_raw", np.stack(images))
        put("image_raw_ts", seconds(image_times))
        put("image_raw_event_inds", np.searchsorted(t, image_times))
    raw = np.stack([depths[0]] * DEPTHS_BEFORE + depths)
    depth_times = (
        DEPTH_STRIDE
        * PERIOD_US
        * np.delete(np.arange(-DEPTHS_BEFORE, len(depths) + 1), DEPTHS_BEFORE)
    )
    with h5py.File(root / f"{recording.name}_gt.hdf5", "w") as file:
        for name, values in (
            ("depth_image_raw", raw),
            ("depth_image_rect", np.roll(raw, (SHIFT, SHIFT), (1, 2))),
        ):
            put(name, values, chunks=(1, *raw.shape[1:]))
            put(f"{name}_ts", seconds(depth_times))


def frame_boxes(frame: Frame, dataset: str) -> npt.NDArray[np.void]:
    """Boxes (N,) of dtype `BOX` around visible instances by track, and for 1Mpx one around all signs of the frame."""
    boxes = []
    height, width = frame.label.shape
    for track in [*np.unique(frame.instance[frame.instance > 0]).tolist(), SIGN_TRACK]:
        pixels = frame.label == SIGN if track == SIGN_TRACK else frame.instance == track
        labels = np.unique(frame.label[pixels])
        number = next(
            (number for label, number in BOX_NUMBERS[dataset].items() if label in labels), None
        )
        if number is None or pixels.sum() < SEEN:
            continue
        rows, columns = np.flatnonzero(pixels.any(axis=1)), np.flatnonzero(pixels.any(axis=0))
        left, top, right, bottom = columns[0], rows[0], columns[-1] + 1, rows[-1] + 1
        left, top = left - BEYOND * (left == 0), top - BEYOND * (top == 0)
        right, bottom = right + BEYOND * (right == width), bottom + BEYOND * (bottom == height)
        boxes.append((frame.time_us, left, top, right - left, bottom - top, number, track, 1.0))
    return np.array(boxes, BOX)


def write_prophesee(film: Film, root: Path, recording: SampleRecording) -> None:
    """Write `<split>/<name>_td.dat` and `_bbox.npy` of Gen1 or 1Mpx; labels are at the frames nearest in time."""
    rate = LABEL_RATES[recording.dataset]
    labelled = {
        round(number * FRAME_RATE / rate) for number in range(1, int(recording.seconds * rate) + 1)
    }
    parts: list[Events] = []
    boxes = [np.empty(0, BOX)]
    for frame, events in film:
        parts.append(events)
        if frame.index in labelled:
            boxes.append(frame_boxes(frame, recording.dataset))
    path = root / recording.split / recording.name
    write_dat(path.with_name(f"{path.name}_td.dat"), *concatenate(parts), *recording.sensor[:2])
    # Zero the padding between fields, so that equal boxes have equal bytes.
    stored = np.zeros(sum(map(len, boxes)), BOX)
    for name in FIELDS:
        stored[name] = np.concatenate(boxes)[name]
    np.save(path.with_name(f"{path.name}_bbox.npy"), stored)


def write_objects(film: Film, root: Path, recording: SampleRecording) -> None:
    """Write grey crops of objects and empty street as `<split>/<class>/<name>_<number>.png`, like ImageNet."""
    rng = np.random.default_rng([recording.seed, 7])
    written = 0
    for frame, _ in film:
        if frame.index % OBJECT_STRIDE:
            continue
        pieces = []
        for box in frame_boxes(frame, "objects"):
            if min(box["w"], box["h"]) >= SMALLEST:
                half = round((0.5 + MARGIN) * max(box["w"], box["h"]))
                left, top = (
                    max(0, int(box[at] + box[size] / 2) - half)
                    for at, size in (("x", "w"), ("y", "h"))
                )
                pieces.append(
                    (box["class_id"], frame.grey[top : top + 2 * half, left : left + 2 * half])
                )
        height, width = frame.grey.shape
        top, left = int(rng.integers(0, height - SIDE + 1)), int(rng.integers(0, width - SIDE + 1))
        if not (frame.instance[top : top + SIDE, left : left + SIDE] > 0).any():
            pieces.append(
                (OBJECTS.index("street"), frame.grey[top : top + SIDE, left : left + SIDE])
            )
        for number, image in pieces:
            folder = root / recording.split / OBJECTS[number]
            folder.mkdir(parents=True, exist_ok=True)
            Image.fromarray(image).save(
                folder / f"{recording.name}_{written:05d}.png", compress_level=1
            )
            written += 1

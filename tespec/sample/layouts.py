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
EMPTY_DEPTH_MAP = 7  # index of a depth map without any return
LIDAR_RANGE = 100.0  # of the lidar, m
# limits of the lidar's field of view, relative to the image height
LIDAR_BOTTOM, LIDAR_TOP = 0.95, 0.12
NO_RETURN_FRACTION = 0.2  # fraction of pixels without a return
RECT_SHIFT = 2  # px by which rectified depth maps are shifted relative to raw ones

# 40 bytes per box (prophesee-ai/prophesee-automotive-dataset-toolbox, src/io/box_loading.py).
BOX_FIELDS = ("t", "x", "y", "w", "h", "class_id", "track_id", "class_confidence")
BOX_FORMATS = ("<i8", "<f4", "<f4", "<f4", "<f4", "<u4", "<u4", "<f4")
BOX_DTYPE = np.dtype(list(zip(BOX_FIELDS, BOX_FORMATS, strict=True)), align=True)
MIN_PIXELS = 10  # visible px that an instance needs to get a box
BOX_OVERHANG = 3.0  # px by which a box extends past the image border that cuts it off
SIGN_TRACK = 100_000  # track id of signs, which have no instances
LABEL_RATES = {"gen1": 4, "1mpx": 60}  # labels per second

OBJECTS = ("car", "truck", "person", "two_wheeler", "street")
OBJECT_STRIDE = 10  # rendered frames between two from which crops are taken
# min px of an object's shorter side; context on each side relative to the longer one
MIN_CROP_SIDE, CROP_MARGIN = 12, 0.25
STREET_CROP_SIZE = 40  # px of a crop of empty street

# Label of each class of `render`, in their order; of DSEC's, only the 19 of Cityscapes separate sky
# and terrain.
DDD17_LABEL_IDS = np.array([0, 0, 3, 1, 1, 1, 1, 2, 2, 3, 4, 4, 5, 5, 5], np.uint8)
DSEC_LABEL_IDS = np.array(
    [
        [5, 6, 7, 0, 1, 9, 2, 4, 10, 7, 3, 3, 8, 8, 8],
        [0, 1, 9, 10, 2, 3, 4, 5, 7, 8, 11, 12, 13, 14, 18],
    ],
    np.uint8,
)
# An instance with multiple classes gets the first one listed here: a bicycle and its rider are one
# two-wheeler.
BOX_LABEL_IDS = {
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
    """Write a recording in the ESS authors' layout of DDD17 (uzh-rpg/ess).

    Events are in ns, and every third frame is an image. Images from `DDD17_FIRST_LABEL_US` on have
    masks. The additional file `ego_speed.npy` is float32 (images,) in m/s.

    Args:
        film: frames and events.
        root: folder of the data set, where `<name>/` is written.
        recording: name and labelled rows.
    """
    folder = root / recording.name
    (folder / "index").mkdir(parents=True)
    (folder / "imgs").mkdir()
    parts: list[Events] = []
    image_times: list[int] = []
    speeds: list[float] = []
    with zipfile.ZipFile(folder / "segmentation_masks.zip", "w") as masks:
        for frame, events in film:
            parts.append(events)
            if frame.index % DDD17_STRIDE:
                continue
            image_times.append(frame.time_us)
            speeds.append(frame.ego_speed)
            number = f"{len(image_times):08d}"
            image = folder / "imgs" / f"img_{number}.png"
            Image.fromarray(frame.grey).save(image, compress_level=1)
            if frame.time_us >= DDD17_FIRST_LABEL_US:
                mask = Image.fromarray(DDD17_LABEL_IDS[frame.label[: recording.sensor.label_rows]])
                # A fixed date makes the bytes of a world reproducible.
                name = f"segmentation_masks/mask_{number}.png"
                member = zipfile.ZipInfo(name, (2000, 1, 1, 0, 0, 0))
                with masks.open(member, "w") as file:
                    mask.save(file, "PNG", compress_level=1)
    x, y, t, p = concatenate(parts)
    (1000 * t).astype("<i8").tofile(folder / "events.dat.t")
    np.stack([x, y, p], axis=1).astype("<i2").tofile(folder / "events.dat.xyp")
    np.save(folder / "ego_speed.npy", np.array(speeds, np.float32))
    times = np.array(image_times, np.int64)
    for span in (10, 50, 250):
        # Time of each image in ns, number of events before it, and number of events more than
        # `span` ms before it.
        first = np.searchsorted(t, times - 1000 * span)
        index = np.stack([1000 * times, np.searchsorted(t, times), first], axis=1)
        np.save(folder / "index" / f"index_{span}ms.npy", index.astype(np.int64))


def write_dsec(film: Film, root: Path, recording: SampleRecording) -> None:
    """Write a recording as in DSEC-Semantic's README.

    `<split>/<name>/` contains events, the rectification map, and masks of 11 and 19 classes at
    20 Hz. The film shows the rectified view: its events are moved to raw pixels by inverting the
    rectification map.

    Args:
        film: frames and events.
        root: folder of the data set.
        recording: split, name and sensor.
    """
    height, width, label_rows = recording.sensor
    folder = root / recording.split / recording.name
    left = folder / "events" / "left"
    mask_folders = [folder / "semantic" / "left" / classes for classes in DSEC_MASKS]
    for path in (left, *mask_folders):
        path.mkdir(parents=True)
    parts: list[Events] = []
    timestamps: list[int] = []
    for frame, chunk in film:
        parts.append(chunk)
        if frame.index % DSEC_STRIDE:
            continue
        for path, numbers in zip(mask_folders, DSEC_LABEL_IDS, strict=True):
            mask = numbers[frame.label[:label_rows]]
            mask[:, :1] = IGNORE
            Image.fromarray(mask).save(path / f"{len(timestamps):06d}.png")
        timestamps.append(DSEC_OFFSET_US + frame.time_us)
    events = concatenate(parts)
    text = "".join(f"{timestamp}\n" for timestamp in timestamps)
    (folder / "semantic" / "timestamps.txt").write_text(text)
    # Sub-pixel rectified x and y (H, W, 2) of each raw pixel, some outside of the image.
    centre = (np.array([width, height]) - 1) / 2
    pixels = np.mgrid[:height, :width][::-1]  # x, y of every pixel (2, H, W)
    offsets = pixels.transpose(1, 2, 0) - centre
    stretch = 1 + DISTORTION * np.sum(offsets**2, axis=-1) / ((width / 2) ** 2 + (height / 2) ** 2)
    rectified = (offsets * stretch[..., None] + centre).astype(np.float32)
    nearest = KDTree(rectified.reshape(-1, 2)).query(pixels.reshape(2, -1).T)[1]
    y, x = np.divmod(nearest.reshape(height, width)[events.y, events.x], width)
    compression = {"track_times": False, "chunks": True, **BLOSC}
    columns = {
        "x": x.astype("<u2"),
        "y": y.astype("<u2"),
        "t": events.t.astype("<u4"),
        "p": events.p.astype("u1"),
    }
    with h5py.File(left / "events.h5", "w") as file:
        for name, values in columns.items():
            file.create_dataset(f"events/{name}", data=values, **compression)
        index = np.searchsorted(events.t, 1000 * np.arange(int(events.t[-1]) // 1000 + 1))
        file.create_dataset("ms_to_idx", data=index.astype("<u8"), **compression)
        file.create_dataset("t_offset", data=np.int64(DSEC_OFFSET_US), track_times=False)
    with h5py.File(left / "rectify_map.h5", "w") as file:
        file.create_dataset("rectify_map", data=rectified, **compression)


def write_mvsec(film: Film, root: Path, recording: SampleRecording) -> None:
    """Write a recording in the layout of MVSEC.

    `<name>_data.hdf5` contains events and images, and `<name>_gt.hdf5` sparse depth maps of a
    lidar.

    Args:
        film: frames and events.
        root: folder of the data set.
        recording: name, sensor, and seed of the gaps in the depth maps.
    """
    rng = np.random.default_rng(recording.seed)
    height = recording.sensor.height
    parts: list[Events] = []
    images: list[npt.NDArray[np.uint8]] = []
    depths: list[npt.NDArray[np.float32]] = []
    for frame, events in film:
        parts.append(events)
        if frame.index % IMAGE_STRIDE == 0:
            images.append(frame.grey)
        if frame.index % DEPTH_STRIDE == 0:
            has_return = (frame.depth < LIDAR_RANGE) & (
                rng.random(frame.depth.shape) >= NO_RETURN_FRACTION
            )
            has_return[: round(LIDAR_TOP * height)] = False
            has_return[round(LIDAR_BOTTOM * height) :] = False
            if len(depths) == EMPTY_DEPTH_MAP:
                has_return[:] = False
            depths.append(np.where(has_return, frame.depth, np.float32(np.nan)))

    def put(name: str, values: npt.NDArray[np.generic], **options: object) -> None:
        file.create_dataset(f"davis/left/{name}", data=values, track_times=False, **options)

    def seconds(times_us: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        return (MVSEC_EPOCH_US + times_us) / 1e6

    x, y, t, p = concatenate(parts)
    events_table = np.stack([x, y, seconds(t), 2.0 * p - 1], axis=1)  # (N, 4)
    image_times = IMAGE_STRIDE * PERIOD_US * np.arange(1, len(images) + 1)
    with h5py.File(root / f"{recording.name}_data.hdf5", "w") as file:
        put("events", events_table, chunks=(min(1 << 14, len(t)), 4))
        put("image_raw", np.stack(images))
        put("image_raw_ts", seconds(image_times))
        put("image_raw_event_inds", np.searchsorted(t, image_times))
    raw = np.stack([depths[0]] * DEPTHS_BEFORE + depths)  # (D, H, W)
    numbers = np.delete(np.arange(-DEPTHS_BEFORE, len(depths) + 1), DEPTHS_BEFORE)
    depth_times = seconds(DEPTH_STRIDE * PERIOD_US * numbers)
    maps = {
        "depth_image_raw": raw,
        "depth_image_rect": np.roll(raw, (RECT_SHIFT, RECT_SHIFT), (1, 2)),
    }
    with h5py.File(root / f"{recording.name}_gt.hdf5", "w") as file:
        for name, values in maps.items():
            put(name, values, chunks=(1, *raw.shape[1:]))
            put(f"{name}_ts", depth_times)


def frame_boxes(frame: Frame, dataset: str) -> npt.NDArray[np.void]:
    """Compute the boxes around visible instances, and for 1Mpx one around all signs of the frame.

    Args:
        frame: frame with instances and classes.
        dataset: key of `BOX_LABEL_IDS`.

    Returns:
        (N,) of dtype `BOX_DTYPE`, ordered by track id.
    """
    boxes = []
    height, width = frame.label.shape
    for track in [*np.unique(frame.instance[frame.instance > 0]).tolist(), SIGN_TRACK]:
        pixels = frame.label == SIGN if track == SIGN_TRACK else frame.instance == track
        labels = np.unique(frame.label[pixels])
        numbers = [number for label, number in BOX_LABEL_IDS[dataset].items() if label in labels]
        if not numbers or pixels.sum() < MIN_PIXELS:
            continue
        left, top, right, bottom = Image.fromarray(pixels).getbbox() or (0, 0, 0, 0)
        box_left, box_top = left - BOX_OVERHANG * (left == 0), top - BOX_OVERHANG * (top == 0)
        box_width = right + BOX_OVERHANG * (right == width) - box_left
        box_height = bottom + BOX_OVERHANG * (bottom == height) - box_top
        box = (frame.time_us, box_left, box_top, box_width, box_height, numbers[0], track, 1.0)
        boxes.append(box)
    return np.array(boxes, BOX_DTYPE)


def write_prophesee(film: Film, root: Path, recording: SampleRecording) -> None:
    """Write a recording in the layout of Gen1 or 1Mpx; labels are at the frames nearest in time.

    Args:
        film: frames and events.
        root: folder of the data set; `<split>/<name>_td.dat` and `_bbox.npy` are written.
        recording: data set, split, name and sensor.
    """
    rate = LABEL_RATES[recording.dataset]
    count = int(recording.seconds * rate)
    label_frames = {round(number * FRAME_RATE / rate) for number in range(1, count + 1)}
    parts: list[Events] = []
    boxes = [np.empty(0, BOX_DTYPE)]
    for frame, events in film:
        parts.append(events)
        if frame.index in label_frames:
            boxes.append(frame_boxes(frame, recording.dataset))
    path = root / recording.split / recording.name
    height, width, _ = recording.sensor
    write_dat(path.with_name(f"{path.name}_td.dat"), *concatenate(parts), height, width)
    # Zero the padding between fields, so that equal boxes have equal bytes.
    stored = np.zeros(sum(map(len, boxes)), BOX_DTYPE)
    for name in BOX_FIELDS:
        stored[name] = np.concatenate(boxes)[name]
    np.save(path.with_name(f"{path.name}_bbox.npy"), stored)


def write_objects(film: Film, root: Path, recording: SampleRecording) -> None:
    """Write grey crops of objects and empty street in folders of classes, like ImageNet.

    Args:
        film: frames and events.
        root: folder of the data set; `<split>/<class>/<name>_<number>.png` are written.
        recording: split, name, and seed of the crops of empty street.
    """
    rng = np.random.default_rng([recording.seed, 7])
    crops = []
    for frame, _ in film:
        if frame.index % OBJECT_STRIDE:
            continue
        for box in frame_boxes(frame, "objects"):
            if min(box["w"], box["h"]) >= MIN_CROP_SIDE:
                half = round((0.5 + CROP_MARGIN) * max(box["w"], box["h"]))
                left = max(0, int(box["x"] + box["w"] / 2) - half)
                top = max(0, int(box["y"] + box["h"] / 2) - half)
                image = frame.grey[top : top + 2 * half, left : left + 2 * half]
                crops.append((OBJECTS[box["class_id"]], image))
        height, width = frame.grey.shape
        top, left = (
            int(rng.integers(0, height - STREET_CROP_SIZE + 1)),
            int(rng.integers(0, width - STREET_CROP_SIZE + 1)),
        )
        window = (slice(top, top + STREET_CROP_SIZE), slice(left, left + STREET_CROP_SIZE))
        if not (frame.instance[window] > 0).any():
            crops.append(("street", frame.grey[window]))
    for number, (name, image) in enumerate(crops):
        path = root / recording.split / name / f"{recording.name}_{number:05d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path, compress_level=1)

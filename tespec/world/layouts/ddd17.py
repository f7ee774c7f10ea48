"""DDD17 as the ESS authors' archive holds it (uzh-rpg/ess), and its variants: extracted masks, times in us, ..."""

from __future__ import annotations

import io
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
from PIL import Image

from tespec.world import scene
from tespec.world.contents import Take
from tespec.world.street import Film

CLASSES = ("flat", "background", "object", "vegetation", "human", "vehicle")
FLAT, BACKGROUND, OBJECT, GREEN, HUMAN, VEHICLE = range(len(CLASSES))
IMAGE_STRIDE = 3  # rendered frames per image: 30 ms at 100 frames per second
FIRST_LABEL_US = 120_000
INDEX_MS = (10, 50, 250)
NANOSECONDS = 1000  # per microsecond

_OF_SCENE = np.empty(scene.CLASSES, np.uint8)
_OF_SCENE[[scene.ROAD, scene.SIDEWALK]] = FLAT
_OF_SCENE[[scene.SKY, scene.BUILDING, scene.WALL, scene.FENCE]] = BACKGROUND
_OF_SCENE[[scene.POLE, scene.SIGN]] = OBJECT
_OF_SCENE[[scene.VEGETATION, scene.TERRAIN]] = GREEN
_OF_SCENE[[scene.PERSON, scene.RIDER]] = HUMAN
_OF_SCENE[[scene.CAR, scene.TRUCK, scene.TWO_WHEELER]] = VEHICLE


def mask(label: npt.NDArray[np.uint8], label_rows: int) -> npt.NDArray[np.uint8]:
    """DDD17 classes (label_rows, W) uint8 of a frame's labels (H, W): the lower rows, the bonnet, are cut off."""
    return _OF_SCENE[label[:label_rows]]


def write(film: Film, root: Path, take: Take) -> None:
    """Write `<name>/`: events in ns, every third frame as an image, masks of the images from `FIRST_LABEL_US` on.

    Beside the archive's files stands `ego_speed.npy`, float32 (images,), m/s.
    """
    folder = root / take.name
    (folder / "index").mkdir(parents=True)
    (folder / "imgs").mkdir()
    times: list[npt.NDArray[np.int64]] = []
    image_times: list[int] = []
    speeds: list[float] = []
    with (
        (folder / "events.dat.t").open("wb") as t_file,
        (folder / "events.dat.xyp").open("wb") as xyp_file,
        zipfile.ZipFile(folder / "segmentation_masks.zip", "w") as masks,
    ):
        for frame, events in film:
            t_file.write((NANOSECONDS * events.t).astype("<i8").tobytes())
            xyp_file.write(np.stack([events.x, events.y, events.p], axis=1).astype("<i2").tobytes())
            times.append(events.t)
            if frame.index % IMAGE_STRIDE:
                continue
            image_times.append(frame.time_us)
            speeds.append(frame.ego_speed)
            number = len(image_times)
            (folder / "imgs" / f"img_{number:08d}.png").write_bytes(_png(frame.grey))
            if frame.time_us >= FIRST_LABEL_US:
                # A fixed date: the same world is the same bytes.
                member = zipfile.ZipInfo(f"segmentation_masks/mask_{number:08d}.png", (2000, 1, 1, 0, 0, 0))
                masks.writestr(member, _png(mask(frame.label, take.sensor.label_rows)))
    all_times, stamps = np.concatenate(times), np.array(image_times, np.int64)
    for span in INDEX_MS:
        np.save(folder / "index" / f"index_{span}ms.npy", image_index(all_times, stamps, 1000 * span))
    np.save(folder / "ego_speed.npy", np.array(speeds, np.float32))


def image_index(times: npt.NDArray[np.int64], stamps: npt.NDArray[np.int64], span: int) -> npt.NDArray[np.int64]:
    """The archive's index table.

    Args:
        times: of all events (N,), sorted, microseconds.
        stamps: of the images (M,), microseconds.
        span: microseconds the last column looks back.

    Returns:
        Rows (M, 3) int64: time stamp in nanoseconds, number of events before the image, number of events before the
        time `span` earlier.
    """
    at_image, earlier = np.searchsorted(times, stamps), np.searchsorted(times, stamps - span)
    return np.stack([NANOSECONDS * stamps, at_image, earlier], axis=1).astype(np.int64)


def _png(image: npt.NDArray[np.uint8]) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(image).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def _recordings(root: Path) -> list[Path]:
    return sorted(path for path in root.glob("dir*") if path.is_dir())


def extracted(root: Path) -> None:
    """Masks in a folder instead of a zip archive."""
    for folder in _recordings(root):
        with zipfile.ZipFile(folder / "segmentation_masks.zip") as archive:
            archive.extractall(folder)
        (folder / "segmentation_masks.zip").unlink()


def microseconds(root: Path) -> None:
    """Times in us instead of ns."""
    for folder in _recordings(root):
        times = np.fromfile(folder / "events.dat.t", "<i8")
        (times // NANOSECONDS).astype("<i8").tofile(folder / "events.dat.t")
        for path in (folder / "index").iterdir():
            index = np.load(path)
            index[:, 0] //= NANOSECONDS
            np.save(path, index)


def outer(root: Path) -> None:
    """Recordings below `data`, as the archive unpacks."""
    (root / "data").mkdir()
    for folder in _recordings(root):
        shutil.move(folder, root / "data" / folder.name)
    shutil.copy(root / "dataset.json", root / "data")


LAYOUTS: dict[str, Callable[[Path], None]] = {
    "zip": lambda root: None,
    "folder": extracted,
    "us": microseconds,
    "outer": outer,
}

"""Labels of recordings: masks, depth maps and their times, read and checked on access."""

import io
import os
import re
import zipfile
import zlib
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.files import regular_file
from tespec.core.settings import Size
from tespec.datasets.recording import LabelledRecording, Labels, Subset
from tespec.events.readers.arrays import load_array
from tespec.events.readers.hdf5 import AGAIN, part, translate_errors

MASK, DEPTH, BOXES = "mask", "depth", "boxes"  # kinds of labels
IGNORE = 255
NUMBER = re.compile(r"(\d+)\.png$")
DAMAGED_ZIP = (
    OSError,
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    ValueError,
    RuntimeError,
)
DAMAGED_PNG = (OSError, SyntaxError, ValueError, IndexError, Image.DecompressionBombError)
SAMPLED = 16  # depth maps per recording with a checksum; all of them are tens of GB
STANDING = 0.1  # m/s below which the camera counts as standing


def mask_names(place: Path) -> dict[int, str]:
    """Names of the masks in a folder or zip archive, keyed and sorted by the number at the end of the name."""
    if place.is_dir():
        names = sorted(str(path.relative_to(place)) for path in place.rglob("*.png"))
    else:
        names = _archive(place, os.getpid()).namelist()
    found: dict[int, str] = {}
    for name in names:
        match = NUMBER.search(name)
        if match is None or PurePosixPath(name).name.startswith(
            "."
        ):  # macOS adds "._" twins to archives
            continue
        if (other := found.setdefault(int(match[1]), name)) != name:
            what, remedy = f"{other} and {name} are both mask {int(match[1])}", "keep one of them"
            if (folders := [str(PurePosixPath(each).parent) for each in (other, name)])[
                0
            ] != folders[1]:
                what = f"mask {int(match[1])} is in the folders {folders[0]} and {folders[1]} inside it"
                remedy = "keep the folder of the masks whose pixels are class indices"
            raise UserError(place, what, remedy)
    if not found:
        raise UserError(place, "holds no masks (PNG files whose names end in a number)", AGAIN)
    return dict(sorted(found.items()))


@dataclass(frozen=True)
class MaskFiles:
    """Masks of one recording: PNG files `names` in a folder or zip archive."""

    place: Path
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        """Mask (H, W) uint8: the class of each pixel, 255 for unlabelled pixels."""
        where = f"{self.place}, {self.names[index]}"
        try:
            with Image.open(io.BytesIO(self._read(self.names[index])), formats=("PNG",)) as image:
                mode, stored = image.mode, str(image.tile[0][3])  # for example "L;2"
                mask = np.asarray(image.convert("L") if mode == "1" else image)
        except DAMAGED_PNG as error:
            raise UserError(where, "not a readable PNG", AGAIN) from error
        if mask.ndim != 2 or mask.dtype != np.uint8:
            what = f"is an image of mode {mode}, not a grey or palette image of at most 8 bits"
            raise UserError(where, what, "give masks whose pixel values are class indices")
        # Pillow scales grey of 1, 2 and 4 bits to 0 to 255.
        bits = 1 if mode == "1" else {"L;2": 2, "L;4": 4}.get(stored, 8)
        return mask // np.uint8(255 // ((1 << bits) - 1))

    def checksums(self) -> list[int]:
        """CRC-32 of each mask file, the same for a zip archive and the folder extracted from it."""
        if self.place.is_dir():
            return [zlib.crc32(self._read(name)) for name in self.names]
        archive = _archive(self.place, os.getpid())
        return [archive.getinfo(name).CRC for name in self.names]

    def _read(self, name: str) -> bytes:
        try:
            if self.place.is_dir():
                return regular_file(self.place / name).read_bytes()
            return _archive(self.place, os.getpid()).read(name)
        except DAMAGED_ZIP as error:
            raise UserError(f"{self.place}, {name}", "not readable", AGAIN) from error


@lru_cache(maxsize=32)
def _archive(path: Path, process: int) -> zipfile.ZipFile:
    """Open an archive once per process: forked workers that share a file move each other's position in it."""
    try:
        return zipfile.ZipFile(regular_file(path))
    except DAMAGED_ZIP as error:
        raise UserError(path, "not a readable zip archive", AGAIN) from error


@dataclass(frozen=True)
class DepthMaps:
    """Depth maps of one recording: indices `maps` into dataset `name` (maps, H, W), in m, of an HDF5 file."""

    path: Path
    name: str
    maps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        """Depth map (H, W) float32 in m, NaN for unknown depth."""
        number = self.maps[index]
        with translate_errors(self.path, f"map {number} of {self.name}"):
            depth = np.asarray(part(self.path, self.name)[number], np.float32)
        known = np.isfinite(depth)
        if (depth[known] < 0).any():
            raise UserError(self.path, f"map {number} of {self.name} has negative depths", AGAIN)
        return np.where(known & (depth > 0), depth, np.float32(np.nan))

    def checksums(self) -> list[int]:
        """CRC-32 of up to 16 maps, spread over the recording."""
        places = (
            np.unique(np.linspace(0, len(self.maps) - 1, SAMPLED).astype(int)).tolist()
            if self.maps
            else []
        )
        return [zlib.crc32(self[place].tobytes()) for place in places]


def read_stamps(path: Path) -> NDArray[np.int64]:
    """Read times (N,) int64 in us, rising, from a text file with one time per line."""
    try:
        times = np.array([int(line) for line in regular_file(path).read_text().split()], np.int64)
    except FileNotFoundError as error:
        raise UserError(path, "no such file", "copy the times of the masks") from error
    except (ValueError, OverflowError, OSError) as error:
        raise UserError(path, "must have one integer per line", AGAIN) from error
    if not len(times) or (np.diff(times) <= 0).any():
        raise UserError(
            path, "its times step back or repeat" if len(times) else "the file is empty", AGAIN
        )
    return times


def speed_at(root: Path, name: str, times: NDArray[np.int64]) -> NDArray[np.float32] | None:
    """Interpolate the camera's speed (N,) float32 in m/s at `times` (N,) in us; None if the data set has no speeds.

    `<root>/ego_speed/<name>.npy` holds (M, 2) floats: rising times in us on the recording's clock,
    and speeds in m/s.
    """
    path = root / "ego_speed" / f"{name}.npy"
    if not path.is_file():
        return None
    rows = load_array(path)
    table = rows.ndim == 2 and rows.shape[1] == 2 and rows.dtype.kind == "f" and len(rows)
    if not table or not np.isfinite(rows).all() or (np.diff(rows[:, 0]) < 0).any():
        what = f"is {rows.dtype} {rows.shape}, not float (N, 2) with rising times and speeds in m/s"
        raise UserError(path, what, "remove it")
    return np.interp(times, *rows.astype(np.float64).T).astype(np.float32)


def with_checks(recording: LabelledRecording, kind: str, classes: int) -> LabelledRecording:
    """Return the recording with labels that are checked as they are read; each label must have a window.

    Args:
        recording: with labels in px of its histograms.
        kind: expected kind of the labels, `MASK`, `DEPTH` or `BOXES`.
        classes: number of classes, 0 if unknown.
    """
    where, labels = f"{recording.path}, recording {recording.name}", recording.labels
    if len(labels) != len(recording.labelled):
        what = f"{len(labels)} labels for {len(recording.labelled)} labelled windows"
        raise UserError(where, what, "give the window that ends at each label")
    size = (recording.region.height, recording.region.width)
    check = partial(_check, labels, where, kind, size, classes)
    return replace(recording, labels=Subset(labels, np.arange(len(labels)), check))


def _check(
    labels: Labels, where: str, kind: str, size: Size, classes: int, label: Any, index: int
) -> None:
    if fault := (_box_fault if kind == BOXES else _map_fault)(label, kind, size, classes):
        file = f" ({labels.names[index]})" if isinstance(labels, MaskFiles) else ""
        raise UserError(f"{where}, label {index}{file}", *fault)


def _map_fault(label: Any, kind: str, size: Size, classes: int) -> tuple[str, str] | None:
    """Error and remedy for a mask (H, W) uint8 or a depth map (H, W) float32 in m; None if it is valid."""
    wanted = np.dtype(np.uint8 if kind == MASK else np.float32)
    if not isinstance(label, np.ndarray) or label.ndim != 2 or label.dtype != wanted:
        return f"{kind} is {_described(label)}", f"give (H, W) {wanted}"
    if label.shape != size:
        what = f"{kind} has {label.shape[1]}x{label.shape[0]} px, but the histograms have {size[1]}x{size[0]}"
        return what, "give labels at the size of the histograms"
    if kind == MASK and len(wrong := label[(label >= classes) & (label != IGNORE)]):
        return (
            f"mask holds class {wrong[0]} of {classes}",
            "list all classes, or give 255 for unlabelled pixels",
        )
    if kind == DEPTH and len(wrong := label[~(np.isnan(label) | ((label > 0) & (label < np.inf)))]):
        return f"depth holds {wrong[0]:g} m", "give m above 0, and NaN for unknown depth"
    return None


def _box_fault(label: Any, kind: str, size: Size, classes: int) -> tuple[str, str] | None:
    """Error and remedy for boxes in px of histograms of `size` (H, W); None if they are valid."""
    if not isinstance(label, Boxes):
        return (
            f"{kind} are {_described(label)}",
            "give tespec.core.boxes.make_boxes(corners, classes)",
        )
    (left, top, right, bottom), numbers = label.corners.T, label.label
    # Downsampling to an integer size leaves boxes up to 1 px beyond the border.
    inside = (left >= 0) & (top >= 0) & (right <= size[1] + 1) & (bottom <= size[0] + 1)
    for wrong, what, remedy in (
        (~inside, f"is outside of {size[1]}x{size[0]} px", "give corners in px of the histograms"),
        (
            (right < left) | (bottom < top),
            "has left > right or top > bottom",
            "give left, top, right, bottom",
        ),
        (
            (numbers < 0) | (numbers >= (classes or np.inf)),
            "has an unknown class",
            "list all classes",
        ),
    ):
        if wrong.any():
            number = int(np.argmax(wrong))
            box = ", ".join(f"{value:g}" for value in label.corners[number])
            return f"box {number} ({box}; class {numbers[number]}) {what}", remedy
    return None


def _described(value: Any) -> str:
    return (
        f"{value.dtype} of shape {value.shape}"
        if isinstance(value, np.ndarray)
        else f"a {type(value).__name__}"
    )

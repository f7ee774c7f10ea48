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
from tespec.core.hashes import sha256_of_files
from tespec.core.settings import Size
from tespec.datasets.recording import LabelledRecording, Labels, Subset
from tespec.events.readers.arrays import load_array
from tespec.events.readers.hdf5 import COPY_AGAIN, checked_dataset, translate_errors

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
STANDING = 0.1  # m/s below which the camera counts as standing


def mask_names(path: Path) -> dict[int, str]:
    """List the masks in a folder or zip archive by number, the digits at the end of their names."""
    if path.is_dir():
        names = {str(file.relative_to(path)) for file in path.rglob("*.png")}
    else:
        names = set(_archive(path, os.getpid()).namelist())
    masks: dict[int, str] = {}
    for name in sorted(names):
        match = NUMBER.search(name)
        # macOS adds "._" twins to archives
        if match is None or PurePosixPath(name).name.startswith("."):
            continue
        number = int(match[1])
        other = masks.setdefault(number, name)
        if other != name:
            raise UserError(
                path,
                f"{other} and {name} are both mask {number}",
                "keep the one whose pixels are class indices",
            )
    if not masks:
        raise UserError(path, "holds no masks (PNG files whose names end in a number)", COPY_AGAIN)
    return dict(sorted(masks.items()))


def label_spacing(times: NDArray[np.int64]) -> int:
    """Median time in us between labels at `times` (K,) in us; 50 ms for a single label."""
    return int(np.median(np.diff(times))) if len(times) > 1 else 50_000


@dataclass(frozen=True)
class MaskFiles:
    """Masks of one recording: PNG files `names` in a folder or zip archive `path`."""

    path: Path
    names: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> NDArray[np.uint8]:
        """Mask (H, W) uint8: the class of each pixel, 255 for unlabelled pixels.

        An image of another kind, such as RGB, keeps its shape and type.
        """
        name = self.names[index]
        try:
            with Image.open(io.BytesIO(self._read(name)), formats=("PNG",)) as image:
                raw_mode = str(image.tile[0][3])  # of grey pixels "1", "L;2", "L;4" or "L"
                mask = np.asarray(image.convert("L") if image.mode == "1" else image)
        except DAMAGED_PNG as error:
            raise UserError(f"{self.path}, {name}", "not a readable PNG", COPY_AGAIN) from error
        # Pillow scales grey of 1, 2 and 4 bits to 0 to 255.
        bits = {"1": 1, "L;2": 2, "L;4": 4}.get(raw_mode, 8)
        return mask // np.uint8(255 // ((1 << bits) - 1))

    def checksums(self) -> dict[str, int]:
        """CRC-32 of each mask file, the same for a zip archive and the folder extracted from it."""
        return {PurePosixPath(name).name: zlib.crc32(self._read(name)) for name in self.names}

    def _read(self, name: str) -> bytes:
        try:
            if self.path.is_dir():
                return regular_file(self.path / name).read_bytes()
            return _archive(self.path, os.getpid()).read(name)
        except DAMAGED_ZIP as error:
            raise UserError(f"{self.path}, {name}", "not readable", COPY_AGAIN) from error


@lru_cache(maxsize=32)
def _archive(path: Path, process: int) -> zipfile.ZipFile:
    """Open an archive once per process, since forked workers would share its file position."""
    try:
        return zipfile.ZipFile(regular_file(path))
    except FileNotFoundError as error:
        raise UserError(path, "no such folder or zip archive", "copy the masks there") from error
    except DAMAGED_ZIP as error:
        raise UserError(path, "not a readable zip archive", COPY_AGAIN) from error


@dataclass(frozen=True)
class DepthMaps:
    """Depth maps of one recording: those of index `maps` in an HDF5 data set (N, H, W) in m."""

    path: Path
    name: str
    maps: tuple[int, ...]

    def __len__(self) -> int:
        return len(self.maps)

    def __getitem__(self, index: int) -> NDArray[np.float32]:
        """Depth map (H, W) float32 in m, NaN for unknown depth."""
        title = f"map {self.maps[index]} of {self.name}"
        with translate_errors(self.path, title):
            depth = np.asarray(checked_dataset(self.path, self.name)[self.maps[index]], np.float32)
        return np.where(np.isfinite(depth) & (depth != 0), depth, np.float32(np.nan))

    def checksums(self) -> dict[str, str]:
        """SHA-256 of the file, since reading all maps would take minutes, and their indices."""
        (sha256,) = sha256_of_files([(self.path,)])
        return {"depth maps": f"{sha256} {self.maps}"}


def read_label_times(path: Path) -> NDArray[np.int64]:
    """Read times (N,) int64 in us from a text file with one time per line."""
    try:
        return np.array([int(line) for line in regular_file(path).read_text().split()], np.int64)
    except FileNotFoundError as error:
        raise UserError(path, "no such file", "copy the times of the masks") from error
    except (ValueError, OverflowError, OSError) as error:
        raise UserError(path, "must have one integer per line", COPY_AGAIN) from error


def ego_speed_at(
    path: Path, times: NDArray[np.int64], clock: NDArray[np.int64] | None = None
) -> NDArray[np.float32] | None:
    """Interpolate the camera's speed at the times of labels.

    Args:
        path: file of (M, 2) floats: rising times in us on the recording's clock, and speeds in m/s;
            or, with `clock`, of the speeds alone.
        times: (K,) times in us.
        clock: (M,) times of the speeds in us.

    Returns:
        Speeds (K,) in m/s; None if the file does not exist.

    Raises:
        UserError: if the file holds anything else.
    """
    if not path.is_file():
        return None
    rows = load_array(path)
    if clock is not None and rows.shape == clock.shape:
        rows = np.column_stack([clock, rows])
    is_table = rows.ndim == 2 and rows.shape[1] == 2 and rows.dtype.kind == "f" and len(rows)
    if not is_table or not np.isfinite(rows).all() or (np.diff(rows[:, 0]) < 0).any():
        raise UserError(
            path,
            f"is {rows.dtype} {rows.shape}, not float (N, 2) with rising times and speeds in m/s",
            "remove it",
        )
    return np.interp(times, *rows.astype(np.float64).T).astype(np.float32)


def with_checks(recording: LabelledRecording, kind: str | None, classes: int) -> LabelledRecording:
    """Let the labels of a recording be checked as they are read.

    Args:
        recording: with labels in px of its histograms.
        kind: expected kind of the labels, `MASK`, `DEPTH` or `BOXES`; None: they are not checked.
        classes: number of classes, 0 if unknown.

    Raises:
        UserError: if the numbers of labels and of their windows differ.
    """
    labels = recording.labels
    where = f"{recording.path}, recording {recording.name}"
    if len(labels) != len(recording.label_indices):
        raise UserError(
            where,
            f"{len(labels)} labels for {len(recording.label_indices)} labelled windows",
            "give the window that ends at each label",
        )
    size = (recording.region.height, recording.region.width)
    check = partial(_check, labels, where, kind, size, classes) if kind else None
    return replace(recording, labels=Subset(labels, np.arange(len(labels)), check))


def _check(
    labels: Labels, where: str, kind: str, size: Size, classes: int, label: Any, index: int
) -> None:
    fault = (_box_fault if kind == BOXES else _map_fault)(label, kind, size, classes)
    if fault:
        file = f" ({labels.names[index]})" if isinstance(labels, MaskFiles) else ""
        raise UserError(f"{where}, label {index}{file}", *fault)


def _map_fault(label: Any, kind: str, size: Size, classes: int) -> tuple[str, str] | None:
    """Error and remedy for a mask (H, W) uint8 or a depth map (H, W) float32 in m, if invalid."""
    dtype = np.dtype(np.uint8 if kind == MASK else np.float32)
    if not isinstance(label, np.ndarray) or label.ndim != 2 or label.dtype != dtype:
        return f"{kind} is {_described(label)}", f"give (H, W) {dtype}"
    if label.shape != size:
        height, width = label.shape
        what = f"{kind} has {width}x{height} px, but the histograms have {size[1]}x{size[0]}"
        return what, "give labels at the size of the histograms"
    if kind == MASK:
        invalid = label[(label >= classes) & (label != IGNORE)]
        what = "mask holds class {} of {}"
        remedy = "list all classes, or give 255 for unlabelled pixels"
    else:
        invalid = label[~(np.isnan(label) | ((label > 0) & (label < np.inf)))]
        what = "depth holds {:g} m"
        remedy = "give m above 0, and NaN for unknown depth"
    return (what.format(invalid[0], classes), remedy) if len(invalid) else None


def _box_fault(label: Any, kind: str, size: Size, classes: int) -> tuple[str, str] | None:
    """Error and remedy for boxes in px of histograms of `size` (H, W), if they are invalid."""
    if not isinstance(label, Boxes):
        remedy = "give tespec.core.boxes.make_boxes(corners, classes)"
        return f"{kind} are {_described(label)}", remedy
    left, top, right, bottom = label.corners.T
    # Downsampling to an integer size leaves boxes up to 1 px beyond the border.
    inside = (left >= 0) & (top >= 0) & (right <= size[1] + 1) & (bottom <= size[0] + 1)
    flipped = (right < left) | (bottom < top)
    unknown = (label.label < 0) | (label.label >= (classes or np.inf))
    for invalid, what, remedy in (
        (~inside, f"is outside of {size[1]}x{size[0]} px", "give corners in px of the histograms"),
        (flipped, "has left > right or top > bottom", "give left, top, right, bottom"),
        (unknown, "has an unknown class", "list all classes"),
    ):
        if invalid.any():
            index = int(np.argmax(invalid))
            box = ", ".join(f"{value:g}" for value in label.corners[index])
            return f"box {index} ({box}; class {label.label[index]}) {what}", remedy
    return None


def _described(value: Any) -> str:
    return (
        f"{value.dtype} of shape {value.shape}"
        if isinstance(value, np.ndarray)
        else f"a {type(value).__name__}"
    )

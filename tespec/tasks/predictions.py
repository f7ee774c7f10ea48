"""Predictions on disk: one file per label in a folder per recording, and `predictions.json`."""

import json
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
import pydantic.dataclasses
from numpy.typing import NDArray
from PIL import Image
from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from tespec.comparison.cell import Arch, Name
from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_json, regular_file
from tespec.core.settings import Flag, PositiveFraction, Size, build
from tespec.datasets.labels import DAMAGED_PNG, MaskFiles
from tespec.datasets.recording import LabelledRecording
from tespec.events.readers.arrays import COPY_AGAIN, load_arrays

DESCRIPTION = "predictions.json"
Line = Annotated[str, Field(max_length=1000, pattern=r"^[^\x00-\x1f]*$")]
Pixels = Annotated[float, Field(ge=-1e30, le=1e30)]  # float32 holds the sum of two
PixelSize = Annotated[float, Field(ge=0, le=1e30)]


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Description:
    """Content of `predictions.json`; a value of None is not compared with the scored data."""

    method: Annotated[Name, Field(max_length=60)]
    task: str
    arch: Arch
    height: int  # px of masks, of depth maps and of the image that boxes refer to
    width: int
    split: Literal["test", "val"] = "test"
    data: str | None = None  # name in records
    data_fingerprint: str | None = None
    task_version: int | None = None
    classes: tuple[str, ...] | None = None  # in the order of their numbers
    seed: Annotated[int, Field(ge=0)] = 0
    profile: str = ""  # "": the default of the data
    overrides: dict[str, Any] = field(default_factory=dict)  # changed settings by dotted name
    label_fraction: PositiveFraction = 1.0
    frozen: Flag = False  # whether only the head was trained
    test_time_augmentation: Line = "none"
    events: Line = ""  # that the network sees for a label
    pretraining_data: Line = "-"
    title: Line = ""  # in tables; "": `method`
    citation: Line = ""
    licence: Line = ""
    metrics: dict[str, float] = field(default_factory=dict)  # as computed by the author


def read_description(folder: Path) -> Description:
    """Read the `predictions.json` of a folder."""
    path = folder / DESCRIPTION
    try:
        facts = read_json(path)
    except UNREADABLE as error:
        what = "no such file" if not path.exists() else f"not a readable JSON file ({error})"
        raise UserError(path, what, "write it as in docs/running.md") from error
    if not isinstance(facts, dict):
        raise UserError(path, "is not a mapping", "write it as in docs/running.md")
    return build(Description, facts, str(path))


def find_predictions(
    folder: Path, recordings: Sequence[LabelledRecording], suffixes: Sequence[str]
) -> dict[str, Path]:
    """Find the prediction of every label; hidden files are ignored.

    Args:
        folder: contains a folder for each recording.
        recordings: with the labels.
        suffixes: of the files.

    Returns:
        Files by `frame_name`, in the order of the labels.

    Raises:
        UserError: a file is missing, or there is another one.
    """
    frames = [
        frame_name(recording, label)
        for recording in recordings
        for label in range(len(recording.label_indices))
    ]
    files: dict[str, Path] = dict.fromkeys(frames, folder)
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        if path.is_dir() or name == Path(DESCRIPTION) or any(p.startswith(".") for p in name.parts):
            continue
        frame = name.with_suffix("").as_posix()
        if frame not in files or path.suffix not in suffixes:
            what = f"is no {' or '.join(suffixes)} file named after a recording and a label's time"
            raise UserError(path, what, "remove or rename it")
        if files[frame] != folder:
            what = f"predicts the same label as {files[frame].name}"
            raise UserError(path, what, "keep one of them")
        files[frame] = path
    missing = [frame for frame, path in files.items() if path == folder]
    if missing:
        what = f"is missing; {len(missing):,} of {len(frames):,} labels have no prediction"
        raise UserError(folder / f"{missing[0]}{suffixes[0]}", what, "predict every label once")
    return files


def frame_name(recording: LabelledRecording, label: int) -> str:
    """Name of a label's prediction: the recording's name, a slash and the label's time in us."""
    return f"{recording.name}/{recording.label_times[label]}"


class Format(NamedTuple):
    """Files with the predictions of one kind of task."""

    suffixes: tuple[str, ...]  # the first one is written
    write: Callable[[Path, Any], None]
    # From a file, the size (H, W) in px of the labels and the number of classes; raises a
    # `UserError` if the file is not a valid prediction.
    read: Callable[[Path, Size, int], Any]


def write_mask(path: Path, mask: NDArray[np.uint8]) -> None:
    """Write the classes (H, W) of pixels as a PNG file."""
    Image.fromarray(mask).save(path, "PNG")


def read_mask(path: Path, size: Size, classes: int) -> NDArray[np.uint8]:
    """Read the classes (H, W) of pixels from a PNG file; see `Format.read`."""
    mask = MaskFiles(path.parent, (path.name,))[0]
    _require_pixels(path, mask, size, mask < classes, f"a class from 0 to {classes - 1}")
    return mask


def write_depth(path: Path, depth: NDArray[np.float32]) -> None:
    """Write a depth map (H, W) in m as a compressed NPZ file."""
    np.savez_compressed(path, depth=depth)


def read_depth(path: Path, size: Size, classes: int) -> NDArray[np.float32]:
    """Read a depth map (H, W) in m; see `Format.read`.

    Args:
        path: NPZ file with float32 `depth` in m, or PNG file of 16-bit depth in mm.
        size: (H, W) in px of the labels.
        classes: not used.
    """
    is_png = path.suffix == ".png"
    depth = _read_16_bit(path) if is_png else load_arrays(path, ["depth"])[0]
    expected = np.dtype(np.uint16 if is_png else np.float32)
    if depth.dtype != expected:
        raise UserError(path, f"holds {depth.dtype}, not {expected}", "convert it")
    metres = (depth / 1000).astype(np.float32) if is_png else depth
    valid = np.isfinite(metres) & (metres > 0)
    _require_pixels(path, metres, size, valid, "a finite depth above 0")
    return metres


def _read_16_bit(path: Path) -> NDArray[Any]:
    try:
        with Image.open(regular_file(path), formats=("PNG",)) as image:
            return np.asarray(image)
    except DAMAGED_PNG as error:
        raise UserError(path, "not a readable PNG", COPY_AGAIN) from error


def _require_pixels(
    path: Path, values: NDArray[Any], size: Size, valid: NDArray[np.bool_], required: str
) -> None:
    if values.shape != size:
        what = f"has shape {values.shape}, but the labels have {size} (rows, columns)"
        raise UserError(path, what, "predict at the size of the labels")
    if not valid.all():
        invalid = values[~valid]
        what = f"has {len(invalid):,} invalid pixels, such as {invalid[0]:g}"
        raise UserError(path, what, f"give every pixel {required}")


class BoxEntry(BaseModel):
    """A box in COCO's format of results; `image_id` is the time of the label in us."""

    image_id: int
    category_id: Annotated[int, Field(ge=0)]
    bbox: tuple[Pixels, Pixels, PixelSize, PixelSize]  # left, top, width, height
    score: Annotated[float, Field(ge=0, le=1)]


BOX_ENTRIES = TypeAdapter(list[BoxEntry])


def write_boxes(path: Path, boxes: Boxes) -> None:
    """Write the boxes of a label as a JSON file of `BoxEntry`s, without rounding."""
    # Differences of float32 are exact in float64, which scoring uses as well.
    corners = boxes.corners.astype(np.float64)
    corners[:, 2:] -= corners[:, :2]
    columns = zip(corners.tolist(), boxes.label.tolist(), boxes.score.tolist(), strict=True)
    entries = [
        {"image_id": int(path.stem), "category_id": label, "bbox": box, "score": score}
        for box, label, score in columns
    ]
    path.write_text(json.dumps(entries))


def read_boxes(path: Path, size: Size, classes: int) -> Boxes:
    """Read the boxes of a label from a JSON file of `BoxEntry`s, [] for none; see `Format.read`."""
    try:
        entries = BOX_ENTRIES.validate_json(regular_file(path).read_bytes(), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "file"
        what = f"{where}: {first['msg']}"
        raise UserError(path, what, "write COCO results as in docs/running.md") from error
    for number, entry in enumerate(entries):
        if entry.image_id != int(path.stem):
            what = f"{number}.image_id: {entry.image_id} is not the time in the file's name"
            raise UserError(path, what, "put the boxes of each label in its own file")
        if entry.category_id >= classes:
            what = f"{number}.category_id: there is no class {entry.category_id}"
            raise UserError(path, what, f"give classes from 0 to {classes - 1}")
    corners = np.array([entry.bbox for entry in entries], np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    labels = np.array([entry.category_id for entry in entries], np.int64)
    return make_boxes(corners, labels, np.array([entry.score for entry in entries]))


# by kind of task
FORMATS = {
    "segmentation": Format((".png",), write_mask, read_mask),
    "depth": Format((".npz", ".png"), write_depth, read_depth),
    "detection": Format((".json",), write_boxes, read_boxes),
}


def format_of(kind: str) -> Format:
    """Format of the predictions of a kind of task; raises `UserError` for a kind without one."""
    if kind not in FORMATS:
        what = f"predictions of kind {kind!r} have no format"
        raise UserError("predictions", what, f"choose a task of kind {', '.join(FORMATS)}")
    return FORMATS[kind]

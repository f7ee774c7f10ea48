"""Predictions on disk: one file per label in a folder per recording, and `predictions.json`."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypeVar

import numpy as np
import pydantic.dataclasses
from numpy.typing import NDArray
from PIL import Image
from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from tespec.comparison.cell import Cell
from tespec.comparison.records import Weights
from tespec.core.boxes import Boxes, make_boxes
from tespec.core.errors import UserError, require
from tespec.core.files import regular_file
from tespec.core.settings import Size
from tespec.datasets.labels import MaskFiles
from tespec.datasets.recording import LabelledRecording
from tespec.events.readers.arrays import load_arrays
from tespec.pretraining.method import TableRow

T = TypeVar("T")
HEADER = "predictions.json"
Position = Annotated[float, Field(ge=-1e30, le=1e30)]  # px; float32 holds a sum
Length = Annotated[float, Field(ge=0, le=1e30)]


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True, config=ConfigDict(extra="forbid"))
class PredictionsHeader:
    """Content of `predictions.json`."""

    cell: Cell  # what predicted; `overrides` has the test-time augmentation
    facts: TableRow
    height: int  # px of masks, of depth maps and of the image that boxes refer to
    width: int
    seed: Annotated[int, Field(ge=0)] = 0
    events: str = "not described"  # that are given to the network for a label
    classes: tuple[str, ...] | None = None  # by number; None: not compared with the data's
    data_fingerprint: str | None = None  # None: not compared with the data's
    weights: Weights = Weights()  # initial ones; readers must know what they have seen


@pydantic.dataclasses.dataclass(frozen=True)
class BoxEntry:
    """A box in COCO's format of results; `image_id` is the time of the label in us."""

    image_id: int
    category_id: Annotated[int, Field(ge=0)]
    bbox: tuple[Position, Position, Length, Length]  # left, top, width, height
    score: Annotated[float, Field(ge=0, le=1)]


HEADERS = TypeAdapter(PredictionsHeader)
BOXES = TypeAdapter(list[BoxEntry])


def read_json_as(content: TypeAdapter[T], path: Path) -> T:
    """Read a JSON file whose content has a type; raises `UserError` for other content."""
    try:
        return content.validate_json(regular_file(path).read_bytes(), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "content"
        raise UserError(path, f"{where}: {first['msg']}", "see docs/running.md") from error


def prediction_path(folder: Path, recording: LabelledRecording, label: int, suffix: str) -> Path:
    """Path of the prediction for a label, named by the recording and the label's time in us."""
    return folder / recording.name / f"{recording.label_times[label]}{suffix}"


def find_predictions(
    folder: Path, recordings: Sequence[LabelledRecording], suffixes: Sequence[str]
) -> list[tuple[LabelledRecording, int, Path]]:
    """Find the prediction for every label.

    Args:
        folder: contains a folder for each recording; hidden files in them are ignored.
        recordings: with the labels.
        suffixes: allowed ones of the files.

    Returns:
        Recording, index and file of each label, in their order.

    Raises:
        UserError: a prediction is missing or doubled, or is of no label.
    """
    labels = {
        prediction_path(folder, recording, label, ""): (recording, label)
        for recording in recordings
        for label in range(len(recording.label_indices))
    }
    paths = [
        path
        for path in sorted(folder.rglob("*/*"))
        if not path.is_dir() and not path.name.startswith(".")
    ]
    found: dict[Path, Path] = {}
    for path in paths:
        name = path.with_suffix("")
        other = found.setdefault(name, path)
        require(other == path, path, f"predicts the same label as {other.name}", "keep one of them")
        require(
            name in labels and path.suffix in suffixes,
            path,
            f"is not named RECORDING/TIME{suffixes[0]} after a label of the split",
            "remove or rename it",
        )
    for name in labels:
        require(
            name in found,
            f"{name}{suffixes[0]}",
            "is missing",
            "predict every label of the split",
        )
    return [(*label, found[name]) for name, label in labels.items()]


class Format(NamedTuple):
    """Files with the predictions of one kind of task."""

    suffixes: tuple[str, ...]  # the first one is written
    write: Callable[[Path, Any], None]
    # From a file, the size (H, W) in px of the labels and the number of classes; raises a
    # `UserError` for an invalid prediction.
    read: Callable[[Path, Size, int], Any]


def write_mask(path: Path, mask: NDArray[np.uint8]) -> None:
    """Write the classes (H, W) of pixels as a PNG file."""
    Image.fromarray(mask).save(path, "PNG")


def read_mask(path: Path, size: Size, classes: int) -> NDArray[np.uint8]:
    """Read the classes (H, W) of pixels from a PNG file; see `Format.read`."""
    mask = MaskFiles(path.parent, (path.name,))[0]
    _require_pixels(path, mask, np.uint8, size, 0, classes - 1)
    return mask


def write_depth(path: Path, depth: NDArray[np.float32]) -> None:
    """Write a depth map (H, W) in m as a compressed NPZ file."""
    np.savez_compressed(path, depth=depth)


def read_depth(path: Path, size: Size, classes: int) -> NDArray[np.float32]:
    """Read a depth map (H, W) in m from a NPZ file, or from a PNG file with depth in mm.

    See `Format.read`; `classes` is not used.
    """
    if path.suffix == ".png":
        millimetres: NDArray[Any] = MaskFiles(path.parent, (path.name,))[0]
        _require_pixels(path, millimetres, np.uint16, size, 1, 65535)
        return (millimetres / 1000).astype(np.float32)
    (depth,) = load_arrays(path, ["depth"])
    _require_pixels(path, depth, np.float32, size, 1e-30, 1e30)
    return depth


def _require_pixels(
    path: Path, values: NDArray[Any], dtype: type, size: Size, low: float, high: float
) -> None:
    require(
        values.dtype == dtype and values.shape == size,
        path,
        f"holds {values.dtype} of shape {values.shape}",
        f"give {np.dtype(dtype)} of shape {size}, (rows, columns)",
    )
    invalid = values[~((values >= low) & (values <= high))]  # NaN is
    if invalid.size:
        raise UserError(
            path,
            f"{invalid.size:,} pixels are invalid, such as {invalid[0]:g}",
            f"give every pixel a value from {low:g} to {high:g}",
        )


def write_boxes(path: Path, boxes: Boxes) -> None:
    """Write the boxes of a label as a JSON file of `BoxEntry`s.

    Nothing is rounded, except that an edge within 0.001 px of 0 may move by 1e-12 px.
    """
    corners = boxes.corners.astype(np.float64)
    corners[:, 2:] -= corners[:, :2]
    entries = [
        {"image_id": int(path.stem), "category_id": label, "bbox": box, "score": score}
        for box, label, score in zip(
            corners.tolist(), boxes.label.tolist(), boxes.score.tolist(), strict=True
        )
    ]
    path.write_text(json.dumps(entries))


def read_boxes(path: Path, size: Size, classes: int) -> Boxes:
    """Read the boxes of a label from a JSON file of `BoxEntry`s; see `Format.read`.

    Boxes may exceed the image, so `size` is not used.
    """
    entries = read_json_as(BOXES, path)
    for box in entries:
        require(
            box.image_id == int(path.stem) and box.category_id < classes,
            path,
            f"has a box of image {box.image_id} and category {box.category_id}",
            f"give image_id {path.stem} and a category_id from 0 to {classes - 1}",
        )
    corners = np.array([box.bbox for box in entries], np.float64).reshape(-1, 4)
    corners[:, 2:] += corners[:, :2]
    labels = np.array([box.category_id for box in entries], np.int64)
    return make_boxes(corners, labels, np.array([box.score for box in entries]))


FORMATS = {  # by kind of task
    "segmentation": Format((".png",), write_mask, read_mask),
    "depth": Format((".npz", ".png"), write_depth, read_depth),
    "detection": Format((".json",), write_boxes, read_boxes),
}


def prediction_format(kind: str) -> Format:
    """Format of the predictions of a kind of task; raises `UserError` for a kind without one."""
    require(
        kind in FORMATS,
        f"predictions of kind {kind}",
        "have no format",
        f"choose from {', '.join(FORMATS)}",
    )
    return FORMATS[kind]

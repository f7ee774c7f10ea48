"""Checks labels against what a task learns from, each as it is read: type, shape, dtype and range."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.settings import Size
from tespec.datasets.labels import IGNORE
from tespec.datasets.recording import LabelledRecording, Labels

MASK, DEPTH, BOXES = "mask", "depth", "boxes"
DTYPES: dict[str, Any] = {MASK: np.uint8, DEPTH: np.float32}


@dataclass(frozen=True)
class CheckedLabels:
    """Labels of a recording, see `tespec.datasets.recording.Labels`; one that is not of its kind is refused.

    Attributes:
        labels: as the dataset gives them.
        where: recording, for messages.
        kind: `MASK`, `DEPTH` or `BOXES`.
        size: (H, W) of the histograms in px.
        classes: number of classes; 0: not known.
        first: number of the first label in the recording.
    """

    labels: Labels[Any]
    where: str
    kind: str
    size: Size
    classes: int
    first: int = 0

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> Any:
        """The label number `index`.

        Raises:
            UserError: it cannot be read, or is not of its kind.
        """
        label = self.labels[index]
        where = f"{self.where}, label {self.first + index}"
        if self.kind == BOXES:
            check_boxes(label, self.size, self.classes, where)
        else:
            check_map(label, self.kind, self.size, self.classes, where)
        return label

    def part(self, first: int, end: int) -> CheckedLabels:
        """The labels from `first` to `end` (exclusive)."""
        return replace(self, labels=self.labels.part(first, end), first=self.first + first)

    def checksums(self) -> list[int]:
        """Those of the labels."""
        return self.labels.checksums()


def with_checks(recording: LabelledRecording, kind: str, classes: int) -> LabelledRecording:
    """The recording with labels that are checked as they are read.

    Raises:
        UserError: its labels and their windows do not fit each other.
    """
    where, labelled = f"{recording.path}, recording {recording.name}", recording.labelled
    if len(recording.labels) != len(labelled):
        what = f"{len(recording.labels)} labels for {len(labelled)} labelled windows"
        raise UserError(where, what, "give the window that each label stands at the end of")
    if len(labelled) and ((np.diff(labelled) <= 0).any() or labelled[0] < 0 or labelled[-1] >= len(recording)):
        what = f"its labelled windows do not rise from 0 to at most {len(recording) - 1}"
        raise UserError(where, what, "give the window that each label stands at the end of")
    size = (recording.region.height, recording.region.width)
    return replace(recording, labels=CheckedLabels(recording.labels, where, kind, size, classes))


def check_map(label: Any, kind: str, size: Size, classes: int, where: str) -> None:
    """Check a mask (H, W) uint8, 255 where there is no label, or a depth (H, W) float32 in m, NaN where there is none.

    Raises:
        UserError: another type, size or dtype, an unknown class, or a depth that is infinite or not above zero.
    """
    if not isinstance(label, np.ndarray) or label.ndim != 2:
        raise UserError(where, f"{kind} is {_described(label)}", "give an array (H, W)")
    if label.shape != size:
        what = f"{kind} has {label.shape[1]}x{label.shape[0]} px, the histograms have {size[1]}x{size[0]}"
        raise UserError(where, what, "crop or resize it to the histograms")
    if label.dtype != DTYPES[kind]:
        wanted = np.dtype(DTYPES[kind])
        raise UserError(where, f"{kind} is {label.dtype}, not {wanted}", f"convert it to {wanted}")
    if kind == MASK:
        unknown = label[(label >= classes) & (label != IGNORE)]
        if len(unknown):
            remedy = f"give classes 0 to {classes - 1}, and {IGNORE} for pixels without a label"
            raise UserError(where, f"mask holds class {int(unknown[0])} of {classes}", remedy)
    else:
        wrong = label[~(np.isnan(label) | ((label > 0) & (label < np.inf)))]
        if len(wrong):
            raise UserError(where, f"depth holds {wrong[0]:g} m", "give depths above 0, and NaN where there is none")


def check_boxes(label: Any, size: Size, classes: int, where: str) -> None:
    """Check boxes in px of histograms of `size` (H, W).

    Raises:
        UserError: no `Boxes`, arrays of other shapes or dtypes, an unknown class, or a box that is turned around, not
            finite, or reaches more than a pixel beyond the image.
    """
    if not isinstance(label, Boxes):
        raise UserError(where, f"boxes are {_described(label)}", "give tespec.core.boxes.make_boxes(corners, classes)")
    corners, numbers = np.asarray(label.corners), np.asarray(label.label)
    count = numbers.size
    for name, values, shape, of in (("corners", corners, (count, 4), "f"), ("classes", numbers, (count,), "iu")):
        if values.shape != shape or values.dtype.kind not in of:
            what = f"{name} of {count} boxes are {_described(values)}"
            raise UserError(where, what, "give tespec.core.boxes.make_boxes(corners, classes)")
    height, width = size
    left, top, right, bottom = corners.T
    # Downsampling to whole pixels leaves up to one beyond the border.
    inside = (left >= 0) & (top >= 0) & (right <= width + 1) & (bottom <= height + 1)
    _refuse_box(where, ~inside, corners, f"outside of {width}x{height} px", "clip it to the image")
    _refuse_box(where, (right < left) | (bottom < top), corners, "turned around", "give left, top, right, bottom")
    unknown = (numbers < 0) | (numbers >= (classes or np.inf))
    if unknown.any():
        what = f"box {int(np.argmax(unknown))} has class {numbers[unknown][0]} of {classes}"
        raise UserError(where, what, f"give classes 0 to {classes - 1}")


def _refuse_box(where: str, wrong: NDArray[np.bool_], corners: NDArray[np.floating], what: str, remedy: str) -> None:
    if wrong.any():
        number = int(np.argmax(wrong))
        said = ", ".join(f"{value:g}" for value in corners[number])
        raise UserError(where, f"box {number} ({said}) is {what}", remedy)


def _described(value: Any) -> str:
    return f"{value.dtype} of shape {value.shape}" if isinstance(value, np.ndarray) else f"a {type(value).__name__}"

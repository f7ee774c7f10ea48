"""Reads the labels of a recording, whatever their kind."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tespec.boxes import Boxes
from tespec.datasets.masks import IGNORE
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.survey.facts import LabelFacts

QUICK = 16  # labels that a quick survey reads


def label_facts(recording: LabelledRecording, classes: Sequence[str], quick: bool = False) -> LabelFacts:
    """Read every label, or a few spread over the recording.

    Raises:
        UserError: one cannot be read.
    """
    count = len(recording.labelled)
    chosen = np.unique(np.linspace(0, count - 1, QUICK).astype(int)) if quick and count > QUICK else np.arange(count)
    occurrences, pixels, unlabelled, empty = np.zeros(len(classes), np.int64), 0, 0, 0
    low, high = np.inf, -np.inf
    values: NDArray[np.generic]
    found: NDArray[np.generic]
    for index in chosen.tolist():
        label = recording.labels[index]
        if isinstance(label, Boxes):
            values, found = label.size.ravel(), label.label
        elif label.dtype == np.uint8:
            values, found = np.empty(0), label[label != IGNORE]
        else:
            values, found = label[np.isfinite(label)], np.empty(0, np.int64)
        if not isinstance(label, Boxes):
            pixels += label.size
            unlabelled += label.size - max(len(found), len(values))
        occurrences += np.bincount(found, minlength=len(classes))[: len(classes)]
        empty += not (len(values) or len(found))
        if len(values):
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    times = recording.label_times
    return LabelFacts(
        count=count,
        first=int(times[0]) if count else 0,
        last=int(times[-1]) if count else 0,
        spacing_ms=_spacing(times),
        classes=dict(zip(classes, occurrences.tolist(), strict=True)),
        unlabelled=unlabelled / pixels if pixels else 0.0,
        extent=(low, high) if low <= high else (0.0, 0.0),
        empty=empty,
    )


def _spacing(times: NDArray[np.int64]) -> tuple[float, float, float]:
    gaps = np.diff(times) / 1000
    return (float(gaps.min()), float(np.median(gaps)), float(gaps.max())) if len(gaps) else (0.0, 0.0, 0.0)

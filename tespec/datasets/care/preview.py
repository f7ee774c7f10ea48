"""A picture of a dataset: events, histogram, intensity, and labels over the events, so that doubts can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from tespec.datasets.recording import LabelledRecording
from tespec.errors import UserError
from tespec.evaluation.label_pictures import add_legend, draw_label, faded_events
from tespec.evaluation.pictures import event_image, grey_image
from tespec.events.intensity import estimate_intensity
from tespec.writing import whole_file

BINS = 10
CANDIDATES = 9  # labels around a place among which the busiest is shown
SETTLING_US = 3_000_000  # before the moment that is shown, for the intensity image to settle
GREY_RANGE = 2.5  # standard deviations shown between black and white
LONGEST_NAME = 26  # letters
COLUMNS = ("events of the window", "histogram, all bins", "intensity, Eq. 7", "labels over the events")


@dataclass(frozen=True)
class Moment:
    """What is shown in one row.

    Attributes:
        title: recording and time.
        histogram: (2*bins, H, W) uint8 of the window that ends at the label.
        intensity: (H, W) float32 there.
        label: a mask, boxes or a depth.
    """

    title: str
    histogram: NDArray[np.uint8]
    intensity: NDArray[np.float32]
    label: Any


def moment(recording: LabelledRecording, label: int, rule: str, norm_events: float) -> Moment:
    """What is to be seen at a label.

    Args:
        recording: with labels.
        label: its number.
        rule: binning rule.
        norm_events: N of Eq. 7.

    Raises:
        UserError: events or label cannot be read.
    """
    window = int(recording.labelled[label])
    end = int(recording.windows[window, 1])
    first = int(np.searchsorted(recording.windows[: window + 1, 0], end - SETTLING_US))
    state: torch.Tensor | None = None
    histogram = np.empty(0, np.uint8)
    for each in range(min(first, window), window + 1):
        histogram = recording.histograms(each, 1, BINS, rule)
        bin_seconds = float(recording.windows[each, 1] - recording.windows[each, 0]) / 1e6 / BINS
        _, state = estimate_intensity(
            torch.from_numpy(histogram)[None], state, norm_events=norm_events, bin_seconds=bin_seconds
        )
    assert state is not None
    seconds = (end - int(recording.windows[0, 0])) / 1e6
    title = f"{shortened(recording.name)}\n{seconds:.2f} s, {int(histogram.sum(dtype=np.int64)):,} events"
    return Moment(title, histogram[0], state[0].numpy(), recording.labels[label])


def shortened(name: str) -> str:
    """A name, its middle left out where it is too long to stand beside a picture."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}...{name[-6:]}"


def choose(recordings: Sequence[LabelledRecording], count: int, rule: str) -> list[tuple[LabelledRecording, int]]:
    """`count` labels spread over recordings and their time: of the labels around each place the one with most events.

    Raises:
        UserError: no recording has a label.
    """
    labelled = [recording for recording in recordings if len(recording.labelled)]
    if not labelled:
        raise UserError(recordings[0].path if recordings else "recordings", "no label to show", "check the dataset")
    chosen = []
    for place in range(count):
        recording = labelled[place * len(labelled) // count if len(labelled) >= count else place % len(labelled)]
        last = len(recording.labelled) - 1
        around = last * (place + 0.5) / count + np.linspace(-0.5, 0.5, CANDIDATES) * last / count
        candidates = sorted(set(around.astype(int).tolist()))
        chosen.append((recording, max(candidates, key=lambda label: _events(recording, label, rule))))
    return chosen


def _events(recording: LabelledRecording, label: int, rule: str) -> int:
    """Number of events in the window of a label, hot pixels counted up to the largest count."""
    window = int(recording.labelled[label])
    return int(recording.histograms(window, 1, BINS, rule).sum(dtype=np.int64))


def draw(moments: Sequence[Moment], classes: Sequence[str], path: Path) -> None:
    """Write a row of four pictures for each moment as a PNG."""
    height, width = moments[0].intensity.shape
    row = 15 / len(COLUMNS) * height / width + 0.05
    figure = Figure(figsize=(15, 0.7 + len(moments) * row), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(moments), len(COLUMNS), squeeze=False)
    for number, (cells, each) in enumerate(zip(axes, moments, strict=True)):
        _draw_row(cells, each)
        cells[0].set_ylabel(each.title, fontsize=9)
        if number == 0:
            for axis, column in zip(cells, COLUMNS, strict=True):
                axis.set_title(column, fontsize=11)
    if classes:
        add_legend(figure, classes)
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=80, format="png", metadata={"Software": None})


def _draw_row(cells: NDArray[np.object_], shown: Moment) -> None:
    counts = shown.histogram.sum(axis=0, dtype=np.int64)
    spread = GREY_RANGE * float(shown.intensity.std()) or 1.0
    pictures = (
        event_image(shown.histogram),
        matplotlib.colormaps["inferno"](np.log1p(counts) / max(float(np.log1p(counts.max())), 1.0)),
        grey_image(shown.intensity, spread),
        faded_events(shown.histogram),
    )
    for axis, picture in zip(cells, pictures, strict=True):
        axis.imshow(picture, interpolation="nearest")
        axis.set_xticks([])
        axis.set_yticks([])
    draw_label(cells[-1], shown.label)

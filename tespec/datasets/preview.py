"""A picture of recordings: events, histogram, intensity, and labels over the events, so that doubts can be seen."""

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
from matplotlib.patches import Patch
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.files import whole_file
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.rvt_archive import RULE as STORED_RULE
from tespec.datasets.rvt_archive import ArchiveSource
from tespec.events.intensity import estimate_intensity
from tespec.pictures.drawing import NEGATIVE, POSITIVE, event_image, grey_image
from tespec.pictures.labels import add_legend, draw_label, faded_events

BINS = 10
CANDIDATES = 9  # labels, or windows, around a place among which the busiest is shown
SETTLING_US = 3_000_000  # before the moment that is shown, for the intensity image to settle
GREY_RANGE = 2.5  # standard deviations shown between black and white
LONGEST_NAME = 26  # letters
COLUMNS = ("events of the window", "histogram, all bins", "intensity, Eq. 7", "labels over the events")


@dataclass(frozen=True)
class Moment:
    """What is shown in one row.

    Attributes:
        title: recording and time.
        histogram: (2*bins, H, W) uint8 of a window, which ends at the label if there is one.
        intensity: (H, W) float32 at its end.
        label: a mask, boxes or a depth; None for recordings without labels.
    """

    title: str
    histogram: NDArray[np.uint8]
    intensity: NDArray[np.float32]
    label: Any


def moment(recording: LabelledRecording, place: int, rule: str, norm_events: float) -> Moment:
    """What is to be seen at a label, or in a window of a recording that has none.

    Args:
        recording: with labels or without.
        place: number of the label, or of the window.
        rule: binning rule; archives of histograms have their own.
        norm_events: N of Eq. 7.

    Raises:
        UserError: events or label cannot be read.
    """
    window = int(_shown(recording)[place])
    end = int(recording.windows[window, 1])
    first = int(np.searchsorted(recording.windows[: window + 1, 0], end - SETTLING_US))
    state: torch.Tensor | None = None
    histogram = np.empty(0, np.uint8)
    for each in range(min(first, window), window + 1):
        histogram = _histogram(recording, each, rule)
        bin_seconds = float(recording.windows[each, 1] - recording.windows[each, 0]) / 1e6 / BINS
        _, state = estimate_intensity(
            torch.from_numpy(histogram)[None], state, norm_events=norm_events, bin_seconds=bin_seconds
        )
    assert state is not None
    seconds = (end - int(recording.windows[0, 0])) / 1e6
    title = f"{shortened(recording.name)}\n{seconds:.2f} s, {int(histogram.sum(dtype=np.int64)):,} events"
    label = recording.labels[place] if len(recording.labelled) else None
    return Moment(title, histogram[0], state[0].numpy(), label)


def _shown(recording: LabelledRecording) -> NDArray[np.int64]:
    """The windows that may be shown: those that end at a label, or all of a recording without labels."""
    return recording.labelled if len(recording.labelled) else np.arange(len(recording), dtype=np.int64)


def _histogram(recording: LabelledRecording, window: int, rule: str) -> NDArray[np.uint8]:
    stored = isinstance(recording.source, ArchiveSource)
    return recording.histograms(window, 1, BINS, STORED_RULE if stored else rule)


def shortened(name: str) -> str:
    """A name, its middle left out where it is too long to stand beside a picture."""
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}...{name[-6:]}"


def choose(recordings: Sequence[LabelledRecording], count: int, rule: str) -> list[tuple[LabelledRecording, int]]:
    """`count` labels spread over recordings and their time: of the labels around each place the one with most events.

    No label is shown twice while there are others. Where no recording has labels, windows take their place.

    Raises:
        UserError: there is neither a label nor a window.
    """
    labelled = [recording for recording in recordings if len(recording.labelled)]
    labelled = labelled or [recording for recording in recordings if len(recording)]
    if not labelled:
        where = recordings[0].path if recordings else "recordings"
        raise UserError(where, "has no label and no whole window to show", "check the dataset")
    chosen: list[tuple[LabelledRecording, int]] = []
    for place in range(count):
        recording = labelled[place * len(labelled) // count if len(labelled) >= count else place % len(labelled)]
        last = len(_shown(recording)) - 1
        around = last * (place + 0.5) / count + np.linspace(-0.5, 0.5, CANDIDATES) * last / count
        every = set(around.astype(int).tolist())
        shown = {each for other, each in chosen if other is recording}
        candidates = sorted(every - shown) or sorted(every)  # neighbours share a place where they meet
        chosen.append((recording, max(candidates, key=lambda place: _events(recording, place, rule))))
    return chosen


def _events(recording: LabelledRecording, place: int, rule: str) -> int:
    """Number of events in a window, hot pixels counted up to the largest count."""
    return int(_histogram(recording, int(_shown(recording)[place]), rule).sum(dtype=np.int64))


def draw(moments: Sequence[Moment], classes: Sequence[str], path: Path) -> None:
    """Write a row of pictures for each moment as a PNG: four, or three where there are no labels."""
    height, width = moments[0].intensity.shape
    columns = COLUMNS if any(each.label is not None for each in moments) else COLUMNS[:-1]
    row = 15 / len(columns) * height / width + 0.05
    figure = Figure(figsize=(15, 0.7 + len(moments) * row), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(len(moments), len(columns), squeeze=False)
    for number, (cells, each) in enumerate(zip(axes, moments, strict=True)):
        _draw_row(cells, each)
        cells[0].set_ylabel(each.title, fontsize=9)
        if number == 0:
            for axis, column in zip(cells, columns, strict=True):
                axis.set_title(column, fontsize=11)
    _add_polarities(figure)
    if classes:
        add_legend(figure, classes)
    with whole_file(path) as unfinished:
        figure.savefig(unfinished, dpi=80, format="png", metadata={"Software": None})


def _add_polarities(figure: Figure) -> None:
    """Say above the pictures what the colours of events are."""
    said = ((POSITIVE, "positive events (brighter)"), (NEGATIVE, "negative events (darker)"))
    handles = [Patch(color=colour, label=text) for colour, text in said]
    figure.legend(handles=handles, loc="outside upper left", ncols=len(handles), fontsize=9, frameon=False)


def _draw_row(cells: NDArray[np.object_], shown: Moment) -> None:
    counts = shown.histogram.sum(axis=0, dtype=np.int64)
    spread = GREY_RANGE * float(shown.intensity.std()) or 1.0
    pictures = (
        event_image(shown.histogram),
        matplotlib.colormaps["inferno"](np.log1p(counts) / max(float(np.log1p(counts.max())), 1.0)),
        grey_image(shown.intensity, spread),
        faded_events(shown.histogram),
    )
    for axis, picture in zip(cells, pictures, strict=False):
        axis.imshow(picture, interpolation="nearest")
        axis.set_xticks([])
        axis.set_yticks([])
    if shown.label is not None:
        draw_label(cells[-1], shown.label)

"""A picture of recordings: events, histogram, intensity, and labels over the events, so that doubts can be seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.datasets.prophesee import RULE as STORED_RULE
from tespec.datasets.prophesee import ArchiveSource
from tespec.datasets.recording import LabelledRecording
from tespec.events.intensity import estimate_intensity
from tespec.pictures.panels import (
    POLARITIES,
    add_bar,
    add_legend,
    colours_of,
    draw_label,
    faded_events,
    known,
    make_panels,
    save_figure,
    show_counts,
    show_events,
    show_grey,
)

BINS = 10
CANDIDATES = 9  # labels, or windows, around a place among which the busiest is shown
SETTLING_US = 3_000_000  # before the moment that is shown, for the intensity image to settle
LONGEST_NAME = 26  # letters
WIDTH = 16.0  # inches
VEIL = 0.55  # opacity of events over masks
COLUMNS = ("events of the window", "histogram: events at each pixel", "intensity, Eq. 7", "labels; events grey or dark")


@dataclass(frozen=True)
class LabelledWindow:
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


def look_at(recording: LabelledRecording, place: int, rule: str, norm_events: float) -> LabelledWindow:
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
    length = (end - int(recording.windows[window, 0])) / 1e3
    events = int(histogram.sum(dtype=np.int64))
    title = f"{shortened(recording.name)}\n{seconds:.2f} s: {events:,} events in {length:.0f} ms"
    label = recording.labels[place] if len(recording.labelled) else None
    return LabelledWindow(title, histogram[0], state[0].numpy(), label)


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


def draw(shown: Sequence[LabelledWindow], classes: Sequence[str], path: Path) -> None:
    """Write a row of pictures for each window as a PNG: four, or three where there are no labels."""
    labels = [each.label for each in shown if each.label is not None]
    columns = COLUMNS[: 4 if labels else 3]
    colours = POLARITIES | colours_of(labels, classes)
    figure, panels = make_panels(
        len(shown), len(columns), shown[0].intensity.shape, WIDTH, bars=3 if labels else 2, legend=len(colours)
    )
    for axis, column in zip(panels[0], columns, strict=True):
        axis.set_title(column, fontsize=11)
    for axes, each in zip(panels, shown, strict=True):
        axes[0].set_ylabel(each.title, fontsize=9)
        show_events(axes[0], each.histogram)
        show_counts(axes[1], each.histogram)
        show_grey(axes[2], each.intensity)
        if each.label is not None:
            _show_label(axes[3], each)
    add_legend(figure, colours)
    save_figure(figure, path, dpi=80)


def _show_label(axis: Axes, shown: LabelledWindow) -> None:
    """Show a label, with the events where both can be seen: below boxes, as dark veils over masks."""
    axis.imshow(faded_events(shown.histogram), interpolation="nearest")
    image = draw_label(axis, shown.label)
    if image is not None and known(shown.label).any():
        add_bar(axis, image, str(image.get_label()))
    elif image is None and isinstance(shown.label, np.ndarray):
        veil = np.zeros((*shown.intensity.shape, 4), np.float32)
        veil[..., 3] = VEIL * shown.histogram.any(axis=0)
        axis.imshow(veil, interpolation="nearest")

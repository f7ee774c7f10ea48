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
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.pictures import (
    POLARITIES,
    Image,
    add_bar,
    colours_of,
    draw_label,
    known,
    make_panels,
    save_figure,
    show_counts,
    show_events,
    show_faded,
    show_grey,
)

BINS = 10
CANDIDATES = 9  # windows around a place among which the busiest is shown
SETTLING_US = 3_000_000  # before the moment that is shown, for intensities to settle
LONGEST_NAME = 26  # letters
WIDTH = 16.0  # inches
VEIL = 0.55  # opacity of events over masks


@dataclass(frozen=True)
class Moment:
    """The end of a window, a row of the picture.

    Attributes:
        title: recording and time.
        histogram: (2*bins, H, W) uint8 of the window.
        high_pass: (H, W) intensity of Eq. 6 at its end.
        intensity: (H, W) intensity of Eq. 7 at its end.
        label: a mask, boxes or a depth; None where the window has none.
    """

    title: str
    histogram: NDArray[np.uint8]
    high_pass: Image
    intensity: Image
    label: Any


def moment(recording: LabelledRecording, window: int, rule: str, norm_events: float) -> Moment:
    """What is to be seen at the end of a window."""
    windows, end = recording.windows[: window + 1], int(recording.windows[window, 1])
    image: torch.Tensor | None = None
    filtered: torch.Tensor | None = None
    for each in range(min(int(np.searchsorted(windows[:, 0], end - SETTLING_US)), window), window + 1):
        histogram = _histogram(recording, each, rule)
        seconds = float(windows[each, 1] - windows[each, 0]) / 1e6 / BINS
        counts = torch.from_numpy(histogram)[None]
        _, image = estimate_intensity(counts, image, norm_events=norm_events, bin_seconds=seconds)
        _, filtered = estimate_high_pass(counts, filtered, bin_seconds=seconds)
    assert image is not None
    assert filtered is not None
    since, length = (end - windows[[0, window], 0]) / 1e6
    name = recording.name
    if len(name) > LONGEST_NAME:
        name = f"{name[: LONGEST_NAME - 9]}...{name[-6:]}"
    events = int(histogram.sum(dtype=np.int64))
    title = f"{name}\n{since:.2f} s: {events:,} events in {1000 * length:.0f} ms"
    label = next((recording.labels[number] for number in recording.labels_in(window, 1)), None)
    return Moment(title, histogram[0], filtered[0, 0].numpy(), image[0].numpy(), label)


def choose(recordings: Sequence[LabelledRecording], count: int, rule: str) -> list[tuple[LabelledRecording, int]]:
    """`count` windows spread over recordings and their time: of those around each place the one with most events.

    Windows that end at a label are taken where there are any, and none twice while there are others.
    """
    found = [each for each in recordings if len(each.labelled)] or [each for each in recordings if len(each)]
    if not found:
        where = recordings[0].path if recordings else "recordings"
        raise UserError(where, "has no label and no whole window to show", "check the data set")
    chosen = []
    for place in range(count):
        recording = found[place * len(found) // count if len(found) >= count else place % len(found)]
        windows = recording.labelled if len(recording.labelled) else np.arange(len(recording))
        first, end = (each * len(windows) // count for each in (place, place + 1))
        around = windows[np.linspace(first, max(first, end - 1), CANDIDATES).astype(int)].tolist()
        events = [int(_histogram(recording, window, rule).sum(dtype=np.int64)) for window in around]
        chosen.append((recording, around[int(np.argmax(events))]))
    return chosen


def _histogram(recording: LabelledRecording, window: int, rule: str) -> NDArray[np.uint8]:
    """Archives of histograms have a binning rule of their own."""
    stored = isinstance(recording.source, ArchiveSource)
    return recording.histograms(window, 1, BINS, STORED_RULE if stored else rule)


def windows_at(recording: LabelledRecording, seconds: Sequence[float]) -> list[int]:
    """Windows that end at or before times since the start of a recording; refused where there are none."""
    if not len(recording):
        raise UserError(recording.path, "is shorter than a window", "give a longer one")
    ends = (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6
    for each in seconds:
        if not ends[0] <= each <= ends[-1]:
            what = f"{each:g} s is outside of the recording"
            raise UserError(recording.path, what, f"give times from {ends[0]:g} to {ends[-1]:g} s")
    return sorted({int(np.searchsorted(ends, each + 1e-9, side="right")) - 1 for each in seconds})


def draw(shown: Sequence[Moment], classes: Sequence[str], path: Path, norm_events: float, high_pass: bool) -> None:
    """Write a row of pictures for each moment as a PNG: events, histogram, intensity, and labels where there are any.

    `high_pass` shows the intensity of Eq. 6 in place of the histogram.
    """
    labels = [each.label for each in shown if each.label is not None]
    columns = [
        "events of the window",
        "intensity, Eq. 6" if high_pass else "histogram: events at each pixel",
        f"intensity, Eq. 7, N = {norm_events:g}",
        *(["labels; events grey or dark"] if labels else []),
    ]
    colours = POLARITIES | colours_of(labels, classes)
    size = shown[0].intensity.shape
    figure, panels = make_panels(len(shown), columns, size, WIDTH, len(columns) - 1, colours)
    for axes, each in zip(panels, shown, strict=True):
        axes[0].set_ylabel(each.title, fontsize=9)
        show_events(axes[0], each.histogram)
        if high_pass:
            show_grey(axes[1], each.high_pass)
        else:
            show_counts(axes[1], each.histogram)
        show_grey(axes[2], each.intensity)
        if labels:
            _show_label(axes[3], each)
    save_figure(figure, path, dpi=80)


def _show_label(axis: Axes, shown: Moment) -> None:
    """Show a label, with the events where both can be seen: below boxes, as dark veils over masks."""
    show_faded(axis, shown.histogram)
    if shown.label is None:
        return
    image = draw_label(axis, shown.label)
    if image is not None and known(shown.label).any():
        add_bar(axis, image, str(image.get_label()))
    elif image is None and isinstance(shown.label, np.ndarray):
        veil = np.zeros((*shown.intensity.shape, 4), np.float32)
        veil[..., 3] = VEIL * shown.histogram.any(axis=0)
        axis.imshow(veil, interpolation="nearest")

"""Eq. 6 beside Eq. 7 on one recording: which blur stays, and which goes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.datasets.recording import Recording
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.pictures.panels import POLARITIES, Image, add_legend, make_panels, save_figure, show_events, show_grey

BINS, RULE = 10, "edges"
ROWS = ("events of the window", "intensity, Eq. 6", "intensity, Eq. 7")
PANEL = (3.2, 3.6)  # inches, widest and highest
SETTLING = 10  # windows before the first one that is worth showing


@dataclass(frozen=True)
class Instant:
    """The end of a window.

    Attributes:
        title: when, and how many events the window holds.
        histogram: (2*BINS, H, W) uint8 of the window.
        high_pass: (H, W) intensity of Eq. 6.
        intensity: (H, W) intensity of Eq. 7.
    """

    title: str
    histogram: NDArray[np.uint8]
    high_pass: Image
    intensity: Image


def instants(recording: Recording, windows: Sequence[int], alpha: float, norm_events: float) -> list[Instant]:
    """What both equations make of the same histograms, from the start of a recording to the ends of some windows.

    Args:
        recording: with windows side by side.
        windows: their numbers, rising.
        alpha: decay of both, in 1/s.
        norm_events: N of Eq. 7.

    Raises:
        UserError: the events cannot be read.
    """
    found = []
    image: torch.Tensor | None = None
    filtered: torch.Tensor | None = None
    for number in range(max(windows) + 1):
        histograms = recording.histograms(number, 1, BINS, RULE)
        start, end = recording.windows[number].tolist()
        counts, seconds = torch.from_numpy(histograms)[None], (end - start) / 1e6 / BINS
        _, image = estimate_intensity(counts, image, alpha=alpha, norm_events=norm_events, bin_seconds=seconds)
        _, filtered = estimate_high_pass(counts, filtered, alpha=alpha, bin_seconds=seconds)
        if number in windows:
            since = (end - int(recording.windows[0, 0])) / 1e6
            events = int(histograms.sum(dtype=np.int64))
            title = f"{since:.2f} s: {events:,} events in {(end - start) / 1e3:.0f} ms"
            found.append(Instant(title, histograms[0], filtered[0, 0].numpy(), image[0].numpy()))
    return found


def windows_at(recording: Recording, seconds: Sequence[float]) -> list[int]:
    """Numbers of the windows that end at or before times since the start of a recording.

    Raises:
        UserError: a time before the end of the first window, or after that of the last one.
    """
    ends = (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6
    for each in seconds:
        if not ends[0] <= each <= ends[-1]:
            what = f"{each:g} s is outside of the recording"
            raise UserError(recording.path, what, f"give times from {ends[0]:g} to {ends[-1]:g} s")
    return sorted({int(np.searchsorted(ends, each + 1e-9, side="right")) - 1 for each in seconds})


def busiest_and_quiet(recording: Recording) -> list[int]:
    """The window with most events once images have settled, and the one with fewest after it.

    Raises:
        UserError: the events cannot be read.
    """
    events = [recording.histograms(number, 1, BINS, RULE).sum(dtype=np.int64) for number in range(len(recording))]
    busiest = min(SETTLING, len(events) - 1) + int(np.argmax(events[SETTLING:] or events[-1:]))
    return sorted({busiest, busiest + int(np.argmin(events[busiest:]))})


def draw_instants(
    shown: Sequence[Instant], path: Path, norm_events: float, crop: tuple[slice, slice] | None = None
) -> None:
    """Write a column of three pictures for each instant as a PNG; both intensities are scaled by the same rule.

    Args:
        shown: at least one.
        path: of the PNG.
        norm_events: N of Eq. 7, which is named.
        crop: rows and columns that are drawn, and that the scale is taken from; None: all.
    """
    rows, columns = crop or (slice(None), slice(None))
    height, width = shown[0].intensity[rows, columns].shape
    panel = min(PANEL[0], PANEL[1] * width / height) + 0.45
    figure, panels = make_panels(len(ROWS), len(shown), (height, width), panel * len(shown), len(shown), 3)
    for axes, instant in zip(panels.T, shown, strict=True):
        axes[0].set_title(instant.title, fontsize=9)
        show_events(axes[0], instant.histogram[:, rows, columns])
        show_grey(axes[1], instant.high_pass[rows, columns])
        show_grey(axes[2], instant.intensity[rows, columns])
    for axis, title in zip(panels[:, 0], (*ROWS[:-1], f"{ROWS[-1]}, N = {norm_events:g}"), strict=True):
        axis.set_ylabel(title, fontsize=9)
    add_legend(figure, POLARITIES)
    save_figure(figure, path, dpi=100)

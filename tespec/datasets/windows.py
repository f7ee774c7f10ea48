"""Which events belong to a label, or to a segment of a recording without labels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Windows = NDArray[np.int64]  # (N, 2) first time and end of each, in us, end exclusive


@dataclass(frozen=True)
class WindowRule:
    """How labels get their events.

    Attributes:
        recurrent: whether windows are contiguous, so that each event is in one of them; if not, each label has a window
            of its own.
        length_ms: nominal length of a window in ms; None: all events since the label before, which only recurrent
            models can take.
    """

    recurrent: bool = True
    length_ms: float | None = None

    def __post_init__(self) -> None:
        if not self.recurrent and self.length_ms is None:
            raise ValueError("windows that stand alone need a length")

    def apply(self, times: NDArray[np.int64], start: int) -> tuple[Windows, NDArray[np.int64]]:
        """Windows (N, 2) of one recording, and the window (K,) int64 that ends at each label, both in us.

        `times` (K,) are those of its labels, rising; the first label's events begin at `start`, before it.
        """
        if self.length_ms is not None and self.recurrent:
            return windows_on_grid(times, start, round(self.length_ms * 1000))
        starts = np.append(start, times[:-1]) if self.length_ms is None else times - round(self.length_ms * 1000)
        return np.stack([starts, times], axis=1).astype(np.int64), np.arange(len(times), dtype=np.int64)

    def describe(self) -> str:
        """The rule in words."""
        if not self.recurrent:
            return f"the {self.length_ms:g} ms before the label"
        between = "" if self.length_ms is None else f" in windows of about {self.length_ms:g} ms"
        return f"all events since the previous label{between}"


def contiguous_windows(first: int, end: int, length: int) -> Windows:
    """(N, 2) windows of `length` us, one after the other, from `first` on; none goes beyond `end`."""
    starts = first + length * np.arange(max(0, (end - first) // length), dtype=np.int64)
    return np.stack([starts, starts + length], axis=1)


def windows_on_grid(times: NDArray[np.int64], start: int, length: int) -> tuple[Windows, NDArray[np.int64]]:
    """Contiguous windows such that each label stands at the end of one; see `WindowRule.apply`.

    Before the first label they are `length` us long and none begins before `start`; there is one at least. The time
    between two labels is divided into equal parts, as many as come closest to `length`, so that no event is lost or
    counted twice. Nothing follows the last label.
    """
    lead, spacings = max(1, (int(times[0]) - start) // length), np.diff(times)
    parts = np.maximum(1, np.round(spacings / length)).astype(np.int64)
    ends = np.cumsum(parts)
    place = np.arange(1, parts.sum() + 1) - np.repeat(ends - parts, parts)  # of each part, from 1 on
    between = np.repeat(times[:-1], parts) + np.repeat(spacings, parts) * place // np.repeat(parts, parts)
    borders = np.concatenate([times[0] - length * np.arange(lead, -1, -1, dtype=np.int64), between])
    return np.stack([borders[:-1], borders[1:]], axis=1), lead - 1 + np.append(0, ends)

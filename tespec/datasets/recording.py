"""A recording as a sequence of windows, with or without labels; which events belong to a window, and to a label."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Downsample
from tespec.datasets.sources import ArchiveSource, Source, Windows
from tespec.events import PackedEvents
from tespec.events.histogram import FlipZoom, Region

T_co = TypeVar("T_co", covariant=True)


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

        Contiguous windows have their nominal length before the first label, where none begins before `start` and there
        is one at least. The time between two labels is divided into equal parts, as many as come closest to the length,
        so that no event is lost or counted twice. Nothing follows the last label.

        Args:
            times: (K,) of the labels, rising.
            start: where the first label's events begin, before it.
        """
        if self.length_ms is None or not self.recurrent:
            starts = np.append(start, times[:-1]) if self.length_ms is None else times - round(self.length_ms * 1000)
            return np.stack([starts, times], axis=1).astype(np.int64), np.arange(len(times), dtype=np.int64)
        length = round(self.length_ms * 1000)
        lead, spacings = max(1, (int(times[0]) - start) // length), np.diff(times)
        parts = np.maximum(1, np.round(spacings / length)).astype(np.int64)
        ends = np.cumsum(parts)
        place = np.arange(1, parts.sum() + 1) - np.repeat(ends - parts, parts)  # of each part, from 1 on
        between = np.repeat(times[:-1], parts) + np.repeat(spacings, parts) * place // np.repeat(parts, parts)
        borders = np.concatenate([times[0] - length * np.arange(lead, -1, -1, dtype=np.int64), between])
        return np.stack([borders[:-1], borders[1:]], axis=1), lead - 1 + np.append(0, ends)

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


@dataclass(frozen=True, eq=False)
class Recording:
    """Events of one file or folder, cut into windows.

    Attributes:
        name: what records and messages call it.
        source: where its histograms come from.
        region: part of the sensor that is used.
        windows: (N, 2) int64, first time and end of each window in us, end exclusive.
    """

    name: str
    source: Source
    region: Region
    windows: Windows

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def path(self) -> Path:
        """File or folder that messages name."""
        return self.source.path

    @property
    def stream(self) -> PackedEvents:
        """The open recording."""
        return self.source.stream

    def histograms(self, first: int, count: int, bins: int, rule: str) -> NDArray[np.uint8]:
        """Histograms (count, 2*bins, H, W) of the windows from `first` on; a `UserError` if they cannot be read."""
        out = np.empty((count, 2 * bins, self.region.height, self.region.width), np.uint8)
        self.fill(out, first, bins, rule)
        return out

    def fill(self, out: NDArray[np.uint8], first: int, bins: int, rule: str, view: FlipZoom | None = None) -> None:
        """Write histograms of T windows from `first` on, as `view` shows them, into `out` (T, 2*bins, H, W) uint8."""
        self.source.fill(out, self.windows[first : first + len(out)], bins, rule, self.region, view)


class Labels(Protocol[T_co]):
    """Labels of a recording, read when they are asked for; a `UserError` if one cannot be.

    What a label is depends on the task: a mask (H, W) uint8, 255 where there is none; a depth (H, W) float32 in m,
    NaN where there is none; or `Boxes`. All are in px of the histograms.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> T_co: ...

    def checksums(self) -> list[int]:
        """CRC-32 of the labels, or of some spread over them, whatever the layout they are stored in."""


@dataclass(frozen=True, eq=False)
class LabelledRecording(Recording):
    """A recording some of whose windows end at a label.

    Attributes:
        labels: by index.
        labelled: (K,) int64 window that each label stands at the end of, rising.
        ego_speed: (K,) float32 speed of the camera in m/s at each label, where it is known.
        left_out: number of labels on disk that the protocol leaves out.
        start: time in us at which the recording starts, of protocols that leave out its beginning.
    """

    labels: Labels[Any]
    labelled: NDArray[np.int64]
    ego_speed: NDArray[np.float32] | None = None
    left_out: int = 0
    start: int = 0

    @property
    def label_times(self) -> NDArray[np.int64]:
        """(K,) int64 time of each label in us."""
        return self.windows[self.labelled, 1]

    def labels_in(self, first: int, count: int) -> range:
        """Indices of the labels of `count` windows from `first` on."""
        return range(*np.searchsorted(self.labelled, (first, first + count)).tolist())

    def part(self, first: int, end: int) -> LabelledRecording:
        """The windows from `first` to `end` (exclusive), with their labels."""
        part = self.keep(np.array(self.labels_in(first, end - first), np.int64))
        return replace(part, windows=self.windows[first:end], labelled=part.labelled - first)

    def keep(self, labels: NDArray[np.int64]) -> LabelledRecording:
        """With these labels alone, given by their numbers."""
        speed = None if self.ego_speed is None else self.ego_speed[labels]
        kept = ChosenLabels(self.labels, labels)
        return replace(self, labels=kept, labelled=self.labelled[labels], ego_speed=speed)


@dataclass(frozen=True)
class ChosenLabels:
    """Some labels of a recording, those that `numbers` names; the checksums are those of all its labels."""

    every: Labels[Any]
    numbers: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, index: int) -> Any:
        return self.every[int(self.numbers[index])]

    def checksums(self) -> list[int]:
        """Those of all labels of the recording."""
        return self.every.checksums()


def van_der_corput_order(count: int) -> NDArray[np.int64]:
    """The numbers 0 to `count` - 1 in an order of which any beginning is spread evenly (van der Corput's sequence)."""
    bits = max(1, (count - 1).bit_length())
    places = np.arange(1, 2**bits + 1) % 2**bits
    reversed_bits = sum(((places >> bit) & 1) << (bits - 1 - bit) for bit in range(bits))
    numbers = np.asarray(reversed_bits, np.int64) * count >> bits
    _, first = np.unique(numbers, return_index=True)
    return numbers[np.sort(first)]


def with_label_share(recordings: Sequence[LabelledRecording], share: float) -> list[LabelledRecording]:
    """Recordings with the same events and a share of their labels, one at least of each recording that has some.

    Which labels these are follows from their number alone; a smaller share is a part of a larger one.
    """
    thinned = []
    for recording in recordings:
        count = len(recording.labelled)
        kept = np.sort(van_der_corput_order(count)[: max(1, round(share * count))])
        thinned.append(recording.keep(kept) if len(kept) < count else recording)
    return thinned


def cut_at_gaps(recordings: Sequence[LabelledRecording], longest: int) -> list[LabelledRecording]:
    """Recordings without the stretches in which `longest` windows or more in a row lead to no label.

    Of a longer gap the last `longest` - 1 windows before its end stay, to lead up to the next label (after
    uzh-rpg/RVT, data/genx_utils/sequence_for_streaming.py), so that any `longest` windows in a row of a part hold a
    label. Windows after a part's last label are left out, but for those that bring a part to `longest` windows. A
    recording without such gaps stays one.
    """
    parts: list[LabelledRecording] = []
    for recording in recordings:
        gaps = np.flatnonzero(np.diff(recording.labelled) > longest) + 1
        for number, labels in enumerate(np.split(recording.labelled, gaps), start=1):
            if len(labels):
                first = max(0, int(labels[0]) - longest + 1)
                part = recording.part(first, min(len(recording), max(int(labels[-1]) + 1, first + longest)))
                parts.append(replace(part, name=f"{part.name} (part {number})") if len(gaps) else part)
    return parts


def fingerprint(*splits: Sequence[Recording]) -> str:
    """Twelve hexadecimal digits of SHA-256 over what is used of the recordings.

    For each recording: the place of its split among the arguments, its name, the part of the sensor that is used, and
    of each file of its events the name, the size, and the first and last 64 kB; for each label its time, its CRC-32,
    and the camera's speed. Where the files lie, whether events are packed or masks zipped, and how time is cut into
    windows does not count.
    """
    digest = hashlib.sha256()
    for number, recording in ((number, recording) for number, split in enumerate(splits) for recording in split):
        digest.update(f"{number}|{recording.name}|{recording.region}\n".encode())
        digest.update(json.dumps(recording.source.identity(), sort_keys=True).encode())
        if isinstance(recording, LabelledRecording):
            digest.update(recording.label_times.tobytes())
            digest.update(repr(recording.labels.checksums()).encode())
            digest.update(b"" if recording.ego_speed is None else recording.ego_speed.tobytes())
    return digest.hexdigest()[:12]


def reduced(height: int, width: int, downsample: Downsample) -> Region:
    """The whole of a sensor of height x width px, downsampled."""
    factor = downsample.factor
    if factor == "auto":
        factor = -(-width // (downsample.to_width or width))
    return Region(height // factor, width // factor, factor, downsample.keep)


def require_stored_factor(recordings: Iterable[Recording], downsample: Downsample) -> None:
    """Refuse archives of histograms that are stored at another factor than the one that the user asks for."""
    for source in (each.source for each in recordings):
        if isinstance(source, ArchiveSource):
            height, width = (source.factor * side for side in (source.region.height, source.region.width))
            if source.factor > 1 and downsample.keep != "nearest":
                raise UserError(source.path, "keeps the nearest pixels", "set downsample.keep to nearest")
            if (asked := reduced(height, width, downsample).factor) != source.factor:
                what = f"holds histograms downsampled by {source.factor}, not by {asked}"
                raise UserError(source.path, what, f"set downsample.factor to {source.factor}, or give raw recordings")

"""Recordings as sequences of windows, with or without labels, and the windows that belong to the labels."""

import hashlib
import json
import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.settings import Binning, Downsample
from tespec.datasets.archive import ArchiveSource, Source
from tespec.datasets.augment import FlipZoom
from tespec.datasets.sources import EventSource, Windows
from tespec.events import PackedEvents, window_histograms
from tespec.events.histogram import Region


def label_windows(
    times: NDArray[np.int64], start: int, window_ms: float | None, contiguous: bool
) -> tuple[Windows, NDArray[np.int64]]:
    """Compute the windows of a recording and which of them ends at each label.

    Contiguous windows hold every event exactly once. Before the first label they have the nominal
    length: as many as fit after `start`, at least one. The time between two labels is divided
    equally into windows as close to the nominal length as possible. No window follows the last
    label.

    Args:
        times: (K,) times of the labels in us, rising.
        start: time in us at which the events of the first label begin, before it.
        window_ms: nominal length of a window in ms; None: all of the time since the previous label.
        contiguous: whether windows are contiguous; if not, the window of a label is the `window_ms`
            before it.

    Returns:
        The windows (N, 2) in us, end exclusive, and the index (K,) int64 of the window that ends at
        each label.
    """
    if window_ms is None:
        return np.stack([np.append(start, times[:-1]), times], axis=1), np.arange(
            len(times), dtype=np.int64
        )
    length = window_us(window_ms)
    if not contiguous:
        return np.stack([times - length, times], axis=1), np.arange(len(times), dtype=np.int64)
    lead = max(1, (int(times[0]) - start) // length)
    spacings = np.diff(times)
    # windows between two labels
    parts = np.maximum(1, np.round(spacings / length)).astype(np.int64)
    ends = np.cumsum(parts)
    # number between its labels, from 1
    part = np.arange(1, parts.sum() + 1) - np.repeat(ends - parts, parts)
    between = np.repeat(times[:-1], parts) + np.repeat(spacings, parts) * part // np.repeat(
        parts, parts
    )
    borders = np.concatenate([times[0] - length * np.arange(lead, -1, -1, dtype=np.int64), between])
    return np.stack([borders[:-1], borders[1:]], axis=1), lead - 1 + np.append(0, ends)


def window_us(length_ms: float) -> int:
    """Convert the length of a window to whole us, at least one."""
    if not isinstance(length_ms, int | float) or not 1 <= length_ms * 1000 < math.inf:
        raise UserError(
            "window_ms", f"{length_ms!r} is not a length of at least 1 us", "give a number of ms"
        )
    return round(length_ms * 1000)


def contiguous_windows(first: int, end: int, length: int) -> Windows:
    """Contiguous windows (N, 2) of `length` us from `first` on; none exceeds `end`."""
    starts = first + length * np.arange(max(0, (end - first) // length), dtype=np.int64)
    return np.stack([starts, starts + length], axis=1)


@dataclass(frozen=True, eq=False)
class Recording:
    """Events of one file or folder, cut into windows."""

    name: str  # in records and messages
    source: Source  # of its histograms
    region: Region  # part of the sensor that is used
    windows: Windows

    def __len__(self) -> int:
        return len(self.windows)

    @property
    def path(self) -> Path:
        """File or folder, for messages."""
        return self.source.path

    @property
    def stream(self) -> PackedEvents:
        """The recording's events."""
        return self.source.stream

    def histograms(self, first: int, count: int, binning: Binning) -> NDArray[np.uint8]:
        """Compute the histograms (count, 2*bins, H, W) of windows from `first` on."""
        out = np.empty((count, 2 * binning.bins, self.region.height, self.region.width), np.uint8)
        self.fill(out, first, binning)
        return out

    def fill(
        self,
        out: NDArray[np.uint8],
        first: int,
        binning: Binning,
        flip_zoom: FlipZoom | None = None,
    ) -> None:
        """Write the histograms of T windows from `first` on to `out`.

        Args:
            out: (T, 2*bins, H, W), for histograms of the recording's `region`.
            first: index of the first window.
            binning: bins of a window and the rule that assigns events to them; a `HistogramSpec` is
                one.
            flip_zoom: flip and zoom of the histograms; None: neither.

        Raises:
            UserError: if events cannot be read, or a stored histogram has another binning.
        """
        windows = self.windows[first : first + len(out)]
        if isinstance(self.source, ArchiveSource):
            self.source.fill(out, windows, binning, flip_zoom)
        else:
            window_histograms(
                self.source.stream,
                windows,
                binning.bins,
                rule=binning.rule,
                region=self.region,
                maps=flip_zoom and (flip_zoom.rows, flip_zoom.columns),
                out=out,
            )


class Labels(Protocol):
    """Labels of a recording, read on access; an unreadable label raises a `UserError`.

    The type depends on the task: a mask (H, W) uint8, 255 for unlabelled pixels; a depth map (H, W)
    float32 in m, NaN for unknown depth; or `Boxes`. All are in px of the histograms.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...

    def checksums(self) -> list[int]:
        """CRC-32 of all labels, or of some spread over them, independent of the layout on disk."""


def fixed_windows(
    name: str, source: Source, window_ms: float, downsample: Downsample, at_least_one: bool = False
) -> Recording:
    """Cut a recording into contiguous windows; if `at_least_one`, a recording shorter than a window is one window."""
    if isinstance(source, ArchiveSource):
        source.require_window(window_ms)
        return Recording(name, source, source.region, source.windows)
    facts, length = source.facts, window_us(window_ms)
    end = max(facts.t_last + 1, facts.t_first + length * at_least_one)
    windows = contiguous_windows(facts.t_first, end, length)
    return Recording(name, source, reduced(facts.height, facts.width, downsample), windows)


@dataclass(frozen=True, eq=False)
class LabelledRecording(Recording):
    """A recording with labels at the end of some windows."""

    labels: Labels
    labelled: NDArray[np.int64]  # (K,) index of the window that ends at each label, rising
    # (K,) speed of the camera in m/s at each label, if known
    ego_speed: NDArray[np.float32] | None = None
    left_out: int = 0  # number of labels on disk that the protocol leaves out
    start: int = 0  # of the recording in us, for protocols that leave out its beginning

    @property
    def label_times(self) -> NDArray[np.int64]:
        """Time (K,) int64 of each label in us."""
        return self.windows[self.labelled, 1]

    def labels_in(self, first: int, count: int) -> range:
        """Indices of the labels in `count` windows from `first` on."""
        return range(*np.searchsorted(self.labelled, (first, first + count)).tolist())

    def part(self, first: int, end: int) -> "LabelledRecording":
        """Return the windows from `first` to `end` (exclusive), with their labels."""
        part = self.subset(np.array(self.labels_in(first, end - first), np.int64))
        return replace(part, windows=self.windows[first:end], labelled=part.labelled - first)

    def subset(self, labels: NDArray[np.int64]) -> "LabelledRecording":
        """Return the recording with all windows, but only the labels of these indices (L,), rising."""
        speed = None if self.ego_speed is None else self.ego_speed[labels]
        return replace(
            self,
            labels=Subset(self.labels, labels),
            labelled=self.labelled[labels],
            ego_speed=speed,
        )


@dataclass(frozen=True)
class Subset:
    """Labels of a recording selected by `indices` (K,); the checksums are those of all of its labels.

    `check(label, index)`, given the index into `labels`, raises a `UserError` if a label that is
    read is not valid.
    """

    labels: Labels
    indices: NDArray[np.int64]
    check: Callable[[Any, int], None] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        number = int(self.indices[index])
        label = self.labels[number]
        if self.check:
            self.check(label, number)
        return label

    def checksums(self) -> list[int]:
        """Checksums of all labels of the recording."""
        return self.labels.checksums()


def van_der_corput_order(count: int) -> NDArray[np.int64]:
    """The numbers 0 to `count` - 1 in an order whose prefixes are all evenly spread (van der Corput's sequence)."""
    bits = max(1, (count - 1).bit_length())
    places = np.arange(1, 2**bits + 1) % 2**bits
    reversed_bits = sum(((places >> bit) & 1) << (bits - 1 - bit) for bit in range(bits))
    numbers = np.asarray(reversed_bits, np.int64) * count >> bits
    _, first = np.unique(numbers, return_index=True)
    return numbers[np.sort(first)]


def with_label_fraction(
    recordings: Sequence[LabelledRecording], share: float
) -> list[LabelledRecording]:
    """Keep all events, but only a share of the labels of each recording, at least one if it has any.

    The choice depends only on the number of labels; a smaller share is a subset of a larger one.
    """
    counts = [len(recording.labelled) for recording in recordings]
    chosen = [
        np.sort(van_der_corput_order(count)[: max(min(count, 1), round(share * count))])
        for count in counts
    ]
    return [recording.subset(labels) for recording, labels in zip(recordings, chosen, strict=True)]


def cut_at_gaps(recordings: Sequence[LabelledRecording], longest: int) -> list[LabelledRecording]:
    """Cut recordings at gaps of `longest` or more consecutive windows without a label.

    The last `longest` - 1 windows of a gap are kept, to lead up to the next label (after
    uzh-rpg/RVT, data/genx_utils/sequence_for_streaming.py), so that any `longest` consecutive
    windows of a part include a label. Windows after the last label of a part are dropped, unless
    the part would have fewer than `longest` windows. A recording without such gaps stays in one
    part.
    """
    parts: list[LabelledRecording] = []
    for recording in recordings:
        gaps = np.flatnonzero(np.diff(recording.labelled) > longest) + 1
        for number, labels in enumerate(np.split(recording.labelled, gaps), start=1):
            if len(labels):
                first = max(0, int(labels[0]) - longest + 1)
                part = recording.part(
                    first, min(len(recording), max(int(labels[-1]) + 1, first + longest))
                )
                parts.append(
                    replace(part, name=f"{part.name} (part {number})") if len(gaps) else part
                )
    return parts


def fingerprint(*splits: Sequence[Recording]) -> str:
    """Twelve hexadecimal digits of a SHA-256 over the data that the recordings use.

    It covers, for each recording, the index of its split, its name, the part of the sensor that is
    used, and the name, size, and first and last 64 kB of each event file; and for each label its
    time, its CRC-32 and the camera's speed. It is independent of file locations, packing of events,
    zipping of masks, and the length of windows.
    """
    digest = hashlib.sha256()
    for number, recording in (
        (number, recording) for number, split in enumerate(splits) for recording in split
    ):
        digest.update(f"{number}|{recording.name}|{recording.region}\n".encode())
        digest.update(json.dumps(recording.source.identity(), sort_keys=True).encode())
        if isinstance(recording, LabelledRecording):
            digest.update(recording.label_times.tobytes())
            digest.update(repr(recording.labels.checksums()).encode())
            digest.update(b"" if recording.ego_speed is None else recording.ego_speed.tobytes())
    return digest.hexdigest()[:12]


def event_corrections(recordings: Iterable[Recording]) -> dict[str, str]:
    """Describe how many events packing mended or dropped, as a line for a record's protocol, or none."""
    streams = {
        each.path: each.stream for each in recordings if isinstance(each.source, EventSource)
    }
    changed = [stream for stream in streams.values() if stream.clamped or stream.dropped]
    clamped, dropped = (
        sum(stream.clamped for stream in changed),
        sum(stream.dropped for stream in changed),
    )
    text = f"{clamped:,} times mended that were out of order, {dropped:,} events off the sensor dropped"
    return {"corrections": f"in {len(changed)} recordings: {text}"} if changed else {}


def reduced(height: int, width: int, downsample: Downsample) -> Region:
    """Region of a full sensor of height x width px, downsampled."""
    factor = downsample.factor
    if factor == "auto":
        factor = -(-width // (downsample.to_width or width))
    if factor > min(height, width):
        what = f"a sensor of {width}x{height} px cannot be downsampled by {factor}"
        raise UserError("downsample.factor", what, f"give at most {min(height, width)}")
    return Region(height // factor, width // factor, factor, downsample.keep)


def require_one_size(where: Path | str, recordings: Iterable[tuple[str, Region]]) -> None:
    """Refuse recordings, given by name and region, whose histograms differ in size: they cannot be in one batch."""
    sizes = {(region.height, region.width): name for name, region in recordings}
    if len(sizes) > 1:
        different = ", ".join(
            f"{width}x{height} ({name})" for (height, width), name in sizes.items()
        )
        raise UserError(
            where, f"recordings of different sizes: {different} px", "give recordings of one size"
        )


def require_stored(
    recordings: Iterable[Recording], downsample: Downsample, changed: Collection[str]
) -> None:
    """Refuse archives of histograms if a changed setting, by dotted name, is not the one they are stored with."""
    selecting = [key for key in changed if key.startswith("protocol.") and key != "protocol.skip"]
    downsampled = any(key.startswith("downsample.") for key in changed)
    for source in (each.source for each in recordings if isinstance(each.source, ArchiveSource)):
        if selecting:
            what = f"holds labels that RVT's protocol selected, so {selecting[0]} has no effect"
            raise UserError(source.path, what, "leave it at its default, or give raw recordings")
        if downsampled:
            region = source.region
            stored = region.factor
            if stored > 1 and downsample.keep != "nearest":
                raise UserError(
                    source.path,
                    "was downsampled with keep=nearest",
                    "set downsample.keep to nearest",
                )
            if (
                asked := reduced(stored * region.height, stored * region.width, downsample).factor
            ) != stored:
                what = f"holds histograms downsampled by {stored}, not by {asked}"
                raise UserError(
                    source.path, what, f"set downsample.factor to {stored}, or give raw recordings"
                )

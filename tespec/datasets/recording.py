"""Recordings as sequences of windows, with or without labels at the end of some windows."""

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tespec.core.errors import UserError
from tespec.core.hashes import Contents, checksums
from tespec.core.settings import Binning, Downsample
from tespec.datasets.archive import ArchiveSource, Source
from tespec.datasets.augment import FlipZoom
from tespec.datasets.sources import EventSource, Windows
from tespec.events import PackedEvents, window_histograms
from tespec.events.histogram import Region
from tespec.events.representations import represent


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
    if window_ms is None or not contiguous:
        starts = np.append(start, times[:-1]) if window_ms is None else times - window_us(window_ms)
        return np.stack([starts, times], axis=1), np.arange(len(times), dtype=np.int64)
    length = window_us(window_ms)
    n_leading = max(1, (int(times[0]) - start) // length)  # windows before the first label
    leading = times[0] - length * np.arange(n_leading, -1, -1, dtype=np.int64)  # their borders
    spacings = np.diff(times)
    counts = np.maximum(1, np.round(spacings / length)).astype(np.int64)  # windows between labels
    ends = np.cumsum(counts)
    # number of each later window between its two labels, from 1
    numbers = np.arange(1, counts.sum() + 1) - np.repeat(ends - counts, counts)
    offsets = np.repeat(spacings, counts) * numbers // np.repeat(counts, counts)
    borders = np.concatenate([leading, np.repeat(times[:-1], counts) + offsets])
    return np.stack([borders[:-1], borders[1:]], axis=1), n_leading - 1 + np.append(0, ends)


def window_us(length_ms: float) -> int:
    """Round the length of a window to us, at least one."""
    if not isinstance(length_ms, int | float) or not 1 <= length_ms * 1000 < math.inf:
        raise UserError(
            "window_ms", f"{length_ms!r} is not a length of at least 1 us", "give a number of ms"
        )
    return round(length_ms * 1000)


def contiguous_windows(first: int, end: int, length: int) -> Windows:
    """Divide a time interval into windows of equal length.

    Args:
        first: start of the first window in us.
        end: time in us that no window exceeds.
        length: length of a window in us.

    Returns:
        Windows (N, 2) in us, end exclusive.
    """
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

    def contents(self) -> Contents:
        """What determines the histograms of any windows, by name."""
        return {"region": str(self.region), **self.source.contents()}

    def histograms(self, first: int, count: int, binning: Binning) -> NDArray[Any]:
        """Compute the histograms, or another representation, of consecutive windows.

        Args:
            first: index of the first window.
            count: number of windows.
            binning: bins of a window and the rule that assigns events to them.

        Returns:
            (count, binning.channels, H, W), for histograms uint8.
        """
        shape = (count, binning.channels, self.region.height, self.region.width)
        out = np.empty(shape, binning.dtype)
        self.fill(out, first, binning)
        return out

    def fill(
        self,
        out: NDArray[Any],
        first: int,
        binning: Binning,
        flip_zoom: FlipZoom | None = None,
    ) -> None:
        """Write the histograms, or another representation, of T consecutive windows to `out`.

        Args:
            out: (T, binning.channels, H, W), for the recording's `region`.
            first: index of the first window.
            binning: how a window's events become histograms; a `HistogramSpec` is one.
            flip_zoom: flip and zoom of the histograms; None: neither.

        Raises:
            UserError: if events cannot be read, or a stored histogram has another binning.
        """
        windows = self.windows[first : first + len(out)]
        if isinstance(self.source, ArchiveSource):
            self.source.fill(out, windows, binning, flip_zoom)
            return
        stream = self.source.stream
        maps = flip_zoom and (flip_zoom.rows, flip_zoom.columns)
        if binning.representation == "histogram":
            window_histograms(
                stream,
                windows,
                binning.bins,
                rule=binning.rule,
                region=self.region,
                maps=maps,
                out=out,
            )
        else:
            for image, (start, end) in zip(out, windows.tolist(), strict=True):
                image[...] = represent(stream, (start, end), binning, self.region, maps)


class Labels(Protocol):
    """Labels of a recording, read on access; an unreadable label raises a `UserError`.

    The type depends on the task: a mask (H, W) uint8, 255 for unlabelled pixels; a depth map (H, W)
    float32 in m, NaN for unknown depth; or `Boxes`. All are in px of the histograms.
    """

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...

    def checksums(self) -> Mapping[str, int | str]:
        """Checksums of all labels by name, independent of the layout on disk."""


def fixed_windows(
    name: str, source: Source, window_ms: float, downsample: Downsample, at_least_one: bool = False
) -> Recording:
    """Cut a recording into contiguous windows of equal length.

    Args:
        name: name of the recording in records and messages.
        source: its events or histograms.
        window_ms: length of a window in ms; an archive of histograms refuses others than its own.
        downsample: spatial downsampling of events.
        at_least_one: whether a recording shorter than a window is one window.
    """
    if isinstance(source, ArchiveSource):
        source.require_window(window_ms)
        return Recording(name, source, source.region, source.windows)
    facts = source.facts
    length = window_us(window_ms)
    end = max(facts.t_last + 1, facts.t_first + length * at_least_one)
    region = downsampled_region(facts.height, facts.width, downsample)
    return Recording(name, source, region, contiguous_windows(facts.t_first, end, length))


@dataclass(frozen=True, eq=False)
class LabelledRecording(Recording):
    """A recording with labels at the end of some windows."""

    labels: Labels
    label_indices: NDArray[np.int64]  # (K,) index of the window that ends at each label, rising
    # (K,) speed of the camera in m/s at each label, if known
    ego_speed: NDArray[np.float32] | None = None
    left_out: int = 0  # number of labels on disk that the protocol leaves out
    start: int = 0  # of the recording in us, for protocols that leave out its beginning
    # hashed files with the labels' times, and with labels whose checksums `labels` does not give
    files: tuple[Path, ...] = ()

    def contents(self) -> Contents:
        """What determines histograms and labels, by name, whatever the length of windows."""
        labels = {name: str(checksum) for name, checksum in self.labels.checksums().items()}
        tables = {f"{path.parent.name}/{path.name}": (path,) for path in self.files}
        speeds = b"" if self.ego_speed is None else self.ego_speed.tobytes()
        times = hashlib.sha256(self.label_times.tobytes() + speeds).hexdigest()
        return {**super().contents(), **labels, **tables, "times and speeds of labels": times}

    @property
    def label_times(self) -> NDArray[np.int64]:
        """Time (K,) int64 of each label in us."""
        return self.windows[self.label_indices, 1]

    def labels_in(self, first: int, count: int) -> range:
        """Find the labels of consecutive windows.

        Args:
            first: index of the first window.
            count: number of windows.

        Returns:
            Indices of the labels.
        """
        return range(*np.searchsorted(self.label_indices, (first, first + count)).tolist())

    def part(self, first: int, end: int) -> "LabelledRecording":
        """Select consecutive windows with their labels.

        Args:
            first: index of the first window.
            end: index after the last window.
        """
        part = self.subset(np.array(self.labels_in(first, end - first), np.int64))
        return replace(
            part, windows=self.windows[first:end], label_indices=part.label_indices - first
        )

    def subset(self, labels: NDArray[np.int64]) -> "LabelledRecording":
        """Select labels by rising indices (L,), with all windows."""
        return replace(
            self,
            labels=Subset(self.labels, labels),
            label_indices=self.label_indices[labels],
            ego_speed=None if self.ego_speed is None else self.ego_speed[labels],
        )


@dataclass(frozen=True)
class Subset:
    """Labels of a recording selected by indices; the checksums are those of all of its labels.

    Args:
        labels: all labels.
        indices: (K,) indices of the selected ones.
        check: function of a label and its index in `labels`, called for labels as they are read; it
            raises a `UserError` if the label is not valid.
    """

    labels: Labels
    indices: NDArray[np.int64]
    check: Callable[[Any, int], None] | None = None

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: int) -> Any:
        position = int(self.indices[index])
        label = self.labels[position]
        if self.check:
            self.check(label, position)
        return label

    def checksums(self) -> Mapping[str, int | str]:
        """Checksums of all labels of the recording."""
        return self.labels.checksums()


def van_der_corput_order(count: int) -> NDArray[np.int64]:
    """Order the numbers 0 to `count` - 1 as van der Corput: every prefix is evenly spread."""
    bits = max(1, (count - 1).bit_length())
    indices = (*range(1, 2**bits), 0)
    numbers = (int(f"{index:0{bits}b}"[::-1], 2) * count >> bits for index in indices)
    return np.array(list(dict.fromkeys(numbers)), np.int64)


def spread(count: int, total: int) -> list[int]:
    """Choose evenly spread indices.

    Args:
        count: number of indices, or `total` if that is smaller.
        total: length of the indexed sequence.
    """
    return np.linspace(0, total - 1, min(count, total)).astype(int).tolist()


def with_label_fraction(
    recordings: Sequence[LabelledRecording], fraction: float, seed: int
) -> list[LabelledRecording]:
    """Select a fraction of all labels, spread evenly over the recordings and over their time.

    All events remain. The choice depends only on the numbers of labels and the seed: a smaller
    fraction is a subset of a larger one. Recordings contribute in proportion to their labels, so
    some contribute none if only few labels are left.

    Args:
        recordings: recordings with labels.
        fraction: fraction of the labels, above 0 and at most 1.
        seed: chooses where a recording's labels begin, and the order of the recordings.

    Raises:
        UserError: the fraction rounds to no label.
    """
    counts = np.array([len(recording.label_indices) for recording in recordings])
    total = int(counts.sum())
    if fraction == 1 or not total:
        return list(recordings)
    n_labels = round(fraction * total)
    if not n_labels:
        what = f"{fraction:g} of {total:,} training labels is none"
        raise UserError("label_fraction", what, f"set it to {1 / total:.2g} (one label) or more")
    rng = np.random.default_rng([seed, *b"label_fraction"])
    offsets = (rng.permutation(len(counts)) + 0.5) / len(counts)
    recording_of = np.repeat(np.arange(len(counts)), counts)  # (total,) recording of each label
    nonzero = counts[counts > 0]
    # (total,) labels of each recording in the order of choice: every prefix is evenly spread
    labels = np.concatenate(
        [(van_der_corput_order(count) + rng.integers(count)) % count for count in nonzero.tolist()]
    )
    ranks = np.concatenate([np.arange(count) for count in nonzero])  # in this order
    # A label is chosen by a fraction above this value, which rises evenly with its rank.
    thresholds = (ranks + offsets[recording_of]) / counts[recording_of]
    chosen = np.argsort(thresholds, kind="stable")[:n_labels]
    return [
        recording.subset(np.sort(labels[chosen[recording_of[chosen] == index]]))
        for index, recording in enumerate(recordings)
    ]


def cut_at_gaps(recordings: Sequence[LabelledRecording], longest: int) -> list[LabelledRecording]:
    """Cut recordings at long gaps without a label.

    The last `longest` - 1 windows of a gap remain, to lead up to the next label (after uzh-rpg/RVT,
    data/genx_utils/sequence_for_streaming.py). Any `longest` consecutive windows of a part thus
    include a label. Windows after the last label of a part are dropped, unless the part would be
    shorter than `longest` windows. A recording without such gaps stays in one part.

    Args:
        recordings: recordings with labels.
        longest: number of consecutive windows without a label that make a gap.
    """
    parts: list[LabelledRecording] = []
    for recording in recordings:
        gaps = np.flatnonzero(np.diff(recording.label_indices) > longest) + 1
        for number, labels in enumerate(np.split(recording.label_indices, gaps), start=1):
            if len(labels):
                first = max(0, int(labels[0]) - longest + 1)
                end = max(int(labels[-1]) + 1, first + longest)
                name = f"{recording.name} (part {number})" if len(gaps) else recording.name
                part = recording.part(first, min(len(recording), end))
                parts.append(replace(part, name=name))
    return parts


def contents_of(*splits: Sequence[Recording]) -> Contents:
    """What determines the data of recordings, such as "0/NAME: FILE" of the first split.

    For each recording, these are the part of the sensor that is used, all bytes of the files of
    events, rectification and label times, all labels, and the camera's speed. They are independent
    of file locations, packing of events, zipping of masks, and the length of windows.
    """
    return {
        f"{split}/{recording.name}: {name}": value
        for split, recordings in enumerate(splits)
        for recording in recordings
        for name, value in recording.contents().items()
    }


def hash_data(
    contents: Contents, recordings: Iterable[Recording], *, check: bool
) -> dict[str, str]:
    """Hash the data of a run.

    Args:
        contents: of the data.
        recordings: of the data.
        check: whether to read all files again, and to verify packed events.

    Returns:
        Checksums by name.
    """
    result = checksums(contents, again=check)
    for recording in recordings if check else ():
        if isinstance(recording.source, EventSource):
            recording.source.verify(again=False)
    return result


def event_corrections(recordings: Iterable[Recording]) -> dict[str, str]:
    """Describe how many events packing mended or dropped, as a line for a record's protocol."""
    sources = {recording.path: recording.source for recording in recordings}
    streams = [source.stream for source in sources.values() if isinstance(source, EventSource)]
    changed = [stream for stream in streams if stream.clamped or stream.dropped]
    if not changed:
        return {}
    mended = f"{sum(stream.clamped for stream in changed):,} times mended that were out of order"
    dropped = f"{sum(stream.dropped for stream in changed):,} events off the sensor dropped"
    return {"corrections": f"in {len(changed)} recordings: {mended}, {dropped}"}


def downsampled_region(height: int, width: int, downsample: Downsample) -> Region:
    """Compute the region of a downsampled full sensor.

    Args:
        height: rows of the sensor.
        width: columns of the sensor.
        downsample: factor, or "auto": the one for which the width is at most `to_width`.

    Raises:
        UserError: if the factor exceeds the sensor's size.
    """
    factor = downsample.factor
    if factor == "auto":
        factor = -(-width // (downsample.to_width or width))
    if factor > min(height, width):
        raise UserError(
            "downsample.factor",
            f"a sensor of {width}x{height} px cannot be downsampled by {factor}",
            f"give at most {min(height, width)}",
        )
    return Region(height // factor, width // factor, factor, downsample.keep)


def require_one_size(where: Path | str, recordings: Iterable[tuple[str, Region]]) -> None:
    """Refuse recordings whose histograms differ in size, since they cannot be in one batch.

    Args:
        where: file, folder or group of the recordings, for the message.
        recordings: name and region of each recording.
    """
    names = {f"{region.width}x{region.height}": name for name, region in recordings}
    if len(names) > 1:
        sizes = ", ".join(f"{size} ({name})" for size, name in names.items())
        raise UserError(
            where, f"recordings of different sizes: {sizes} px", "give recordings of one size"
        )


def require_stored(
    recordings: Iterable[Recording], downsample: Downsample, changed: Collection[str]
) -> None:
    """Refuse archives of histograms if a changed setting is not the one they are stored with.

    Args:
        recordings: recordings, of which those with events are ignored.
        downsample: requested spatial downsampling.
        changed: dotted names of the settings that the user changed.
    """
    selecting = [key for key in changed if key.startswith("protocol.") and key != "protocol.skip"]
    downsampled = any(key.startswith("downsample.") for key in changed)
    for source in (recording.source for recording in recordings):
        if not isinstance(source, ArchiveSource):
            continue
        if selecting:
            raise UserError(
                source.path,
                f"holds labels that RVT's protocol selected, so {selecting[0]} has no effect",
                "leave it at its default, or give raw recordings",
            )
        stored = source.region
        sensor = (stored.factor * stored.height, stored.factor * stored.width)
        requested = downsampled_region(*sensor, downsample)
        has_other_events = stored.factor > 1 and requested.keep != stored.keep
        if downsampled and (requested.factor != stored.factor or has_other_events):
            raise UserError(
                source.path,
                f"holds histograms downsampled by {stored.factor} with keep={stored.keep}, "
                f"not by {requested.factor} with keep={requested.keep}",
                f"set downsample.factor to {stored.factor}, downsample.keep to {stored.keep}, "
                "or give raw recordings",
            )

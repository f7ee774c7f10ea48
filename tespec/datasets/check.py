"""Check a data set: contents and problems of each recording, and a preview of some windows."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from numpy.typing import NDArray

from tespec import pictures
from tespec.core.errors import UserError
from tespec.core.settings import Binning, Rule
from tespec.datasets.archive import BINS, STORED_RULE, ArchiveSource
from tespec.datasets.base import LabelledDataset
from tespec.datasets.labels import BOXES, DEPTH, IGNORE, MASK
from tespec.datasets.recording import LabelledRecording, require_one_size, spread
from tespec.datasets.sources import EventSource
from tespec.events.cache import EVENT_BYTES
from tespec.events.histogram import Region
from tespec.events.intensity import estimate_high_pass, estimate_intensity

QUICK = 16  # labels that a quick check reads
# Columns of the table after split and recording, as format strings over the facts of a recording.
COLUMNS = {
    "sensor": "{events_width}x{events_height}",
    "events": "{events_count:,}",
    "mended": "{events_clamped:,}",  # timestamps out of order
    "dropped": "{events_dropped:,}",  # events outside of the sensor
    "length": "{events_seconds:.1f} s",
    "labels": "{labels_count:,}",
    "empty": "{labels_empty:,} of {labels_read:,}",  # labels without content, of those read
    "left out": "{labels_left_out:,}",  # by the protocol
    "every": "{labels_spacing_ms:g} ms",
    "size": "{size_mb:,.1f} MB",
}
CANDIDATES = 9  # windows of a time interval, of which the one with most events is shown
SETTLING_US = 3_000_000  # of events before the shown moment, for intensities to settle
LONGEST_NAME = 26  # letters
WIDTH = 16.0  # inches
VEIL = 0.55  # opacity of events over masks


class CheckedRecording(NamedTuple):
    """Result of checking one recording."""

    split: str
    name: str
    facts: dict[str, Any]  # statistics by name; those of unreadable parts are missing
    problems: tuple[UserError, ...]  # errors that make the recording unusable
    # size and sampled SHA-256 of each event file, to detect copies
    content: tuple[tuple[int, str], ...] = ()
    region: Region | None = None  # of its histograms


def check(
    dataset: LabelledDataset, *, quick: bool = False, processes: int = 1
) -> Iterator[CheckedRecording]:
    """Check every recording of a data set.

    Args:
        dataset: opened data set, of which all splits are checked.
        quick: read only a few labels, and only the header of packed events.
        processes: number of recordings that are checked concurrently.

    Yields:
        The result of each recording. It holds the errors of the recording, which are not raised.
    """
    tasks = [(split, name) for split in dataset.splits for name in dataset.names(split)]
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(lambda task: _check_recording(dataset, task[0], task[1], quick), tasks)


def _check_recording(
    dataset: LabelledDataset, split: str, name: str, quick: bool
) -> CheckedRecording:
    facts: dict[str, Any] = {}
    problems: list[UserError] = []
    try:
        files = dataset.find(split, name)
        if isinstance(files.source, EventSource):
            files = files._replace(source=files.source.scanned())
        recording = dataset.open_checked(files)
        content = tuple((file["bytes"], file["sampled_sha256"]) for file in files.source.identity())
    except UserError as error:
        return CheckedRecording(split, name, facts, (error,))
    facts["size_mb"] = sum((*(size for size, _ in content), *map(_size, files.label_files))) / 1e6
    for read in (_label_facts, _event_facts):
        try:
            facts |= read(recording, dataset.label_kind, quick)
        except UserError as error:
            problems.append(error)
    if facts.get("labels_read") and facts["labels_empty"] == facts["labels_read"]:
        problems.append(
            UserError(
                f"{recording.path}, recording {name}",
                f"all of the {facts['labels_read']:,} labels that were read are empty",
                "copy the labels again, or leave the recording out",
            )
        )
    return CheckedRecording(split, name, facts, tuple(problems), content, recording.region)


def _event_facts(recording: LabelledRecording, kind: str | None, quick: bool) -> dict[str, Any]:
    """Statistics of the events, and bytes to pack them.

    `quick` skips checksums and most histograms of an archive.
    """
    source = recording.source
    if isinstance(source, ArchiveSource):
        for window in (0, len(recording) - 1) if quick else range(len(recording)):
            recording.histograms(window, 1, Binning(BINS, STORED_RULE))
        return {}
    if not quick:
        source.verify(again=True)
    length = source.facts.t_last - source.facts.t_first
    return {f"events_{name}": value for name, value in vars(source.facts).items()} | {
        "events_seconds": length / 1e6,
        "events_packed_bytes": EVENT_BYTES * source.facts.count + 8 * (length // 1000 + 2),
    }


def _label_facts(recording: LabelledRecording, kind: str | None, quick: bool) -> dict[str, Any]:
    """Statistics of the labels; all labels are read, or a few if `quick`."""
    count = len(recording.label_indices)
    indices = spread(QUICK if quick else count, count)
    spacings = np.diff(recording.label_times)
    return {
        "labels_count": count,
        "labels_read": len(indices),
        "labels_empty": sum(_is_empty(recording.labels[index], kind) for index in indices),
        "labels_spacing_ms": float(np.median(spacings)) / 1000 if count > 1 else 0.0,
        "labels_left_out": recording.left_out,
    }


def _is_empty(label: Any, kind: str | None) -> bool:
    """Whether boxes, a mask or a depth map are empty; labels of other kinds never are."""
    if kind == BOXES:
        return not len(label.label)
    is_unlabelled = label == IGNORE if kind == MASK else kind == DEPTH and np.isnan(label)
    return bool(np.all(is_unlabelled))


def _size(path: Path) -> int:
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def frame(results: Sequence[CheckedRecording]) -> pd.DataFrame:
    """Return the results as a data frame with one row per recording and one column per fact."""
    return pd.DataFrame(
        {
            "split": result.split,
            "recording": result.name,
            **result.facts,
            "problems": " | ".join(map(str, result.problems)),
        }
        for result in results
    )


def table(results: Sequence[CheckedRecording]) -> str:
    """Format the results as a table with one line per recording."""
    cells = (
        [result.split, result.name, *(_cell(text, result.facts) for text in COLUMNS.values())]
        for result in results
    )
    rows = pd.DataFrame([["split", "recording", *COLUMNS], *cells])
    for column in (0, 1):
        rows[column] = rows[column].str.ljust(rows[column].str.len().max())
    return rows.to_string(index=False, header=False)


def _cell(text: str, facts: dict[str, Any]) -> str:
    try:
        return text.format(**facts)
    except KeyError:  # of a part that is missing or could not be read
        return "-"


def problems(results: Sequence[CheckedRecording]) -> list[str]:
    """List the problems of the recordings, copies in two splits, and differing sizes, in lines."""
    lines = [str(problem) for result in results for problem in result.problems]
    first: dict[tuple[tuple[int, str], ...], CheckedRecording] = {}
    for result in results:
        other = first.setdefault(result.content, result)
        if result.content and other.split != result.split:
            copy = f"this {result.split} recording is a copy of {other.name} in {other.split}"
            remedy = "copy the right recording, or keep it in one of the splits"
            lines.append(f"{result.name}: {copy}; {remedy}")
    sizes = (
        (result.name, result.region)
        for result in results
        if result.region and result.facts.get("labels_count")
    )
    try:
        require_one_size("labelled recordings", sizes)
    except UserError as error:
        lines.append(str(error))
    return list(dict.fromkeys(lines))


class Moment(NamedTuple):
    """Contents of one row of the preview: the state at the end of a window."""

    title: str  # recording and time
    histogram: NDArray[np.uint8]  # (2*bins, H, W) of the window
    high_pass: pictures.Image  # (H, W) intensity of Eq. 6 at its end
    intensity: pictures.Image  # (H, W) intensity of Eq. 7 at its end
    label: Any  # a mask, boxes or a depth; None where the window has none


def moment(recording: LabelledRecording, window: int, rule: Rule, norm_events: float) -> Moment:
    """Compute one row of the preview: events, intensities and label at the end of a window.

    Args:
        recording: recording to show.
        window: index of the window.
        rule: assignment of events to bins; an archive of histograms has its own.
        norm_events: N of Eq. 7.
    """
    windows = recording.windows[: window + 1]
    end = int(windows[-1, 1])
    first = min(int(np.searchsorted(windows[:, 0], end - SETTLING_US)), window)
    intensity: Any = None
    high_pass: Any = None
    for index in range(first, window + 1):
        histogram = _histogram(recording, index, rule)  # (1, 2 * bins, H, W)
        seconds = float(windows[index, 1] - windows[index, 0]) / 1e6 / BINS
        counts = torch.from_numpy(histogram)[None]  # (1, 1, 2 * bins, H, W)
        _, intensity = estimate_intensity(
            counts, intensity, norm_events=norm_events, bin_seconds=seconds
        )
        _, high_pass = estimate_high_pass(counts, high_pass, bin_seconds=seconds)
    elapsed, length = (end - windows[[0, window], 0]) / 1e6
    events = histogram.sum(dtype=np.int64)
    name = recording.name
    name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}...{name[-6:]}"
    title = f"{name}\n{elapsed:.2f} s: {events:,} events in {1000 * length:.0f} ms"
    label = next((recording.labels[index] for index in recording.labels_in(window, 1)), None)
    return Moment(title, histogram[0], high_pass[0, 0].numpy(), intensity[0].numpy(), label)


def choose(
    recordings: Sequence[LabelledRecording], count: int, rule: Rule
) -> list[tuple[LabelledRecording, int]]:
    """Choose windows to preview, spread over recordings and time.

    Of 9 windows in each of `count` parts, the one with most events is chosen. Only windows that end
    at a label are candidates, if any do.

    Args:
        recordings: recordings with histograms of the same size, and with at least one window.
        count: number of windows, unless there are fewer.
        rule: see `moment`.

    Returns:
        The recording and the index of each window.
    """
    windows = [(each, index) for each in recordings for index in each.label_indices.tolist()]
    windows = windows or [(each, index) for each in recordings for index in range(len(each))]
    chosen = []
    for part in np.array_split(np.arange(len(windows)), min(count, len(windows))):
        candidates = [windows[part[index]] for index in spread(CANDIDATES, len(part))]
        events = [
            _histogram(recording, window, rule).sum(dtype=np.int64)
            for recording, window in candidates
        ]
        chosen.append(candidates[int(np.argmax(events))])
    return chosen


def _histogram(recording: LabelledRecording, window: int, rule: Rule) -> NDArray[np.uint8]:
    is_stored = isinstance(recording.source, ArchiveSource)
    return recording.histograms(window, 1, Binning(BINS, STORED_RULE if is_stored else rule))


def windows_at(recording: LabelledRecording, seconds: Sequence[float]) -> list[int]:
    """Find the windows that end at or before some times.

    Args:
        recording: recording with contiguous windows, at least one.
        seconds: times in s since the start of the recording.

    Returns:
        Rising indices of the windows, without repetition.

    Raises:
        UserError: if a time is outside of the recording.
    """
    ends = (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6
    for time in seconds:
        if not ends[0] <= time <= ends[-1]:
            raise UserError(
                recording.path,
                f"{time:g} s is outside of the recording",
                f"give times from {ends[0]:g} to {ends[-1]:g} s",
            )
    return sorted({int(np.searchsorted(ends, time + 1e-9, side="right")) - 1 for time in seconds})


def draw(
    moments: Sequence[Moment],
    classes: Sequence[str],
    out: Path,
    name: str,
    norm_events: float,
    high_pass: bool,
    draw_label: Callable[[Axes, Any], AxesImage | None],
) -> Path:
    """Save a picture of moments, one row each: events, histogram, intensity, and labels if any.

    Args:
        moments: rows of the picture.
        classes: names of the classes, for the legend.
        out: file, or folder for the file.
        name: of the file in the folder.
        norm_events: N of Eq. 7, for the title of its column.
        high_pass: whether to draw the intensity of Eq. 6 instead of the histogram.
        draw_label: draws a label, see `tespec.tasks.base.Task.draw`.

    Returns:
        The written file.
    """
    labels = [moment.label for moment in moments if moment.label is not None]
    columns = [
        "events in the window",
        "intensity, Eq. 6" if high_pass else "histogram: events per pixel",
        f"intensity, Eq. 7, N = {norm_events:g}",
    ]
    columns += ["labels (events grey or dark)"] if labels else []
    figure, panels = pictures.make_panels(
        len(moments),
        columns,
        moments[0].intensity.shape,
        WIDTH,
        len(columns) - 1,
        pictures.POLARITIES | pictures.colours_of(labels, classes),
    )
    for axes, moment in zip(panels, moments, strict=True):
        axes[0].set_ylabel(moment.title, fontsize=9)
        pictures.show_events(axes[0], moment.histogram)
        if high_pass:
            pictures.show_grey(axes[1], moment.high_pass)
        else:
            pictures.show_counts(axes[1], moment.histogram)
        pictures.show_grey(axes[2], moment.intensity)
        if labels:
            _show_label(axes[3], moment, draw_label)
    return pictures.save_figure_as(figure, out, name, dpi=80)


def _show_label(
    axis: Axes, moment: Moment, draw_label: Callable[[Axes, Any], AxesImage | None]
) -> None:
    """Draw a label over the events, which lie as a dark veil over masks and depth."""
    pictures.show_faded(axis, moment.histogram)
    if moment.label is None:
        return
    image = draw_label(axis, moment.label)
    is_map = isinstance(moment.label, np.ndarray) and moment.label.ndim == 2
    if image is not None and (not is_map or pictures.known(moment.label).any()):
        pictures.add_bar(axis, image, str(image.get_label()))
    if is_map:
        veil = np.zeros((*moment.intensity.shape, 4), np.float32)
        veil[..., 3] = VEIL * moment.histogram.any(axis=0)
        axis.imshow(veil, interpolation="nearest")

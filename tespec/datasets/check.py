"""Check a data set: contents and problems of each recording, and a preview of some windows."""

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from numpy.typing import NDArray

from tespec import pictures
from tespec.core.errors import UserError
from tespec.core.settings import Binning, Rule
from tespec.datasets.archive import BINS, STORED_RULE, ArchiveSource
from tespec.datasets.base import LabelledDataset
from tespec.datasets.labels import BOXES, DEPTH, IGNORE, MASK
from tespec.datasets.recording import LabelledRecording, require_one_size
from tespec.datasets.sources import EventSource, find_events
from tespec.events import PackedEvents
from tespec.events.cache import EVENT_BYTES
from tespec.events.files import content_sha256, is_recorded
from tespec.events.histogram import Region
from tespec.events.intensity import estimate_high_pass, estimate_intensity
from tespec.events.opening import require_same
from tespec.events.store import header_of, verify_store

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
CANDIDATES = 9  # windows around a place, of which the one with most events is shown
SETTLING_US = 3_000_000  # of events before the shown moment, for intensities to settle
LONGEST_NAME = 26  # letters
WIDTH = 16.0  # inches
VEIL = 0.55  # opacity of events over masks


class Checked(NamedTuple):
    """Result of checking one recording."""

    split: str
    name: str
    facts: dict[str, Any]  # figures by name; those of unreadable parts are missing
    problems: tuple[UserError, ...]  # errors that make the recording unusable
    # sizes and sampled SHA-256 of its files, to detect copies
    content: tuple[tuple[int, str], ...] = ()
    region: Region | None = None  # of its histograms


def check(
    dataset: LabelledDataset, *, quick: bool = False, processes: int = 1
) -> Iterator[Checked]:
    """Check every recording of the data set's splits, `processes` of them concurrently.

    `quick` reads only a few labels, and only the header of packed events. Errors in a recording go
    into its result instead of being raised.
    """
    tasks = [(split, name) for split in dataset.splits for name in dataset.names(split)]
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(lambda task: _check_recording(dataset, task[0], task[1], quick), tasks)


def _check_recording(dataset: LabelledDataset, split: str, name: str, quick: bool) -> Checked:
    facts: dict[str, Any] = {}
    problems: list[UserError] = []
    try:
        files = dataset.find(split, name)
        if isinstance(files.source, EventSource):
            files = files._replace(source=replace(files.source, scan_only=True))
        recording = dataset.open_checked(files)
        content = tuple((file["bytes"], file["sampled_sha256"]) for file in files.source.identity())
    except UserError as error:
        return Checked(split, name, facts, (error,))
    facts["size_mb"] = (sum(size for size, _ in content) + sum(map(_size, files.beside))) / 1e6
    for read in (_label_facts, _event_facts):
        try:
            facts |= read(recording, dataset.label_kind, quick)
        except UserError as error:
            problems.append(error)
    if (number := facts.get("labels_read")) and facts["labels_empty"] == number:
        where, what = (
            f"{recording.path}, recording {name}",
            f"all of the {number:,} labels that were read are empty",
        )
        problems.append(UserError(where, what, "copy the labels again, or leave the recording out"))
    return Checked(split, name, facts, tuple(problems), content, recording.region)


def _event_facts(recording: LabelledRecording, kind: str | None, quick: bool) -> dict[str, Any]:
    """Figures of the events, and bytes to pack them; `quick` skips checksums and most histograms of an archive."""
    if isinstance(recording.source, ArchiveSource):
        for first in (0, len(recording) - 1) if quick else range(len(recording)):
            recording.histograms(first, 1, Binning(BINS, STORED_RULE))
        return {}
    source, facts = recording.source, recording.source.facts
    found = find_events(source)
    if isinstance(found, PackedEvents) and not quick:
        store, path = found.path, recording.path
        verify_store(store)
        if is_recorded(path):
            require_same(store, path, content_sha256(path) == header_of(store)["source"]["sha256"])
    length = facts.t_last - facts.t_first
    return {f"events_{name}": value for name, value in vars(facts).items()} | {
        "events_seconds": length / 1e6,
        "events_packed_bytes": EVENT_BYTES * facts.count + 8 * (length // 1000 + 2),
    }


def _label_facts(recording: LabelledRecording, kind: str | None, quick: bool) -> dict[str, Any]:
    """Figures of the labels; all labels are read, or a few if `quick`."""
    count, times = len(recording.labelled), recording.label_times
    chosen = (
        np.unique(np.linspace(0, count - 1, QUICK).astype(int))
        if quick and count > QUICK
        else np.arange(count)
    )
    return {
        "labels_count": count,
        "labels_read": len(chosen),
        "labels_empty": sum(_is_empty(recording.labels[index], kind) for index in chosen.tolist()),
        "labels_spacing_ms": float(np.median(np.diff(times))) / 1000 if count > 1 else 0.0,
        "labels_left_out": recording.left_out,
    }


def _is_empty(label: Any, kind: str | None) -> bool:
    """Whether boxes, a mask or a depth map are empty; labels of other kinds never are."""
    if kind == BOXES:
        return not len(label.label)
    return bool(
        (kind == MASK and (label == IGNORE).all()) or (kind == DEPTH and np.isnan(label).all())
    )


def _size(path: Path) -> int:
    return sum(
        file.stat().st_size
        for file in (path.rglob("*") if path.is_dir() else [path])
        if file.is_file()
    )


def frame(found: Sequence[Checked]) -> pd.DataFrame:
    """Return the results as a data frame with one row per recording and one column per figure."""
    return pd.DataFrame(
        {
            "split": each.split,
            "recording": each.name,
            **each.facts,
            "problems": " | ".join(map(str, each.problems)),
        }
        for each in found
    )


def table(found: Sequence[Checked]) -> str:
    """Format the results as a table with one line per recording."""
    cells = (
        [each.split, each.name, *(_cell(text, each.facts) for text in COLUMNS.values())]
        for each in found
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


def problems(found: Sequence[Checked]) -> list[str]:
    """List the problems of recordings, copies in two splits, and different sizes of labelled recordings, in lines."""
    lines = [str(problem) for each in found for problem in each.problems]
    first: dict[tuple[tuple[int, str], ...], Checked] = {}
    for each in found:
        other = first.setdefault(each.content, each)
        if each.content and other.split != each.split:
            what = f"this {each.split} recording is a copy of {other.name} in {other.split}"
            lines.append(
                f"{each.name}: {what}; copy the right recording, or keep it in one of the splits"
            )
    labelled = (each for each in found if each.facts.get("labels_count"))
    try:
        require_one_size(
            "labelled recordings", ((each.name, each.region) for each in labelled if each.region)
        )
    except UserError as error:
        lines.append(str(error))
    return list(dict.fromkeys(lines))


class Moment(NamedTuple):
    """Everything that one row of the preview shows: the state at the end of a window."""

    title: str  # recording and time
    histogram: NDArray[np.uint8]  # (2*bins, H, W) of the window
    high_pass: pictures.Image  # (H, W) intensity of Eq. 6 at its end
    intensity: pictures.Image  # (H, W) intensity of Eq. 7 at its end
    label: Any  # a mask, boxes or a depth; None where the window has none


def moment(recording: LabelledRecording, window: int, rule: Rule, norm_events: float) -> Moment:
    """Compute everything that the preview shows for the end of a window."""
    windows, end = recording.windows[: window + 1], int(recording.windows[window, 1])
    image: Any = None
    filtered: Any = None
    for each in range(
        min(int(np.searchsorted(windows[:, 0], end - SETTLING_US)), window), window + 1
    ):
        histogram = _histogram(recording, each, rule)
        seconds = float(windows[each, 1] - windows[each, 0]) / 1e6 / BINS
        counts = torch.from_numpy(histogram)[None]
        _, image = estimate_intensity(counts, image, norm_events=norm_events, bin_seconds=seconds)
        _, filtered = estimate_high_pass(counts, filtered, bin_seconds=seconds)
    since, length = (end - windows[[0, window], 0]) / 1e6
    name, events = recording.name, int(histogram.sum(dtype=np.int64))
    name = name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 9]}...{name[-6:]}"
    title = f"{name}\n{since:.2f} s: {events:,} events in {1000 * length:.0f} ms"
    label = next((recording.labels[number] for number in recording.labels_in(window, 1)), None)
    return Moment(title, histogram[0], filtered[0, 0].numpy(), image[0].numpy(), label)


def choose(
    recordings: Sequence[LabelledRecording], count: int, rule: Rule
) -> list[tuple[LabelledRecording, int]]:
    """Choose `count` windows, spread over recordings and time; around each place, take the one with most events.

    Only windows that end at a label are candidates, if any do. Windows repeat only in recordings
    with too few of them.
    """
    found = [each for each in recordings if len(each.labelled)] or [
        each for each in recordings if len(each)
    ]
    if not found:
        where = recordings[0].path if recordings else "recordings"
        raise UserError(where, "has no label and no complete window to show", "check the data set")
    chosen = []
    for place in range(count):
        recording = found[
            place * len(found) // count if len(found) >= count else place % len(found)
        ]
        windows = recording.labelled if len(recording.labelled) else np.arange(len(recording))
        first, end = (each * len(windows) // count for each in (place, place + 1))
        around = windows[np.linspace(first, max(first, end - 1), CANDIDATES).astype(int)].tolist()
        events = [int(_histogram(recording, window, rule).sum(dtype=np.int64)) for window in around]
        chosen.append((recording, around[int(np.argmax(events))]))
    return chosen


def _histogram(recording: LabelledRecording, window: int, rule: Rule) -> NDArray[np.uint8]:
    stored = isinstance(recording.source, ArchiveSource)
    return recording.histograms(window, 1, Binning(BINS, STORED_RULE if stored else rule))


def windows_at(recording: LabelledRecording, seconds: Sequence[float]) -> list[int]:
    """Windows that end at or before the given times since the start of a recording; refuse times outside of it."""
    if not len(recording):
        raise UserError(recording.path, "is shorter than a window", "give a longer recording")
    ends = (recording.windows[:, 1] - recording.windows[0, 0]) / 1e6
    for each in seconds:
        if not ends[0] <= each <= ends[-1]:
            what = f"{each:g} s is outside of the recording"
            raise UserError(recording.path, what, f"give times from {ends[0]:g} to {ends[-1]:g} s")
    return sorted({int(np.searchsorted(ends, each + 1e-9, side="right")) - 1 for each in seconds})


def draw(
    shown: Sequence[Moment], classes: Sequence[str], path: Path, norm_events: float, high_pass: bool
) -> None:
    """Save a PNG, a row per moment: events, histogram (`high_pass`: intensity of Eq. 6), intensity of Eq. 7, labels."""
    labels = [each.label for each in shown if each.label is not None]
    second = "intensity, Eq. 6" if high_pass else "histogram: events per pixel"
    columns = ["events in the window", second, f"intensity, Eq. 7, N = {norm_events:g}"]
    columns += ["labels (events grey or dark)"] if labels else []
    size = shown[0].intensity.shape
    colours = pictures.POLARITIES | pictures.colours_of(labels, classes)
    figure, panels = pictures.make_panels(
        len(shown), columns, size, WIDTH, len(columns) - 1, colours
    )
    for axes, each in zip(panels, shown, strict=True):
        axes[0].set_ylabel(each.title, fontsize=9)
        pictures.show_events(axes[0], each.histogram)
        if high_pass:
            pictures.show_grey(axes[1], each.high_pass)
        else:
            pictures.show_counts(axes[1], each.histogram)
        pictures.show_grey(axes[2], each.intensity)
        if labels:
            _show_label(axes[3], each)
    pictures.save_figure(figure, path, dpi=80)


def _show_label(axis: Axes, shown: Moment) -> None:
    """Draw a label together with the events, which are below boxes and a dark veil over masks and depth."""
    pictures.show_faded(axis, shown.histogram)
    if shown.label is None:
        return
    image = pictures.draw_label(axis, shown.label)
    if image is not None and pictures.known(shown.label).any():
        pictures.add_bar(axis, image, str(image.get_label()))
    if isinstance(shown.label, np.ndarray):
        veil = np.zeros((*shown.intensity.shape, 4), np.float32)
        veil[..., 3] = VEIL * shown.histogram.any(axis=0)
        axis.imshow(veil, interpolation="nearest")

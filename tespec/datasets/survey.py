"""Surveys a whole dataset, one recording at a time or several at once."""

from __future__ import annotations

import copy
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.core.files import whole_file
from tespec.datasets.base import LabelledDataset
from tespec.datasets.labels import IGNORE
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource
from tespec.events import PackedEvents
from tespec.events.stream import Events, check_events

SECOND = 1_000_000  # us, the longest part
QUICK = 16  # labels that a quick survey reads
COLUMNS = ("split", "recording", "sensor", "events", "length", "Mev/s", "peak", "ON", "labels", "every", "size")
ARCHIVE_BINS, ARCHIVE_RULE = 10, "rvt"  # of uzh-rpg/RVT's preprocessed archives
Task = tuple[str, str]  # split and name of a recording


@dataclass(frozen=True)
class EventFacts:
    """Events of one recording.

    Attributes:
        height: rows of the sensor in px.
        width: columns of the sensor in px.
        count: number of events.
        t_first: time of the first event in us.
        t_last: time of the last event in us.
        clamped: number of events whose time stepped back.
        positive: share of events with positive polarity.
        repeated: share of events that equal the one before them in pixel, time and polarity.
        peak: largest number of events per second in one of the equal parts of at most a second that the recording is
            divided into; never below the mean, unless only some of them were looked at.
    """

    height: int
    width: int
    count: int
    t_first: int
    t_last: int
    clamped: int
    positive: float
    repeated: float
    peak: float

    @property
    def seconds(self) -> float:
        """From the first event to the last."""
        return (self.t_last - self.t_first) / 1e6

    @property
    def rate(self) -> float:
        """Events per second."""
        return per_second(self.count, self.t_last - self.t_first)


def per_second(count: int, duration: int) -> float:
    """Rate in 1/s of a number of events in a time in us; 0 where the time has no length."""
    return count * 1e6 / duration if duration else 0.0


@dataclass(frozen=True)
class LabelFacts:
    """Labels of one recording.

    Attributes:
        count: number of labels.
        first: time of the first in us; 0 if there is none.
        last: time of the last in us.
        spacing_ms: shortest, median and longest time between two labels in ms; zeros for fewer than two.
        classes: how often each class occurs: labelled pixels, or boxes.
        unlabelled: share of pixels without a label; 0 for boxes.
        extent: smallest and largest depth in m, or box side in px; zeros where there is none.
        empty: number of labels without any labelled pixel or box.
    """

    count: int
    first: int
    last: int
    spacing_ms: tuple[float, float, float]
    classes: dict[str, int]
    unlabelled: float
    extent: tuple[float, float]
    empty: int


@dataclass(frozen=True)
class RecordingFacts:
    """One recording; parts that could not be read are None, and `problems` says why.

    Attributes:
        name: of the recording.
        split: it belongs to.
        bytes: size of its files.
        events: what they hold; None for archives of histograms as well.
        labels: what they hold.
        windows: number of windows that the rule gives.
        seconds: how long the survey took.
        problems: what makes it unusable.
        notes: what is unusual but handled, a line each.
        content: sizes and sampled SHA-256 of its files, whatever their names, which tell copies of one recording.
    """

    name: str
    split: str
    bytes: int = 0
    events: EventFacts | None = None
    labels: LabelFacts | None = None
    windows: int = 0
    seconds: float = 0.0
    problems: tuple[UserError, ...] = field(default=())
    notes: tuple[str, ...] = field(default=())
    content: tuple[tuple[int, str], ...] = ()


def event_facts(stream: PackedEvents, quick: bool = False) -> EventFacts:
    """Read a recording part by part and check what every reader promises.

    Args:
        stream: raw events.
        quick: read the first and the last part alone; shares and peak are then those of these two.

    Raises:
        UserError: it holds no events.
        ValueError: the reader breaks its promise: events out of order, outside of the sensor, lost or doubled.
    """
    if not stream.count:
        raise UserError("the recording", "holds no events", "copy it again")
    seen = positive = repeated = 0
    peak, latest = 0.0, stream.t_first
    for start, end, last in _parts(stream, quick):
        events = stream.slice(start, end + last)
        x, y, t, p = events
        check_events(x, y, t, p, stream.height, stream.width)
        if len(t):
            if t[0] < max(start, latest) or t[-1] >= end + last or (np.diff(t) < 0).any():
                raise ValueError(f"events from {start} us on are out of order")
            latest = int(t[-1])
        seen += len(t)
        positive += int(p.sum())
        repeated += _repeated(events)
        peak = max(peak, per_second(len(t), end - start))
    if not quick and seen != stream.count:
        raise ValueError(f"{seen} events were read of {stream.count}")
    return EventFacts(
        stream.height,
        stream.width,
        stream.count,
        stream.t_first,
        stream.t_last,
        stream.clamped,
        positive / max(seen, 1),
        repeated / max(seen, 1),
        peak,
    )


def _parts(stream: PackedEvents, quick: bool) -> Iterator[tuple[int, int, bool]]:
    """Begin and end in us of equal parts of at most a second, and whether the last event, at its end, belongs to it."""
    span = stream.t_last - stream.t_first
    count = max(1, -(-span // SECOND))
    for number in sorted({0, count - 1}) if quick else range(count):
        begin, end = (stream.t_first + span * place // count for place in (number, number + 1))
        yield begin, end, number == count - 1


def _repeated(events: Events) -> int:
    same = np.ones(max(len(events.t) - 1, 0), bool)
    for column in events:
        same &= column[1:] == column[:-1]
    return int(same.sum())


def label_facts(recording: LabelledRecording, classes: Sequence[str], quick: bool = False) -> LabelFacts:
    """Read every label, or a few spread over the recording.

    Raises:
        UserError: one cannot be read.
    """
    count = len(recording.labelled)
    chosen = np.unique(np.linspace(0, count - 1, QUICK).astype(int)) if quick and count > QUICK else np.arange(count)
    occurrences, pixels, unlabelled, empty = np.zeros(len(classes), np.int64), 0, 0, 0
    low, high = np.inf, -np.inf
    values: NDArray[np.generic]
    found: NDArray[np.generic]
    for index in chosen.tolist():
        label = recording.labels[index]
        if isinstance(label, Boxes):
            values, found = label.size.ravel(), label.label
        elif label.dtype == np.uint8:
            values, found = np.empty(0), label[label != IGNORE]
        else:
            values, found = label[np.isfinite(label)], np.empty(0, np.int64)
        if not isinstance(label, Boxes):
            pixels += label.size
            unlabelled += label.size - max(len(found), len(values))
        occurrences += np.bincount(found, minlength=len(classes))[: len(classes)]
        empty += not (len(values) or len(found))
        if len(values):
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    times = recording.label_times
    return LabelFacts(
        count=count,
        first=int(times[0]) if count else 0,
        last=int(times[-1]) if count else 0,
        spacing_ms=_spacing(times),
        classes=dict(zip(classes, occurrences.tolist(), strict=True)),
        unlabelled=unlabelled / pixels if pixels else 0.0,
        extent=(low, high) if low <= high else (0.0, 0.0),
        empty=empty,
    )


def _spacing(times: NDArray[np.int64]) -> tuple[float, float, float]:
    gaps = np.diff(times) / 1000
    return (float(gaps.min()), float(np.median(gaps)), float(gaps.max())) if len(gaps) else (0.0, 0.0, 0.0)


def tasks_of(dataset: LabelledDataset) -> list[Task]:
    """Split and name of every recording that the settings name."""
    return [(split, name) for split in dataset.splits for name in dataset.names(split)]


def survey(dataset: LabelledDataset, *, quick: bool = False, processes: int = 1) -> Iterator[RecordingFacts]:
    """Look at every recording of a dataset; those done first come first.

    Args:
        dataset: to look at.
        quick: see `event_facts` and `label_facts`.
        processes: recordings looked at at once.

    Yields:
        What was found; nothing is raised for a recording that cannot be used.
    """
    tasks = tasks_of(dataset)
    if processes == 1 or len(tasks) < 2:
        for task in tasks:
            yield survey_recording(dataset, task, quick)
        return
    with ProcessPoolExecutor(min(processes, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        futures = [pool.submit(survey_recording, dataset, task, quick) for task in tasks]
        for future in as_completed(futures):
            yield future.result()


def require_sound(dataset: LabelledDataset) -> None:
    """Look quickly at every recording: the ends of its events, and some labels.

    Raises:
        UserError: the first thing that is wrong.
    """
    for facts in survey(dataset, quick=True):
        if facts.problems:
            raise facts.problems[0]


def survey_recording(dataset: LabelledDataset, task: Task, quick: bool = False) -> RecordingFacts:
    """Look at one recording."""
    began = time.monotonic()
    split, name = task
    facts = RecordingFacts(name, split)
    try:
        (files,) = _only(dataset, split, name).files(split)
        paths = [*files.source.files, *files.beside]
        facts = replace(facts, bytes=sum(size_of(path) for path in paths if path.exists()))
        recording = dataset.open_checked(files)
        content = tuple((file["bytes"], file["sampled_sha256"]) for file in files.source.identity())
        facts = replace(facts, windows=len(recording), content=content)
    except UserError as error:
        return replace(facts, problems=(error,), seconds=time.monotonic() - began)
    problems: list[UserError] = []
    events: EventFacts | None = None
    labels: LabelFacts | None = None
    try:
        labels = label_facts(recording, dataset.classes, quick)
    except UserError as error:
        problems.append(error)
    try:
        events = _events(recording, quick)
    except UserError as error:
        problems.append(error)
    except ValueError as error:
        problems.append(UserError(recording.path, str(error), "copy it again"))
    return replace(
        facts,
        events=events,
        labels=labels,
        problems=tuple(problems),
        notes=tuple(_notes(events, labels, recording.left_out)),
        seconds=time.monotonic() - began,
    )


def _only(dataset: LabelledDataset, split: str, name: str) -> LabelledDataset:
    one = copy.copy(dataset)
    one.splits = {split: (name,)}
    return one


def _events(recording: LabelledRecording, quick: bool) -> EventFacts | None:
    if isinstance(recording.source, EventSource):
        if not quick:
            recording.source.verify()
        return event_facts(replace(recording.source, rectify_map=None).stream, quick)
    # An archive of histograms: that each of them can be read is all there is to check.
    for first in (0, len(recording) - 1) if quick else range(len(recording)):
        recording.histograms(first, 1, ARCHIVE_BINS, ARCHIVE_RULE)
    return None


def _notes(events: EventFacts | None, labels: LabelFacts | None, left_out: int) -> Iterator[str]:
    if events is not None and events.clamped:
        yield f"{events.clamped:,} of {events.count:,} timestamps decrease; raised to the latest time before them"
    if left_out:
        yield f"{left_out:,} labels are left out by the protocol"
    if labels is not None and labels.empty:
        yield f"{labels.empty:,} of {labels.count:,} labels are empty"


def size_of(path: Path) -> int:
    """Bytes of a file, or of everything in a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size


def frame(found: Sequence[RecordingFacts]) -> pd.DataFrame:
    """A row for each recording, with every figure of `EventFacts` and `LabelFacts` in a column of its own."""
    return pd.DataFrame([_row(facts) for facts in found])


def _row(facts: RecordingFacts) -> dict[str, Any]:
    row: dict[str, Any] = {
        "split": facts.split,
        "recording": facts.name,
        "bytes": facts.bytes,
        "windows": facts.windows,
    }
    if facts.events is not None:
        row |= {f"events_{name}": value for name, value in asdict(facts.events).items()}
    if facts.labels is not None:
        of_labels = asdict(facts.labels)
        shortest, median, longest = of_labels.pop("spacing_ms")
        row |= {"labels_spacing_ms_min": shortest, "labels_spacing_ms_median": median, "labels_spacing_ms_max": longest}
        low, high = of_labels.pop("extent")
        row |= {"labels_extent_min": low, "labels_extent_max": high}
        row |= {f"class_{name}": count for name, count in of_labels.pop("classes").items()}
        row |= {f"labels_{name}": value for name, value in of_labels.items()}
    return row | {"problems": " | ".join(map(str, facts.problems)), "notes": " | ".join(facts.notes)}


def write_csv(found: Sequence[RecordingFacts], path: Path) -> None:
    """Write the table of `frame`."""
    with whole_file(path) as unfinished:
        frame(found).to_csv(unfinished, index=False)


def table(found: Sequence[RecordingFacts]) -> list[str]:
    """One line per recording under a line of headings, columns aligned."""
    rows = [COLUMNS, *(_cells(facts) for facts in found)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    sides = [str.ljust] * 2 + [str.rjust] * (len(COLUMNS) - 2)
    return [
        "  ".join(side(cell, width) for side, cell, width in zip(sides, row, widths, strict=True)).rstrip()
        for row in rows
    ]


def _cells(facts: RecordingFacts) -> tuple[str, ...]:
    events, labels = facts.events, facts.labels
    of_events = ("-",) * 6 if events is None else (
        f"{events.width}x{events.height}",
        f"{events.count:,}",
        f"{events.seconds:.1f} s",
        f"{events.rate / 1e6:.3g}",
        f"{events.peak / 1e6:.3g}",
        f"{events.positive:.0%}",
    )  # fmt: skip
    of_labels = ("-", "-") if labels is None else (f"{labels.count:,}", f"{labels.spacing_ms[1]:g} ms")
    return (facts.split, facts.name, *of_events, *of_labels, bytes_in_words(facts.bytes))


def classes(found: Sequence[RecordingFacts]) -> list[str]:
    """How often each class occurs in each split; nothing where labels have no classes."""
    rows = frame([facts for facts in found if facts.labels is not None and facts.labels.classes])
    lines = []
    for split, of_split in rows.groupby("split", sort=False) if len(rows) else ():
        counts = of_split.filter(regex="^class_").sum().astype(int).rename(lambda name: name.removeprefix("class_"))
        shares = ", ".join(f"{name} {share:.1%}" for name, share in (counts / max(counts.sum(), 1)).items())
        labels = max(of_split["labels_count"].sum(), 1)
        unlabelled = (of_split["labels_unlabelled"] * of_split["labels_count"]).sum() / labels
        lines.append(f"{split}: {shares}" + (f"; {unlabelled:.1%} of all pixels carry no label" if unlabelled else ""))
    return lines


def extents(found: Sequence[RecordingFacts]) -> list[str]:
    """Smallest and largest depth, or box side, of each split that has any."""
    rows = frame([facts for facts in found if facts.labels is not None and facts.labels.extent[1] > 0])
    splits = rows.groupby("split", sort=False) if len(rows) else ()
    low, high = "labels_extent_min", "labels_extent_max"
    return [f"{split}: {each[low].min():.2f} to {each[high].max():.2f}" for split, each in splits]


def remarks(found: Sequence[RecordingFacts]) -> Iterator[str]:
    """What is unusual but handled, a line each."""
    for facts in found:
        for note in facts.notes:
            yield f"{facts.name}: {note}"


def problems(found: Sequence[RecordingFacts]) -> list[str]:
    """Everything that makes a recording unusable, a line each, without repetition."""
    of_each = [problem for facts in found for problem in facts.problems]
    return list(dict.fromkeys(map(str, [*of_each, *_copies(found)])))


def _copies(found: Sequence[RecordingFacts]) -> Iterator[UserError]:
    """Recordings that are in two splits under different names."""
    first: dict[tuple[tuple[int, str], ...], RecordingFacts] = {}
    for facts in found:
        other = first.setdefault(facts.content, facts)
        if facts.content and other.split != facts.split:
            what = f"of {facts.split} is a copy of {other.name} of {other.split}"
            yield UserError(facts.name, what, "copy the right recording, or leave it in one of the splits")


def bytes_in_words(count: float) -> str:
    """A number of bytes in the unit that suits it: 1 MB is 1e6 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"

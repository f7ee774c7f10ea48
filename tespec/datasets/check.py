"""What the recordings of a data set hold, and what is wrong with them; a row of a table for each."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.datasets.base import LabelledDataset
from tespec.datasets.labels import IGNORE
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource
from tespec.events import PackedEvents
from tespec.events.stream import check_events

SECOND = 1_000_000  # us, the longest part that is read at once
QUICK = 16  # labels that a quick check reads
ARCHIVE_BINS, ARCHIVE_RULE = 10, "rvt"  # of uzh-rpg/RVT's preprocessed archives


@dataclass(frozen=True)
class Checked:
    """What a check found in one recording.

    Attributes:
        split: the recording's.
        name: the recording's.
        facts: figures by the name of their column, see `event_facts` and `label_facts`; without those of parts that
            could not be read.
        problems: what makes it unusable.
        notes: what is unusual but handled.
        content: sizes and sampled SHA-256 of its files, whatever their names, which tell copies of one recording.
    """

    split: str
    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    problems: tuple[UserError, ...] = ()
    notes: tuple[str, ...] = ()
    content: tuple[tuple[int, str], ...] = ()


def check(dataset: LabelledDataset, *, quick: bool = False, processes: int = 1) -> Iterator[Checked]:
    """Check every recording of a data set; those done first come first.

    Args:
        dataset: to check.
        quick: read the ends of recordings and some labels only.
        processes: recordings read at once.

    Yields:
        What was found; nothing is raised for a recording that cannot be used.
    """
    tasks = tasks_of(dataset)
    if processes == 1 or len(tasks) < 2:
        yield from (check_recording(dataset, *task, quick) for task in tasks)
        return
    with ProcessPoolExecutor(min(processes, len(tasks)), multiprocessing.get_context("spawn")) as pool:
        for future in as_completed([pool.submit(check_recording, dataset, *task, quick) for task in tasks]):
            yield future.result()


def tasks_of(dataset: LabelledDataset) -> list[tuple[str, str]]:
    """Split and name of every recording that the settings name."""
    return [(split, name) for split in dataset.splits for name in dataset.names(split)]


def check_recording(dataset: LabelledDataset, split: str, name: str, quick: bool = False) -> Checked:
    """Check one recording."""
    one = copy.copy(dataset)
    one.splits = {split: (name,)}
    facts: dict[str, Any] = {}
    try:
        (files,) = one.files(split)
        facts["bytes"] = sum(map(_size, filter(Path.exists, (*files.source.files, *files.beside))))
        recording = dataset.open_checked(files)
        facts["windows"] = len(recording)
        content = tuple((file["bytes"], file["sampled_sha256"]) for file in files.source.identity())
    except UserError as error:
        return Checked(split, name, facts, (error,))
    problems: list[UserError] = []
    try:
        facts |= label_facts(recording, dataset.classes, quick)
    except UserError as error:
        problems.append(error)
    try:
        facts |= _events(recording, quick)
    except UserError as error:
        problems.append(error)
    except ValueError as error:
        problems.append(UserError(recording.path, str(error), "copy it again"))
    return Checked(split, name, facts, tuple(problems), tuple(_notes(facts, recording.left_out)), content)


def _events(recording: LabelledRecording, quick: bool) -> dict[str, Any]:
    if isinstance(recording.source, EventSource):
        if not quick:
            recording.source.verify()
        return event_facts(replace(recording.source, rectify_map=None).stream, quick)
    # An archive of histograms: that each of them can be read is all there is to check.
    for first in (0, len(recording) - 1) if quick else range(len(recording)):
        recording.histograms(first, 1, ARCHIVE_BINS, ARCHIVE_RULE)
    return {}


def event_facts(stream: PackedEvents, quick: bool = False) -> dict[str, Any]:
    """Read the events of a recording part by part and check their order and coordinates.

    Args:
        stream: raw events.
        quick: read the first and the last part alone; shares and peak are those of these two.

    Returns:
        height and width in px, number, time of the first and last in us, number of clamped times, shares of positive
        events and of events that equal the one before in everything, and the largest rate in 1/s in one of the equal
        parts of at most a second that the recording is divided into.

    Raises:
        UserError: it holds no events.
        ValueError: events are out of order, outside of the sensor, lost or doubled.
    """
    if not stream.count:
        raise UserError("the recording", "holds no events", "copy it again")
    seen = positive = repeated = 0
    peak, latest, span = 0.0, stream.t_first, stream.t_last - stream.t_first
    parts = max(1, -(-span // SECOND))
    for part in sorted({0, parts - 1}) if quick else range(parts):
        start, end = (stream.t_first + span * place // parts for place in (part, part + 1))
        last = part == parts - 1  # of which the last event is a part
        x, y, t, p = stream.slice(start, end + last)
        check_events(x, y, t, p, stream.height, stream.width)
        if len(t):
            if t[0] < max(start, latest) or t[-1] >= end + last or (np.diff(t) < 0).any():
                raise ValueError(f"events from {start} us on are out of order")
            latest = int(t[-1])
        seen += len(t)
        positive += int(p.sum())
        repeated += int(np.logical_and.reduce([each[1:] == each[:-1] for each in (x, y, t, p)]).sum())
        peak = max(peak, per_second(len(t), end - start))
    if not quick and seen != stream.count:
        raise ValueError(f"{seen} events were read of {stream.count}")
    return {
        "events_height": stream.height,
        "events_width": stream.width,
        "events_count": stream.count,
        "events_t_first": stream.t_first,
        "events_t_last": stream.t_last,
        "events_clamped": stream.clamped,
        "events_positive": positive / max(seen, 1),
        "events_repeated": repeated / max(seen, 1),
        "events_peak": peak,
    }


def per_second(count: int, duration: int) -> float:
    """Rate in 1/s of a number of events in a time in us; 0 where the time has no length."""
    return count * 1e6 / duration if duration else 0.0


def label_facts(recording: LabelledRecording, classes: Sequence[str], quick: bool = False) -> dict[str, Any]:
    """Read every label, or a few spread over the recording.

    Returns:
        Number, time of the first and last in us, spacing in ms, number without any labelled pixel or box, share of
        pixels without a label, smallest and largest depth in m or box side in px, and labelled pixels or boxes of each
        class.

    Raises:
        UserError: one cannot be read.
    """
    count, times = len(recording.labelled), recording.label_times
    chosen = np.unique(np.linspace(0, count - 1, QUICK).astype(int)) if quick and count > QUICK else np.arange(count)
    occurrences, pixels, unlabelled, empty = np.zeros(len(classes), np.int64), 0, 0, 0
    low, high = np.inf, -np.inf
    for index in chosen.tolist():
        label: Any = recording.labels[index]
        values: NDArray[np.floating] = np.empty(0)
        found: NDArray[np.integer] = np.empty(0, np.int64)
        if isinstance(label, Boxes):
            values, found = label.size.ravel(), label.label
        elif label.dtype == np.uint8:
            found = label[label != IGNORE]
        else:
            values = label[np.isfinite(label)]
        if not isinstance(label, Boxes):
            pixels += label.size
            unlabelled += label.size - max(len(found), len(values))
        occurrences += np.bincount(found, minlength=len(classes))[: len(classes)]
        empty += not (len(values) or len(found))
        if len(values):
            low, high = min(low, float(values.min())), max(high, float(values.max()))
    gaps = np.diff(times) / 1000 if count > 1 else np.zeros(1)
    return {
        "labels_count": count,
        "labels_first": int(times[0]) if count else 0,
        "labels_last": int(times[-1]) if count else 0,
        "labels_spacing_ms_min": float(gaps.min()),
        "labels_spacing_ms_median": float(np.median(gaps)),
        "labels_spacing_ms_max": float(gaps.max()),
        "labels_empty": empty,
        "labels_unlabelled": unlabelled / pixels if pixels else 0.0,
        "labels_extent_min": low if low <= high else 0.0,
        "labels_extent_max": high if low <= high else 0.0,
        **{f"class_{name}": number for name, number in zip(classes, occurrences.tolist(), strict=True)},
    }


def _notes(facts: dict[str, Any], left_out: int) -> Iterator[str]:
    if clamped := facts.get("events_clamped"):
        yield f"{clamped:,} of {facts['events_count']:,} timestamps decrease; raised to the latest time before them"
    if left_out:
        yield f"{left_out:,} labels are left out by the protocol"
    if empty := facts.get("labels_empty"):
        yield f"{empty:,} of {facts['labels_count']:,} labels are empty"


def _size(path: Path) -> int:
    """Bytes of a file, or of everything in a folder."""
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())


def frame(found: Sequence[Checked]) -> pd.DataFrame:
    """A row for each recording, with every figure in a column of its own."""
    return pd.DataFrame(
        {"split": each.split, "recording": each.name, **each.facts}
        | {"problems": " | ".join(map(str, each.problems)), "notes": " | ".join(each.notes)}
        for each in found
    )


def table(found: Sequence[Checked]) -> str:
    """A line for each recording under a line of headings."""
    rows = pd.DataFrame([{"split": each.split, "recording": each.name} | _cells(each.facts) for each in found])
    rows = rows.fillna("-")
    for name in ("split", "recording"):
        width = rows[name].str.len().max()
        rows[name] = rows[name].str.ljust(width)
        rows = rows.rename(columns={name: name.ljust(width)})
    return rows.to_string(index=False)


def _cells(facts: dict[str, Any]) -> dict[str, str]:
    cells = dict.fromkeys(("sensor", "events", "length", "Mev/s", "peak", "ON", "labels", "every"), "-")
    if "events_count" in facts:
        duration = facts["events_t_last"] - facts["events_t_first"]
        cells |= {
            "sensor": f"{facts['events_width']}x{facts['events_height']}",
            "events": f"{facts['events_count']:,}",
            "length": f"{duration / 1e6:.1f} s",
            "Mev/s": f"{per_second(facts['events_count'], duration) / 1e6:.3g}",
            "peak": f"{facts['events_peak'] / 1e6:.3g}",
            "ON": f"{facts['events_positive']:.0%}",
        }
    if "labels_count" in facts:
        cells |= {"labels": f"{facts['labels_count']:,}", "every": f"{facts['labels_spacing_ms_median']:g} ms"}
    return cells | {"size": bytes_in_words(facts.get("bytes", 0))}


def classes(found: Sequence[Checked]) -> list[str]:
    """How often each class occurs in each split; nothing where labels have no classes."""
    rows, lines = frame([each for each in found if any(name.startswith("class_") for name in each.facts)]), []
    for split, of_split in rows.groupby("split", sort=False) if len(rows) else ():
        counts = of_split.filter(regex="^class_").sum().astype(int).rename(lambda name: name.removeprefix("class_"))
        shares = ", ".join(f"{name} {share:.1%}" for name, share in (counts / max(counts.sum(), 1)).items())
        labels = max(of_split["labels_count"].sum(), 1)
        unlabelled = (of_split["labels_unlabelled"] * of_split["labels_count"]).sum() / labels
        lines.append(f"{split}: {shares}" + (f"; {unlabelled:.1%} of all pixels carry no label" if unlabelled else ""))
    return lines


def extents(found: Sequence[Checked]) -> list[str]:
    """Smallest and largest depth, or box side, of each split that has any."""
    rows = frame([each for each in found if each.facts.get("labels_extent_max", 0) > 0])
    low, high = "labels_extent_min", "labels_extent_max"
    splits = rows.groupby("split", sort=False) if len(rows) else ()
    return [f"{split}: {each[low].min():.2f} to {each[high].max():.2f}" for split, each in splits]


def notes(found: Sequence[Checked]) -> list[str]:
    """What is unusual but handled, a line each."""
    return [f"{each.name}: {note}" for each in found for note in each.notes]


def problems(found: Sequence[Checked]) -> list[str]:
    """What makes recordings unusable, and copies of one in two splits; a line each, without repetition."""
    lines = [str(problem) for each in found for problem in each.problems]
    first: dict[tuple[tuple[int, str], ...], Checked] = {}
    for each in found:
        other = first.setdefault(each.content, each)
        if each.content and other.split != each.split:
            what = f"of {each.split} is a copy of {other.name} of {other.split}"
            lines.append(f"{each.name}: {what}; copy the right recording, or leave it in one of the splits")
    return list(dict.fromkeys(lines))


def bytes_in_words(count: float) -> str:
    """A number of bytes in the unit that suits it: 1 MB is 1e6 bytes."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"

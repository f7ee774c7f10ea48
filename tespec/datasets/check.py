"""What the recordings of a data set hold, and what is wrong with them; a row of a table for each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd

from tespec.core.boxes import Boxes
from tespec.core.errors import UserError
from tespec.datasets.base import LabelledDataset
from tespec.datasets.labels import IGNORE
from tespec.datasets.prophesee import BINS, RULE
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource, read_rectification
from tespec.events import PackedEvents
from tespec.events.opening import NotPacked, require_same
from tespec.events.packing import SourceHash, disk_needed, in_order, is_recorded
from tespec.events.store import header_of, store_of, verify_store

QUICK = 16  # labels that a quick check reads
EVENTS = ("height", "width", "count", "t_first", "t_last", "clamped")  # of a recording: figures of its events
NOTES = {
    "events_clamped": "timestamps decrease, and are raised to the latest before them",
    "labels_left_out": "labels are left out by the protocol",
    "labels_empty": "labels are empty",
}


@dataclass(frozen=True)
class Checked:
    """What a check found in one recording.

    Attributes:
        split: the recording's.
        name: the recording's.
        facts: figures by the name of their column; without those of parts that could not be read.
        problems: what makes it unusable.
        content: sizes and sampled SHA-256 of its files, whatever their names, which tell copies of one recording.
    """

    split: str
    name: str
    facts: dict[str, Any] = field(default_factory=dict)
    problems: tuple[UserError, ...] = ()
    content: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class ScannedSource(EventSource):
    """Events that are read through, without being held, where they are not packed."""

    @cached_property
    def stream(self) -> Any:
        """The packed recording, or what `EVENTS` names of it."""
        try:
            return self.packed()
        except NotPacked:
            reader = self.reader()
        if self.rectify_map is not None:
            read_rectification(self.rectify_map, reader.height, reader.width)
        count = clamped = first = last = 0
        for events, raised in in_order(reader):
            first, last = first if count else int(events.t[0]), int(events.t[-1])
            count, clamped = count + len(events.t), clamped + raised
        figures = reader.height, reader.width, count, first, last, clamped
        return SimpleNamespace(**dict(zip(EVENTS, figures, strict=True)))


def check(dataset: LabelledDataset, *, quick: bool = False, processes: int = 1) -> Iterator[Checked]:
    """Check every recording that the settings name, some at once.

    `quick` reads a few labels, and of packed events the header only. Nothing is raised for a recording that cannot be
    used.
    """
    tasks = [(split, name) for split in dataset.splits for name in dataset.names(split)]
    with ThreadPoolExecutor(processes) as pool:
        yield from pool.map(lambda task: check_recording(dataset, task[0], task[1], quick), tasks)


def check_recording(dataset: LabelledDataset, split: str, name: str, quick: bool) -> Checked:
    """Check one recording."""
    facts: dict[str, Any] = {}
    problems: list[UserError] = []
    try:
        files = dataset.find(split, name)
        if isinstance(source := files.source, EventSource):
            files = replace(files, source=ScannedSource(source.path, source.sensor, source.rectify_map))
        recording = dataset.open_checked(files)
        content = tuple((file["bytes"], file["sampled_sha256"]) for file in source.identity())
    except UserError as error:
        return Checked(split, name, facts, (error,))
    facts["bytes"] = sum(size for size, _ in content) + sum(map(_size, files.beside))
    for read in (label_facts, event_facts):
        try:
            facts |= read(recording, dataset.classes, quick)
        except UserError as error:
            problems.append(error)
    return Checked(split, name, facts, tuple(problems), content)


def event_facts(recording: LabelledRecording, classes: Sequence[str], quick: bool = False) -> dict[str, Any]:
    """Sensor, number of events, first and last time in us, clamped times and bytes to pack them; every byte is read."""
    if not isinstance(recording.source, EventSource):
        # An archive of histograms: that each of them can be read is all there is to check.
        for first in (0, len(recording) - 1) if quick else range(len(recording)):
            recording.histograms(first, 1, BINS, RULE)
        return {}
    stream: Any = recording.stream
    if not quick and isinstance(stream, PackedEvents):
        _verify(stream.path, recording.path)
    return {f"events_{name}": getattr(stream, name) for name in EVENTS} | {
        "events_packed_bytes": disk_needed(stream.count, (stream.t_last - stream.t_first) // 1000 + 2)
    }


def _verify(store: Path, path: Path) -> None:
    """Read packed events whole, and compare them and the recording beside them with the SHA-256 in their header.

    The recording of packed events in the cache is not read: their folder is named by its state.
    """
    verify_store(store)
    if is_recorded(path) and store == store_of(path):
        require_same(store, path, SourceHash(path).describe()["sha256"] == header_of(store)["source"]["sha256"])


def label_facts(recording: LabelledRecording, classes: Sequence[str], quick: bool = False) -> dict[str, Any]:
    """Read every label, or a few spread over the recording.

    Returns:
        Number, median spacing in ms, number left out, number without any labelled pixel or box, share of pixels without
        a label, and labelled pixels or boxes of each class.
    """
    count, times = len(recording.labelled), recording.label_times
    chosen = np.unique(np.linspace(0, count - 1, QUICK).astype(int)) if quick and count > QUICK else np.arange(count)
    occurrences, pixels, unlabelled, empty = np.zeros(len(classes), np.int64), 0, 0, 0
    for index in chosen.tolist():
        label: Any = recording.labels[index]
        if isinstance(label, Boxes):
            known = found = label.label
        else:
            known = label[label != IGNORE] if label.dtype == np.uint8 else label[np.isfinite(label)]
            found = known if label.dtype == np.uint8 else np.empty(0, np.int64)
            pixels, unlabelled = pixels + label.size, unlabelled + label.size - len(known)
        occurrences += np.bincount(found, minlength=len(classes))[: len(classes)]
        empty += not len(known)
    return {
        "labels_count": count,
        "labels_spacing_ms": float(np.median(np.diff(times))) / 1000 if count > 1 else 0.0,
        "labels_left_out": recording.left_out,
        "labels_empty": empty,
        "labels_unlabelled": unlabelled / pixels if pixels else 0.0,
        **{f"class_{name}": number for name, number in zip(classes, occurrences.tolist(), strict=True)},
    }


def _size(path: Path) -> int:
    """Bytes of a file, or of everything in a folder; 0 where there is none."""
    return sum(file.stat().st_size for file in (path.rglob("*") if path.is_dir() else [path]) if file.is_file())


def frame(found: Sequence[Checked]) -> pd.DataFrame:
    """A row for each recording, with every figure in a column of its own."""
    return pd.DataFrame(
        {"split": each.split, "recording": each.name, **each.facts, "problems": " | ".join(map(str, each.problems))}
        for each in found
    )


def table(found: Sequence[Checked]) -> str:
    """A line for each recording under a line of headings."""
    columns = ("split", "recording", "sensor", "events", "length", "labels", "every", "size")
    rows = pd.DataFrame([columns, *map(_cells, found)])
    for column in (0, 1):
        rows[column] = rows[column].str.ljust(rows[column].str.len().max())
    return rows.to_string(index=False, header=False)


def _cells(checked: Checked) -> tuple[str, ...]:
    facts, events, labels = checked.facts, ("-",) * 3, ("-",) * 2
    if "events_count" in facts:
        seconds = (facts["events_t_last"] - facts["events_t_first"]) / 1e6
        sensor = f"{facts['events_width']}x{facts['events_height']}"
        events = sensor, f"{facts['events_count']:,}", f"{seconds:.1f} s"
    if "labels_count" in facts:
        labels = f"{facts['labels_count']:,}", f"{facts['labels_spacing_ms']:g} ms"
    return checked.split, checked.name, *events, *labels, bytes_in_words(facts["bytes"]) if "bytes" in facts else "-"


def class_shares(found: Sequence[Checked]) -> list[str]:
    """How often each class occurs in each split; nothing where labels have no classes."""
    labelled, lines = [each for each in found if "labels_count" in each.facts], []
    for split, rows in frame(labelled).groupby("split", sort=False) if labelled else ():
        counts = rows.filter(regex="^class_").sum().rename(lambda name: name.removeprefix("class_"))
        if len(counts):
            shares = ", ".join(f"{name} {share:.1%}" for name, share in (counts / max(counts.sum(), 1)).items())
            share = (rows["labels_unlabelled"] * rows["labels_count"]).sum() / max(rows["labels_count"].sum(), 1)
            lines.append(f"{split}: {shares}" + (f"; {share:.1%} of all pixels carry no label" if share else ""))
    return lines


def notes(found: Sequence[Checked]) -> list[str]:
    """What is unusual but handled, a line for each kind."""
    rows, lines = frame(found), []
    for column, what in NOTES.items():
        if column in rows and len(having := rows[rows[column] > 0]):
            more = f" and {len(having) - 1} more" * (len(having) > 1)
            lines.append(f"{int(having[column].sum()):,} {what} ({having['recording'].iloc[0]}{more})")
    return lines


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

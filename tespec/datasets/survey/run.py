"""Surveys a whole dataset, one recording at a time or several at once."""

from __future__ import annotations

import copy
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path

from tespec.datasets.base import LabelledDataset
from tespec.datasets.recording import LabelledRecording
from tespec.datasets.sources import EventSource
from tespec.datasets.survey.events import event_facts
from tespec.datasets.survey.facts import EventFacts, LabelFacts, RecordingFacts
from tespec.datasets.survey.labels import label_facts
from tespec.errors import UserError

ARCHIVE_BINS, ARCHIVE_RULE = 10, "rvt"  # of uzh-rpg/RVT's preprocessed archives

Task = tuple[str, str]  # split and name of a recording


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
        recording = dataset.open(files)
        facts = replace(facts, windows=len(recording))
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
        yield f"{events.clamped:,} of {events.count:,} events step back in time; raised to the latest time before them"
    if left_out:
        yield f"{left_out:,} labels are left out by the protocol"
    if labels is not None and labels.empty:
        yield f"{labels.empty:,} of {labels.count:,} labels are empty"


def size_of(path: Path) -> int:
    """Bytes of a file, or of everything in a folder."""
    if path.is_dir():
        return sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return path.stat().st_size

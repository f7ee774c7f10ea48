"""Packs the recordings of a dataset, so that training reads memory-mapped events instead of decoding files."""

from __future__ import annotations

import filecmp
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from tespec.core.description import FILE as DESCRIPTION
from tespec.core.errors import UserError
from tespec.core.files import one_at_a_time, write_whole
from tespec.datasets.base import LabelledDataset, RecordingFiles
from tespec.datasets.sources import EventSource, store_of
from tespec.events.opening import cache_path, open_reader
from tespec.events.packing import pack
from tespec.events.provenance import is_recorded
from tespec.events.store import HEADER, is_complete

MANIFEST = "packed.json"
REPORT_SECONDS = 0.5  # between looks at what other processes report
Progress = Callable[[str, int, int], None]


@dataclass(frozen=True)
class Packing:
    """One recording to pack: from where, to where, and what to copy beside it."""

    name: str
    split: str
    source: EventSource
    target: Path
    copies: tuple[tuple[Path, Path], ...]


def packings(dataset: LabelledDataset, out: Path | None) -> list[Packing]:
    """What is to be packed: beside the recordings, or in `out`, where their labels are then copied to.

    Raises:
        UserError: a recording is missing, or holds histograms instead of events.
    """
    return [
        _packing(dataset.root, files, out or dataset.root) for split in dataset.splits for files in dataset.files(split)
    ]


def _packing(root: Path, files: RecordingFiles, out: Path) -> Packing:
    if not isinstance(files.source, EventSource):
        raise UserError(files.source.path, "holds histograms, which are read as they are", "leave it as it is")
    target = out / store_of(files.source.path).relative_to(root)
    copies = () if out == root else tuple((path, out / path.relative_to(root)) for path in files.beside)
    return Packing(files.name, files.split, files.source, target, copies)


def prepare(
    dataset: LabelledDataset,
    out: Path | None = None,
    processes: int = 1,
    progress: Progress | None = None,
    skip_damaged: bool = False,
) -> Path:
    """Pack every recording that is not packed yet, and write a manifest.

    Killed at any point, it goes on with the first recording that is not whole when it is called again.

    Args:
        dataset: whose recordings are packed.
        out: folder that becomes a dataset of the same layout with packed events, labels copied; None: the stores go
            beside the events they are made from.
        processes: recordings packed at once.
        progress: called with a recording's name, and how many events of all its events are packed.
        skip_damaged: leave out recordings that cannot be read, and go on.

    Returns:
        The manifest: of each recording its source's size and SHA-256, and its store's number of events and hashes; and
        what is wrong with those left out.

    Raises:
        UserError: a recording cannot be read, or the folder cannot be written to.
    """
    planned = packings(dataset, out)
    place = out or dataset.root
    if not os.access(next(parent for parent in (place, *place.absolute().parents) if parent.exists()), os.W_OK):
        raise UserError(place, "cannot be written to", "name another folder with --out")
    if out is not None and (dataset.root / DESCRIPTION).is_file():
        copy(dataset.root / DESCRIPTION, out / DESCRIPTION)
    packed: dict[str, dict[str, Any]] = {}
    left_out: dict[str, str] = {}
    for packing, error in _pack_all(planned, processes, progress):
        if error is not None:
            of_source = error.where.startswith(str(packing.source.path))
            if not of_source or error.where.startswith(str(packing.target)):
                raise error  # of the place where the store belongs: no recording is damaged
            if not skip_damaged:
                others = ", or leave it out with --skip-damaged" if len(planned) > 1 else ""
                raise UserError(error.where, error.what, error.remedy + others) from error
            left_out[f"{packing.split}/{packing.name}"] = str(error)
            continue
        for source, target in packing.copies:
            copy(source, target)
        header = json.loads((packing.target / HEADER).read_text())
        facts = {name: header[name] for name in ("count", "clamped", "source", "sha256")}
        packed[f"{packing.split}/{packing.name}"] = {"store": packing.target.relative_to(place).as_posix(), **facts}
    manifest = place / MANIFEST
    facts = {"layout": dataset.layout, "recordings": dict(sorted(packed.items()))}
    if left_out:
        facts["left_out"] = dict(sorted(left_out.items()))
    return write_whole(manifest, json.dumps(facts, indent=1))


def copy(source: Path, target: Path) -> None:
    """Make `target` a copy of a file or folder, whatever it holds; one that holds the same bytes is left as it is."""
    with one_at_a_time(target):
        if _same(source, target):
            return
        unfinished = target.with_name(f".{target.name}.unfinished")
        _remove(unfinished)
        if source.is_dir():
            shutil.copytree(source, unfinished)
        else:
            shutil.copyfile(source, unfinished)
        if source.is_dir() or target.is_dir():
            _remove(target)  # which no renaming replaces
        unfinished.replace(target)


def _files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _same(one: Path, other: Path) -> bool:
    """Whether two files hold the same bytes, or two folders the same files."""
    if one.is_dir():
        found, there = _files(one), _files(other)
        return found == there and other.is_dir() and all(_same(one / name, other / name) for name in found)
    return other.is_file() and filecmp.cmp(one, other, shallow=False)


def _pack_all(
    planned: Sequence[Packing], processes: int, progress: Progress | None
) -> Iterator[tuple[Packing, UserError | None]]:
    """Each recording as it is packed, with what is wrong with it."""
    report = progress or (lambda name, done, total: None)
    if processes == 1 or len(planned) < 2:
        for packing in planned:
            yield packing, _caught(partial(pack_recording, packing, report))
        return
    context = multiprocessing.get_context("spawn")
    with context.Manager() as manager:
        messages = manager.Queue()
        with ProcessPoolExecutor(min(processes, len(planned)), context) as pool:
            pending = {pool.submit(_pack_and_tell, packing, messages): packing for packing in planned}
            while pending:
                ended = [future for future in pending if future.done()]
                while not messages.empty():
                    report(*messages.get())
                for future in ended:
                    packing = pending.pop(future)
                    yield packing, _caught(future.result)
                if not ended:
                    wait(pending, timeout=REPORT_SECONDS, return_when=FIRST_COMPLETED)


def _caught(call: Callable[[], None]) -> UserError | None:
    try:
        call()
    except UserError as error:
        return error
    return None


def _pack_and_tell(packing: Packing, messages: Any) -> None:
    pack_recording(packing, lambda *state: messages.put(state))


def pack_recording(packing: Packing, progress: Progress) -> None:
    """Pack one recording in this process."""
    source, store = packing.source, store_of(packing.source.path)
    if not is_recorded(source.path) and is_complete(store):
        if store != packing.target:
            copy(store, packing.target)
        return
    reader = open_reader(source.path, *(source.sensor or (None, None)))
    pack(reader, packing.target, source.path, lambda done, total: progress(packing.name, done, total))
    if store == packing.target:
        shutil.rmtree(cache_path(reader), ignore_errors=True)  # the store of a first use, which is needed no more

"""Packs recordings, so that training reads memory-mapped events instead of decoding files.

A recording that cannot be read, and a folder without room or permission for all of them, are a `UserError`.
"""

from __future__ import annotations

import filecmp
import json
import multiprocessing
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tespec.core.description import FILE as DESCRIPTION
from tespec.core.errors import UserError
from tespec.core.files import whole_file, write_whole
from tespec.core.paths import cache_root
from tespec.core.progress import Advance, say
from tespec.core.progress import progress as bar
from tespec.datasets.base import LabelledDataset, RecordingFiles
from tespec.datasets.sources import EventSource, Source, store_of
from tespec.events.opening import NotPacked, cache_path, open_events, open_reader
from tespec.events.packing import disk_needed, pack
from tespec.events.provenance import is_recorded, size_of
from tespec.events.store import HEADER, is_complete
from tespec.events.stream import Reader

MANIFEST = "packed.json"
Progress = Callable[[str, int, int], None]


def pack_missing(sources: Iterable[Source], skip_damaged: bool | None = None) -> None:
    """Pack into the cache what has no packed store, with one bar; nothing is written where the disk has too little.

    Args:
        sources: of recordings that are about to be read many times.
        skip_damaged: whether recordings that cannot be read are left to those who open them; None: that cannot be asked
            for.
    """
    folder, missing = cache_root() / "stores", {}
    wanted = [source for source in sources if isinstance(source, EventSource)]

    def leave_out(error: UserError) -> None:
        if not skip_damaged:
            raise or_leave_out(error, skip_damaged is not None and len(wanted) > 1) from error

    for source in wanted:
        try:
            open_events(source.path, *(source.sensor or (None, None)))
        except NotPacked:
            reader = open_reader(source.path, *(source.sensor or (None, None)))
            missing[cache_path(reader)] = reader
        except UserError as error:
            leave_out(error)
    require_space(folder, (disk_needed(reader.events) for reader in missing.values()))
    total, before = sum(reader.events for reader in missing.values()), 0

    def pack_one(store: Path, reader: Reader, advance: Advance) -> None:
        def packed(done: int, _: int) -> None:
            advance(before + done, max(total, before + done), reader.path.name)

        def waiting() -> None:
            say(f"{reader.path}: another process packs it; waiting for it")

        try:
            pack(reader, store, reader.path, packed, waiting)
        except UserError as error:
            if error.where.startswith(str(folder)):
                remedy = "make room, or let TESPEC_CACHE name another folder"
                raise UserError(error.where, error.what, remedy) from error
            leave_out(error)

    if missing:
        with bar(f"packing into {folder}", "events") as advance:
            for store, reader in missing.items():
                pack_one(store, reader, advance)
                before += reader.events


def or_leave_out(error: UserError, offered: bool) -> UserError:
    """The error of a recording, its remedy naming `--skip-damaged` where there are others to go on with."""
    return UserError(error.where, error.what, error.remedy + ", or leave it out with --skip-damaged" * offered)


def require_space(folder: Path, needed: Iterable[int]) -> None:
    """Refuse to pack more bytes into a folder than its disk has free."""
    sizes = [size for size in needed if size]
    free = shutil.disk_usage(next(each for each in (folder, *folder.absolute().parents) if each.exists())).free
    if sum(sizes) > free:
        recordings = f"{len(sizes)} recording{'s' * (len(sizes) > 1)}"
        what = f"has {free:,} bytes free, the packed events of {recordings} need about {sum(sizes):,}"
        raise UserError(folder, what, "make room, or name another folder (prepare --out, or TESPEC_CACHE)")


@dataclass(frozen=True)
class Packing:
    """One recording to pack: from where, to where, and what to copy beside it."""

    name: str
    split: str
    source: EventSource
    target: Path
    copies: tuple[tuple[Path, Path], ...]


def packings(dataset: LabelledDataset, out: Path | None) -> list[Packing]:
    """What is to be packed: beside the recordings, or in `out`, where their labels are then copied to."""
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
    progress: Progress = lambda name, done, total: None,
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
    """
    planned, place = packings(dataset, out), out or dataset.root
    if not os.access(next(parent for parent in (place, *place.absolute().parents) if parent.exists()), os.W_OK):
        raise UserError(place, "cannot be written to", "name another folder with --out")
    require_space(place, (_bytes_of(packing) for packing in planned))
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
                raise or_leave_out(error, len(planned) > 1) from error
            left_out[f"{packing.split}/{packing.name}"] = str(error)
            continue
        for source, target in packing.copies:
            copy(source, target)
        header = json.loads((packing.target / HEADER).read_text())
        progress(packing.name, header["count"], header["count"])
        facts = {name: header[name] for name in ("count", "clamped", "source", "sha256")}
        packed[f"{packing.split}/{packing.name}"] = {"store": packing.target.relative_to(place).as_posix(), **facts}
    facts = {"layout": dataset.layout, "recordings": dict(sorted(packed.items()))}
    if left_out:
        facts["left_out"] = dict(sorted(left_out.items()))
    return write_whole(place / MANIFEST, json.dumps(facts, indent=1))


def _bytes_of(packing: Packing) -> int:
    """What a recording's store will take; 0 where it is there already, or where packing will say what is wrong."""
    source = packing.source
    try:
        if is_complete(packing.target):
            return 0
        if not is_recorded(source.path):
            return size_of(store_of(source.path))
        return disk_needed(open_reader(source.path, *(source.sensor or (None, None))).events)
    except UserError:
        return 0


def copy(source: Path, target: Path) -> None:
    """Make `target` a copy of a file or folder, whatever it holds; files that hold the same bytes are left."""
    if source.is_dir():
        names = _files(source)
        for name in _files(target) - names:
            (target / name).unlink()
        for name in names:
            copy(source / name, target / name)
    elif not target.is_file() or not filecmp.cmp(source, target, shallow=False):
        with whole_file(target) as unfinished:
            shutil.copyfile(source, unfinished)


def _files(folder: Path) -> set[Path]:
    return {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()}


def _pack_all(
    planned: Sequence[Packing], processes: int, progress: Progress
) -> Iterator[tuple[Packing, UserError | None]]:
    """Each recording as it is packed, with what is wrong with it."""
    if processes == 1 or len(planned) < 2:
        yield from ((packing, pack_recording(packing, progress)) for packing in planned)
        return
    with ProcessPoolExecutor(min(processes, len(planned)), multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(pack_recording, packing): packing for packing in planned}
        yield from ((pending[future], future.result()) for future in as_completed(pending))


def pack_recording(packing: Packing, progress: Progress = lambda name, done, total: None) -> UserError | None:
    """Pack one recording in this process; what is wrong with it, if anything is."""
    source, store = packing.source, store_of(packing.source.path)
    try:
        if not is_recorded(source.path) and is_complete(store):
            if store != packing.target:
                copy(store, packing.target)
            return None
        reader = open_reader(source.path, *(source.sensor or (None, None)))
        pack(reader, packing.target, source.path, lambda done, total: progress(packing.name, done, total))
        if store == packing.target:
            shutil.rmtree(cache_path(reader), ignore_errors=True)  # of a training, which is needed no more
    except UserError as error:
        return error
    return None

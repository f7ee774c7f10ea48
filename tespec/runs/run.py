"""Life cycle of a run: identity, search for an existing record, lock, training, evaluation, record.

Pre-training, fine-tuning, probes and the label prior only define how to train and evaluate.
"""

import json
import math
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import torch

from tespec.comparison import records
from tespec.comparison.cell import Cell, differences, differing, format_changes, run_name
from tespec.comparison.records import Record
from tespec.core.config import flattened
from tespec.core.distributed import barrier, broadcast, is_first
from tespec.core.errors import Preempted, UserError
from tespec.core.files import UNREADABLE, file_lock, read_json, sha256_of, write_all
from tespec.core.hashes import fingerprint_of
from tespec.core.progress import log
from tespec.core.settings import Finetuning, Pretraining
from tespec.core.signals import on_signals
from tespec.pretraining.method import TableRow
from tespec.runs.setup import Setup, require_writable
from tespec.training.checkpoint import (
    OVERWRITTEN,
    checkpoints,
    remove_checkpoints,
    remove_leftovers,
    start_again,
)
from tespec.training.device import choose_device, describe, report_out_of_memory

WEIGHTS = "model.safetensors"  # of a fine-tuning, in the run's folder
PREDICTIONS = "predictions"  # folder of the predictions of these weights, in the run's folder
DATA = "data.json"  # `Run.data`, to name what changes later; too large for records
SHOWN = 3  # number of changed data that a message names
FIRST = "first_step"  # key of a part of a training, next to its environment
# Fields of a record that an evaluation fills in; `weights` defaults to the initial weights.
Outcome = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """Everything that determines the result of a run."""

    cell: Cell
    seed: int
    row: TableRow  # facts about the method
    settings: Finetuning | Pretraining  # resolved, including the precision
    config: dict[str, Any]  # the settings and further facts, for the record
    data: Mapping[str, str]  # checksums of the data by name, see `tespec.core.hashes`
    setup: Setup
    # facts about the initial weights, and their hash, which covers those that are random; for a
    # pre-training, the hash of the other network that it needs
    start: Mapping[str, Any] = field(default_factory=dict)
    start_sha256: str = ""
    pretraining: int | str | None = None  # see `Record.pretraining`
    start_time: float = field(default_factory=time.monotonic)

    @property
    def device(self) -> torch.device:
        """Device of the run."""
        return choose_device(self.setup.device)

    @cached_property
    def environment(self) -> dict[str, Any]:
        """Versions, machine and options of this process, for the record."""
        return {**records.environment(describe(self.device)), **self.setup.facts}

    @cached_property
    def data_fingerprint(self) -> str:
        """Hash of the data."""
        return fingerprint_of(self.data)

    @property
    def trained_on(self) -> str:
        """Hash of the training recordings and their labels, the first split of the data."""
        train = {name: value for name, value in self.data.items() if name.startswith("0/")}
        return fingerprint_of(train)

    @cached_property
    def name(self) -> str:
        """Name of the record and of the run's folder."""
        return run_name(self.cell, self.seed, self.data_fingerprint, self.start_sha256)

    @property
    def folder(self) -> Path:
        """Folder of checkpoints and weights."""
        return self.setup.runs / self.name


class Trained(NamedTuple):
    """Result of a training; the defaults are those of a run without training."""

    curve: Sequence[Mapping[str, float]] = ()  # mean losses over intervals of steps
    # "train", the duration in s, including the time before it was resumed
    time: Mapping[str, float] = {}
    # first step and environment; one part, unless it was resumed in another environment
    parts: Sequence[Mapping[str, Any]] = ()
    tracker: Any = None  # mmengine's backend, which receives the final metrics


def run_or_load(
    run: Run,
    evaluate: Callable[[], Outcome],
    train: Callable[[], Trained] = Trained,
    requirements: Sequence[Callable[[], object]] = (),
) -> Record:
    """Load the complete record of a run without locking, or lock the run, compute it and write it.

    If another process is computing the run, wait and use its result; if that process ends without a
    result, resume from its newest checkpoint. With `overwrite`, a record written during the wait
    counts as new. If an evaluation fails, the checkpoint of the last step remains, and the next
    start only evaluates.

    Args:
        run: the run.
        evaluate: scores the trained model, and saves its weights in the run's folder.
        train: trains the model, resuming from a checkpoint if one exists; default: no training.
        requirements: refuse what cannot be computed here, before anything is written.

    Returns:
        The record; all ranks return the same.
    """
    setup = run.setup
    open_seconds = time.monotonic() - run.start_time
    previous = _find_complete(run)
    if previous is not None and not setup.overwrite:
        return _reuse(run, previous)
    for refuse in requirements:
        refuse()
    require_recordable(run)
    with locked(setup.runs, run.name) as lock_owner, report_out_of_memory():
        record = _find_complete(run)
        if record is not None and (not setup.overwrite or record != previous):
            return _reuse(run, record)
        if lock_owner:
            log(f"{run.name}: {lock_owner} ended without a result; this process continues it")
        if is_first():
            shutil.rmtree(run.folder / PREDICTIONS, ignore_errors=True)  # of other weights
            if setup.overwrite:
                start_again(run.folder, records.record_path(setup.results, run.name))
            else:
                (run.folder / OVERWRITTEN).unlink(missing_ok=True)
                _log_reason(run)
        trained = train()
        evaluation_start = time.monotonic()
        outcome = _evaluate(run, evaluate, is_trained=bool(trained.curve))
        evaluation_seconds = time.monotonic() - evaluation_start
        times = {"open": open_seconds, **trained.time, "evaluate": evaluation_seconds}
        record = records.new_record(
            cell=run.cell,
            seed=run.seed,
            pretraining=run.pretraining,
            data_fingerprint=run.data_fingerprint,
            start_sha256=run.start_sha256,
            facts=asdict(run.row),
            config=run.config,
            command=setup.command,
            environment={**run.environment, **_training_parts(run, trained.parts)},
            time=times | {"total": sum(times.values())},
            # Only the loss is checked during training; other values may be NaN.
            curve=[point for point in trained.curve if all(map(math.isfinite, point.values()))],
            **{"weights": run.start, **outcome},
        )
        if is_first():
            write_all({run.folder / DATA: json.dumps(run.data, indent=0)})
            records.write_record(record, setup.results)
            remove_checkpoints(run.folder)
        if trained.tracker is not None:
            trained.tracker.add_scalars(
                {f"result/{name}": value for name, value in outcome["metrics"].items()},
                step=run.settings.optimisation.steps,
            )
            trained.tracker.close()
        barrier()
        return record


def _evaluate(run: Run, evaluate: Callable[[], Outcome], *, is_trained: bool) -> Outcome:
    """Evaluate a run; if that fails or is stopped, log that the training is not lost."""
    try:
        with on_signals((signal.SIGTERM, signal.SIGUSR1), _preempted):
            return evaluate()
    except BaseException:
        if is_trained:
            log(
                f"{run.name}: the training is complete and saved; "
                "run the same command to evaluate again"
            )
        raise


def require_recordable(run: Run) -> None:
    """Refuse a run whose files could not be written after its training.

    Raises:
        UserError: a text of the record is not UTF-8, or a folder cannot be written.
    """
    recordings = {name.rpartition(": ")[0] for name in run.data}
    for value in (run.setup.command, *recordings, *flattened(run.config).values()):
        text = json.dumps(value, ensure_ascii=False, default=str)
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise UserError(text, "cannot be recorded, as it is not UTF-8", "rename it") from error
    results = run.setup.results
    for folder in (results / "runs", results / "pictures", run.folder):
        require_writable(folder, folder, run.name)


@contextmanager
def locked(runs: Path, run: str) -> Iterator[str]:
    """Hold the lock of a run on rank 0, after waiting for another process that computes it.

    Args:
        runs: folder of runs.
        run: name of the run.

    Yields:
        A description of the process that was waited for, or "".
    """
    lock_owners = [""]

    def waiting(owner: str) -> None:
        lock_owners.append(owner)
        log(
            f"{run}: waiting for {owner}, which is computing it, to use its result; "
            "Ctrl-C ends only the wait"
        )

    with file_lock(runs.absolute() / ".locks" / run, waiting) if is_first() else nullcontext():
        yield broadcast(lock_owners[-1])


def _preempted(number: int, frame: FrameType | None) -> NoReturn:
    raise Preempted(
        f"stopped by {signal.Signals(number).name}; run the same command to evaluate again"
    )


def _training_parts(run: Run, parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """List the parts of a training, with what differs from the evaluation's environment.

    Returns:
        `parts`: the first step of each part, the step after its last, and its values of the facts
        that differ; nothing if all parts ran in the environment of the evaluation.
    """
    present = run.environment
    changed = [key for key in present if any(part.get(key) != present[key] for part in parts)]
    ends = [*(part[FIRST] for part in parts[1:]), run.settings.optimisation.steps]
    listed = [
        {"steps": [part[FIRST], end]} | {key: part.get(key) for key in changed}
        for part, end in zip(parts, ends, strict=False)
        if part[FIRST] < end
    ]
    return {"parts": listed} if changed else {}


def _weights_problem(run: Run, record: Record) -> str:
    """Describe a problem of the weights of a pre-training, which other runs start from, or ""."""
    if run.cell.kind != "pretraining":
        return ""
    weights = run.folder / record.weights.source
    if not weights.is_file():
        return f"weights {weights} are missing"
    intact = sha256_of(weights) == record.weights.sha256
    return "" if intact else f"{weights} does not match its recorded hash"


def _find_complete(run: Run) -> Record | None:
    """Find the run's record, if its weights are intact; all ranks return or raise the same."""
    result: Record | UserError | None = None
    if is_first():
        try:
            record = records.find_record(run.setup.results, run.name)
            result = None if record is None or _weights_problem(run, record) else record
        except UserError as error:
            result = None if run.setup.overwrite else error
    result = broadcast(result)
    if isinstance(result, UserError):
        raise result
    return result


def _reuse(run: Run, record: Record) -> Record:
    """Log that a record is used, and how its settings differ; remove what a killed run left."""
    if is_first():
        with suppress(OSError):  # the folder of another user
            remove_leftovers(
                run.folder,
                records.record_path(run.setup.results, run.name),
                run.settings.optimisation.steps,
            )
    log(f"{record.name} is already complete; --overwrite recomputes it")
    changed = differing(record.config, run.config)
    changed.pop("deviations", None)  # prose, which may be reworded
    if changed:
        log(f"{record.name} was made with different settings: {format_changes(changed)}")
    return record


def _log_reason(run: Run) -> None:
    """Log why a run is computed although it, or a similar run, has a record."""
    if record := records.find_record(run.setup.results, run.name):
        log(f"{record.name}: {_weights_problem(run, record)}; recomputing")
        return
    if (run.folder / DATA).exists():  # of a complete run
        log(f"{run.name}: no record of it in {run.setup.results}; recomputing")
        return
    for version in range(1, run.cell.results_version):
        older = replace(run, cell=replace(run.cell, results_version=version))
        if checkpoints(older.folder):
            what = f"an unfinished run of results version {version}"
            log(f"{run.name}: does not continue {older.folder}, {what}")
    for nearest in records.similar_records(run.setup.results, run.cell, run.seed)[:1]:
        changed = differences(nearest.cell, run.cell)
        for key in ("pretraining", "data_fingerprint", "start_sha256"):
            recorded = getattr(nearest, key)
            if not changed and recorded != getattr(run, key):
                changed = {key: (recorded, getattr(run, key))}
        what = f"differs in {format_changes(changed)}"
        names = _changed_data(run, nearest) if "data_fingerprint" in changed else []
        if names:
            what = f"used other data ({len(names)} changed): {', '.join(names[:SHOWN])}"
        log(f"{run.name}: running, since {nearest.name} {what}")


def _changed_data(run: Run, record: Record) -> list[str]:
    """Names of the data that differ from a record's, as far as they were written here."""
    try:
        recorded = read_json(run.setup.runs / record.name / DATA)
    except UNREADABLE:
        return []
    names = {**recorded, **run.data}
    return [name.partition("/")[2] for name in names if recorded.get(name) != run.data.get(name)]

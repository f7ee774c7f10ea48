"""Life cycle of a run: identity, search for an existing record, lock, training, evaluation, record.

Pre-training, fine-tuning, probes and the label prior only define how to train and evaluate.
"""

import math
import signal
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, NoReturn

import tespec.core.compat  # before mmengine

import numpy as np
import torch
from mmengine.visualization import BaseVisBackend
from torch import nn

from tespec.comparison import records
from tespec.comparison.records import Record
from tespec.core.config import flattened, user_files
from tespec.core.distributed import barrier, broadcast, is_first
from tespec.core.errors import Preempted, UserError
from tespec.core.files import file_lock, sha256_of
from tespec.core.progress import log
from tespec.core.settings import Finetuning, Pretraining
from tespec.datasets.base import TEST
from tespec.pretraining.method import Method
from tespec.registry import PLUGIN
from tespec.runs.setup import Setup
from tespec.training.checkpoint import remove_checkpoints
from tespec.training.device import choose_device, describe, report_out_of_memory

WEIGHTS = "model.safetensors"  # of a fine-tuning, in the run's folder
# Fields of a record that an evaluation fills in; `weights` defaults to the initial weights,
# non-finite numbers to None.
Outcome = Mapping[str, Any]


@dataclass(frozen=True)
class Run:
    """Everything that determines the result of a run."""

    kind: str  # of the record: "evaluation", "pretraining", "probe" or "reference"
    method_name: str
    method: type[Method]  # its facts go into the record
    task: str  # for a pre-training, the name of its data in records
    settings: Finetuning | Pretraining  # resolved, including the precision
    # the settings, and whatever else determines the result, as stored in records
    config: dict[str, Any]
    overrides: Mapping[str, Any]  # settings changed by the user, by dotted name
    data: str  # name in records: "sample", or the name of the data set
    data_fingerprint: str
    seed: int
    setup: Setup
    plugin: str = ""  # see `plugin_of`
    # facts about the initial weights, with their hash; for a pre-training, the hash of the other
    # network that it needs
    start: Mapping[str, Any] = field(default_factory=dict)
    start_time: float = field(default_factory=time.monotonic)
    split: str = TEST  # that is evaluated

    @property
    def device(self) -> torch.device:
        """Device of the run."""
        return choose_device(self.setup.device)

    @cached_property
    def choices(self) -> dict[str, Any]:
        """What the run's identity is a hash of; `accumulate` counts as a changed setting."""
        accumulate = {"accumulate": self.setup.accumulate} if self.setup.accumulate > 1 else {}
        return {
            "kind": self.kind,
            "method": self.method_name,
            "method_version": self.method.version,
            "plugin": self.plugin,
            "task": self.task,
            "task_version": getattr(self.settings, "version", 1),
            "arch": self.settings.arch,
            "profile": self.settings.profile,
            "split": self.split,
            "seed": self.seed,
            "overrides": {**self.overrides, **accumulate},
            "data_fingerprint": self.data_fingerprint,
            "start_sha256": self.start.get("start_sha256", ""),
        }

    @cached_property
    def name(self) -> str:
        """Name of the record and of the run's folder, unique to the `choices`."""
        return records.record_name(self.choices)

    @property
    def folder(self) -> Path:
        """Folder of checkpoints and weights."""
        return self.setup.runs / self.name


class Trained(NamedTuple):
    """Result of a training; the defaults are those of a run without training."""

    curve: Sequence[Mapping[str, float]] = ()  # mean losses over intervals of steps
    seconds: float = 0.0  # duration of the training, including the time before it was resumed
    tracker: BaseVisBackend | None = None  # receives the final metrics


def plugin_of(model: nn.Module, classes: set[type], **configs: str) -> str:
    """Hash the files outside the package that a run uses.

    Args:
        model: network, whose modules may be defined in plug-ins.
        classes: other classes that may be.
        configs: names of configs by kind, which may be files of the user.

    Returns:
        The hash, "" for no files.
    """
    modules = {type(part) for part in model.modules() if type(part).__module__.startswith(PLUGIN)}
    return records.plugin_sha256(classes | modules, user_files(**configs))


def run_or_load(
    run: Run,
    evaluate: Callable[[], Outcome],
    train: Callable[[], Trained] = Trained,
    require: Callable[[], None] = lambda: None,
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
        require: refuses a training that cannot run here, before anything is written.

    Returns:
        The record; all ranks return the same.
    """
    setup = run.setup
    opened = time.monotonic() - run.start_time
    before = _find_complete(run)
    if before is not None and not setup.overwrite:
        return _reuse(run, before)
    require()
    with locked(setup.runs, run.name) as lock_owner:
        record = _find_complete(run)
        if record is not None and (not setup.overwrite or record != before):
            return _reuse(run, record)
        if lock_owner:
            log(f"{run.name}: {lock_owner} ended without a result; this process continues it")
        elif setup.overwrite and is_first():
            remove_checkpoints(run.folder)
        if is_first() and not setup.overwrite:
            _log_reason(run)
        with report_out_of_memory():
            trained = train()
        evaluation_start = time.monotonic()
        try:
            with on_signals((signal.SIGTERM, signal.SIGUSR1), _preempted), report_out_of_memory():
                outcome = evaluate()
        except BaseException:
            if trained.curve:
                log(
                    f"{run.name}: the training is complete and saved; "
                    "run the same command to evaluate again"
                )
            raise
        evaluation = time.monotonic() - evaluation_start
        times = {"open": opened} | ({"train": trained.seconds} if trained.curve else {})
        times |= {"evaluate": evaluation, "total": opened + trained.seconds + evaluation}
        facts = asdict(run.method.row)
        if "backbone" in run.overrides:
            facts["backbone"] = run.settings.backbone
        record = records.new_record(
            run.choices,
            facts=facts,
            variant=setup.variant,
            config=run.config,
            data=run.data,
            command=setup.command,
            environment={**records.environment(describe(run.device)), **setup.facts()},
            time=times,
            # Only the loss is checked during training; other values may be NaN.
            curve=[point for point in trained.curve if all(map(math.isfinite, point.values()))],
            **_finite({"weights": run.start, **outcome}),
        )
        if is_first():
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
        log(f"{run}: waiting for {owner}, which is computing it")

    with file_lock(runs.absolute() / ".locks" / run, waiting) if is_first() else nullcontext():
        yield broadcast(lock_owners[-1])


@contextmanager
def on_signals(
    numbers: Iterable[int], handler: Callable[[int, FrameType | None], None]
) -> Iterator[None]:
    """Handle signals by `handler` inside the block, and restore the previous handlers.

    Args:
        numbers: of the signals.
        handler: called with a signal's number and the stack frame.
    """
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _preempted(number: int, frame: FrameType | None) -> NoReturn:
    raise Preempted(
        f"stopped by {signal.Signals(number).name}; run the same command to evaluate again"
    )


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(item) for name, item in value.items()}
    # np.float32 is not a subclass of float.
    return None if isinstance(value, (float, np.floating)) and not math.isfinite(value) else value


def _problem(run: Run, record: Record) -> str:
    """Describe a problem of the weights of a pre-training, which other runs start from, or ""."""
    if run.kind != "pretraining":
        return ""
    weights = run.folder / record.weights["source"]
    if not weights.is_file():
        return f"weights {weights} are missing"
    intact = sha256_of(weights) == record.weights["sha256"]
    return "" if intact else f"{weights} does not match its recorded hash"


def _find_complete(run: Run) -> Record | None:
    """Find the run's record, if its weights are intact; all ranks return or raise the same."""
    result: Record | UserError | None = None
    if is_first():
        try:
            record = records.find_record(run.setup.results, run.name)
            result = None if record is None or _problem(run, record) else record
        except UserError as error:
            result = None if run.setup.overwrite else error
    result = broadcast(result)
    if isinstance(result, UserError):
        raise result
    return result


def _reuse(run: Run, record: Record) -> Record:
    """Log that a record is used, and how its settings differ; set its variant to this run's."""
    versions = (record.environment.get("tespec", ""), record.results_version)
    origin = ""
    if versions != (tespec.__version__, records.RESULTS_VERSION):
        origin = " (made by {}, results version {})".format(*versions)
    log(f"{record.name} is already complete{origin}; --overwrite recomputes it")
    recorded = flattened(record.config)
    present = flattened(run.config)
    present["deviations"] = recorded.get("deviations")  # prose, which may be reworded
    changed = {
        key: (recorded.get(key), value)
        for key, value in present.items()
        if recorded.get(key) != value
    }
    if changed:
        log(f"{record.name} was made with different settings: {_format_changes(changed)}")
    if run.setup.variant and run.setup.variant != record.variant:
        record = record.model_copy(update={"variant": run.setup.variant})
        if is_first():
            records.write_record(record, run.setup.results)
    return record


def _log_reason(run: Run) -> None:
    """Log why a run is computed although it, or a similar run, has a record."""
    if record := records.find_record(run.setup.results, run.name):
        log(f"{record.name}: {_problem(run, record)}; recomputing")
        return
    for nearest in records.similar_records(run.setup.results, run.choices)[:1]:
        changed = _format_changes(records.differing(nearest, run.choices))
        log(f"{run.name}: running, since {nearest.name} differs in {changed}")


def _format_changes(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Format changed settings with the recorded and the present value; None is the default."""

    def text(value: Any) -> str:
        return f"{'default' if value is None else value!s:.40}" or "none"

    return ", ".join(
        f"{key} ({text(recorded)} there, {text(present)} here)"
        for key, (recorded, present) in changed.items()
    )

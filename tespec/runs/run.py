"""One life of a run: identity, (is its record there?), lock, training, evaluation, record.

Pre-training, fine-tuning, probes and the label prior say how they train and evaluate; all else is here.
"""

from __future__ import annotations

import errno
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn, TypedDict

import tespec.core.compat  # before mmengine

import numpy as np
import torch
from filelock import FileLock, Timeout
from mmengine.visualization import BaseVisBackend
from torch import nn

from tespec.comparison.records import (
    RESULTS_VERSION,
    TEST,
    Record,
    ScoreFacts,
    differing,
    environment,
    find_record,
    new_record,
    plugin_sha256,
    record_name,
    similar_records,
    write_record,
)
from tespec.core.config import flattened, own_files
from tespec.core.distributed import barrier, broadcast, is_first
from tespec.core.errors import Preempted
from tespec.core.progress import say
from tespec.core.settings import Finetuning, Pretraining
from tespec.pretraining.method import Method
from tespec.registry import PLUGIN
from tespec.runs.setup import Setup
from tespec.training.checkpoint import checkpoints, clear
from tespec.training.device import choose_device, describe, out_of_memory_named

WEIGHTS = "model.safetensors"  # that a run of a task leaves in its folder
SECONDS_BETWEEN_TRIES = 0.5  # after the first one the holder of a lock had time to write who it is
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)  # of a file system, some NFS for one


@dataclass(frozen=True)
class Run:
    """A run, by all that determines its result, before anything is computed.

    Attributes:
        kind: of its record: "evaluation", "pretraining", "probe" or "reference".
        method_name: registered name of the method.
        method: its facts go into the record.
        task: of an evaluation; of a pre-training, what records call its data.
        settings: resolved, the precision included.
        config: the settings and what else decides the result, as records hold them.
        overrides: settings that the user changed, by dotted name.
        data: what records call it: "sample", or the name of the data set.
        data_fingerprint: hash of the recordings.
        seed: decides everything random.
        setup: where and how.
        plugin: see `plugin_of`.
        start: what records say of the weights that the backbone starts from, their hash included; of a pre-training:
            the hash of the other network that it needs.
        began: when work on it began, by `time.monotonic`.
        split: "test" or "val", on which it is scored.
    """

    kind: str
    method_name: str
    method: type[Method]
    task: str
    settings: Finetuning | Pretraining
    config: dict[str, Any]
    overrides: Mapping[str, Any]
    data: str
    data_fingerprint: str
    seed: int
    setup: Setup
    plugin: str = ""
    start: Mapping[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    split: str = TEST

    @property
    def device(self) -> torch.device:
        """Where it is computed."""
        return choose_device(self.setup.device)

    @cached_property
    def choices(self) -> dict[str, Any]:
        """What its identity is a hash of; a number of gradient accumulation steps counts as a setting."""
        accumulate = {"accumulate": self.setup.accumulate} if self.setup.accumulate > 1 else {}
        return {
            "kind": self.kind,
            "method": self.method_name,
            "method_version": self.method.version,
            "plugin": self.plugin,
            "task": self.task,
            "task_version": self.settings.version if isinstance(self.settings, Finetuning) else 1,
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
        """Name of its record and of its folder; runs that differ in what determines the result differ in it."""
        return record_name(self.choices)

    @property
    def folder(self) -> Path:
        """Of its checkpoints and weights."""
        return self.setup.runs / self.name


@dataclass(frozen=True)
class Trained:
    """A finished training, or none.

    Attributes:
        curve: mean losses over intervals of steps.
        probed: what was measured beside them.
        seconds: that the training took, those before it was resumed included.
        before: seconds of those up to the checkpoint that it went on from.
        tracker: takes the result, where there is one.
    """

    curve: Sequence[Mapping[str, float]] = ()
    probed: Sequence[Mapping[str, float]] = ()
    seconds: float = 0.0
    before: float = 0.0
    tracker: BaseVisBackend | None = None


class Outcome(TypedDict, total=False):
    """Fields of a record that the evaluation of a run found; without weights, it names those that the run starts from.

    Numbers that are not finite are recorded as missing.
    """

    protocol: Mapping[str, str]
    metrics: Mapping[str, float]
    groups: Mapping[str, Mapping[str, float]]
    recordings: Mapping[str, Mapping[str, float]]
    classes: Mapping[str, float]
    weights: Mapping[str, Any]
    scores: Mapping[str, ScoreFacts]


def plugin_of(model: nn.Module, kinds: set[type], **configs: str) -> str:
    """Hash of files from outside of the package: of classes, of the network's parts, and of configs by their kind."""
    parts = {type(each) for each in model.modules() if type(each).__module__.startswith(PLUGIN)}
    return plugin_sha256(kinds | parts, own_files(**configs))


def run_or_load(
    run: Run,
    evaluate: Callable[[], Outcome],
    train: Callable[[], Trained] = Trained,
    missing_files: Callable[[Record], str] = lambda record: "",
) -> Record:
    """The record of a run: the complete one, read without a lock, or a new one by the process that gets the run's lock.

    Where another process makes it, this one waits, and takes the result; where that process ends without one, this one
    goes on from its newest checkpoint. With `overwrite`, what was made while this one waited is new enough. An
    evaluation that fails leaves the checkpoint of the last step: the next start evaluates only.

    Args:
        run: what is computed.
        evaluate: scores what was trained, and leaves its weights in the run's folder.
        train: trains, going on where the run stopped; default: nothing is trained.
        missing_files: what is wrong with the files that a record names, "" for nothing.
    """
    setup, opened = run.setup, time.monotonic() - run.began

    def existing() -> Record | None:
        found = find_record(setup.results, run.name) if is_first() else None
        return broadcast(None if found is None or missing_files(found) else found)

    before = existing()
    if before is not None and not setup.overwrite:
        return _taken(run, before)
    with locked(setup.runs, run.name) as holder:
        found = existing()
        if found is not None and (not setup.overwrite or found != before):
            return _taken(run, found)
        if holder:
            say(f"{run.name}: {holder} ended without a result; this process goes on with it")
        elif setup.overwrite and is_first():
            clear(run.folder)
        if is_first() and not setup.overwrite:
            _say_why(run, missing_files)
        began = time.monotonic()
        with out_of_memory_named():
            trained = train()
        ended = time.monotonic()
        with _evaluating(run, trained), out_of_memory_named():
            outcome = evaluate()
        now = time.monotonic()
        times = {"open": opened} | ({"train": trained.seconds} if trained.curve else {})
        times |= {"evaluate": now - ended, "total": trained.before + opened + now - began}
        record = _record(run, trained, outcome, times)
        if is_first():
            write_record(record, setup.results)
            clear(run.folder)
        if trained.tracker is not None:
            scores = {f"result/{name}": value for name, value in outcome["metrics"].items()}
            trained.tracker.add_scalars(scores, step=run.settings.optimisation.steps)
            trained.tracker.close()
        barrier()
        return record


@contextmanager
def locked(runs: Path, run: str) -> Iterator[str]:
    """Hold the lock of a run in the folder of runs, after waiting for its holder; yields who that was, "" for nobody.

    Of several processes of a run the first one takes the lock. While it waits, it tells the others so every now and
    then: no exchange of theirs lasts so long that it could run into its time limit.
    """
    lock, holder = _lock(runs, run), ""
    while not broadcast(is_first() and _acquired(lock)):
        time.sleep(SECONDS_BETWEEN_TRIES)
        if is_first() and not holder:
            holder = Path(lock.lock_file).read_text(encoding="utf-8").strip() or "another process"
            say(f"{run}: waiting for {holder}, which is computing it")
    try:
        yield broadcast(holder)
    finally:
        lock.release()


def _lock(runs: Path, run: str) -> FileLock:
    path = runs.absolute() / ".locks" / run
    path.parent.mkdir(parents=True, exist_ok=True)
    return FileLock(path, is_singleton=True)  # one process may take it several times


def _acquired(lock: FileLock) -> bool:
    path = Path(lock.lock_file)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        return False
    except OSError as error:
        if error.errno not in NO_LOCKS:
            raise
        say(f"{path.parent}: this file system has no locks; start each run only once at a time")
        return True
    path.write_text(f"process {os.getpid()} on {os.uname().nodename}", encoding="utf-8")
    return True


@contextmanager
def _evaluating(run: Run, trained: Trained) -> Iterator[None]:
    """Inside, a scheduler's signal raises `Preempted`; one line says that the training is kept."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Preempted(f"stopped by {signal.Signals(number).name}; the same command evaluates again")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    except BaseException:
        if trained.curve and is_first():
            say(f"{run.name}: the training is complete and kept; the same command evaluates it again")
        raise
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _record(run: Run, trained: Trained, outcome: Outcome, times: Mapping[str, float]) -> Record:
    return new_record(
        run.choices,
        facts=run.method.facts() | ({"backbone": run.settings.width} if "width" in run.overrides else {}),
        variant=run.setup.variant,
        config=run.config,
        data=run.data,
        command=run.setup.command,
        environment={**environment(describe(run.device)), **run.setup.facts()},
        time=times,
        curve=_finite_points(trained.curve),
        curves={"last_stage": _finite_points(trained.probed)} if trained.probed else {},
        **_finite({"weights": run.start, **outcome}),
    )


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(each) for name, each in value.items()}
    # NumPy's float32 is no `float`.
    return None if isinstance(value, (float, np.floating)) and not math.isfinite(value) else value


def _finite_points(curve: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    # A number beside the loss, which alone is checked, may have no mean.
    return [point for point in curve if all(map(math.isfinite, point.values()))]


def _taken(run: Run, record: Record) -> Record:
    """A complete record in place of a new one, which gets the variant that this run belongs to."""
    version = record.environment.get("tespec", "")
    older = record.results_version != RESULTS_VERSION or version != tespec.__version__
    made = f" (made by {version}, results version {record.results_version})" if older else ""
    say(f"{record.name} is complete already{made}; --overwrite computes it again")
    theirs, ours = flattened(record.config), flattened(run.config)
    if changed := {key: (theirs.get(key), ours[key]) for key in ours if theirs.get(key) != ours[key]}:
        say(f"{record.name} was made with other settings than those of now: {_both_values(changed)}")
    if run.setup.variant and run.setup.variant != record.variant:
        record = record.model_copy(update={"variant": run.setup.variant})
        if is_first():
            write_record(record, run.setup.results)
    # Checkpoints of a run that was killed right behind its record, unless another process computes it again.
    if is_first() and checkpoints(run.folder) and _acquired(lock := _lock(run.setup.runs, run.name)):
        try:
            clear(run.folder)
        finally:
            lock.release()
    return record


def _say_why(run: Run, missing_files: Callable[[Record], str]) -> None:
    """Log why a run is computed although it, or one like it, has a record."""
    own = find_record(run.setup.results, run.name)
    if own is not None:
        say(f"{own.name}: {missing_files(own)}, computed again")
        return
    same_seed = [each for each in similar_records(run.setup.results, run.choices) if each.seed == run.seed]
    for nearest in same_seed[:1]:
        say(f"{run.name}: computed, since {nearest.name} differs in {_both_values(differing(nearest, run.choices))}")


def _both_values(changed: Mapping[str, tuple[Any, Any]]) -> str:
    """Keys and values in words; a setting that only one of both changed is the default in the other."""
    shown = {key: ["default" if value is None else f"{value!s:.40}" for value in pair] for key, pair in changed.items()}
    return ", ".join(f"{key} ({theirs} there, {ours} here)" for key, (theirs, ours) in shown.items())

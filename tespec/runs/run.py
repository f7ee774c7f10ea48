"""One life of a run: identity, (is its record there?), lock, training, evaluation, record.

Pre-training, fine-tuning, probes and the label prior say how they train and evaluate; all else is here.
"""

from __future__ import annotations

import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import FrameType
from typing import Any, NoReturn

import torch
from torch import nn

import tespec
from tespec.comparison.records import (
    RESULTS_VERSION,
    TEST,
    Numbers,
    Record,
    differing,
    environment,
    find_record,
    new_record,
    record_name,
    similar_records,
    write_record,
)
from tespec.core.config import flattened
from tespec.core.distributed import barrier, broadcast, is_first
from tespec.core.errors import Preempted
from tespec.core.progress import say
from tespec.core.registry import PLUGIN
from tespec.core.settings import Finetuning, Pretraining
from tespec.pretraining.method import Method
from tespec.runs.lock import locked, locked_if_free
from tespec.runs.setup import Setup
from tespec.training.checkpoint import DONE, FAILED, PREEMPTED, checkpoints, clear, write_status
from tespec.training.device import choose_device, describe, out_of_memory_named
from tespec.training.hooks import TrackHook

WEIGHTS = "model.safetensors"  # that a run of a task leaves in its folder


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
        plugin: see `plugin_sha256`.
        start: what records say of the weights that the backbone starts from, their hash included; of a pre-training:
            the hash of the other network that it needs.
        began: when work on it began, by `time.monotonic`.
        split: "test" or "val", on which it is scored.
        trained_on: hash of the recordings that it is trained on, where others are scored on; else "".
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
    trained_on: str = ""

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

    @cached_property
    def training(self) -> str:
        """Name of what is trained, which runs share that are scored on other splits; "" where nothing is trained."""
        if not self.trained_on:
            return ""
        shared = {"kind": "training", "data_fingerprint": self.trained_on, "split": TEST}
        return record_name({**self.choices, **shared})

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
        environment: what the record's environment says of it besides.
    """

    curve: Sequence[Mapping[str, float]] = ()
    probed: Sequence[Mapping[str, float]] = ()
    seconds: float = 0.0
    before: float = 0.0
    tracker: TrackHook | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Outcome:
    """What the evaluation of a run found; the attributes are those of a record.

    Without weights of its own, the record says which ones the run started from.
    """

    protocol: Mapping[str, str]
    metrics: Mapping[str, float]
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    recordings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    classes: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def imported_parts(model: nn.Module) -> set[type]:
    """Classes of a network's modules that stand in files named with `--import`."""
    return {type(each) for each in model.modules() if type(each).__module__.startswith(PLUGIN)}


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
    # One process at a time works on a training, of which runs on several splits may be scored.
    with locked(setup.runs, run.training or run.name) as holder:
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
        if trained.tracker is not None:
            trained.tracker.result(outcome.metrics)
        finish(run)
        barrier()
        return record


@contextmanager
def _evaluating(run: Run, trained: Trained) -> Iterator[None]:
    """Inside, a scheduler's signal raises `Preempted`; what ends the evaluation goes into the run's status."""

    def stop(number: int, frame: FrameType | None) -> NoReturn:
        raise Preempted(f"stopped by {signal.Signals(number).name}; the same command evaluates again")

    before = {number: signal.signal(number, stop) for number in (signal.SIGTERM, signal.SIGUSR1)}
    try:
        yield
    except BaseException as error:
        if trained.curve and is_first():
            state = FAILED if isinstance(error, Exception) else PREEMPTED
            write_status(run.folder, state, run.settings.optimisation.steps, f"evaluation: {error!r}")
            say(f"{run.name}: the training is complete and kept; the same command evaluates it again")
        raise
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


def _record(run: Run, trained: Trained, outcome: Outcome, times: Mapping[str, float]) -> Record:
    setup = run.setup
    return new_record(
        run.choices,
        facts=run.method.facts() | ({"backbone": run.settings.width} if "width" in run.overrides else {}),
        variant=setup.variant,
        config=run.config,
        data=run.data,
        weights=outcome.weights or run.start,
        training=run.training,
        protocol=outcome.protocol,
        scores=outcome.scores,
        metrics=_finite(outcome.metrics),
        groups={name: _finite(numbers) for name, numbers in outcome.groups.items()},
        recordings={name: _finite(numbers) for name, numbers in outcome.recordings.items()},
        classes=_finite(outcome.classes),
        command=setup.command,
        environment={**environment(describe(run.device)), **setup.facts(), **trained.environment},
        time=times,
        curve=_finite_points(trained.curve),
        curves={"last_stage": _finite_points(trained.probed)} if trained.probed else {},
    )


def _finite(numbers: Mapping[str, float]) -> Numbers:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _finite_points(curve: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    # A number beside the loss, which alone is checked, may have no mean.
    return [point for point in curve if all(map(math.isfinite, point.values()))]


def finish(run: Run) -> None:
    """Mark a run as done and remove its checkpoints, once its record is written; one without training has none."""
    if is_first() and run.folder.is_dir():
        write_status(run.folder, DONE, run.settings.optimisation.steps)
        clear(run.folder)


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
    if is_first() and checkpoints(run.folder):  # of a run that was killed right behind its record
        with locked_if_free(run.setup.runs, run.training or run.name) as free:
            if free:
                finish(run)
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

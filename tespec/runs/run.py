"""One life of a run: settings, identity, (is its record there?), lock, training, evaluation, record.

Pre-training, fine-tuning, probes and references say what they train and how they evaluate it; all else is here.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

import tespec
from tespec.comparison.provenance import environment
from tespec.comparison.records import (
    RESULTS_VERSION,
    TEST,
    Numbers,
    Record,
    differing,
    find_record,
    new_record,
    record_name,
    similar_records,
    write_record,
)
from tespec.core.config import flattened
from tespec.core.distributed import barrier, broadcast, is_first
from tespec.core.progress import say
from tespec.core.registry import PLUGIN
from tespec.core.settings import Finetuning, Pretraining
from tespec.models.execution import execute
from tespec.pretraining.method import Method
from tespec.runs.lock import locked, locked_if_free
from tespec.runs.setup import Setup, check_places
from tespec.runs.train import Trained, train
from tespec.training.checkpoint import clear, is_cleared
from tespec.training.device import choose_device, describe, out_of_memory_named, with_precision
from tespec.training.loading import MicroBatches, enlarged
from tespec.training.status import DONE, FAILED, PREEMPTED, read_state, write_status
from tespec.weights.files import read_weights

WEIGHTS = "model.safetensors"  # that a run of a task leaves in its folder
LAST_STAGE = "last_stage"  # curve of the last stage's features

Settings = TypeVar("Settings", Finetuning, Pretraining)


@dataclass(frozen=True)
class Run:
    """A run, by all that determines its result, before anything is computed.

    Attributes:
        kind: of its record: "evaluation", "pretraining", "probe" or "reference".
        method_name: registered name of the method.
        method: its facts go into the record.
        task: of an evaluation; of a pre-training, what records call its data.
        settings: as `on_device` gives them.
        config: the settings and what else decides the result, as records hold them.
        overrides: settings that the user changed, by dotted name.
        data: what records call it: "sample", or the name of the data set.
        data_fingerprint: hash of the recordings.
        seed: decides everything random.
        setup: where and how.
        plugin: see `plugin_sha256`.
        start: what records say of the weights that the backbone starts from, their hash included; of a pre-training
            of those of the method that it requires.
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
        enlarged = {"batch_size": self.settings.batch_size} if self.setup.enlarge_batch else {}
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
            "overrides": {**self.overrides, **accumulate, **enlarged},
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
class Outcome:
    """What the evaluation of a run found in `seconds`; the other attributes are those of a record.

    Without weights of its own, the record says which ones the run started from.
    """

    seconds: float
    protocol: Mapping[str, str]
    metrics: Mapping[str, float]
    groups: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    recordings: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    classes: Mapping[str, float] = field(default_factory=dict)
    weights: Mapping[str, Any] = field(default_factory=dict)
    scores: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


def on_device(settings: Settings, setup: Setup) -> Settings:
    """Settings with the precision that the device computes in and the batch that the ranks share, places checked.

    Raises:
        UserError: a folder cannot be written to, or the device or the precision is not there.
    """
    check_places(setup)
    batch_size = settings.batch_size
    if setup.enlarge_batch:
        batch_size = enlarged(batch_size, setup.accumulate)
    if batch_size > settings.batch_size:
        say(f"batch_size: {batch_size} lanes instead of {settings.batch_size}, as --enlarge-batch says: another run")
    optimisation = with_precision(settings.optimisation, choose_device(setup.device))
    return replace(settings, batch_size=batch_size, optimisation=optimisation)


def imported_parts(model: nn.Module) -> set[type]:
    """Classes of a network's modules that stand in files named with `--import`."""
    return {type(each) for each in model.modules() if type(each).__module__.startswith(PLUGIN)}


def run_or_load(
    run: Run,
    evaluate: Callable[[], Outcome],
    model: nn.Module | None = None,
    batches: MicroBatches | None = None,
    missing_files: Callable[[Record], str] = lambda record: "",
    watch: Callable[[], Mapping[str, float]] | None = None,
) -> Record:
    """The record of a run: the complete one, read without a lock, or a new one by the process that gets the run's lock.

    Where another process makes it, this one waits, and takes the result; where that process ends without one, this one
    goes on from its newest checkpoint. With `overwrite`, what was made while this one waited is new enough. What was
    trained for another split is not trained again where its record and its weights are there; one process at a time
    works on a training. An evaluation that fails leaves the checkpoint of the last step: the next start evaluates only.

    Args:
        run: what is computed.
        evaluate: scores what was trained, and leaves its weights in the run's folder.
        model: trained in place.
        batches: what it is trained on; None where nothing is trained.
        missing_files: what is wrong with the files that a record names, "" for nothing.
        watch: measures the last stage beside the training, for the record's curve of this name.

    Raises:
        UserError: histograms are to be counted on the device, and the batches hold no packed events.
    """
    setup, opened = run.setup, time.monotonic() - run.began
    if batches is not None and setup.count_on_device:
        batches.count_on_device()
    before = broadcast(_complete(run, missing_files))
    if before is not None and not setup.overwrite:
        return _taken(run, before)
    with locked(setup.runs, run.training or run.name) as holder:
        found = broadcast(_complete(run, missing_files))
        if found is not None and (not setup.overwrite or found != before):
            return _taken(run, found)
        if holder:
            say(f"{run.name}: {holder} ended without a result; this process goes on with it")
        elif setup.overwrite and is_first():
            clear(run.folder)
        if is_first() and not setup.overwrite:
            _say_why(run, missing_files)
        record = _computed(run, opened, evaluate, model, batches, watch)
        barrier()
        return record


def _computed(
    run: Run,
    opened: float,
    evaluate: Callable[[], Outcome],
    model: nn.Module | None,
    batches: MicroBatches | None,
    watch: Callable[[], Mapping[str, float]] | None,
) -> Record:
    """Train, evaluate and record a run that took `opened` s to open."""
    began, trained, setup = time.monotonic(), Trained([]), run.setup
    times = {"open": opened}
    if model is not None and batches is not None:
        with out_of_memory_named():
            trained = _trained_before(run, model) or train(
                model, batches, run.settings.optimisation, seed=run.seed, setup=setup, run=run.name, facts=run.config,
                probe_fn=watch,
            )  # fmt: skip
        times["train"] = trained.seconds
    try:
        with out_of_memory_named():
            outcome = evaluate()
    except BaseException as error:
        if trained.curve and is_first():
            state = FAILED if isinstance(error, Exception) else PREEMPTED
            write_status(run.folder, state, run.settings.optimisation.steps, f"evaluation: {error!r}")
            say(f"{run.name}: the training is complete and kept; the same command evaluates it again")
        raise
    times |= {"evaluate": outcome.seconds, "total": trained.before + opened + time.monotonic() - began}
    metrics = dict(outcome.metrics) | trained.counts()
    record = new_record(
        run.choices,
        facts=run.method.facts() | ({"backbone": run.settings.width} if "width" in run.overrides else {}),
        variant=setup.variant,
        config=run.config,
        data=run.data,
        weights=outcome.weights or run.start,
        training=run.training,
        protocol=outcome.protocol,
        scores=outcome.scores,
        metrics=_finite(metrics),
        groups={name: _finite(numbers) for name, numbers in outcome.groups.items()},
        recordings={name: _finite(numbers) for name, numbers in outcome.recordings.items()},
        classes=_finite(outcome.classes),
        command=setup.command,
        environment=environment(describe(run.device)) | setup.facts() | trained.said,
        time=times,
        curve=_finite_points(trained.curve),
        curves={LAST_STAGE: _finite_points(trained.probed)} if trained.probed else {},
    )
    if is_first():
        write_record(record, setup.results)
    trained.track(metrics)
    finish(setup, run.name, run.settings.optimisation.steps)
    return record


def _finite(numbers: Mapping[str, float]) -> Numbers:
    return {name: value if math.isfinite(value) else None for name, value in numbers.items()}


def _finite_points(curve: Sequence[Mapping[str, float]]) -> list[Mapping[str, float]]:
    # A skipped step (non_finite=skip) leaves an interval without a mean.
    return [point for point in curve if all(map(math.isfinite, point.values()))]


def _trained_before(run: Run, model: nn.Module) -> Trained | None:
    """The training of a run of another split that is complete, with its weights in `model`; None where there is none.

    Raises:
        UserError: the weights are not what such a run writes.
    """
    if not run.training or run.setup.overwrite:
        return None
    found: Record | None = None
    if is_first():
        others = similar_records(run.setup.results, run.choices)
        same = (each for each in others if each.training == run.training and each.name != run.name)
        found = next((each for each in same if (run.setup.runs / each.name / WEIGHTS).is_file()), None)
    found = broadcast(found)
    if found is None:
        return None
    path = run.setup.runs / found.name / WEIGHTS
    tensors, _ = read_weights(path)
    model.load_state_dict(tensors)
    model.to(run.device)
    execute(model, run.setup.execution)
    say(
        f"{run.name}: trained already, for the {found.split} split ({path}), so it is only evaluated; "
        "--overwrite trains again"
    )
    seconds = found.time.get("train", 0.0)
    said = {"trained_by": found.name} | ({"modified": True} if found.environment.get("modified") else {})
    return Trained(found.curve, seconds, seconds, int(found.metrics.get("skipped_steps") or 0), said=said)


def finish(setup: Setup, run: str, steps: int) -> None:
    """Mark a run as done and remove its checkpoints, once its record is written; one without training has none."""
    folder = setup.runs / run
    if is_first() and folder.is_dir():
        write_status(folder, DONE, steps)
        clear(folder)


def _taken(run: Run, record: Record) -> Record:
    """A complete record in place of a new one; what a kill may have left of the run is removed."""
    version = record.environment.get("tespec", "")
    older = record.results_version != RESULTS_VERSION or version != tespec.__version__
    made = f" (made by {version}, results version {record.results_version})" if older else ""
    say(f"{record.name} is complete already{made}; --overwrite computes it again")
    theirs, ours = flattened(record.config), flattened(run.config)
    if changed := {key: (theirs.get(key), ours[key]) for key in ours if theirs.get(key) != ours[key]}:
        say(f"{record.name} was made with other settings than those of now: {_both_values(changed)}")
    setup = run.setup
    if setup.variant and setup.variant != record.variant:
        record = record.model_copy(update={"variant": setup.variant})
        if is_first():
            write_record(record, setup.results)
    folder = setup.runs / record.name
    if not is_first() or not folder.is_dir():
        return record
    if read_state(folder) != DONE or not is_cleared(folder):
        with locked_if_free(setup.runs, record.training or record.name) as free:
            if free:
                finish(setup, record.name, run.settings.optimisation.steps)
    return record


def _complete(run: Run, missing_files: Callable[[Record], str]) -> Record | None:
    """The record of a run whose files are there."""
    found = find_record(run.setup.results, run.name) if is_first() else None
    return None if found is None or missing_files(found) else found


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

"""One life of a run: settings, identity, (is its record there?), lock, training, evaluation, record.

Pre-training, fine-tuning, probes and references say what they train and how they evaluate it; all else is here.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar, cast

import torch
from torch import nn

from tespec.comparison.identity import TEST, environment, identity, plugin_files, record_name, run_code
from tespec.comparison.pretrained import LAST_STAGE
from tespec.comparison.records import (
    Record,
    by_other_code,
    code_of,
    find_record,
    new_record,
    of_same_training,
    write_record,
)
from tespec.core.distributed import barrier, broadcast, is_first
from tespec.core.progress import say
from tespec.core.settings import Finetuning, Pretraining
from tespec.datasets.base import TRAIN
from tespec.models.execution import execute
from tespec.pretraining.method import Method
from tespec.runs.lock import locked, locked_if_free
from tespec.runs.resources import ResourceMeter
from tespec.runs.setup import Setup, check_places
from tespec.runs.train import Trained, train, unfinished_by_other_code
from tespec.training.checkpoint import clear, is_cleared
from tespec.training.device import choose_device, describe, with_precision
from tespec.training.loading import MicroBatches, enlarged
from tespec.training.status import DONE, read_status, write_status
from tespec.weights.files import read_weights

WEIGHTS = "model.safetensors"  # that a run of a task leaves in its folder

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
        data: what records call it: "sample", or the name of the data set.
        data_fingerprint: hash of the recordings.
        seed: decides everything random.
        setup: where and how.
        start: what records say of the weights that the backbone starts from, their hash included; of a pre-training
            nothing.
        began: when work on it began, by `time.monotonic`.
        split: "test" or "val", on which it is scored.
        trained_on: hash of the recordings that it is trained on, where others are scored on; else "".
    """

    kind: str
    method_name: str
    method: Method
    task: str
    settings: Finetuning | Pretraining
    config: dict[str, Any]
    data: str
    data_fingerprint: str
    seed: int
    setup: Setup
    start: Mapping[str, Any] = field(default_factory=dict)
    began: float = field(default_factory=time.monotonic)
    split: str = TEST
    trained_on: str = ""

    @property
    def device(self) -> torch.device:
        """Where it is computed."""
        return choose_device(self.setup.device)

    @cached_property
    def plugins(self) -> list[tuple[str, Path]]:
        """Names and paths of its source files from outside of the harness."""
        return plugin_files(type(self.method), self.setup.plugins)

    @cached_property
    def key(self) -> dict[str, Any]:
        """What its identity and its record have in common."""
        return {
            "kind": self.kind,
            "task": self.task,
            "arch": self.settings.arch,
            "profile": self.settings.profile,
            "seed": self.seed,
            "config": self.config,
            "data_fingerprint": self.data_fingerprint,
            "code": run_code(self.plugins),
            "split": self.split,
        }

    @cached_property
    def name(self) -> str:
        """Name of its record and of its folder; runs that differ in what determines the result differ in it."""
        return self._name(self.kind, self.key)

    @cached_property
    def training(self) -> str:
        """Name of what is trained, which runs share that are scored on other splits; "" where nothing is trained."""
        if not self.trained_on:
            return ""
        config = self.config | {"splits": {TRAIN: self.config["splits"][TRAIN]}}
        key = {"config": config, "data_fingerprint": self.trained_on, "split": TEST}
        return self._name("training", self.key | key)

    def _name(self, kind: str, key: Mapping[str, Any]) -> str:
        hashes = identity(method=self.method_name, weights_sha256=self.start.get("start_sha256", ""), **key)
        return record_name(kind, self.method_name, self.task, self.settings.arch, self.seed, hashes)

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
    curves: Mapping[str, list[dict[str, float]]] = field(default_factory=dict)


def on_device(settings: Settings, setup: Setup) -> Settings:
    """Settings with the precision that the device computes in and the batch that the ranks share, places checked.

    Both determine the result, so they are part of the record's identity.

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


def carry_out(
    run: Run,
    evaluate: Callable[[], Outcome],
    model: nn.Module | None = None,
    batches: MicroBatches | None = None,
    damage: Callable[[Record], str] = lambda record: "",
    watch: Callable[[], Mapping[str, float]] | None = None,
) -> Record:
    """The record of a run: the complete one, read without a lock, or a new one by the process that gets the run's lock.

    Where another process makes it, this one waits, and takes the result; where that process ends without one, this one
    goes on from its newest checkpoint. With `overwrite`, what was made while this one waited is new enough. What was
    trained for another split is not trained again where its record and its weights are there; one process at a time
    works on a training.

    Args:
        run: what is computed.
        evaluate: scores what was trained, and leaves its weights in the run's folder.
        model: trained in place.
        batches: what it is trained on; None where nothing is trained.
        damage: what is wrong with the files that a record names, "" for nothing.
        watch: measures the last stage beside the training, for the record's curve of this name.

    Raises:
        UserError: histograms are to be counted on the device, and the batches hold no packed events.
    """
    setup, opened = run.setup, time.monotonic() - run.began
    if batches is not None and setup.count_on_device:
        batches.count_on_device()
    before = broadcast(_complete(run, damage))
    if before is not None and not setup.overwrite:
        return _taken(run, before)
    with locked(setup.runs, run.training or run.name) as holder:
        found = broadcast(_complete(run, damage))
        if found is not None and (not setup.overwrite or found != before):
            return _taken(run, found)
        if holder:
            say(f"{run.name}: {holder} ended without a result; this process goes on with it")
            setup = replace(setup, resume=True)
        if is_first() and not setup.overwrite:
            _say_why(run, damage)
        record = _computed(run, setup, opened, evaluate, model, batches, watch)
        barrier()
        return record


def _computed(
    run: Run,
    setup: Setup,
    opened: float,
    evaluate: Callable[[], Outcome],
    model: nn.Module | None,
    batches: MicroBatches | None,
    watch: Callable[[], Mapping[str, float]] | None,
) -> Record:
    """Train, evaluate and record a run that took `opened` s to open."""
    began, meter, trained = time.monotonic(), ResourceMeter(run.device), Trained([])
    times = {"open": opened}
    if model is not None and batches is not None:
        trained = _trained_before(run, model) or train(
            model,
            batches,
            run.settings.optimisation,
            seed=run.seed,
            setup=setup,
            run=run.name,
            facts=run.config,
            watch=watch,
        )
        times["train"] = trained.seconds
    outcome = evaluate()
    times |= {"evaluate": outcome.seconds, "total": trained.before + opened + time.monotonic() - began}
    metrics = dict(outcome.metrics) | trained.counts()
    record = new_record(
        **run.key,
        method_name=run.method_name,
        method=run.method.facts(),
        data=run.data,
        protocol=outcome.protocol,
        metrics=metrics,
        groups=outcome.groups,
        recordings=outcome.recordings,
        classes=outcome.classes,
        weights=outcome.weights or run.start,
        training=run.training,
        command=setup.command,
        environment=environment(describe(run.device), run.plugins) | setup.facts() | trained.said,
        resources=meter.resources(),
        time=times,
        curve=trained.curve,
        curves=({LAST_STAGE: trained.watched} if trained.watched else {}) | dict(outcome.curves),
    )
    if outcome.scores:
        record = cast("Record", {**record, "scores": outcome.scores})
    if is_first():
        write_record(record, setup.records)
    trained.track(metrics)
    finish(setup, run.name, run.settings.optimisation.steps)
    return record


def _trained_before(run: Run, model: nn.Module) -> Trained | None:
    """The training of a run of another split that is complete, with its weights in `model`; None where there is none.

    Raises:
        UserError: the weights are not what such a run writes.
    """
    if not run.training or run.setup.overwrite:
        return None
    found: Record | None = None
    if is_first():
        others = of_same_training(run.setup.records, run.training, run.name)
        found = next((each for each in others if (run.setup.runs / each["name"] / WEIGHTS).is_file()), None)
    found = broadcast(found)
    if found is None:
        return None
    path = run.setup.runs / found["name"] / WEIGHTS
    tensors, _ = read_weights(path)
    model.load_state_dict(tensors)
    model.to(run.device)
    execute(model, run.setup.execution)
    say(
        f"{run.name}: trained already, for the {found['split']} split ({path}), so it is only evaluated; "
        "--overwrite trains again"
    )
    seconds, environment = found["time"].get("train", 0.0), found["environment"]
    said = {"trained_by": found["name"]} | ({"modified": True} if environment.get("modified") else {})
    return Trained(found["curve"], seconds, seconds, int(found["metrics"].get("skipped_steps", 0)), said=said)


def finish(setup: Setup, run: str, steps: int) -> None:
    """Mark a run as done and remove its checkpoints, once its record is written; one without training has none."""
    folder = setup.runs / run
    if is_first() and folder.is_dir():
        write_status(folder, DONE, steps)
        clear(folder)


def leave(setup: Setup, record: Record, steps: int) -> None:
    """Say that a run is complete, and remove what a kill may have left of it, unless another process works on it."""
    run = record["name"]
    say(f"{run} is complete already (--overwrite computes it again)")
    folder = setup.runs / run
    if not is_first() or not folder.is_dir():
        return
    if read_status(folder).get("state") == DONE and is_cleared(folder):
        return
    with locked_if_free(setup.runs, record["training"] or run) as free:
        if free:
            finish(setup, run, steps)


def _taken(run: Run, record: Record) -> Record:
    if record["name"] != run.name:
        say(f"{run.name}: the result of other code ({code_of(record)}) is taken, as --accept-code says")
    leave(run.setup, record, run.settings.optimisation.steps)
    return record


def _complete(run: Run, damage: Callable[[Record], str]) -> Record | None:
    """The record of a run, or the newest one by code that the user accepts; whose files are whole."""
    if not is_first():
        return None
    found = [] if run.setup.overwrite else _by_other_code(run, accepted=True)
    own = find_record(run.setup.records, run.name)
    return next((each for each in [own, *reversed(found)] if each is not None and not damage(each)), None)


def _by_other_code(run: Run, *, accepted: bool) -> list[Record]:
    every = by_other_code(run.setup.records, run.name)
    return [each for each in every if (code_of(each) in run.setup.accept_code) == accepted]


def _say_why(run: Run, damage: Callable[[Record], str]) -> None:
    """Say what there is of a run that is computed all the same."""
    folder = run.setup.records
    own = find_record(folder, run.name)
    for each in [*([own] if own else []), *_by_other_code(run, accepted=True)]:
        say(f"{each['name']}: {damage(each)}, computed again")
    if own:
        return
    others = _by_other_code(run, accepted=False)
    if others:
        other, code = others[-1], code_of(others[-1])
        revision = other["environment"].get("revision", "")[:12] or "unknown"
        say(
            f"{run.name}: there is a complete result of the same run by other code ({code}, revision {revision}, "
            f"{folder / other['name']}.json), so it is computed again; --accept-code {code} takes it"
        )
    for unfinished in unfinished_by_other_code(run.setup.runs, run.name):
        code = unfinished.name.rpartition("-")[2]
        if code not in run.setup.accept_code:
            say(
                f"{run.name}: there is an unfinished run of the same by other code ({code}, {unfinished}), so it is "
                f"begun anew; --resume --accept-code {code} goes on with that"
            )

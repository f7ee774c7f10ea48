"""One cell of the tables: a method's backbone fine-tuned on a task, evaluated, and recorded."""

from __future__ import annotations
from collections.abc import Sequence
from pathlib import Path
from tespec.core.config import pretraining_settings
from tespec.pretraining.method import Method
from tespec.core.settings import Finetuning
from tespec.weights.load import Origin, origin_of
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any
import torch
from tespec.comparison.identity import plugin_files, run_code
from tespec.comparison.identity import environment
from tespec.comparison.identity import identity, record_name
from tespec.comparison.records import Record, new_record, write_record
from tespec.core.config import as_facts, pretraining_settings
from tespec.datasets.fingerprint import fingerprint
from tespec.datasets.parts import Turns
from tespec.core.errors import UserError
from tespec.core.distributed import first_goes_first, is_first
from tespec.runs.data import Data, sibling
from tespec.training.device import prepare
from tespec.training.device import choose_device, describe, with_precision
from tespec.runs.once import once
from tespec.runs.pretrain import pretrain
from tespec.core.progress import say
from tespec.runs.cost import Meter, start
from tespec.runs.setup import Setup, check_places, deal, finish, of_turns, train
from tespec.training.device import derive, seed_everything
from tespec.tasks import build_task
from tespec.weights.files import state_sha256, write_weights
from tespec.weights.load import WeightsReport

def with_start(
    settings: Finetuning, method: Method, checkpoint: Path | None, *, sample: bool, changes: Sequence[str] = ()
) -> Finetuning:
    """A cell's settings once it is known which weights it starts from: they decide the peak learning rate.

    The weights decide, not the method: what counts is the data that they were pre-trained on.

    Args:
        settings: of the task.
        method: starts the backbone.
        checkpoint: its weights; None where it has none, or where they are made on the sample world.
        sample: whether the cell's data is the sample world.
        changes: `KEY=VALUE` settings of a pre-training on the sample world.

    Raises:
        UserError: `changes` that the pre-training cannot have.
    """
    if not settings.peak_lr_after:
        return settings
    origin = Origin()
    if checkpoint is not None:
        origin = origin_of(checkpoint)
    elif method.recipe is not None and sample:
        origin = Origin(pretraining_settings(method.recipe, settings.profile, changes, method.network).dataset, True)
    return settings.after_pretraining_on(origin.data) if origin.sample == sample else settings


WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Cell:
    """A method's backbone on a task, before anything is learned from labels.

    Attributes:
        name: the method's registered name.
        method: what started the backbone.
        settings: resolved, the precision included.
        task: data and scores.
        model: backbone and head.
        weights: what the backbone was started from.
        key: what determines the result; see `identity`.
        run: name of the record and of the run's folder.
        data: the task's data.
        device: where it is computed.
        meter: of what the run takes.
    """

    name: str
    method: Method
    settings: Finetuning
    task: Any
    model: Any
    weights: WeightsReport
    key: dict[str, Any]
    run: str
    data: Data
    device: torch.device
    meter: Meter

    def record(self, setup: Setup, **found: Any) -> Record:
        """A record of what was found, with all that it stands on."""
        key = self.key
        return new_record(
            kind=key["kind"],
            method_name=self.name,
            method=self.method.facts(),
            task=key["task"],
            arch=key["arch"],
            profile=key["profile"],
            data=self.data.label,
            data_fingerprint=key["data_fingerprint"],
            seed=key["seed"],
            config=key["config"],
            weights=self.weights.facts() | {"start_sha256": key["weights_sha256"]},
            command=setup.command,
            environment=environment(describe(self.device), plugin_files(type(self.method), setup.plugins))
            | setup.facts(),
            resources=self.meter.resources(),
            code=key["code"],
            **found,
        )


def open_cell(
    kind: str,
    name: str,
    method: Method,
    settings: Finetuning,
    data: Data,
    checkpoint: Path | None,
    seed: int,
    setup: Setup,
    pretraining_changes: tuple[str, ...] = (),
    extra: dict[str, Any] | None = None,
) -> Cell:
    """Data, model and start of a cell; arguments as of `finetune`, and the kind of record and what else determines it.

    Raises:
        UserError: data or weights that cannot be used.
    """
    check_places(setup)
    device = choose_device(setup.device)
    meter = start(device)
    # What is computed in determines the result, so it is part of the record's identity.
    settings = with_start(settings, method, checkpoint, sample=data.is_sample, changes=pretraining_changes)
    settings = replace(settings, optimisation=with_precision(settings.optimisation, device))
    with first_goes_first():
        task = build_task(settings, data.root)
    if checkpoint is None and method.recipe is not None:
        checkpoint = _pretrained(name, method, settings, data, seed, setup, pretraining_changes)
    if checkpoint is None and method.pretraining_data != "-":
        raise UserError(f"--method {name}", f"is pre-trained on {method.pretraining_data}", "give --checkpoint FILE")
    seed_everything(derive(seed, "model"))
    model = task.model()
    prepare(model, setup.deterministic)
    weights = method.initialise(model.backbone, checkpoint, seed)
    if weights.loaded:
        say(weights.summary())
    key: dict[str, Any] = {
        "kind": kind,
        "method": name,
        "task": settings.task,
        "arch": settings.arch,
        "profile": settings.profile,
        "seed": seed,
        "config": as_facts(settings) | of_turns(setup) | (extra or {}),
        "data_fingerprint": fingerprint(*task.splits),
        # Whatever the method did to it, the backbone training starts from is part of the result's identity.
        "weights_sha256": state_sha256(model.backbone.state_dict()),
        "code": run_code(plugin_files(type(method), setup.plugins)),
    }
    run = record_name(kind, name, settings.task, settings.arch, seed, identity(**key))
    return Cell(name, method, settings, task, model, weights, key, run, data, device, meter)


def finetune(
    name: str,
    method: Method,
    settings: Finetuning,
    data: Data,
    checkpoint: Path | None,
    seed: int,
    setup: Setup,
    pretraining_changes: tuple[str, ...] = (),
) -> Record:
    """Fine-tune and evaluate, or take up the complete record of the same run.

    A method that has a recipe but no checkpoint is pre-trained first where the data is the sample world.

    Args:
        name: the method's registered name.
        method: starts the backbone.
        settings: the cell's settings.
        data: the task's data.
        checkpoint: weights to start from.
        seed: decides everything random.
        setup: where and how.
        pretraining_changes: `KEY=VALUE` settings of that pre-training.

    Raises:
        UserError: data or weights that cannot be used.
    """
    began = time.monotonic()
    cell = open_cell("evaluation", name, method, settings, data, checkpoint, seed, setup, pretraining_changes)
    turns = deal(cell.task.steps, seed, cell.settings.batch_size, setup)
    opened = time.monotonic() - began
    steps = cell.settings.optimisation.steps
    return once(setup, cell.run, steps, lambda how: computed(cell, turns, seed, how, opened))


def computed(
    cell: Cell, turns: Turns, seed: int, setup: Setup, opened: float, said: Mapping[str, str] | None = None
) -> Record:
    """Train, evaluate and record a cell that took `opened` s to open; `said` adds to its record's protocol."""
    task, model, began = cell.task, cell.model, time.monotonic()
    trained = train(
        model, turns, cell.settings.optimisation, seed=seed, setup=setup, run=cell.run, facts=cell.key["config"]
    )
    evaluation = task.evaluate(model, cell.device)
    if is_first():
        recipe = cell.key["config"] | {"sensor": list(task.size)}
        write_weights(setup.runs / cell.run / WEIGHTS, model.state_dict(), recipe)
    record = cell.record(
        setup,
        protocol=task.protocol() | {"scores": evaluation.definition} | dict(said or {}),
        metrics=evaluation.metrics | trained.counts(),
        groups=evaluation.groups,
        recordings=evaluation.recordings,
        classes=evaluation.classes,
        time={
            "open": opened,
            "train": trained.before + trained.seconds,
            "evaluate": evaluation.seconds,
            "total": trained.before + opened + time.monotonic() - began,
        },
        curve=trained.curve,
    )
    if is_first():
        write_record(record, setup.results / "runs")
    trained.track(record["metrics"])
    finish(setup, cell.run, cell.settings.optimisation.steps)
    return record


def _pretrained(
    name: str, method: Method, settings: Finetuning, data: Data, seed: int, setup: Setup, changes: tuple[str, ...]
) -> Path:
    if method.recipe is None:
        raise UserError(f"--method {name}", "has no recipe to make its weights", "give --checkpoint FILE")
    if not data.is_sample:
        raise UserError(
            f"--method {name}",
            "needs pre-trained weights",
            f"give --checkpoint FILE, or make one with benchmarks/pretrain.py --method {name} --data FOLDER",
        )
    recipe = pretraining_settings(method.recipe, settings.profile, changes, method.network)
    return pretrain(name, method, recipe, sibling(data, recipe.dataset), seed, setup).weights

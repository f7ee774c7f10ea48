"""One cell of the tables: a method's backbone fine-tuned on a task, evaluated, and recorded."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tespec.comparison.provenance import plugin_sha256
from tespec.comparison.records import Record
from tespec.core.config import as_facts, changed_finetuning, own_files, pretraining_settings
from tespec.core.description import read_description
from tespec.core.distributed import is_first, rank_zero_first
from tespec.core.errors import UserError
from tespec.core.progress import say
from tespec.core.settings import Finetuning
from tespec.datasets.base import TEST, TRAIN
from tespec.datasets.batches import EvaluationBatches
from tespec.datasets.prepare import pack_missing
from tespec.datasets.recording import fingerprint
from tespec.models.backbone import reset
from tespec.models.layers import with_exact_pools
from tespec.pretraining.health import evaluating, stage_spreads
from tespec.pretraining.method import Method
from tespec.runs.data import Data, sibling
from tespec.runs.pretrain import pretrain
from tespec.runs.run import WEIGHTS, Outcome, Run, imported_parts, on_device, run_or_load
from tespec.runs.setup import Setup
from tespec.tasks import build_task, import_tasks
from tespec.tasks.base import Evaluation, open_dataset
from tespec.training.device import derive, seed_everything
from tespec.training.loading import deal
from tespec.weights.files import state_sha256, write_weights
from tespec.weights.load import SEED, SENSOR, TRAINED_ON, Origin, origin_of, require_other_labels

FRAMES = 256  # whose features are looked at after a training
FEATURES = f"of each stage, after training, on about {FRAMES} frames at the beginning of the scored recordings"


@dataclass(frozen=True)
class Wanted:
    """What is measured: a method's backbone on a task.

    Attributes:
        name: the method's registered name.
        method: starts the backbone.
        settings: of the task, for one architecture.
        data: the task's data.
        checkpoint: weights to start from; None: a method that has a recipe is pre-trained first on the sample world.
        seed: decides everything random.
        setup: where and how.
        pretraining_changes: `KEY=VALUE` settings of that pre-training.
        split: "test" or "val", on which it is scored.
        pretraining_seed: of that pre-training; None: `seed`.
        freeze: whether the head alone is trained, on a backbone that stays as it starts.
    """

    name: str
    method: type[Method]
    settings: Finetuning
    data: Data
    checkpoint: Path | None
    seed: int
    setup: Setup
    pretraining_changes: tuple[str, ...] = ()
    split: str = TEST
    pretraining_seed: int | None = None
    freeze: bool = False


@dataclass(frozen=True)
class Opened:
    """Data, model and start of what is wanted, before anything is learned from labels.

    Attributes:
        run: what determines its result.
        settings: resolved, the precision included.
        task: data and scores.
        model: backbone and head.
    """

    run: Run
    settings: Finetuning
    task: Any
    model: Any

    def outcome(self, evaluation: Evaluation, said: Mapping[str, str] | None = None) -> Outcome:
        """What the task's evaluation found, for the record; `said` adds to the protocol."""
        scores = getattr(self.task, "scores", {})
        partial = {"partial means": evaluation.partial} if evaluation.partial else {}
        return Outcome(
            seconds=evaluation.seconds,
            protocol=self.task.protocol() | {"scores": evaluation.definition} | partial | dict(said or {}),
            metrics=evaluation.metrics,
            groups=evaluation.groups,
            recordings=evaluation.recordings,
            classes=evaluation.classes,
            scores={name: {"title": s.title, "better": s.better, "unit": s.unit} for name, s in scores.items()},
        )

    def write_network(self, path: Path) -> None:
        """Write backbone and head as they are now, with what made them."""
        beside = {SENSOR: list(self.task.size), SEED: self.run.seed, TRAINED_ON: self.run.trained_on}
        write_weights(path, self.model.state_dict(), as_facts(self.settings) | beside)


def finetune(wanted: Wanted) -> Record:
    """Fine-tune and evaluate, or take up the complete record of the same run.

    Raises:
        UserError: data or weights that cannot be used.
    """
    return train_and_score(open_run("evaluation", wanted, trains=True))


def train_and_score(opened: Opened, said: Mapping[str, str] | None = None) -> Record:
    """The record of what is trained on its task; `said` adds to its protocol."""
    run, task, settings = opened.run, opened.task, opened.settings
    batches = deal(task.steps, run.seed, settings.batch_size, run.setup.accumulate)

    def evaluate() -> Outcome:
        evaluation = task.evaluate(opened.model, run.device, run.setup.workers)
        if is_first():
            opened.write_network(run.folder / WEIGHTS)
            evaluation = replace(evaluation, groups=evaluation.groups | _stages(opened))
        return opened.outcome(evaluation, {"stages": FEATURES} | dict(said or {}))

    return run_or_load(run, evaluate, opened.model, batches)


def _stages(opened: Opened) -> dict[str, dict[str, float]]:
    """Spread, rank and magnitude of each stage's features, of the network as it was trained.

    It plays the scored recordings from their beginning, its state carried as in evaluation, until about `FRAMES` frames
    have been seen. Where features of a deep stage hardly differ, what it had before the training was of no use.
    """
    steps, device = EvaluationBatches(opened.settings, opened.task.scored), opened.run.device
    backbone = opened.model.backbone

    def features() -> Iterator[list[Tensor]]:
        state, seen = None, 0
        for batch in steps:
            maps, state = backbone(batch.histograms.to(device), reset(state, batch.fresh.to(device)))
            yield maps
            seen += batch.fresh.numel() * maps[0].shape[1]
            if seen >= FRAMES:
                return

    with evaluating(backbone), torch.no_grad():
        return stage_spreads(backbone, features())


def open_run(kind: str, wanted: Wanted, extra: Mapping[str, Any] | None = None, *, trains: bool = False) -> Opened:
    """Open data, model and start.

    Args:
        kind: of its record.
        wanted: what is measured.
        extra: what else determines the result, for the record's settings.
        trains: whether it is trained on the task.

    Raises:
        UserError: data or weights that cannot be used.
    """
    began = time.monotonic()
    name, method, data, setup, seed = wanted.name, wanted.method, wanted.data, wanted.setup, wanted.seed
    checkpoint, changes = wanted.checkpoint, wanted.pretraining_changes
    settings = with_start(wanted.settings, name, method, checkpoint, sample=data.is_sample, changes=changes)
    settings = on_device(settings, setup)
    import_tasks()
    with rank_zero_first():
        dataset = open_dataset(settings, data.root)
        pack_missing(files.source for each in (wanted.split, TRAIN) for files in dataset.files(each))
        task = build_task(settings, data.root, wanted.split)
    if checkpoint is None and method.recipe is not None:
        if not data.is_sample:
            remedy = f"give --checkpoint FILE, or make one with benchmarks/pretrain.py --method {name} --data FOLDER"
            raise UserError(f"--method {name}", "needs pre-trained weights", remedy)
        recipe = pretraining_settings(name, settings.profile, changes, settings.width)
        of_recipe = seed if wanted.pretraining_seed is None else wanted.pretraining_seed
        checkpoint = pretrain(name, recipe, sibling(data, recipe.dataset), of_recipe, setup).weights
    if checkpoint is None and method.pretraining_data != "-":
        raise UserError(f"--method {name}", f"is pre-trained on {method.pretraining_data}", "give --checkpoint FILE")
    seed_everything(derive(seed, "model"))
    model = task.model()
    if setup.deterministic:
        with_exact_pools(model)
    weights, labels = method.initialise(model.backbone, checkpoint, seed), fingerprint(task.train)
    require_other_labels(weights, labels, checkpoint)
    if weights.loaded:
        say(weights.summary())
    frozen = {"freeze": True} if wanted.freeze else {}
    if wanted.freeze:
        model.freeze_backbone()
    run = Run(
        kind=kind,
        method_name=name,
        method=method,
        task=settings.task,
        settings=settings,
        config=config_of(settings, task.dataset.splits, wanted.split) | dict(extra or {}) | frozen,
        overrides=changed_finetuning(wanted.settings, read_description(data.root).overrides(), method.network) | frozen,
        data=data.label,
        data_fingerprint=fingerprint(task.train, task.scored),
        seed=seed,
        setup=setup,
        plugin=plugin_sha256(
            {method, type(task), type(task.dataset), type(model.backbone), *imported_parts(model)},
            own_files(tasks=settings.task, profiles=settings.profile),
        ),
        # Whatever the method did to it, the backbone training starts from is part of the result's identity.
        start=weights.facts() | {"start_sha256": state_sha256(model.backbone.state_dict())},
        began=began,
        split=wanted.split,
        trained_on=labels if trains else "",
    )
    return Opened(run, settings, task, model)


def config_of(settings: Finetuning, splits: Mapping[str, Sequence[str]], split: str) -> dict[str, Any]:
    """Settings as the records of runs on a split hold them: recordings that have no part in the result are left out."""
    return as_facts(settings) | {"splits": {name: list(splits.get(name, ())) for name in (TRAIN, split)}}


def with_start(
    settings: Finetuning,
    name: str,
    method: type[Method],
    checkpoint: Path | None,
    *,
    sample: bool,
    changes: Sequence[str] = (),
) -> Finetuning:
    """A cell's settings once it is known which weights it starts from: they decide the peak learning rate.

    The weights decide, not the method: what counts is the data that they were pre-trained on.

    Args:
        settings: of the task.
        name: the method's registered name.
        method: starts the backbone.
        checkpoint: its weights; None where it has none, or where they are made on the sample world.
        sample: whether the cell's data is the sample world.
        changes: `KEY=VALUE` settings of a pre-training on the sample world.

    Raises:
        UserError: a checkpoint that cannot be read, or `changes` that the pre-training cannot have.
    """
    if not settings.peak_lr_after:
        return settings
    origin = Origin()
    if checkpoint is not None:
        try:
            origin = origin_of(checkpoint)
        except UserError as error:
            if method.initialise.__func__ is Method.initialise.__func__:  # type: ignore[attr-defined]
                raise
            # The method may read a format of its own; if it does not, `initialise` refuses the file.
            say(f"{error.where}: not known what it was pre-trained on, so the peak learning rate is that of other data")
    elif method.recipe is not None and sample:
        origin = Origin(pretraining_settings(name, settings.profile, changes).dataset, True)
    return settings.after_pretraining_on(origin.data) if origin.sample == sample else settings

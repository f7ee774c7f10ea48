"""Fine-tune a method's backbone on a task, evaluate it and save the record: one cell of the tables."""

import time
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tespec.comparison.records import Record
from tespec.core.config import as_facts, changed_settings, pretraining_settings
from tespec.core.distributed import is_first, rank_zero_first
from tespec.core.errors import UserError
from tespec.core.progress import say
from tespec.core.settings import Finetuning, Pretraining
from tespec.datasets.base import TEST, TRAIN
from tespec.datasets.recording import fingerprint, require_stored
from tespec.metrics import partial_means
from tespec.pretraining.method import Method
from tespec.runs.cost import require_memory
from tespec.runs.data import Data, sibling
from tespec.runs.pretrain import identity_of, pretrain
from tespec.runs.run import WEIGHTS, Outcome, Run, plugin_of, run_or_load
from tespec.runs.setup import Setup
from tespec.runs.train import SIZE, inference_ms, require_trainable, sizes_of, train
from tespec.tasks import build_task
from tespec.tasks.base import fresh_backbone
from tespec.training.device import choose_device, derive, seed_everything, with_precision
from tespec.training.loading import deal
from tespec.weights.files import state_sha256, write_weights
from tespec.weights.load import (
    HISTOGRAMS,
    SEED,
    TRAINED_ON,
    Origin,
    origin_of,
    require_other_labels,
)


@dataclass(frozen=True)
class CellSpec:
    """A method's backbone, a task, and everything else that defines one cell."""

    name: str  # of the method
    method: type[Method]  # initialises the backbone
    settings: Finetuning
    data: Data
    # initial weights; None: a method with a recipe is pre-trained first, on the sample world
    checkpoint: Path | None
    seed: int
    setup: Setup
    pretraining_changes: tuple[str, ...] = ()  # `KEY=VALUE` settings of that pre-training
    split: str = TEST  # split that is evaluated
    pretraining_seed: int | None = None  # seed of that pre-training; None: `seed`
    freeze: bool = False  # whether to train only the head

    @property
    def pretrains(self) -> bool:
        """Whether the method is pre-trained first."""
        return self.checkpoint is None and self.method.recipe is not None

    @property
    def recipe(self) -> Pretraining:
        """Settings of that pre-training."""
        return pretraining_settings(
            self.name, self.settings.profile, self.pretraining_changes, self.settings.backbone
        )

    def require_start(self, *, planned: bool = False) -> None:
        """Check, without data, that the run and its pre-training can start; if `planned`, weights may be missing."""
        require_trainable(self.settings, self.setup)
        option = f"--method {self.name}"
        unused = [f"--set pretraining.{each}" for each in self.pretraining_changes]
        unused += (
            [] if self.pretraining_seed is None else [f"--pretraining-seed {self.pretraining_seed}"]
        )
        if self.pretrains:
            if not (self.data.is_sample or planned):
                remedy = (
                    f"give --checkpoint FILE, or create it: tespec pretrain {option} --data FOLDER"
                )
                raise UserError(option, "needs pre-trained weights", remedy)
            if self.data.is_sample:
                identity_of(self.recipe)
                require_trainable(self.recipe, self.setup, "pretraining.batch_size")
        elif unused:
            raise UserError(unused[0], "this run has no pre-training", "remove it")
        elif self.checkpoint is None and self.method.row.pretraining_data != "-" and not planned:
            raise UserError(
                option,
                f"is pre-trained on {self.method.row.pretraining_data}",
                "give --checkpoint FILE",
            )

    def started(self) -> Finetuning:
        """Return the settings with the peak learning rate for the data that the initial weights were pre-trained on."""
        origin, rates = Origin(), self.settings.peak_lr_after
        if self.pretrains:
            origin = Origin(self.recipe.dataset, True) if self.data.is_sample else origin
        elif self.checkpoint is not None:
            try:
                origin = origin_of(self.checkpoint)
            except UserError as error:
                if self.method.initialise.__func__ is Method.initialise.__func__:  # type: ignore[attr-defined]
                    raise
                # The method may have its own file format.
                say(
                    f"{error.where}: unknown pre-training data, so the default peak learning rate is used"
                )
        same = origin.sample == self.data.is_sample
        settings = self.settings.after_pretraining_on(origin.data) if same else self.settings
        if rates and origin.data:
            peak, of_sample = (
                settings.optimisation.peak_lr,
                " of the sample world" if origin.sample else "",
            )
            known = ", ".join(f"{name}: {rate:g}" for name, rate in rates.items())
            say(
                f"peak learning rate {peak:g} after pre-training on {origin.data}{of_sample} (peak_lr_after: {known})"
            )
        return settings

    def try_weights(self) -> None:
        """Check that the weights fit the network, without data."""
        if self.checkpoint is not None:
            report = self.method.initialise(fresh_backbone(self.settings, SIZE), self.checkpoint)
            if (other := report.recipe.get("method", self.name)) != self.name:
                remedy = f"give --method {other}, or the weights of {self.name}"
                raise UserError(
                    self.checkpoint, f"was pre-trained with {other}, not with {self.name}", remedy
                )


def finetune(spec: CellSpec) -> Record:
    """Fine-tune and evaluate, or load the record if the run is complete."""
    run, task, model = prepare_run("evaluation", spec)
    batches = deal(task.steps, run.seed, run.setup.accumulate)

    def evaluate() -> Outcome:
        outcome = outcome_of(task, task.evaluate(model, run.device, run.setup.workers))
        cost = sizes_of(model) | {"inference_ms": inference_ms(model, task.size, run.device)}
        if is_first():
            histograms = asdict(task.histogram_spec)
            beside = {HISTOGRAMS: histograms, SEED: run.seed, TRAINED_ON: fingerprint(task.train)}
            write_weights(run.folder / WEIGHTS, model.state_dict(), as_facts(run.settings) | beside)
        return {**outcome, "cost": cost}

    require = partial(
        require_memory, run.settings, task.size, run.setup, run.device, freeze=spec.freeze
    )
    return run_or_load(run, evaluate, partial(train, run, model, batches), require)


def outcome_of(task: Any, scorer: Any, **said: str) -> Outcome:
    """Convert a scorer's results to fields of the record; `said` extends the protocol."""
    overall, scores = scorer.overall(), getattr(task, "scores", {})
    means = partial_means(scorer)
    fewer = {"partial means": means} if means else {}
    return {
        "protocol": task.protocol() | {"scores": scorer.definition()} | fewer | said,
        "metrics": overall.metrics(),
        "groups": {name: each.metrics() for name, each in scorer.by("group").items()},
        "recordings": {name: each.metrics() for name, each in scorer.by("recording").items()},
        "classes": dict(overall.classes),
        "scores": {name: asdict(score) for name, score in scores.items()},
    }


def prepare_run(kind: str, spec: CellSpec, **extra: str) -> tuple[Run, Any, Any]:
    """Open the data, build the model and initialise its backbone, which is pre-trained first if necessary.

    `extra` are further settings that determine the result, for the record. Returns the run, its
    task and its model.
    """
    began = time.monotonic()
    method, data, setup, seed = spec.method, spec.data, spec.setup, spec.seed
    spec.require_start()
    settings = spec.started()
    settings = replace(
        settings, optimisation=with_precision(settings.optimisation, choose_device(setup.device))
    )
    with rank_zero_first():
        task = build_task(settings, data.root, spec.split)
    overrides = changed_settings(spec.settings, method.network, data.description.overrides())
    require_stored((*task.train, *task.scored), settings.downsample, overrides)
    checkpoint = spec.checkpoint
    if spec.pretrains:
        of_recipe = seed if spec.pretraining_seed is None else spec.pretraining_seed
        checkpoint = pretrain(
            spec.name, spec.recipe, sibling(data, spec.recipe.dataset), of_recipe, setup
        ).weights
    seed_everything(derive(seed, "model"))
    model = task.model()
    weights = method.initialise(model.backbone, checkpoint)
    require_other_labels(weights, fingerprint(task.train), checkpoint)
    if weights.loaded:
        say(weights.summary())
    frozen = {"freeze": True} if spec.freeze else {}
    if spec.freeze:
        model.freeze_backbone()
    # Only the splits that affect the result.
    splits = {
        "splits": {name: list(task.dataset.splits.get(name, ())) for name in (TRAIN, spec.split)}
    }
    kinds = {method, type(task), type(task.dataset), type(model.backbone)}
    run = Run(
        kind=kind,
        method_name=spec.name,
        method=method,
        task=settings.task,
        settings=settings,
        config=as_facts(settings) | splits | extra | frozen,
        overrides=overrides | frozen,
        data=data.label,
        data_fingerprint=fingerprint(task.train, task.scored),
        seed=seed,
        setup=setup,
        plugin=plugin_of(model, kinds, tasks=settings.task, profiles=settings.profile),
        # The identity of the result includes the initial backbone, however the method initialised
        # it.
        start=weights.facts() | {"start_sha256": state_sha256(model.backbone.state_dict())},
        began=began,
        split=spec.split,
    )
    return run, task, model

"""Fine-tune a method's backbone on a task, evaluate it and save the record: one table cell."""

import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tespec.comparison.cell import Kind, recipe_of, start_of
from tespec.comparison.records import Record
from tespec.core.config import as_facts, pretraining_settings
from tespec.core.distributed import broadcast, is_first, rank_zero_first
from tespec.core.errors import UserError, require
from tespec.core.progress import log
from tespec.core.settings import Finetuning, Pretraining
from tespec.datasets.base import TEST, TRAIN
from tespec.datasets.recording import require_stored
from tespec.metrics import partial_means
from tespec.pretraining.method import Method
from tespec.runs.cost import SIZE, require_trainable
from tespec.runs.data import Data, same_world
from tespec.runs.identity import finetuning_cell, plugin_sha256, pretraining_cell
from tespec.runs.pretrain import pretrain
from tespec.runs.run import WEIGHTS, Outcome, Run
from tespec.runs.setup import Setup
from tespec.runs.train import inference_ms, sizes_of, train_or_load
from tespec.tasks import build_task
from tespec.tasks.base import random_backbone
from tespec.training.device import choose_device, derive_seed, seed_everything, with_precision
from tespec.weights.files import state_sha256, write_weights
from tespec.weights.load import (
    HISTOGRAMS,
    RUN,
    TRAINED_ON,
    PretrainingData,
    pretraining_data_of,
    require_same_labels,
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

    @property
    def plugin(self) -> str:
        """Hash of the user's files that the run uses, "" for none."""
        return plugin_sha256(self.method, self.settings)

    def validate(self, *, planned: bool = False) -> None:
        """Check, without data, that the run and its pre-training can start from their weights.

        Args:
            planned: whether this is a dry run, whose weights may be missing.

        Raises:
            UserError: options contradict each other, or weights are missing or do not fit.
        """
        require_trainable(self.settings, self.setup)
        option = f"--method {self.name}"
        if self.pretrains:
            require(
                self.settings.representation == "histogram",
                f"representation {self.settings.representation}",
                "this run pre-trains the backbone on histograms first",
                "give --checkpoint FILE, or --set representation=histogram --set last_events=null",
            )
            if self.data.is_sample:
                pretraining_cell(self.recipe, self.data.label)
                require_trainable(self.recipe, self.setup, "pretraining.batch_size")
            elif not planned:
                raise UserError(
                    option,
                    "needs pre-trained weights",
                    f"give --checkpoint FILE, or create it: tespec pretrain {option} --data FOLDER",
                )
            return
        unused = [f"--set pretraining.{change}" for change in self.pretraining_changes]
        if self.pretraining_seed is not None:
            unused.append(f"--pretraining-seed {self.pretraining_seed}")
        if self.settings.new_stem and self.checkpoint is None:
            unused.append("--new-stem")
        if unused:
            raise UserError(unused[0], "this run has no pre-training", "remove it")
        learned_from = self.method.row.pretraining_data
        if self.checkpoint is None and learned_from != "-" and not planned:
            raise UserError(option, f"is pre-trained on {learned_from}", "give --checkpoint FILE")
        if self.checkpoint is None:
            return
        report = self.method.initialise(random_backbone(self.settings, SIZE), self.checkpoint)
        start_of(report.recipe, report.sha256, self.checkpoint)  # refuses a damaged recipe
        if (other := report.recipe.get("method", self.name)) != self.name:
            raise UserError(
                self.checkpoint,
                f"was pre-trained with {other}, not with {self.name}",
                f"give --method {other}, or the weights of {self.name}",
            )

    def resolve_settings(self) -> Finetuning:
        """Set the peak learning rate for the data that the initial weights were pre-trained on."""
        origin = PretrainingData()
        if self.pretrains and self.data.is_sample:
            origin = PretrainingData(self.recipe.dataset, True)
        elif self.checkpoint is not None:
            try:
                origin = pretraining_data_of(self.checkpoint)
            except UserError as error:  # `validate` accepted it: a format that the method reads
                reason = "unknown pre-training data, so the default peak learning rate is used"
                log(f"{error.where}: {reason}")
        settings = self.settings
        if origin.sample == self.data.is_sample:
            settings = settings.after_pretraining_on(origin.data)
        if self.settings.peak_lr_after and origin.data:
            rates = ", ".join(f"{k}: {rate:g}" for k, rate in self.settings.peak_lr_after.items())
            data = f"{origin.data} of the sample world" if origin.sample else origin.data
            peak = f"peak learning rate {settings.optimisation.peak_lr:g}"
            log(f"{peak} after pre-training on {data} (peak_lr_after: {rates})")
        return settings


def finetune(spec: CellSpec, kind: Kind = "evaluation") -> Record:
    """Fine-tune and evaluate, or load the record if the run is complete.

    Args:
        spec: the cell.
        kind: of the record: "evaluation" or "control".
    """
    run, task, model = prepare_run(kind, spec)

    def evaluate() -> Outcome:
        outcome = outcome_of(task, task.evaluate(model, run.device, run.setup.workers))
        cost = sizes_of(model) | {"inference_ms": inference_ms(model, task.size, run.device)}
        if is_first():
            recipe = as_facts(run.settings) | {
                HISTOGRAMS: asdict(task.histogram_spec),
                RUN: recipe_of(run.cell, run.seed)
                | {"pretraining": run.pretraining, "data_fingerprint": run.data_fingerprint}
                | {"weights": dict(run.start)},
                TRAINED_ON: run.trained_on,
            }
            write_weights(run.folder / WEIGHTS, model.state_dict(), recipe)
        return {**outcome, "cost": cost}

    return train_or_load(run, model, task, evaluate)


def outcome_of(task: Any, scorer: Any, **protocol: str) -> Outcome:
    """Convert scores to fields of the record.

    Args:
        task: that was evaluated.
        scorer: accumulated the scores.
        protocol: further facts about the evaluation.
    """
    overall = scorer.overall()
    means = partial_means(scorer)
    partial = {"partial means": means} if means else {}
    return {
        "protocol": task.protocol() | {"scores": scorer.definition()} | partial | protocol,
        "metrics": overall.metrics(),
        "groups": {name: group.metrics() for name, group in scorer.by("group").items()},
        "recordings": {name: part.metrics() for name, part in scorer.by("recording").items()},
        "classes": dict(overall.classes),
        "scores": {name: asdict(s) for name, s in getattr(task, "scores", {}).items()},
    }


def prepare_run(kind: Kind, spec: CellSpec, **config: str) -> tuple[Run, Any, Any]:
    """Open the data, build the model and initialise its backbone; pre-train it first if necessary.

    Args:
        kind: of the record: "evaluation", "probe", "reference" or "control".
        spec: the cell.
        config: further settings that determine the result, for the record.

    Returns:
        The run, its task and its model.

    Raises:
        UserError: settings, weights and data do not fit.
    """
    start_time = time.monotonic()
    settings = spec.resolve_settings()
    settings = replace(
        settings,
        optimisation=with_precision(settings.optimisation, choose_device(spec.setup.device)),
    )
    with rank_zero_first():
        task = build_task(settings, spec.data.root, spec.split, spec.seed)
    cell = finetuning_cell(
        kind,
        spec.name,
        spec.method,
        spec.settings,
        spec.data.label,
        of_data=spec.data.description.overrides(),
        split=spec.split,
        accumulate=spec.setup.accumulate,
    )
    require_stored((*task.train, *task.scored), settings.downsample, cell.overrides)
    data = broadcast(task.checksums(check=spec.setup.check_data) if is_first() else {})
    checkpoint = spec.checkpoint
    if spec.pretrains:
        seed = spec.seed if spec.pretraining_seed is None else spec.pretraining_seed
        unlabelled = same_world(spec.data, spec.recipe.dataset)
        setup = replace(spec.setup, overwrite=False)  # which is about this run alone
        checkpoint = pretrain(spec.name, spec.recipe, unlabelled, seed, setup).weights
    seed_everything(derive_seed(spec.seed, "model"))
    model = task.model()
    weights = spec.method.initialise(model.backbone, checkpoint)
    if weights.loaded:
        log(f"{weights.source} ({weights.format}): {weights.summary()}")
    start, pretraining = start_of(weights.recipe, weights.sha256, checkpoint)
    if kind == "control" and weights.recipe[RUN].get("pretraining") is not None:
        pretraining = weights.recipe[RUN]["pretraining"]  # of the fine-tuned network
    if settings.frozen:
        model.freeze_backbone()
    # Only the splits that affect the result.
    splits = {name: list(task.dataset.splits.get(name, ())) for name in (TRAIN, spec.split)}
    run = Run(
        cell=replace(cell, start=start),
        seed=spec.seed,
        row=spec.method.row,
        settings=settings,
        config=as_facts(settings) | {"splits": splits} | config,
        data=data,
        setup=spec.setup,
        start=weights.facts(),
        # The identity of the result includes the initial backbone, however the method made it.
        start_sha256=state_sha256(model.backbone.state_dict()),
        pretraining=pretraining,
        start_time=start_time,
    )
    if kind == "control":
        require_same_labels(weights, settings, run.trained_on, checkpoint)
    return run, task, model

"""Read plans from YAML and expand them into jobs, which have a run's choices and command."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic.dataclasses
from pydantic import BeforeValidator, Field, NonNegativeInt

from tespec.comparison.published import ABLATED, read_ablations
from tespec.comparison.records import Record, plugin_sha256
from tespec.core import config
from tespec.core.description import read_description
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml, sha256_of
from tespec.core.settings import PositiveFraction, PositiveInt, build, suggest
from tespec.registry import DATASETS, METHODS, MODELS, PLUGIN, TASKS, pretrained_methods

EVALUATION, PRETRAINING, REFERENCE = "evaluation", "pretraining", "reference"
SAMPLE = "sample"
PREFIX = "pretraining."
WEIGHTS = "backbone.safetensors"
Some = Field(min_length=1)
Seeds = Annotated[tuple[NonNegativeInt, ...], Some]
Names = Annotated[tuple[str, ...], Some]
Changes = tuple[str, ...]  # `KEY=VALUE`


@pydantic.dataclasses.dataclass(frozen=True)
class Cells:
    """Cells of the tables: all combinations of the fields, which docs/running.md explains."""

    methods: Names
    architectures: Annotated[tuple[Literal["recurrent", "feedforward"], ...], Some] = (
        "recurrent",
        "feedforward",
    )
    tasks: Names | None = None
    seeds: Seeds | None = None
    label_fraction: Annotated[tuple[PositiveFraction, ...], Some] = (1.0,)
    backbone: str = ""
    set: tuple[str, ...] = ()


@pydantic.dataclasses.dataclass(frozen=True)
class Ablations:
    """Ablation tables by name, of which each row is pre-trained and fine-tuned."""

    tables: Names
    task: str | None = None  # None: the table's
    seeds: Seeds | None = None


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A set of runs; docs/running.md explains the fields and their defaults."""

    name: str
    title: str
    data: str | None = None
    profile: str | None = None
    split: Literal["test", "val"] = "test"
    seeds: Seeds = (0,)
    pretraining_seeds: Seeds | None = None
    cells: tuple[Cells, ...] = ()
    ablations: tuple[
        Annotated[
            Ablations,
            BeforeValidator(lambda group: {"tables": [group]} if isinstance(group, str) else group),
        ],
        ...,
    ] = ()
    references: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    checkpoints: dict[str, Path] = field(default_factory=dict)
    accumulate: PositiveInt = 1
    threads: PositiveInt | None = None
    at_once: PositiveInt = 1
    show: str | None = None


def read_plan(name: str) -> Plan:
    """Read a plan by its name in configs/plans, or from a path that ends in .yaml."""
    path = Path(name) if name.endswith(".yaml") else config.files("plans").get(name)
    if path is None:
        raise UserError(
            f"plan {name}", "no such plan", suggest(name, [*config.names("plans"), "FILE.yaml"])
        )
    try:
        # TypeError if the file has a `name`
        facts = {"title": path.stem} | dict(name=path.stem, **read_yaml(path))
    except (*UNREADABLE, TypeError) as error:
        raise UserError(
            path, f"not a readable YAML file of settings ({error})", "see docs/running.md"
        ) from error
    return build(Plan, facts, str(path))


@dataclass(frozen=True)
class Job:
    """One run."""

    kind: str  # of the record
    method: str  # registered name; "prior" for a reference
    task: str  # name of the task, or of a pre-training's data set
    arch: str
    seed: int
    profile: str
    split: str
    data: str  # value of `--data`
    label: str  # name of the data in records
    set: tuple[str, ...]
    overrides: str  # settings that differ from the profile's, see `canonical`
    task_version: int = 1
    checkpoint: Path | None = None  # weights given by the plan
    upstream: Job | None = None  # pre-training that the run starts from
    backbone: str = ""
    variant: str = field(default="", compare=False)  # name of a row of an ablation
    ablations: tuple[str, ...] = field(default=(), compare=False)  # those that contain the run

    @property
    def name(self) -> str:
        """Readable name, also of the log."""
        parts = [self.kind, self.method, self.task, self.arch, self.backbone, *self.set]
        parts += [PREFIX + change for change in self.upstream.set] if self.upstream else []
        parts += [self.split] if self.split != "test" else []
        if self.upstream and self.upstream.seed != self.seed:
            parts.append(f"p{self.upstream.seed}")
        text = "-".join(filter(None, [*parts, f"s{self.seed}"]))
        text = re.sub(r"[^A-Za-z0-9.=_-]+", "_", text)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return text if len(text) < 200 else f"{text[:180]}-{digest}"

    @property
    def choices(self) -> tuple[Any, ...]:
        """Choices that identify the job's record; see `choices_of`."""
        if self.kind == PRETRAINING:
            return PRETRAINING, self.method, self.profile, self.label, self.seed, self.overrides
        checkpoint = sha256_of(self.checkpoint) if self.checkpoint else ""
        start = self.upstream.choices if self.upstream else checkpoint
        network = (self.kind, self.method, self.task, self.task_version, self.arch)
        data = (self.profile, self.split, self.label)
        return *network, *data, self.seed, self.overrides, start, self.variant


def choices_of(record: Record) -> list[tuple[Any, ...]]:
    """All `Job.choices` that a record satisfies.

    They differ in the start, the hash of the weights or their pre-training, and in the variant, the
    record's or none.
    """
    if record.kind == PRETRAINING:
        overrides = canonical(record.overrides | _upstream(record.config))
        return [(PRETRAINING, record.method, record.profile, record.data, record.seed, overrides)]
    starts = [record.weights.get("sha256", "")]
    recipe = record.weights.get("recipe") or {}
    if "overrides" in recipe:
        facts = [recipe.get(name) for name in ("method", "profile", "data", "seed")]
        starts.append((PRETRAINING, *facts, canonical(recipe["overrides"] | _upstream(recipe))))
    network = (record.kind, record.method, record.task, record.task_version, record.arch)
    data = (record.profile, record.split, record.data)
    cell = (*network, *data, record.seed, canonical(record.overrides))
    return [(*cell, start, variant) for start in starts for variant in {record.variant, ""}]


def canonical(overrides: Mapping[str, Any], accumulate: int = 1) -> str:
    """Serialise changed settings to JSON, independent of their order.

    Args:
        overrides: values by dotted name.
        accumulate: number of micro-batches per step, a setting above 1.
    """
    accumulated = {"accumulate": accumulate} if accumulate > 1 else {}
    return json.dumps({**overrides, **accumulated}, sort_keys=True)


def _upstream(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Hash of the user's file of another network, from a pre-training's settings in a record."""
    return {config.UPSTREAM: facts[config.UPSTREAM]} if config.UPSTREAM in facts else {}


def up_to_date(records: Iterable[Record]) -> list[Record]:
    """Select the records of the methods' current versions and of the user's current files."""
    from tespec.models.backbone import backbones
    from tespec.tasks import import_tasks

    import_tasks()
    known_backbones = backbones()
    current = []
    for record in records:
        settings = config.flattened(record.config)
        method = METHODS.module_dict.get(record.method)
        types = [str(value) for key, value in settings.items() if key.rpartition(".")[2] == "type"]
        parts = [registry.module_dict.get(name) for registry in (METHODS, MODELS) for name in types]
        classes = {
            method,
            TASKS.module_dict.get(settings.get("kind")),
            DATASETS.module_dict.get(settings.get("dataset")),
            known_backbones.get(settings.get("backbone", "")),
            *(part for part in parts if part and part.__module__.startswith(PLUGIN)),
        } - {None}
        files = config.user_files(tasks=settings.get("task", ""), profiles=record.profile)
        version = method.version if method else 1
        if record.method_version == version and record.plugin == plugin_sha256(classes, files):
            current.append(record)
    return current


def missing_jobs(jobs: Sequence[Job], records: Sequence[Record], runs: Path) -> list[Job]:
    """Find the jobs that have to run.

    Args:
        jobs: of a plan.
        records: finished runs.
        runs: folder of the weights.

    Returns:
        Jobs without a record, after the pre-trainings that they need and whose weights are missing.
    """
    done = {choices for record in records for choices in choices_of(record)}
    missing = [job for job in jobs if job.choices not in done]
    needed = dict.fromkeys(job.upstream for job in missing if job.upstream)
    return [*(job for job in needed if find_weights(job, records, runs) is None), *missing]


def find_weights(job: Job, records: Iterable[Record], runs: Path) -> Path | None:
    """Find the weights of a pre-training.

    Args:
        job: the pre-training.
        records: finished runs.
        runs: folder of the weights.

    Returns:
        Path of the file; None if it or the record of the job is missing.
    """
    paths = (
        runs / record.name / WEIGHTS for record in records if job.choices in choices_of(record)
    )
    return next((path for path in paths if path.is_file()), None)


def command(job: Job, checkpoint: Path | str | None = None) -> list[str]:
    """Write the arguments of `tespec` that run a job, without the folders of records and weights.

    Args:
        job: the run.
        checkpoint: weights of its pre-training; on the sample world, a run finds or pre-trains them
            itself.
    """
    words = {
        PRETRAINING: ["pretrain", "--method", job.method],
        REFERENCE: ["run", "--reference", job.method, "--task", job.task],
        EVALUATION: ["run", "--method", job.method, "--task", job.task, "--arch", job.arch],
    }[job.kind]
    changes = job.set
    start = job.checkpoint or checkpoint
    if start:
        words += ["--checkpoint", str(start)]
    elif job.upstream:
        changes += tuple(PREFIX + change for change in job.upstream.set)
        if job.upstream.seed != job.seed:
            words += ["--pretraining-seed", str(job.upstream.seed)]
    words += ["--backbone", job.backbone] if job.backbone else []
    words += [word for change in changes for word in ("--set", change)]
    words += ["--variant", job.variant] if job.variant else []
    words += ["--split", job.split] if job.split != "test" else []
    profile = next(map(str, config.user_files(profiles=job.profile)), job.profile)
    return [*words, "--profile", profile, "--seed", str(job.seed), "--data", job.data]


def expand(plan: Plan, seeds: Sequence[int] = ()) -> list[Job]:
    """List all unique jobs of a plan.

    Args:
        plan: as by `read_plan`.
        seeds: replace those of the plan and its groups.

    Returns:
        Jobs, lower seeds first. The pre-trainings that they need are in `upstream`.

    Raises:
        UserError: the plan has a name that does not exist, or weights that it does not use.
    """
    tables: dict[Job, tuple[str, ...]] = {}
    for job in _all_jobs(plan, seeds):
        tables[job] = tables.get(job, ()) + job.ablations
    methods = sorted({job.method for job in tables if job.kind == EVALUATION})
    if unknown := sorted({*plan.checkpoints} - {*methods}):
        where = f"plan {plan.name}, checkpoints {unknown[0]}"
        raise UserError(where, "no cell has this method", suggest(unknown[0], methods))
    return sorted(
        (replace(job, ablations=rows) for job, rows in tables.items()), key=lambda job: job.seed
    )


def _all_jobs(plan: Plan, seeds: Sequence[int]) -> Iterator[Job]:
    for cells in plan.cells:
        for fraction, method, task, arch, seed in product(
            cells.label_fraction,
            cells.methods,
            cells.tasks or config.names("tasks"),
            cells.architectures,
            seeds or cells.seeds or plan.seeds,
        ):
            few_labels = () if fraction == 1 else (f"label_fraction={fraction}",)
            changes = (*plan.set, *cells.set, *few_labels)
            yield from _jobs(plan, EVALUATION, method, task, arch, seed, changes, cells.backbone)
    known = read_ablations()
    for group in plan.ablations:
        for name in group.tables:
            if name not in known:
                where = f"plan {plan.name}, ablation {name}"
                raise UserError(where, "no such table", f"choose from {', '.join(known)}")
            task = group.task or known[name].task
            _, changes = _split(plan.set)
            default = config.pretraining_settings(ABLATED, _profile(plan, task), changes)
            facts = config.as_facts(default)
            for row, variant in zip(known[name].rows, known[name].variants, strict=True):
                changes = (*plan.set, *(PREFIX + change for change in row.changes(facts)))
                # weights are the default row's
                of_row = plan if row.default else replace(plan, checkpoints={})
                for seed in seeds or group.seeds or plan.seeds:
                    for job in _jobs(of_row, EVALUATION, ABLATED, task, "recurrent", seed, changes):
                        upstream = replace(job.upstream, variant=variant) if job.upstream else None
                        yield replace(job, upstream=upstream, variant=variant, ablations=(name,))
    for task in plan.references:
        yield from _jobs(
            plan, REFERENCE, "prior", task, "feedforward", (*seeds, *plan.seeds)[0], plan.set
        )


def _jobs(
    plan: Plan,
    kind: str,
    method: str,
    task: str,
    arch: str,
    seed: int,
    changes: Changes,
    backbone: str = "",
) -> Iterator[Job]:
    """Yield one job per pre-training that the method starts from, or one without pre-training."""
    from tespec.pretraining.method import find_method  # imports torch

    if task not in config.names("tasks"):
        raise UserError(
            f"plan {plan.name}, task {task}", "no such task", suggest(task, config.names("tasks"))
        )
    profile = _profile(plan, task)
    of_cell, of_pretraining = _split(changes)
    checkpoint = plan.checkpoints.get(method) if kind == EVALUATION else None
    if checkpoint and of_pretraining:
        raise UserError(
            f"plan {plan.name}, {method}, set {PREFIX}{of_pretraining[0]}",
            f"its weights are given by {checkpoint}",
            "set it only for cells that are pre-trained",
        )
    data, label = _data(plan, task)
    network = find_method(method).network if backbone else "swin"
    overrides, version = _cell(
        network, task, arch, profile, of_cell, data, plan.accumulate, backbone
    )
    job = Job(
        kind, method, task, arch, seed, profile, plan.split, data, label, of_cell, overrides,
        version, checkpoint, backbone=backbone,
    )  # fmt: skip
    if kind != EVALUATION or checkpoint or method not in pretrained_methods():
        yield job
        return
    dataset, overrides = _pretraining(method, profile, of_pretraining, plan.accumulate, backbone)
    data, label = _data(plan, dataset, labelled=False)
    for first in plan.pretraining_seeds or (seed,):
        upstream = Job(
            PRETRAINING, method, dataset, "", first, profile, "test", data, label, of_pretraining,
            overrides, backbone=backbone,
        )  # fmt: skip
        yield replace(job, upstream=upstream)


@cache
def _cell(
    network: str,
    task: str,
    arch: str,
    profile: str,
    changes: Changes,
    data: str,
    accumulate: int,
    backbone: str,
) -> tuple[str, int]:
    """Return the settings of a cell that differ from the profile's, and the task's version."""
    of_data = read_description(Path(data)).overrides()
    settings = config.finetuning_settings(
        task, arch, profile, changes, of_data, backbone or network
    )
    overrides = config.changed_settings(settings, network, of_data) if changes or backbone else {}
    return canonical(overrides, accumulate), settings.version


@cache
def _pretraining(
    recipe: str, profile: str, changes: Changes, accumulate: int, backbone: str
) -> tuple[str, str]:
    """Return the data set of a pre-training, and its settings that differ from the profile's."""
    from tespec.runs.pretrain import identity_of

    settings = config.pretraining_settings(recipe, profile, changes, backbone)
    overrides, files = identity_of(settings)
    return settings.dataset, canonical(overrides | files, accumulate)


def _data(plan: Plan, dataset: str, *, labelled: bool = True) -> tuple[str, str]:
    """Return the value of `--data` for a data set, and the name of the data in records."""
    from tespec.runs.data import record_label

    if plan.data == SAMPLE:
        return SAMPLE, SAMPLE
    folders = [plan.data] if plan.data else [*filter(None, [os.environ.get("TESPEC_DATA")]), "data"]
    paths = [Path(folder) / dataset for folder in folders]
    path = next((path for path in paths if path.exists()), paths[0])
    return str(path), record_label(path, dataset, labelled=labelled)


def _profile(plan: Plan, task: str) -> str:
    return plan.profile or (SAMPLE if _data(plan, task)[1] == SAMPLE else "paper")


def _split(changes: Changes) -> tuple[Changes, Changes]:
    """Split changed settings into those of a cell and those of its pre-training."""
    of_pretraining = [change for change in changes if change.startswith(PREFIX)]
    of_cell = tuple(change for change in changes if change not in of_pretraining)
    return of_cell, tuple(change.removeprefix(PREFIX) for change in of_pretraining)


def select(jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """Select jobs of a plan.

    Args:
        jobs: of the plan.
        only: tasks, methods, kinds and ablations; a category without any name is not filtered.

    Raises:
        UserError: a name is not in the plan, or no job is left.
    """
    if not jobs:
        raise UserError("plan", "has no cells, ablations or references", "list some")
    names = [({job.task}, {job.method}, {job.kind}, {*job.ablations}) for job in jobs]
    categories = [set[str]().union(*category) for category in zip(*names, strict=True)]
    known = set[str]().union(*categories)
    if unknown := sorted({*only} - known):
        raise UserError(
            f"--only {unknown[0]}", "not in this plan", f"choose from {', '.join(sorted(known))}"
        )
    filters = [category & {*only} for category in categories]
    selected = [
        job
        for job, of_job in zip(jobs, names, strict=True)
        if all(not allowed or allowed & of_job[i] for i, allowed in enumerate(filters))
    ]
    if not selected:
        raise UserError(
            f"--only {' '.join(only)}", "matches no run of this plan", "give fewer names"
        )
    return selected

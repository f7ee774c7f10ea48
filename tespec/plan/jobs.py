"""Read plans from YAML and expand them into jobs, which have a run's choices and command."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Annotated, Literal

import pydantic.dataclasses
from pydantic import BeforeValidator, Field, NonNegativeInt

from tespec.comparison.cell import SAMPLE, Cell, Kind, start_of
from tespec.comparison.published import ABLATED, read_ablations
from tespec.comparison.records import Key, Record, similar_records
from tespec.core import config
from tespec.core.description import read_description
from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, read_yaml, sha256_of
from tespec.core.settings import PositiveFraction, PositiveInt, Pretraining, build, suggest
from tespec.registry import pretrained_methods, register_methods

EVALUATION: Kind = "evaluation"
PRETRAINING: Kind = "pretraining"
REFERENCE: Kind = "reference"
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

    cell: Cell
    seed: int
    data: str  # value of `--data`
    set: Changes
    backbone: str = ""  # value of `--backbone`
    checkpoint: Path | None = None  # weights given by the plan
    pretraining: int | str | None = None  # see `Record.pretraining`
    upstream: Job | None = None  # pre-training that the run starts from
    ablations: tuple[str, ...] = field(default=(), compare=False)  # those that contain the run

    @property
    def key(self) -> Key:
        """Key of the job's record, see `Record.key`."""
        return self.cell, self.seed, self.pretraining

    @property
    def name(self) -> str:
        """Readable name, also of the log."""
        cell = self.cell
        parts = [cell.kind, cell.method, cell.task, cell.arch, self.backbone, *self.set]
        parts += [PREFIX + change for change in self.upstream.set] if self.upstream else []
        parts += [cell.split] if cell.split != "test" else []
        if self.upstream and self.upstream.seed != self.seed:
            parts.append(f"p{self.upstream.seed}")
        text = "-".join(filter(None, [*parts, f"s{self.seed}"]))
        text = re.sub(r"[^A-Za-z0-9.=_-]+", "_", text)
        digest = hashlib.sha256(text.encode()).hexdigest()[:12]
        return text if len(text) < 200 else f"{text[:180]}-{digest}"


def missing_jobs(jobs: Sequence[Job], done: Mapping[Key, Record], runs: Path) -> list[Job]:
    """Find the jobs that have to run.

    Args:
        jobs: of a plan.
        done: records by key.
        runs: folder of the weights.

    Returns:
        Jobs without a record, after the pre-trainings that they need and whose weights are missing.
    """
    missing = [job for job in jobs if job.key not in done]
    needed = dict.fromkeys(job.upstream for job in missing if job.upstream)
    without = [
        job
        for job in needed
        if job.key not in done or not weights_path(done[job.key], runs).is_file()
    ]
    return [*without, *missing]


def find_record(job: Job, results: Path) -> Record | None:
    """Find the newest record of a job in `runs/` of a results folder."""
    similar = similar_records(results, job.cell, job.seed)
    return max(
        (record for record in similar if record.key == job.key),
        key=lambda record: record.written,
        default=None,
    )


def weights_path(record: Record, runs: Path) -> Path:
    """Path of the weights that a pre-training saved."""
    return runs / record.name / WEIGHTS


def command(job: Job, checkpoint: Path | str | None = None) -> list[str]:
    """Write the arguments of `tespec` that run a job, without the folders of records and weights.

    Args:
        job: the run.
        checkpoint: weights of its pre-training; on the sample world, a run finds or pre-trains them
            itself.
    """
    cell = job.cell
    words = {
        PRETRAINING: ["pretrain", "--method", cell.method],
        REFERENCE: ["run", "--reference", cell.method, "--task", cell.task],
        EVALUATION: ["run", "--method", cell.method, "--task", cell.task, "--arch", cell.arch],
    }[cell.kind]
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
    words += ["--split", cell.split] if cell.split != "test" else []
    profile = str(config.files("profiles")[cell.profile])
    words += ["--profile", profile if config.user_files(profiles=cell.profile) else cell.profile]
    return [*words, "--seed", str(job.seed), "--data", job.data]


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
    register_methods()
    tables: dict[Job, tuple[str, ...]] = {}
    for job in _all_jobs(plan, seeds):
        tables[job] = tables.get(job, ()) + job.ablations
    methods = sorted({job.cell.method for job in tables if job.cell.kind == EVALUATION})
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
            for row in known[name].rows:
                changes = (*plan.set, *(PREFIX + change for change in row.changes(facts)))
                # weights are the default row's
                of_row = plan if row.default else replace(plan, checkpoints={})
                for seed in seeds or group.seeds or plan.seeds:
                    for job in _jobs(of_row, EVALUATION, ABLATED, task, "recurrent", seed, changes):
                        yield replace(job, ablations=(name,))
    for task in plan.references:
        yield from _jobs(
            plan, REFERENCE, "prior", task, "feedforward", (*seeds, *plan.seeds)[0], plan.set
        )


def _jobs(
    plan: Plan,
    kind: Kind,
    method: str,
    task: str,
    arch: str,
    seed: int,
    changes: Changes,
    backbone: str = "",
) -> Iterator[Job]:
    """Yield one job per pre-training that the method starts from, or one without pre-training."""
    from tespec.weights.files import read_recipe  # imports torch

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
    cell = _cell(kind, method, task, arch, profile, of_cell, data, label, plan.accumulate, backbone)
    job = Job(replace(cell, split=plan.split), seed, data, of_cell, backbone, checkpoint)
    if checkpoint:
        start, pretraining = start_of(read_recipe(checkpoint), sha256_of(checkpoint), checkpoint)
        yield replace(job, cell=replace(job.cell, start=start), pretraining=pretraining)
        return
    if kind != EVALUATION or method not in pretrained_methods():
        yield job
        return
    dataset = _pretraining(method, profile, of_pretraining, backbone).dataset
    data, label = _data(plan, dataset, labelled=False)
    start = _start(method, profile, of_pretraining, label, plan.accumulate, backbone)
    for first in plan.pretraining_seeds or (seed,):
        upstream = Job(start, first, data, of_pretraining, backbone)
        with_start = replace(job.cell, start=start)
        yield replace(job, cell=with_start, pretraining=first, upstream=upstream)


@cache
def _cell(
    kind: Kind,
    method: str,
    task: str,
    arch: str,
    profile: str,
    changes: Changes,
    data: str,
    label: str,
    accumulate: int,
    backbone: str,
) -> Cell:
    from tespec.pretraining.method import find_method
    from tespec.runs.identity import finetuning_cell
    from tespec.runs.references import PRIOR, Prior

    kind_of_method = Prior if method == PRIOR else find_method(method)
    network = backbone or kind_of_method.network
    of_data = read_description(Path(data)).overrides()
    settings = config.finetuning_settings(task, arch, profile, changes, of_data, network)
    return finetuning_cell(
        kind, method, kind_of_method, settings, label, of_data=of_data, accumulate=accumulate
    )


@cache
def _pretraining(method: str, profile: str, changes: Changes, backbone: str) -> Pretraining:
    return config.pretraining_settings(method, profile, changes, backbone)


@cache
def _start(
    method: str, profile: str, changes: Changes, label: str, accumulate: int, backbone: str
) -> Cell:
    from tespec.runs.identity import pretraining_cell

    settings = _pretraining(method, profile, changes, backbone)
    return pretraining_cell(settings, label, accumulate)


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
    names = [
        ({job.cell.task}, {job.cell.method}, {job.cell.kind}, {*job.ablations}) for job in jobs
    ]
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

"""Read plans from YAML and expand them into jobs, which have a run's choices and command."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from itertools import chain, product
from pathlib import Path
from typing import Annotated, Literal

import pydantic.dataclasses
from pydantic import BeforeValidator, Field, NonNegativeInt

from tespec.comparison.cell import SAMPLE, Arch, Cell, Kind, name_prefix, start_of
from tespec.comparison.published import ABLATED, read_ablations
from tespec.comparison.records import Key, Record, read_records
from tespec.core import config
from tespec.core.description import read_description
from tespec.core.errors import UserError, require
from tespec.core.files import UNREADABLE, read_yaml, sha256_of
from tespec.core.settings import PositiveFraction, PositiveInt, build, suggest
from tespec.registry import register_methods

# Prefixes of settings that train or load the whole network, so its control does not take them over.
NOT_OF_CONTROLS = ("optimisation.", "peak_lr_after", "new_stem")
NonEmpty = Field(min_length=1)
Seeds = Annotated[tuple[NonNegativeInt, ...], NonEmpty]
Names = Annotated[tuple[str, ...], NonEmpty]
Changes = tuple[str, ...]  # `KEY=VALUE`
Evaluation = Literal["full", "frozen"]


@pydantic.dataclasses.dataclass(frozen=True)
class Cells:
    """Cells of the tables: all combinations of the fields, which docs/running.md explains."""

    methods: Names
    architectures: Annotated[tuple[Arch, ...], NonEmpty] = ("recurrent", "feedforward")
    tasks: Names | None = None
    evaluations: Annotated[tuple[Evaluation, ...], NonEmpty] = ("full",)
    label_fraction: Annotated[tuple[PositiveFraction, ...], NonEmpty] = (1.0,)
    seeds: Seeds | None = None
    backbone: str = ""
    set: Changes = ()
    controls: bool = False


@pydantic.dataclasses.dataclass(frozen=True)
class Ablations:
    """Ablation tables by name, of which each row is pre-trained and fine-tuned."""

    tables: Names
    task: str | None = None  # None: the table's
    evaluation: Evaluation = "full"
    seeds: Seeds | None = None


@pydantic.dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """A set of runs; docs/running.md explains the fields and their defaults."""

    name: str
    title: str
    data: str | None = None
    profile: str | None = None
    split: Literal["test", "val"] = "test"
    seeds: Seeds | None = None
    # fine-tuning seeds by the seed of the pre-training that they start from
    pretrainings: Annotated[dict[NonNegativeInt, Seeds], NonEmpty] | None = None
    cells: tuple[Cells, ...] = ()
    ablations: tuple[
        Annotated[
            Ablations,
            BeforeValidator(lambda group: {"tables": [group]} if isinstance(group, str) else group),
        ],
        ...,
    ] = ()
    references: tuple[str, ...] = ()
    set: Changes = ()
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
    upstream: Job | None = None  # run that this one starts from: a control's is a fine-tuning
    ablations: tuple[str, ...] = ()  # those that contain the run

    @property
    def key(self) -> Key:
        """Key of the job's record, see `Record.key`."""
        return self.cell, self.seed, self.pretraining

    @property
    def name(self) -> str:
        """Readable name, also of the log; it ends in a hash of the key."""
        cell = self.cell
        parts = [cell.kind, cell.method, cell.task, cell.arch, self.backbone]
        parts += ["frozen" if cell.frozen else "", *self.set]
        parts += [f"p{self.upstream.seed}" if self.upstream else ""]
        parts += [cell.split if cell.split != "test" else "", f"s{self.seed}"]
        text = re.sub(r"[^A-Za-z0-9.=_-]+", "_", "-".join(filter(None, parts)))
        key = f"{cell.text} {self.seed} {self.pretraining}"
        digest = hashlib.sha256(key.encode()).hexdigest()[:8]
        return f"{text[:180]}-{digest}"


def finished_runs(jobs: Sequence[Job], results: Path) -> tuple[dict[Key, Record], list[str]]:
    """Read the records of jobs and of the runs that they start from.

    Returns:
        The newest record by key, and one line for each file or line that is not a record.

    Raises:
        UserError: `results` is not a results folder.
    """
    if not results.exists():
        return {}, []
    runs = [run for job in jobs for run in (job, job.upstream) if run]
    prefixes = {name_prefix(run.cell, run.seed) for run in runs}
    records, problems = read_records(results, prefixes)
    oldest_first = sorted(records, key=lambda record: record.written)
    return {record.key: record for record in oldest_first}, problems


def missing_jobs(jobs: Sequence[Job], finished: Mapping[Key, Record], runs: Path) -> list[Job]:
    """Find the jobs that have to run.

    Args:
        jobs: of a plan.
        finished: records by key.
        runs: folder of the weights.

    Returns:
        Jobs without a record, after the runs that they start from and whose weights are missing.
    """

    def has_weights(job: Job) -> bool:
        return job.key in finished and weights_path(finished[job.key], runs).is_file()

    def starts(job: Job) -> list[Job]:
        start = job.upstream
        return [*starts(start), start] if start and not has_weights(start) else []

    missing = [job for job in jobs if job.key not in finished]
    first = chain.from_iterable(map(starts, missing))
    return list({job.key: job for job in (*first, *missing)}.values())


def weights_path(record: Record, runs: Path) -> Path:
    """Path of the weights that a pre-training or a fine-tuning saved."""
    name = "backbone" if record.cell.kind == "pretraining" else "model"
    return runs / record.name / f"{name}.safetensors"


def command(job: Job, checkpoint: Path | str | None = None) -> list[str]:
    """Write the arguments of `tespec` that run a job, without the folders of records and weights.

    Args:
        job: the run.
        checkpoint: weights that it starts from; on the sample world, a fine-tuning finds or
            pre-trains them itself.
    """
    cell = job.cell
    words = {
        "pretraining": ["pretrain", "--method", cell.method],
        "reference": ["run", "--reference", cell.method, "--task", cell.task],
        "control": ["run", "--reference", cell.method, "--task", cell.task, "--arch", cell.arch],
        "evaluation": ["run", "--method", cell.method, "--task", cell.task, "--arch", cell.arch],
    }[cell.kind]
    words += ["--freeze"] if cell.frozen and cell.kind == "evaluation" else []
    start = job.checkpoint or checkpoint
    of_finetuning, _ = config.split_changes(job.set)
    for change in of_finetuning if start else job.set:
        words += ["--set", change]
    files = config.user_files(profiles=cell.profile)  # after those that it is based on
    options = {
        "--checkpoint": start,
        "--pretraining-seed": job.upstream.seed if job.upstream and not start else None,
        "--backbone": job.backbone or None,
        "--split": cell.split if cell.split != "test" else None,
        "--profile": files[-1] if files else cell.profile,
        "--seed": job.seed,
        "--data": job.data,
        "--accumulate": cell.overrides.get("accumulate"),
    }
    given = ((option, str(value)) for option, value in options.items() if value is not None)
    return [*words, *chain.from_iterable(given)]


def expand(plan: Plan, seeds: Sequence[int] = ()) -> list[Job]:
    """List all unique jobs of a plan.

    Args:
        plan: as by `read_plan`.
        seeds: replace those of the plan and its groups.

    Returns:
        Jobs, lower seeds first. The pre-trainings that they need are in `upstream`.

    Raises:
        UserError: the plan has a name that does not exist, a method that does not fit its network,
            weights that it does not use, or contradictory seeds.
    """
    register_methods()
    require(
        not (plan.seeds and plan.pretrainings),
        f"plan {plan.name}, seeds",
        "are also in pretrainings",
        "remove one of the two",
    )
    finetuning_seeds = chain(*(plan.pretrainings or {0: (0,)}).values())
    default_seeds = plan.seeds or tuple(dict.fromkeys(finetuning_seeds))
    job_of = cache(partial(_job, plan))
    jobs: dict[Key, Job] = {}
    for kind, cells, checkpoints, ablations in _groups(plan):
        chosen = seeds or cells.seeds or default_seeds
        for fraction, evaluation, method, task, arch in product(
            cells.label_fraction,
            cells.evaluations,
            cells.methods,
            cells.tasks or config.names("tasks"),
            cells.architectures,
        ):
            few_labels = () if fraction == 1 else (f"label_fraction={fraction}",)
            unseeded = job_of(
                kind=kind,
                method=method,
                task=task,
                arch=arch,
                changes=(*plan.set, *cells.set, *few_labels),
                backbone=cells.backbone,
                frozen=evaluation == "frozen",
                checkpoint=checkpoints.get(method),
            )
            for seed in chosen[:1] if kind == "reference" else chosen:
                for job in _with_seed(plan, unseeded, seed):
                    same = jobs.get(job.key, job)
                    jobs[job.key] = replace(same, ablations=(*same.ablations, *ablations))
                    if cells.controls and not job.cell.frozen:
                        control = _control(plan, job)
                        jobs[control.key] = control
    methods = {job.cell.method for job in jobs.values() if job.cell.kind == "evaluation"}
    for method in plan.checkpoints:
        require(
            method in methods,
            f"plan {plan.name}, checkpoints {method}",
            "no cell has this method",
            suggest(method, sorted(methods)),
        )
    return sorted(jobs.values(), key=lambda job: job.seed)


def _groups(plan: Plan) -> Iterator[tuple[Kind, Cells, Mapping[str, Path], tuple[str, ...]]]:
    """Yield kind, cells, weights and ablation of each group; a row of an ablation is one."""
    for cells in plan.cells:
        yield "evaluation", cells, plan.checkpoints, ()
    known = read_ablations()
    for group in plan.ablations:
        for name in group.tables:
            require(
                name in known,
                f"plan {plan.name}, ablation {name}",
                "no such table",
                f"choose from {', '.join(known)}",
            )
            task = group.task or known[name].task
            _, _, profile = _data(plan, task)
            _, changes = config.split_changes(plan.set)
            facts = config.as_facts(config.pretraining_settings(ABLATED, profile, changes))
            for row in known[name].rows:
                cells = Cells(
                    methods=(ABLATED,),
                    architectures=("recurrent",),
                    tasks=(task,),
                    evaluations=(group.evaluation,),
                    seeds=group.seeds,
                    set=tuple(config.PRETRAINING + change for change in row.changes(facts)),
                )
                # weights are the default row's
                yield "evaluation", cells, plan.checkpoints if row.default else {}, (name,)
    if plan.references:
        prior = Cells(methods=("prior",), architectures=("feedforward",), tasks=plan.references)
        yield "reference", prior, {}, ()


def _with_seed(plan: Plan, job: Job, seed: int) -> list[Job]:
    """Return one job per pre-training that the seed starts from, or one without pre-training."""
    job = replace(job, seed=seed)
    if job.upstream is None:
        return [job]
    pretrainings = plan.pretrainings or {seed: (seed,)}
    first_seeds = [first for first, seeds in pretrainings.items() if seed in seeds]
    require(
        first_seeds,
        f"plan {plan.name}, {job.cell.method}, seed {seed}",
        "no pre-training in pretrainings has this seed",
        f"choose from {', '.join(map(str, sorted({*chain(*pretrainings.values())})))}",
    )
    return [
        replace(job, pretraining=first, upstream=replace(job.upstream, seed=first))
        for first in first_seeds
    ]


def _job(
    plan: Plan,
    *,
    kind: Kind,
    method: str,
    task: str,
    arch: str,
    changes: Changes,
    backbone: str,
    frozen: bool,
    checkpoint: Path | None,
) -> Job:
    """Make the job with seed 0."""
    from tespec.pretraining.method import find_method
    from tespec.runs.identity import finetuning_cell, pretraining_cell
    from tespec.runs.references import REFERENCES
    from tespec.weights.files import read_recipe

    of_finetuning, of_pretraining = config.split_changes(changes)
    if checkpoint and of_pretraining:
        raise UserError(
            f"plan {plan.name}, {method}, set {config.PRETRAINING}{of_pretraining[0]}",
            f"its weights are given by {checkpoint}",
            "set it only for cells that are pre-trained",
        )
    data, label, profile = _data(plan, task)
    method_class = find_method(method) if kind == "evaluation" else REFERENCES[method]
    method_class.require(method, arch)
    network = method_class.require_backbone(backbone)
    of_data = read_description(Path(data)).overrides()
    settings = config.finetuning_settings(
        task, arch, profile, of_finetuning, of_data, network, frozen=frozen
    )
    cell = finetuning_cell(
        kind,
        method,
        method_class,
        settings,
        label,
        of_data=of_data,
        accumulate=plan.accumulate,
        split=plan.split,
    )
    if checkpoint:
        start, pretraining = start_of(read_recipe(checkpoint), sha256_of(checkpoint), checkpoint)
        cell = replace(cell, start=start)
        return Job(cell, 0, data, of_finetuning, backbone, checkpoint, pretraining)
    if method_class.recipe is not None:
        recipe = config.pretraining_settings(method, profile, of_pretraining, backbone)
        of_recipe, label, _ = _data(plan, recipe.dataset, labelled=False)
        start = pretraining_cell(recipe, label, plan.accumulate)
        upstream = Job(start, 0, of_recipe, of_pretraining, backbone)
        return Job(replace(cell, start=start), 0, data, changes, backbone, upstream=upstream)
    return Job(cell, 0, data, of_finetuning, backbone)


def _control(plan: Plan, job: Job) -> Job:
    """Make the job that trains a new head on the backbone of a fine-tuned network."""
    changes = tuple(
        change for change in job.set if change in plan.set or not change.startswith(NOT_OF_CONTROLS)
    )
    cell = job.cell
    control = _job(
        plan,
        kind="control",
        method="control",
        task=cell.task,
        arch=cell.arch,
        changes=changes,
        backbone=cell.backbone,
        frozen=True,
        checkpoint=None,
    )
    cell = replace(control.cell, start=cell)
    pretraining = job.seed if job.pretraining is None else job.pretraining
    return replace(control, cell=cell, seed=job.seed, pretraining=pretraining, upstream=job)


def _data(plan: Plan, dataset: str, *, labelled: bool = True) -> tuple[str, str, str]:
    """Return the value of `--data` for a data set, its name in records, and the profile."""
    from tespec.runs.data import record_label

    if plan.data == SAMPLE:
        return SAMPLE, SAMPLE, plan.profile or SAMPLE
    folders = [plan.data] if plan.data else [os.environ.get("TESPEC_DATA") or "data", "data"]
    paths = [Path(folder) / dataset for folder in folders]
    path = next((path for path in paths if path.exists()), paths[0])
    label = record_label(path, dataset, labelled=labelled)
    return str(path), label, plan.profile or (SAMPLE if label == SAMPLE else "paper")


def select(jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """Select jobs of a plan.

    Args:
        jobs: of the plan.
        only: tasks, methods, kinds, evaluations and ablations; a category without any name is not
            filtered.

    Raises:
        UserError: a name is not in the plan, or no job is left.
    """
    require(jobs, "plan", "has no cells, ablations or references", "list some")

    def names_of(job: Job) -> list[set[str]]:
        cell = job.cell
        evaluation = "frozen" if cell.frozen else "full"
        return [{cell.task}, {cell.method}, {cell.kind}, {evaluation}, {*job.ablations}]

    categories = [set[str]().union(*names) for names in zip(*map(names_of, jobs), strict=True)]
    known = sorted(set[str]().union(*categories))
    for name in only:
        require(
            name in known, f"--only {name}", "not in this plan", f"choose from {', '.join(known)}"
        )
    selected = list(jobs)
    for i, category in enumerate(categories):
        if allowed := category & {*only}:
            selected = [job for job in selected if allowed & names_of(job)[i]]
    require(selected, f"--only {' '.join(only)}", "matches no run of this plan", "give fewer names")
    return selected


def require_weights(plan: Plan, jobs: Sequence[Job]) -> None:
    """Refuse jobs whose method is pre-trained, but neither here nor in a given file.

    Args:
        plan: the plan, for messages.
        jobs: those that are selected.
    """
    from tespec.pretraining.method import find_method

    for job in jobs:
        if job.cell.kind != "evaluation" or job.upstream or job.checkpoint:
            continue
        require(
            find_method(job.cell.method).row.pretraining_data == "-",
            f"plan {plan.name}, {job.cell.method}",
            "has no pre-trained weights",
            f"give --checkpoints {job.cell.method}=FILE, or leave the method out",
        )

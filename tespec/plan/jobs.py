"""Jobs of a plan: each is a run's choices, as they stand in its record, and the command that computes it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

from tespec.comparison.ablations import read_ablations, variant_name
from tespec.comparison.records import Record
from tespec.core.config import as_facts, finetuning_settings, names, overridden, pretraining_settings
from tespec.core.errors import UserError
from tespec.core.recipes import recipes
from tespec.datasets.description import read_description
from tespec.plan.spec import Cells, Plan

EVALUATION, PRETRAINING, REFERENCE = "evaluation", "pretraining", "reference"
ABLATED = "tespec"  # method of the ablations
SAMPLE = "sample"
PREFIX = "pretraining."
WEIGHTS = "backbone.safetensors"


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        kind: of its record.
        method: registered name; "prior" of a reference.
        task: name of the task, or of the data set of a pre-training.
        arch: "recurrent" or "feedforward", "" for a pre-training.
        seed: of everything random.
        profile: name of the profile.
        split: "test" or "val".
        data: value of `--data`.
        label: what records call that data.
        set: changed settings, `KEY=VALUE`.
        overrides: those that differ from the profile's, as one text; see `canonical`.
        task_version: of the task's settings.
        checkpoint: weights file that the plan names for the method.
        upstream: pre-training that it starts from.
        variant: name of an ablation's row.
        ablations: names of the ablations that it is a row of.
    """

    kind: str
    method: str
    task: str
    arch: str
    seed: int
    profile: str
    split: str
    data: str
    label: str
    set: tuple[str, ...]
    overrides: str
    task_version: int = 1
    checkpoint: Path | None = None
    upstream: Job | None = None
    variant: str = field(default="", compare=False)
    ablations: tuple[str, ...] = field(default=(), compare=False)

    @property
    def name(self) -> str:
        """For people, and for the log."""
        split = "" if self.split == "test" else self.split
        changes = self.set + (self.upstream.set if self.upstream else ())
        parts = (self.kind, self.method, self.task, self.arch, *changes, split, f"s{self.seed}")
        return re.sub(r"[^A-Za-z0-9.=_-]+", "_", "-".join(filter(None, parts)))[:200]

    @property
    def choices(self) -> tuple[Any, ...]:
        """The choices that the plan fixes; see `choices_of`."""
        if self.kind == PRETRAINING:
            return PRETRAINING, self.method, self.profile, self.label, self.seed, self.overrides
        start = self.upstream.choices if self.upstream else _file_hash(self.checkpoint)
        cell = (self.kind, self.method, self.task, self.task_version, self.arch, self.profile, self.split, self.label)
        return *cell, self.seed, self.overrides, start, self.variant


def choices_of(record: Record) -> list[tuple[Any, ...]]:
    """The same choices of a record, with its pre-training and the hash of the weights, with and without its variant."""
    changed = canonical(record.overrides)
    if record.kind == PRETRAINING:
        return [(PRETRAINING, record.method, record.profile, record.data, record.seed, changed)]
    recipe, sha256 = record.weights.get("recipe") or {}, record.weights.get("sha256", "")
    starts: list[tuple[Any, ...] | str] = [sha256]
    if "overrides" in recipe:
        made = [recipe.get(name) for name in ("method", "profile", "data", "seed")]
        starts.append((PRETRAINING, *made, canonical(recipe["overrides"])))
    task, data = (record.task, record.task_version), (record.profile, record.split, record.data)
    cell = (record.kind, record.method, *task, record.arch, *data, record.seed, changed)
    return [(*cell, start, variant) for start in starts for variant in {record.variant, ""}]


def missing_jobs(jobs: Sequence[Job], records: Iterable[Record], runs: Path) -> list[Job]:
    """Jobs without a record, behind the pre-trainings that they start from and whose weights are not in `runs`."""
    records = list(records)
    done = {choices for record in records for choices in choices_of(record)}
    missing = [job for job in jobs if job.choices not in done]
    needed = dict.fromkeys(job.upstream for job in missing if job.upstream)
    return [*(job for job in needed if weights_of(job, records, runs) is None), *missing]


def weights_of(job: Job, records: Iterable[Record], runs: Path) -> Path | None:
    """Weights that a pre-training left in `runs`; None where its record or the file is missing."""
    paths = (runs / record.name / WEIGHTS for record in records if job.choices in choices_of(record))
    return next((path for path in paths if path.is_file()), None)


def command(job: Job, checkpoint: Path | str | None = None) -> list[str]:
    """Arguments of `tespec` that carry a job out, without the places of records and weights.

    Args:
        job: what to run.
        checkpoint: weights of its pre-training; on the sample world a run finds or makes them itself.
    """
    if job.kind == PRETRAINING:
        words = ["pretrain", "--method", job.method]
    elif job.kind == REFERENCE:
        words = ["run", "--reference", job.method, "--task", job.task]
    else:
        words = ["run", "--method", job.method, "--task", job.task, "--arch", job.arch]
    changes = job.set
    start = job.checkpoint or checkpoint
    if start:
        words += ["--checkpoint", str(start)]
    elif job.upstream:
        changes += tuple(PREFIX + change for change in job.upstream.set)
        words += ["--pretraining-seed", str(job.upstream.seed)] if job.upstream.seed != job.seed else []
    words += [word for change in changes for word in ("--set", change)]
    words += ["--variant", job.variant] if job.variant else []
    words += ["--split", job.split] if job.kind != PRETRAINING and job.split != "test" else []
    return [*words, "--profile", job.profile, "--seed", str(job.seed), "--data", job.data]


def expand(plan: Plan) -> list[Job]:
    """All jobs of a plan but the pre-trainings that others start from, each once, earlier seeds first.

    Raises:
        UserError: an unknown task or ablation, or a change that is no `KEY=VALUE`.
    """
    made: list[Job] = []
    for group in plan.cells:
        made += _cells(plan, group)
    if plan.ablations:
        made += _ablation_rows(plan)
    for task in dict.fromkeys(task for group in plan.references for task in group.tasks):
        made.append(_job(plan, REFERENCE, "prior", task, "feedforward", plan.seeds[0], _split(plan.set)[0]))
    tables: dict[Job, tuple[str, ...]] = {}
    for job in made:
        tables[job] = tables.get(job, ()) + job.ablations
    return sorted((replace(job, ablations=rows) for job, rows in tables.items()), key=lambda job: job.seed)


def _cells(plan: Plan, group: Cells) -> Iterable[Job]:
    for share in group.label_share:
        few = () if share == 1 else (f"label_share={share:g}",)
        own, pretraining = _split((*plan.set, *group.set, *few))
        for task in group.tasks or names("tasks"):
            for method in group.methods:
                for arch in group.architectures:
                    for seed in group.seeds or plan.seeds:
                        yield _job(plan, EVALUATION, method, task, arch, seed, own, pretraining)


def _ablation_rows(plan: Plan) -> Iterable[Job]:
    known = read_ablations()
    own, pretraining = _split(plan.set)
    for group in plan.ablations:
        for name in group.tables:
            if name not in known:
                raise UserError(
                    f"plan {plan.name}, ablation {name}", "no such table", f"choose from {', '.join(known)}"
                )
            ablation = known[name]
            task = group.task or ablation.task
            facts = as_facts(pretraining_settings(ABLATED, _profile(plan, task), pretraining))
            for row in ablation.rows:
                changes, variant = tuple(row.changes(facts)), "" if row.default else variant_name(ablation, row)
                for seed in group.seeds or plan.seeds:
                    job = _job(plan, EVALUATION, ABLATED, task, "recurrent", seed, own, (*pretraining, *changes))
                    upstream = replace(job.upstream, variant=variant) if job.upstream else None
                    yield replace(job, upstream=upstream, variant=variant, ablations=(name,))


def _job(
    plan: Plan, kind: str, method: str, task: str, arch: str, seed: int, own: tuple[str, ...],
    pretraining: tuple[str, ...] = (),
) -> Job:  # fmt: skip
    if task not in names("tasks"):
        raise UserError(f"plan {plan.name}, task {task}", "no such task", f"choose from {', '.join(names('tasks'))}")
    profile, upstream = _profile(plan, task), None
    checkpoint = plan.checkpoints.get(method) if kind == EVALUATION else None
    recipe = recipes().get(method)
    if kind == EVALUATION and checkpoint is None and recipe is not None:
        named = [change.partition("=")[2] for change in pretraining if change.startswith("dataset=")]
        dataset = str([recipe.facts["dataset"], *named][-1])
        of_all = seed if plan.pretraining_seed is None else plan.pretraining_seed
        changed = _resolved_pretraining(method, profile, pretraining, plan.accumulate)
        place = _place(plan, dataset)
        upstream = Job(PRETRAINING, method, dataset, "", of_all, profile, "test", *place, pretraining, changed)
    data, label = _place(plan, task)
    changed, version = _resolved(task, arch, profile, own, data, plan.accumulate)
    cell = (kind, method, task, arch, seed, profile, plan.split, data, label)
    return Job(*cell, own, changed, version, checkpoint, upstream)


@cache
def _resolved(
    task: str, arch: str, profile: str, changes: tuple[str, ...], data: str, accumulate: int
) -> tuple[str, int]:
    """Settings of a cell that differ from the profile's, and the task's version."""
    of_data = read_description(Path(data)).overrides()
    default = finetuning_settings(task, arch, profile, (), of_data)
    settings = finetuning_settings(task, arch, profile, changes, of_data) if changes else default
    return canonical(overridden(settings, default, changes), accumulate), settings.version


@cache
def _resolved_pretraining(recipe: str, profile: str, changes: tuple[str, ...], accumulate: int) -> str:
    """Settings of a pre-training that differ from the profile's."""
    if not changes:
        return canonical({}, accumulate)
    settings, default = (pretraining_settings(recipe, profile, each) for each in (changes, ()))
    return canonical(overridden(settings, default, changes), accumulate)


def _place(plan: Plan, dataset: str) -> tuple[str, str]:
    """Value of `--data` for a data set, and what records call it."""
    if plan.data == SAMPLE:
        return SAMPLE, SAMPLE
    folders = [plan.data] if plan.data else [os.environ.get("TESPEC_DATA"), "data"]
    places = [Path(folder) / dataset for folder in folders if folder]
    found = next((place for place in places if place.exists()), places[0])
    return str(found), read_description(found).data or dataset


def _profile(plan: Plan, task: str) -> str:
    return plan.profile or (SAMPLE if _place(plan, task)[1] == SAMPLE else "paper")


def _split(changes: Iterable[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Changed settings of cells, and those of their pre-trainings."""
    given = tuple(changes)
    own = tuple(change for change in given if not change.startswith(PREFIX))
    return own, tuple(change.removeprefix(PREFIX) for change in given if change.startswith(PREFIX))


def canonical(overrides: Mapping[str, Any], accumulate: int = 1) -> str:
    """Changed settings as one text, whatever their order."""
    return json.dumps({**overrides, **({"accumulate": accumulate} if accumulate > 1 else {})}, sort_keys=True)


def _file_hash(path: Path | None) -> str:
    if path is None:
        return ""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def select(jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """Jobs whose task, method, kind and ablation are among the names; a group of which none is named is not narrowed.

    Raises:
        UserError: a name that no job has, or nothing is left.
    """
    groups: list[Callable[[Job], set[str]]] = [
        lambda job: {job.task},
        lambda job: {job.method},
        lambda job: {job.kind},
        lambda job: set(job.ablations),
    ]
    known = sorted({name for job in jobs for of in groups for name in of(job)})
    for name in only:
        if name not in known:
            raise UserError(f"--only {name}", "not in this plan", f"choose from {', '.join(known)}")
    chosen = list(jobs)
    for of in groups:
        wanted = set(only) & {name for job in jobs for name in of(job)}
        chosen = [job for job in chosen if not wanted or wanted & of(job)]
    if not chosen:
        raise UserError(f"--only {' '.join(only)}", "leaves nothing of this plan", "name fewer")
    return chosen


def require_data(plan: Plan, jobs: Iterable[Job]) -> None:
    """Refuse a plan before anything runs where data is missing.

    Raises:
        UserError: names the folders.
    """
    places = {each.data for job in jobs for each in (job, job.upstream) if each and each.data != SAMPLE}
    missing = sorted(place for place in places if not Path(place).exists())
    if missing:
        remedy = "give --data DIR, --data sample, or --checkpoints METHOD=FILE in place of a pre-training"
        raise UserError(", ".join(missing), f"the data of plan {plan.name} is not there", remedy)


def require_methods(plan: Plan, jobs: Iterable[Job]) -> None:
    """Refuse a plan before anything runs where a method cannot run as it says; methods are registered already.

    Raises:
        UserError: an unknown method, an architecture that it has not, or no weights to start from.
    """
    from tespec.pretraining.method import find_method

    for name, arch, upstream, checkpoint in sorted(
        {(job.method, job.arch, bool(job.upstream), job.checkpoint) for job in jobs if job.kind == EVALUATION}, key=str
    ):
        method = find_method(name)
        method.require(name, arch)
        if method.pretraining_data != "-" and not upstream and checkpoint is None:
            remedy = f"give --checkpoints {name}=FILE, or leave the method out"
            raise UserError(f"plan {plan.name}, {name}", "has no weights to start from", remedy)

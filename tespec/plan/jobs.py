"""What a plan's runs are: each a command line, with the run it needs before it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tespec.comparison.identity import TEST
from tespec.core.errors import UserError
from tespec.plan.files import Cells, Group, Plan, References, Start, World

if TYPE_CHECKING:
    from tespec.core.settings import Pretraining
    from tespec.runs.data import Data

PRETRAINING, EVALUATION, PROBE, REFERENCE = "pretraining", "evaluation", "probe", "reference"
ABLATED = "tespec"  # the method that ablations are of
UNTRAINED = "scratch"  # the method of what is trained for others to start from
PREFIX = "pretraining."  # of changes that are of the pre-training
STARTS = "starts"  # folder within the results, of the records of what others start from: of no table's world


@dataclass(frozen=True)
class Job:
    """One run.

    Attributes:
        kind: of its record.
        method: registered name; of a reference its kind.
        task: task, or data set of a pre-training.
        arch: "recurrent" or "feedforward", "" of a pre-training.
        seed: of everything random.
        changes: to the recipe of its pre-training.
        ablations: those that it is a row of, also where it is a plain cell as well: equal runs are one.
        split: "test" or "val", on which it is scored; of a pre-training "test".
        settings: changes to its own settings, beside those of the whole plan.
        start: what it starts from instead of a pre-training; None for what its method says.
        world: the sample world that it is of where that is not the plan's: others start from it.
    """

    kind: str
    method: str
    task: str
    arch: str
    seed: int
    changes: tuple[str, ...] = ()
    ablations: tuple[str, ...] = field(default=(), compare=False)
    split: str = TEST
    settings: tuple[str, ...] = ()
    start: Start | None = None
    world: World | None = None

    @property
    def label(self) -> str:
        """All but task and seed, for people."""
        kind = "" if self.kind == EVALUATION else self.kind
        return " ".join(filter(None, (kind, self.method, self.arch, *self._told_apart)))

    @property
    def _told_apart(self) -> tuple[str, ...]:
        """What tells runs of the same method, task and architecture apart."""
        start = () if self.start is None else (f"from {_named(self.start.world)}", *self.start.set)
        world = "" if self.world is None else f"on {_named(self.world)}"
        return (*self.changes, *self.settings, *start, world, "" if self.split == TEST else self.split)

    @cached_property
    def name(self) -> str:
        """For people and for files."""
        parts = [self.kind, self.method, self.task, self.arch, *self._told_apart, f"s{self.seed}"]
        return re.sub(r"[^A-Za-z0-9.=_-]+", "_", "-".join(filter(None, parts)))


def _named(world: World) -> str:
    return f"world {world.size} {world.seed}"


@dataclass(frozen=True)
class Workshop:
    """What all jobs of a plan share.

    Attributes:
        plan: with what the command line changed of it.
        results: folder of records.
        runs: folder of checkpoints, weights and logs.
        accept_code: hashes of other code whose records count.
        plugins: Python files to import.
        configs: folders of further configs.
        workers: processes that prepare batches, of each run.
        accumulate: gradient accumulation steps of each run.
        switches: further options of each run, which decide no result.
        data: where the data sets are, by name; see `find_all_data`.
    """

    plan: Plan
    results: Path
    runs: Path
    accept_code: tuple[str, ...] = ()
    plugins: tuple[Path, ...] = ()
    configs: tuple[Path, ...] = ()
    workers: int = 0
    accumulate: int = 1
    switches: tuple[str, ...] = ()
    data: dict[str, Data] = field(default_factory=dict)

    @property
    def recipe_changes(self) -> tuple[str, ...]:
        """Changes to all pre-trainings."""
        return _of_pretraining(self.plan.set)

    @property
    def own_changes(self) -> tuple[str, ...]:
        """Changes to all cells."""
        return _of_cells(self.plan.set)

    def world(self, job: Job) -> World | None:
        """The sample world that a job is of; None for real data."""
        return job.world or self.plan.world

    def data_of(self, job: Job) -> Data:
        """Where a job's data is, or will be."""
        from tespec.runs.data import SAMPLE, Data
        from tespec.sample import world_folder

        if job.world is None:
            return self.data[job.task]
        return Data(world_folder(job.world.size, job.world.seed) / job.task, SAMPLE)

    def results_of(self, job: Job) -> Path:
        """Folder of a job's record."""
        return self.results if job.world is None else self.results / STARTS

    def profile(self, dataset: str) -> str:
        """The profile of runs on a data set."""
        found = self.data.get(dataset)
        return self.plan.profile or (found.profile if found else "sample" if self.plan.world else "paper")

    def recipe(self, method: str, task: str, changes: Iterable[str] = ()) -> dict[str, Any] | None:
        """Settings of a method's pre-training for a task; None where its weights are not made here."""
        if method in self.plan.checkpoints:
            return None
        settings = recipe_settings(method, self.profile(task), (*self.recipe_changes, *changes))
        return None if settings is None else _facts(settings)

    def before(self, job: Job) -> Job | None:
        """The pre-training, or the training on another world, that a job starts from."""
        if job.kind not in (EVALUATION, PROBE):
            return None
        seed = job.seed if self.plan.pretraining_seed is None else self.plan.pretraining_seed
        if job.start is not None:
            own, world = job.start.set, job.start.world
            return Job(EVALUATION, UNTRAINED, job.task, job.arch, seed, settings=own, world=world)
        recipe = self.recipe(job.method, job.task, job.changes)
        if recipe is None:
            return None
        return Job(PRETRAINING, job.method, str(recipe["dataset"]), "", seed, job.changes)

    def split(self, group: Cells | References) -> str:
        """The split on which a group of runs is scored."""
        return group.split or self.plan.split

    def with_pretrainings(self, jobs: Sequence[Job]) -> list[Job]:
        """Jobs behind the trainings that they start from, each once."""
        return list(dict.fromkeys([*filter(None, map(self.before, jobs)), *jobs]))


def _of_pretraining(changes: Iterable[str]) -> tuple[str, ...]:
    return tuple(change.removeprefix(PREFIX) for change in changes if change.startswith(PREFIX))


def _of_cells(changes: Iterable[str]) -> tuple[str, ...]:
    return tuple(change for change in changes if not change.startswith(PREFIX))


@cache
def recipe_settings(name: str, profile: str, changes: tuple[str, ...]) -> Pretraining | None:
    """A method's pre-training under a profile and changes; None where it has no recipe."""
    from tespec.core.config import pretraining_settings
    from tespec.pretraining.method import find_method

    method = find_method(name)
    if method.recipe is None:
        return None
    return pretraining_settings(method.recipe, profile, changes, method.network)


def _facts(settings: Pretraining) -> dict[str, Any]:
    from tespec.core.config import as_facts

    return as_facts(settings)


def all_jobs(shop: Workshop) -> list[Job]:
    """All runs of a plan but the pre-trainings that others start from, each once.

    Raises:
        UserError: an unknown name, or a method without this architecture or without a way to its weights.
    """
    from tespec.comparison.ablations import read_ablation
    from tespec.comparison.published import table_of
    from tespec.core.config import as_facts, pretraining_settings

    plan, found = shop.plan, dict[Job, tuple[str, ...]]()

    def add(jobs: Iterable[Job], ablation: str = "") -> None:
        for job in jobs:
            found[job] = (*found.get(job, ()), *([ablation] if ablation else []))

    groups: list[Group] = [*plan.cells, *plan.probes, *plan.ablations, *plan.references, *plan.pretrainings]
    for seed in dict.fromkeys([*plan.seeds, *(seed for group in groups for seed in group.seeds or ())]):

        def has(group: Group, seed: int = seed) -> bool:
            return seed in (group.seeds or plan.seeds)

        for kind, cells in ((EVALUATION, plan.cells), (PROBE, plan.probes)):
            for each in filter(has, cells):
                add(_cells(kind, each, shop, seed))
        for ablated_on, name in [(group.task, name) for group in filter(has, plan.ablations) for name in group.tables]:
            ablation = read_ablation(name)
            task = ablated_on or ablation.task
            if table_of(task) != table_of(ablation.task):
                remedy = f"its numbers are those of {ablation.task}; choose a task that is scored alike"
                raise UserError(f"plan {plan.name}, ablation {name} on {task}", "stands in no table", remedy)
            default = as_facts(pretraining_settings(ABLATED, shop.profile(task), shop.recipe_changes))
            rows = [tuple(row.changes(default)) for row in ablation.rows]
            row_jobs = (Job(EVALUATION, ABLATED, task, "recurrent", seed, row, split=plan.split) for row in rows)
            add(row_jobs, ablation=name)
        for measured in filter(has, plan.references):
            # What is counted has no seed.
            first = (measured.seeds or plan.seeds)[0]
            kinds = [name for name in measured.kinds if name == "frame" or seed == first]
            add(
                Job(REFERENCE, name, task, "feedforward", seed, split=shop.split(measured))
                for task in measured.tasks
                for name in kinds
            )
        for made in filter(has, plan.pretrainings):
            for method in made.methods:
                recipe = shop.recipe(method, "", made.set)
                if recipe is None:
                    raise UserError(f"plan {plan.name}, {method}", "has no recipe to pre-train by", "leave it out")
                add([Job(PRETRAINING, method, str(recipe["dataset"]), "", seed, made.set)])
    return [replace(job, ablations=rows) for job, rows in found.items()]


def _cells(kind: str, group: Cells, shop: Workshop, seed: int) -> Iterable[Job]:
    from tespec.core.config import names
    from tespec.core.registry import METHODS
    from tespec.pretraining.method import find_method

    known, plan = names("tasks"), shop.plan
    for task in group.tasks or ():
        if task not in known:
            raise UserError(f"plan {plan.name}, task {task}", "no such task", f"choose from {', '.join(known)}")
    methods = {name: find_method(name) for name in group.methods or sorted(METHODS.module_dict)}
    able = {
        name: method
        for name, method in methods.items()
        if method.recipe is not None or method.pretraining_data == "-" or name in plan.checkpoints or group.start
    }
    for name in set(methods) - set(able) if group.methods else ():
        remedy = f"give --checkpoints {name}=FILE, or the group a start (docs/plan.md)"
        raise UserError(f"plan {plan.name}, {name}", "has no weights to start from", remedy)
    if group.start is not None:
        _check_start(group, group.start, plan)
    changes, settings = _of_pretraining(group.set), _of_cells(group.set)
    for arch in group.architectures:
        for name, method in able.items():
            if arch in method.architectures:
                split = shop.split(group)
                made = Job(kind, name, "", arch, seed, changes, split=split, settings=settings, start=group.start)
                yield from (replace(made, task=task) for task in group.tasks or known)
            elif len(group.architectures) == 1 and group.methods:
                method.require(name, arch)


def _check_start(group: Cells, start: Start, plan: Plan) -> None:
    """Refuse a start that cannot be made for a group.

    Raises:
        UserError: the plan is of real data, or of the start's own world.
    """
    where = f"plan {plan.name}, start"
    if plan.world is None:
        raise UserError(where, "is trained on a sample world, and the cells are on real data", "leave it out")
    if start.world == plan.world:
        raise UserError(where, "is of the world that its cells are of", "give its world another seed")
    if group.methods is None:
        raise UserError(where, "goes with the methods that start from it", "name them (methods: [labels])")
    if _of_pretraining(group.set):
        raise UserError(where, "is no pre-training, whose settings could be changed", "write start: {set: [...]}")


def select(jobs: Sequence[Job], only: Sequence[str]) -> list[Job]:
    """The jobs whose task, method, kind and ablation are among the names; of what no name is of, all are taken.

    Raises:
        UserError: a name that none has, or nothing left.
    """

    def labels(job: Job) -> tuple[set[str], ...]:
        return {job.task}, {job.method}, {job.kind}, set(job.ablations)

    groups = [set[str]().union(*group) for group in zip(*map(labels, jobs), strict=True)]
    known = sorted(set[str]().union(*groups))
    for name in only:
        if name not in known:
            raise UserError(f"--only {name}", "nothing of this plan", f"choose from {', '.join(known)}")
    wanted = [set(only) & group for group in groups]
    chosen = [
        job for job in jobs if all(not names or names & label for names, label in zip(wanted, labels(job), strict=True))
    ]
    if not chosen:
        raise UserError("--only", "leaves nothing of this plan", "ask for others")
    return chosen


def find_all_data(shop: Workshop, jobs: Sequence[Job], folder: Path | None, *, needed: bool = True) -> Workshop:
    """The workshop with the folder of every data set that jobs and their pre-trainings need.

    The sample world takes the place of nothing: it is used where the plan or the command line names it. Where data is
    not `needed`, as nothing will run, what is missing gets the folder in which it would be looked for.

    Raises:
        UserError: a data set is missing.
    """
    from tespec.runs.data import SAMPLE, Data, find_data, given_data
    from tespec.sample import world_folder

    world, data, missing = shop.plan.world, dict[str, Data](), list[str]()
    # The tasks first: their data decides the profile, and that the data of the pre-trainings.
    for rounds in range(2):
        wanted = jobs if rounds == 0 else [*jobs, *filter(None, map(shop.before, jobs))]
        for dataset in sorted({job.task for job in wanted} - set(data)):
            if world is not None:
                data[dataset] = Data(world_folder(world.size, world.seed) / dataset, SAMPLE)
                continue
            inside = folder / dataset if folder else shop.plan.data / dataset if shop.plan.data else None
            if given_data(dataset) is None if inside is None else not inside.is_dir():
                missing.append(str(inside or f"./data/{dataset}"))
                data[dataset] = Data(inside or Path("data", dataset), dataset)
            else:
                data[dataset] = find_data(dataset, inside)
        if missing and needed:
            raise UserError(
                ", ".join(missing),
                f"the data of plan {shop.plan.name} is not there",
                "give --data DIR or $TESPEC_DATA, --checkpoints METHOD=FILE (no pre-training), or --world small",
            )
        shop = replace(shop, data=data)
    return shop


def command(job: Job, shop: Workshop, checkpoint: Path | None = None) -> list[str]:
    """What runs a job, behind `tespec`; with weights that were made for it, where it does not find them itself."""
    plan = shop.plan
    data = _data(job, shop)
    given = given_file(job, plan) or checkpoint
    if job.kind == PRETRAINING:
        arguments = ["pretrain", "--method", job.method, *data]
        changes = [*shop.recipe_changes, *job.changes]
    elif job.kind == REFERENCE:
        arguments = ["run", "--reference", job.method, "--task", job.task, *data]
        changes = list(shop.own_changes)
    else:
        arguments = ["run", "--method", job.method, "--task", job.task, "--arch", job.arch, *data]
        changes = [*shop.own_changes, *job.settings]
        before = shop.before(job)
        if given is None and before is not None and before.kind == PRETRAINING:
            changes += [f"{PREFIX}{change}" for change in (*shop.recipe_changes, *job.changes)]
            if checkpoint is None and before.seed != job.seed:
                arguments += ["--pretraining-seed", str(before.seed)]
        arguments += ["--checkpoint", str(given)] if given else []
        arguments += ["--probe"] if job.kind == PROBE else []
        # The report shows the first seed of each row.
        changed = job.changes or job.settings or job.world
        quiet = job.kind == EVALUATION and (changed or job.seed != min(plan.seeds))
        arguments += ["--no-picture"] if quiet else []
    arguments += ["--split", job.split] if job.split != TEST else []
    arguments += [part for change in changes for part in ("--set", change)]
    arguments += ["--profile", plan.profile] if plan.profile else []
    arguments += ["--seed", str(job.seed)]
    arguments += ["--threads", str(plan.threads)] if plan.threads else []
    arguments += ["--accumulate", str(shop.accumulate)] if shop.accumulate > 1 else []
    arguments += shop.switches
    arguments += [part for path in shop.plugins for part in ("--import", str(path))]
    arguments += [part for path in shop.configs for part in ("--configs", str(path))]
    arguments += [part for code in shop.accept_code for part in ("--accept-code", code)]
    where = ["--workers", str(shop.workers), "--results", str(shop.results_of(job)), "--runs", str(shop.runs)]
    return [*arguments, *where, "--resume"]


def given_file(job: Job, plan: Plan) -> Path | None:
    """The file that a plan gives a job to start from."""
    return None if job.start is not None or job.kind == REFERENCE else plan.checkpoints.get(job.method)


def _data(job: Job, shop: Workshop) -> list[str]:
    """Names the data only where it is not what a run takes by itself, so that commands fit every machine."""
    from tespec.runs.data import given_data
    from tespec.sample import world_folder

    found = shop.data_of(job).root
    return [] if found == (given_data(job.task) or world_folder() / job.task) else ["--data", str(found)]

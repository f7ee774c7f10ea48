"""What is known of a plan's jobs: done, running, failed or missing, and what the others will take."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from tespec.comparison.basis import agrees, recipe_of
from tespec.comparison.identity import SPLITS, TEST, canonical
from tespec.comparison.records import Record, code_of, read_records
from tespec.core.config import as_facts
from tespec.core.errors import UserError
from tespec.plan.files import World
from tespec.plan.jobs import (
    EVALUATION,
    PRETRAINING,
    PROBE,
    REFERENCE,
    STARTS,
    Job,
    Workshop,
    given_file,
    recipe_settings,
)

if TYPE_CHECKING:
    from tespec.core.settings import Finetuning

DONE, MISSING, RUNNING, FAILED = "done", "missing", "running", "failed"
UNKNOWN = 60.0  # s of a job that nothing is known of
BACKBONE, MODEL = "backbone.safetensors", "model.safetensors"  # what a pre-training, and a run of a task, leaves


def records_of(shop: Workshop) -> tuple[list[Record], list[str]]:
    """The records of a plan's results and of what its cells start from, and a line for each file that is none."""
    found, starts = read_records(shop.results / "runs"), read_records(shop.results / STARTS / "runs")
    return [*found[0], *starts[0]], [*found[1], *starts[1]]


class Ledger:
    """The records of a plan's results, and which of them are its jobs'.

    A record is a job's where it is of the same kind, method, task, architecture, seed and split, of the same settings
    but for the precision, which the device decides, of the same data and code, and of weights that were made by the
    settings, seed, data and code of the job before it, on this machine or on another. Threads and torch's version do
    not count: records name them.
    """

    def __init__(self, shop: Workshop, records: Sequence[Record]) -> None:
        self.shop, self.records = shop, sorted(records, key=lambda record: record["written"], reverse=True)
        self._found: dict[Job, Record | None] = {}
        self._all: dict[Job, list[Record]] = {}
        self._prints: dict[str, str] = {}
        self._steps: dict[Job, int] = {}
        self._codes: dict[tuple[str, str], set[str]] = {}

    @cached_property
    def _by_job(self) -> dict[tuple[str, str, int], list[Record]]:
        groups: dict[tuple[str, str, int], list[Record]] = {}
        for record in self.records:
            groups.setdefault((record["kind"], record["method_name"], record["seed"]), []).append(record)
        return groups

    @cached_property
    def _made_by(self) -> dict[str, set[str]]:
        """Hashes of the code of the pre-trainings that left some weights, by the hash of these."""
        found: dict[str, set[str]] = {}
        for record in self.records:
            if record["kind"] == PRETRAINING and (sha256 := record["weights"].get("sha256")):
                found.setdefault(sha256, set()).add(code_of(record))
        return found

    def record(self, job: Job) -> Record | None:
        """The newest record of a job; None where it has to be run, for itself or for the weights that it leaves."""
        if job not in self._found:
            left = job.kind == PRETRAINING or job.world is not None
            found = (each for each in self._every(job) if not left or self._has_weights(each, job))
            self._found[job] = next(found, None)
        return self._found[job]

    def is_recorded(self, job: Job) -> bool:
        """Whether a job has a record, wherever the weights are that it left."""
        return bool(self._every(job))

    def _every(self, job: Job) -> list[Record]:
        """All records of a job, newest first, wherever their weights are."""
        if job not in self._all:
            there = self._by_job.get((job.kind, job.method, job.seed), ())
            config = self._config(job) if there else {}
            self._all[job] = [record for record in there if self._is(record, job, config)]
        return self._all[job]

    def weights(self, job: Job) -> Path | None:
        """The weights that a job starts from, where another run of this plan made them."""
        before = self.shop.before(job)
        record = before and self.record(before)
        return self._left_by(before, record) if before and record else None

    def _left_by(self, job: Job, record: Record) -> Path:
        """The weights that a run leaves."""
        return self.shop.runs / record["name"] / (BACKBONE if job.kind == PRETRAINING else MODEL)

    def _has_weights(self, record: Record, job: Job) -> bool:
        """Whether the weights that a run left are on this machine."""
        from tespec.weights.files import sha256_of

        weights = self._left_by(job, record)
        return weights.is_file() and (job.kind != PRETRAINING or sha256_of(weights) == record["weights"].get("sha256"))

    def lost_weights(self, job: Job) -> bool:
        """Whether others start from a job whose record is there and whose weights are not."""
        return job.world is not None and self.record(job) is None and self.is_recorded(job)

    def only_evaluates(self, job: Job, planned: Collection[Job]) -> bool:
        """Whether the training of a job is that of the same run on the other split, made here or planned before it."""
        if job.kind != EVALUATION:
            return False
        others = [replace(job, split=split) for split in SPLITS if split != job.split]
        made = any(self._has_weights(record, other) for other in others for record in self._every(other))
        return made or (job.split != TEST and replace(job, split=TEST) in planned)

    def _is(self, record: Record, job: Job, config: Mapping[str, Any]) -> bool:
        """Whether a record is a job's."""
        if not self._is_scored(record, job):
            return False
        # Data is read only where there is a record that it could belong to.
        return (
            self._is_set_alike(record, job, config)
            and record["data_fingerprint"] == self._fingerprint(job)
            and self._starts_alike(record, job)
        )

    def _is_set_alike(self, record: Record, job: Job, config: Mapping[str, Any]) -> bool:
        """Whether a record is of a job's settings and code, whatever its data and its weights."""
        known = code_of(record) in self._codes_of(job.kind, job.method)
        return known and canonical(_comparable(record["config"])) == canonical(config)

    def might_be_of(self, job: Job) -> bool:
        """Whether there is a record of a job but for its data, which is not on this machine."""
        if self.shop.data_of(job).root.exists():
            return False
        there = [each for each in self._by_job.get((job.kind, job.method, job.seed), ()) if self._is_scored(each, job)]
        config = self._config(job) if there else {}
        return any(self._is_set_alike(each, job, config) for each in there)

    def _is_scored(self, record: Record, job: Job) -> bool:
        """Whether a record is of what a job scores."""
        return job.kind == PRETRAINING or (record["task"], record["arch"], record["split"]) == (
            job.task,
            job.arch,
            job.split,
        )

    def codes(self, jobs: Sequence[Job]) -> set[str]:
        """Hashes of the code whose records count."""
        return set().union(*(self._codes_of(job.kind, job.method) for job in jobs))

    def _codes_of(self, kind: str, method: str) -> set[str]:
        from tespec.comparison.identity import plugin_files, run_code
        from tespec.pretraining.method import find_method
        from tespec.runs.references import KINDS

        if (kind, method) not in self._codes:
            found = KINDS[method] if kind == REFERENCE else find_method(method)
            self._codes[kind, method] = {run_code(plugin_files(type(found), self.shop.plugins))}
        return self._codes[kind, method] | set(self.shop.accept_code)

    def settings(self, job: Job) -> Finetuning:
        """Settings of a job that is no pre-training, but for what its device decides."""
        from tespec.core.config import finetuning_settings
        from tespec.datasets.description import read_description
        from tespec.pretraining.method import find_method
        from tespec.runs.finetune import with_start
        from tespec.sample.make import description

        shop, data, world = self.shop, self.shop.data_of(job), self.shop.world(job)
        described = description(world.size, world.seed, job.task) if world else read_description(data.root)
        network = "swin" if job.kind == REFERENCE else find_method(job.method).network
        settings = finetuning_settings(
            job.task,
            job.arch,
            shop.profile(job.task),
            (*shop.own_changes, *job.settings),
            described.overrides(),
            network,
        )
        if job.kind == REFERENCE:
            return settings
        before = shop.before(job)
        if before is None:
            return with_start(settings, find_method(job.method), given_file(job, shop.plan), sample=data.is_sample)
        if before.kind == EVALUATION:  # weights that are of no pre-training
            return settings
        # Weights made here are of the data that the plan has.
        alike = shop.data[before.task].is_sample == data.is_sample
        return settings.after_pretraining_on(before.task) if alike else settings

    def steps(self, job: Job) -> int:
        """Of a job's training, for a reference without one as many as if it had one."""
        if job not in self._steps:
            if job.kind == PRETRAINING:
                recipe = self.shop.recipe(job.method, job.task, job.changes)
                assert recipe is not None
                self._steps[job] = int(recipe["optimisation"]["steps"])
            else:
                self._steps[job] = self.settings(job).optimisation.steps
        return self._steps[job]

    def require_splits(self, jobs: Sequence[Job]) -> None:
        """Refuse jobs that are scored on a split which their task's data has not.

        Raises:
            UserError: there are some.
        """
        for job in {job.task: job for job in jobs if job.split != TEST}.values():
            if not self.settings(job).splits.get(job.split):
                remedy = (
                    "take recordings out of its splits.train and name them as splits.val (--configs), or leave it out"
                )
                raise UserError(f"plan {self.shop.plan.name}, {job.task}", "has no validation split", remedy)

    def _config(self, job: Job) -> dict[str, Any]:
        """What a job's record holds as its settings."""
        from tespec.runs.finetune import config_of
        from tespec.runs.train import accumulation_facts

        accumulated = accumulation_facts(self.shop.accumulate)
        if job.kind == PRETRAINING:
            recipe = self.shop.recipe(job.method, job.task, job.changes)
            assert recipe is not None
            return _comparable(recipe | accumulated)
        extra: dict[str, Any] = accumulated
        if job.kind == REFERENCE:
            extra = extra | {"input": job.method}
        elif job.kind == PROBE:
            from tespec.runs.probe import DEFINITION

            extra = extra | {"probe": DEFINITION}
        return _comparable(config_of(self.settings(job), job.split) | extra)

    def _fingerprint(self, job: Job) -> str:
        """Fingerprint of a job's data; empty where it is not made yet."""
        from tespec.datasets.recording import fingerprint
        from tespec.pretraining.objective import build_objective
        from tespec.tasks import build_task

        data = self.shop.data_of(job)
        if not data.root.exists():
            return ""
        if job.kind != PRETRAINING:
            key = f"{data.root} {job.task} {job.split} {job.settings}"
            if key not in self._prints:
                self._prints[key] = fingerprint(*build_task(self.settings(job), data.root, job.split).splits)
            return self._prints[key]
        key = f"{job.method} {job.changes}"
        if key not in self._prints:
            changes = (*self.shop.recipe_changes, *job.changes)
            recipe: Any = recipe_settings(job.method, self.shop.profile(job.task), changes)
            self._prints[key] = build_objective(recipe, data.root).fingerprint()
        return self._prints[key]

    def _starts_alike(self, record: Record, job: Job) -> bool:
        """Whether a record started from the weights that its job would, or from such as were made alike elsewhere."""
        from tespec.weights.files import sha256_of

        if job.kind == PRETRAINING:
            return True
        sha256 = record["weights"].get("sha256", "")
        given, before = given_file(job, self.shop.plan), self.shop.before(job)
        if given is not None:
            return bool(sha256_of(given) == sha256)
        if before is None:
            return recipe_of(record) is None
        # By what the weights say of themselves: another machine's differ in their last digits, and do as well.
        said = record["weights"].get("recipe") or {}
        if said.get("seed") != before.seed or not self._is_of_data(said, before):
            return False
        if before.kind == EVALUATION:
            wanted = as_facts(self.settings(before))
            return "optimisation" in said and _alike({name: said.get(name) for name in wanted}, wanted)
        made_by = self._made_by.get(sha256)
        if made_by and not made_by & self._codes_of(PRETRAINING, job.method):
            return False
        recipe, planned = recipe_of(record), self.shop.recipe(job.method, job.task, job.changes)
        return recipe is not None and planned is not None and agrees(recipe, planned)

    def _is_of_data(self, said: Mapping[str, Any], before: Job) -> bool:
        """Whether weights were made of the data of a job, as far as they say so and it is on this machine."""
        names = said.get("data_fingerprint"), self._fingerprint(before)
        return not all(names) or names[0] == names[1]


def _alike(config: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return canonical(_comparable(config)) == canonical(_comparable(other))


def _comparable(config: Mapping[str, Any]) -> dict[str, Any]:
    """Settings without the precision, which follows from the device where it is not set."""
    optimisation = {name: value for name, value in config["optimisation"].items() if name != "precision"}
    return {**config, "optimisation": optimisation}


def state_of(job: Job, ledger: Ledger) -> str:
    """Done where there is a record, else what the plan's last start left of a job."""
    from tespec.training.status import read_status

    if ledger.record(job) is not None:
        return DONE
    status = read_status(log_folder(ledger.shop) / job.name)
    if status.get("state") == RUNNING and _is_alive(status.get("process")):
        return RUNNING
    return FAILED if status.get("state") == FAILED else MISSING


def states_of(jobs: Sequence[Job], ledger: Ledger) -> dict[Job, str]:
    """The states of jobs and of those that they start from.

    A pre-training that a plan has for its own sake is done where it has a record, wherever its weights are, unless a
    run that is not done starts from it.
    """
    states = {job: state_of(job, ledger) for job in ledger.shop.with_pretrainings(jobs)}
    needed = {ledger.shop.before(job) for job in jobs if states[job] != DONE}
    for job in jobs:
        if job.kind == PRETRAINING and job not in needed and ledger.is_recorded(job):
            states[job] = DONE
    return states


def log_folder(shop: Workshop) -> Path:
    """Where the logs and states of a plan's jobs are kept."""
    return shop.runs / "plans" / shop.plan.name


def _is_alive(process: object) -> bool:
    """Whether there is a process of that number on this machine."""
    if not isinstance(process, int) or process <= 0:
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def of_other_code(ledger: Ledger, jobs: Sequence[Job]) -> str:
    """A line on records that do not count since other code computed them, "" where there are none."""
    codes = ledger.codes(jobs)
    others = Counter(code_of(record) for record in ledger.records if code_of(record) not in codes)
    if not others:
        return ""
    named = ", ".join(
        f"{count} record{'s' if count > 1 else ''} of code {code}" for code, count in sorted(others.items())
    )
    return f"ignored: {named}; --accept-code HASH takes those of the same settings"


def of_worlds_not_made(ledger: Ledger, jobs: Sequence[Job]) -> list[str]:
    """A line for each sample world that is not on this machine and of which there seem to be records."""
    found: dict[World, list[Job]] = {}
    for job in jobs:
        world = ledger.shop.world(job)
        if world is not None and ledger.might_be_of(job):
            found.setdefault(world, []).append(job)
    return [
        f"the sample world (size {world.size}, seed {world.seed}) is not made on this machine: whether the records of "
        f"{len(members)} runs are of it shows after python -m tespec.sample --size {world.size} --seed {world.seed} "
        f"--datasets {' '.join(sorted({job.task for job in members}))}"
        for world, members in found.items()
    ]


def alike(job: Job, ledger: Ledger) -> list[Record]:
    """The records by which the time and memory of a job can be judged: those most like it."""
    profile = ledger.shop.profile(job.task)
    same = [each for each in ledger.records if (each["kind"], each["profile"]) == (job.kind, profile)]
    for names in (("method_name", "task", "arch"), ("task", "arch"), ("method_name",), ()):
        wanted = {"method_name": job.method, "task": job.task, "arch": job.arch}
        # A pre-training has no task and no architecture of its own.
        compared = [name for name in names if job.kind != PRETRAINING or name == "method_name"]
        found = [each for each in same if all(dict(each)[name] == wanted[name] for name in compared)]
        if found:
            return found
    return []


# What runs of a kind have in common where one takes as long as the other; a prior is counted, others are trained.
COSTS = {
    PRETRAINING: ("method_name",),
    EVALUATION: ("task", "arch"),
    PROBE: ("task", "arch"),
    REFERENCE: ("method_name", "task"),
}


def seconds_of(job: Job, ledger: Ledger) -> float | None:
    """Seconds that a job will take: the median of those records that cost as much (`COSTS`).

    Where there are none, what the plan states; where it states nothing, the median of those most like it; else None.
    Trainings are taken to last as long as they have steps.
    """
    stated = ledger.shop.plan.seconds.get(job.arch if job.kind == EVALUATION else job.kind, {})
    said = stated.get(job.method if job.kind == PRETRAINING else job.task)
    like = alike(job, ledger)
    wanted = {"method_name": job.method, "task": job.task, "arch": job.arch}
    exact = [each for each in like if all(dict(each)[name] == wanted[name] for name in COSTS[job.kind])]
    if exact or (like and said is None):
        return float(median(_seconds_with(ledger.steps(job), each) for each in exact or like))
    if said is None or not job.settings:
        return said
    return said * ledger.steps(job) / ledger.steps(replace(job, settings=()))


def _seconds_of_all(jobs: Sequence[Job], ledger: Ledger) -> dict[Job, float | None]:
    """Seconds that each of some jobs will take where all of them run: a training for both splits is of one of them."""
    planned = set(jobs)
    return {
        job: _evaluation_of(job, ledger) if ledger.only_evaluates(job, planned) else seconds_of(job, ledger)
        for job in jobs
    }


def _evaluation_of(job: Job, ledger: Ledger) -> float:
    """Seconds of a job without its training, by the records most like it; 0 without any."""
    times = [record["time"] for record in alike(job, ledger)]
    return median([time["total"] - time.get("train", 0.0) for time in times] or [0.0])


def _seconds_with(steps: int, record: Record) -> float:
    """What a record's run would have taken with so many steps of training."""
    time, trained = record["time"], record["config"].get("optimisation", {}).get("steps", steps)
    return float(time["total"] + time.get("train", 0.0) * (steps / trained - 1))


def memory_of(job: Job, ledger: Ledger) -> dict[str, float]:
    """Peak bytes by "device" and "process", as far as the records most like a job say it."""
    keys = {"device": "peak_device_memory_bytes", "process": "peak_memory_bytes"}
    found = {name: [each["resources"][key] for each in alike(job, ledger) if key in each["resources"]]
             for name, key in keys.items()}  # fmt: skip
    return {name: max(values) for name, values in found.items() if values}


def in_order(jobs: Sequence[Job], ledger: Ledger) -> list[Job]:
    """Those first that the most time hangs on: a pre-training counts with the longest run that waits for it."""
    took = {job: seconds or UNKNOWN for job, seconds in _seconds_of_all(jobs, ledger).items()}
    longest: dict[Job, float] = {}
    for job in jobs:
        before = ledger.shop.before(job)
        if before is not None:
            longest[before] = max(longest.get(before, 0.0), took[job])
    return sorted(jobs, key=lambda job: -took[job] - longest.get(job, 0.0))


def forecast(jobs: Sequence[Job], ledger: Ledger, at_once: int) -> str:
    """How long jobs will take and how much memory, in words."""
    if not jobs:
        return "nothing to do"
    known = [each for each in _seconds_of_all(jobs, ledger).values() if each is not None]
    if not known:
        return "no forecast from records: nothing like it was run yet"
    # What nothing is known of is taken to be as long as the others are on average.
    minutes = sum(known) / len(known) * len(jobs) / at_once / 60
    time = f"{minutes / 60:.1f} h" if minutes >= 60 else f"{math.ceil(minutes)} min"
    runs = f"{len(jobs)} run{'s' if len(jobs) > 1 else ''}"
    needed = [memory_of(job, ledger) for job in jobs]
    peaks = {name: max((each[name] for each in needed if name in each), default=0.0) for name in ("device", "process")}
    kinds = {"device": "GPU memory", "process": "memory of a process"}
    memory = "".join(f", up to {peaks[name] / 2**30:.1f} GiB of {said}" for name, said in kinds.items() if peaks[name])
    return f"estimated {time} for {runs}, {at_once} at once{memory}, from similar runs"


def table(states: Mapping[Job, str]) -> list[str]:
    """Lines of a table: what is done, by method and architecture, and by task."""
    tasks = sorted({job.task for job in states})
    labels = list(dict.fromkeys(job.label for job in states))
    rows = []
    for label in labels:
        cells = []
        for task in tasks:
            each = [state for job, state in states.items() if (job.label, job.task) == (label, task)]
            others = Counter(state for state in each if state not in (DONE, MISSING))
            said = "".join(f", {count} {state}" for state, count in sorted(others.items()))
            cells.append(f"{each.count(DONE)}/{len(each)} done{said}" if each else "-")
        rows.append([label, *cells])
    widths = [max(len(row[column]) for row in [["", *tasks], *rows]) + 2 for column in range(len(tasks) + 1)]
    return ["".join(f"{text:<{width}}" for text, width in zip(row, widths, strict=True)).rstrip()
            for row in [["", *tasks], *rows]]  # fmt: skip

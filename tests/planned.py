"""Jobs of a plan and records of them, for the tests of plans."""

from __future__ import annotations

from pathlib import Path

from tespec.comparison.identity import package_code
from tespec.comparison.records import new_record
from tespec.core.config import as_facts
from tespec.core.registry import register_methods
from tespec.plan.files import Cells, Plan, Start, World
from tespec.plan.jobs import EVALUATION, Job, Workshop, all_jobs, find_all_data
from tespec.plan.states import Ledger

ONE = {"methods": ("scratch",), "architectures": ("recurrent",), "tasks": ("ddd17",)}
LONGER = ("optimisation.steps=4",)


def tiny_plan(**groups) -> Plan:
    """A plan on the tiny world."""
    return Plan(**({"name": "a", "title": "a", "world": World(size="tiny"), "profile": "tiny"} | groups))


def workshop(plan: Plan, folder: Path, **changes):
    """A plan's workshop and all of its jobs, on a world that is not made."""
    register_methods()
    shop = Workshop(plan, folder / "results", folder / "runs", **changes)
    jobs = all_jobs(shop)
    return find_all_data(shop, jobs, None), jobs


def started(tmp_path, **changes):
    """The workshop and the only job of a plan whose cell starts from a network of another world."""
    other = Start(world=World(size="tiny", seed=1), set=LONGER)
    cells = Cells(**(ONE | {"methods": ("labels",), "start": other} | changes))
    plan = tiny_plan(set=("batch_size=3",), cells=(cells,))
    shop, (job,) = workshop(plan, tmp_path)
    return shop, job


def record_of(job: Job, ledger: Ledger, **changes):
    """What a run of a job would leave, but for the data, which is not made."""
    shop = ledger.shop
    recipe = shop.recipe(job.method, job.task, job.changes) if job.kind == EVALUATION else None
    if job.start is not None:
        recipe = as_facts(ledger.settings(shop.before(job)))
    weights = {"start_sha256": "ff", "sha256": ""}
    if recipe:
        weights["recipe"] = recipe | {"seed": shop.before(job).seed}
    fields = {
        "kind": job.kind,
        "method_name": job.method,
        "method": {"title": job.method},
        "task": job.task,
        "arch": job.arch,
        "profile": shop.profile(job.task),
        "data": "sample",
        "data_fingerprint": "",
        "seed": job.seed,
        "split": job.split,
        "config": ledger._config(job),
        "weights": weights,
        "command": "",
        "time": {"total": 60.0},
        "code": package_code(),
    }
    empty = ("protocol", "metrics", "groups", "recordings", "classes", "environment")
    return new_record(**(fields | {name: {} for name in empty} | {"curve": []} | changes))

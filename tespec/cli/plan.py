"""Run the missing cells of a plan in parallel, each after its pre-training."""

import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from tespec.cli.main import new_app, refuse
from tespec.cli.options import (
    PROFILES,
    Changes,
    Plugins,
    Words,
    network_of,
    numbers_of,
    read_config,
)
from tespec.comparison.records import Record, read_records
from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS, RUNS
from tespec.core.progress import say
from tespec.plan import jobs as plans
from tespec.plan.execute import Pending, make_executor, run_all
from tespec.plan.jobs import PRETRAINING, SAMPLE, Job, Plan
from tespec.registry import register_methods
from tespec.runs.setup import Advanced, NonNegativeInt, PositiveInt

app = new_app("plan")
# Options of a run that the plan must know, since they determine the result.
OF_PLAN = {
    *(
        "--task",
        "--method",
        "--arch",
        "--profile",
        "--data",
        "--sensor",
        "--split",
        "--seed",
        "--seeds",
        "--backbone",
    ),
    *("--checkpoint", "--set", "--label-fraction", "--freeze", "--probe", "--accumulate"),
}


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of running a plan."""

    only: Annotated[
        tuple[str, ...], Words, Parameter(help="run only these tasks, methods, ablations or kinds")
    ] = ()
    seeds: Annotated[
        tuple[NonNegativeInt, ...], Words, Parameter(help="seeds instead of the plan's")
    ] = ()
    data: Annotated[
        str | None, Parameter(help="folder of all data sets, or sample: the sample world")
    ] = None
    profile: Annotated[
        str | None, Parameter(help=f"{PROFILES}, or FILE.yaml (default: the plan's)")
    ] = None
    checkpoints: Annotated[
        tuple[str, ...], Words, Parameter(help="METHOD=FILE ...: weights of methods")
    ] = ()
    changes: Changes = ()
    processes: Annotated[
        PositiveInt | None, Parameter(help="runs in parallel (default: the plan's)")
    ] = None
    gpus: Annotated[
        tuple[str, ...], Words, Parameter(help="local GPUs, one run each; 0 0: two runs on GPU 0")
    ] = ()
    results: Annotated[Path, Parameter(help="folder of records", show_default=False)] = RESULTS
    runs: Annotated[
        Path, Parameter(help="folder of checkpoints, weights and logs", show_default=False)
    ] = RUNS
    status: Annotated[bool, Parameter(help="print the number of finished runs; run nothing")] = (
        False
    )
    dry_run: Annotated[bool, Parameter(help="print the missing commands; run nothing")] = False
    cluster: Annotated[
        Literal["slurm", "local"] | None, Advanced(help="submit jobs (needs submitit)")
    ] = None
    slurm: Annotated[
        tuple[str, ...], Advanced(help="submitit or sbatch KEY=VALUE; repeatable")
    ] = ()
    accumulate: Annotated[PositiveInt | None, Advanced(help="gradient accumulation steps")] = None
    run_args: Annotated[
        str, Advanced(allow_leading_hyphen=True, help="more options for each run, in quotes")
    ] = ""
    plugins: Plugins = ()

    def __post_init__(self) -> None:
        refuse(
            bool(self.cluster and self.gpus),
            "--gpus lists local GPUs; with --cluster, use --slurm gpus_per_node=1",
        )
        refuse(bool(self.slurm and not self.cluster), "--slurm requires --cluster slurm")
        try:
            words = shlex.split(self.run_args)
        except ValueError as error:
            raise UserError("--run-args", str(error), "close the quotation") from error
        for option in (word.partition("=")[0] for word in words):
            refuse(
                option in OF_PLAN,
                f"--run-args {option} changes results; use the plan's option or field",
            )


@app.default
def plan(
    name: Annotated[str, Parameter(name="PLAN", help=f"{', '.join(names('plans'))}, or FILE.yaml")],
    /,
    *,
    options: Options = Options(),
) -> int:
    """Run the missing cells of a plan in parallel, each after its pre-training.

    A run is done if --results has a record with the same choices. Ctrl-C saves checkpoints and
    stops; the same command resumes. `plan demo` takes a few minutes. docs/running.md describes plan
    files.
    """
    # first, since importing the methods, and with them torch, takes seconds
    read = plans.read_plan(name)
    register_methods(options.plugins)
    plan = changed(read, options)
    jobs = plans.select(plans.expand(plan, options.seeds), options.only)
    check_methods(plan, jobs)
    results, (records, problems) = options.results, read_current(options.results)
    for problem in problems:
        say(f"skipped: {problem}")
    missing = plans.missing_jobs(jobs, records, options.runs)
    left = set(missing)
    done = len(set(jobs) - left)
    first = len(missing) - len(jobs) + done
    print(
        f"{plan.title}: {done} of {len(jobs)} runs done"
        + (f", {first} pre-trainings come first" if first else "")
    )
    if options.status:
        import pandas as pd

        rows = [(job.method, job.task, job not in left) for job in jobs]
        groups = pd.DataFrame(rows, columns=["method", "task", "done"]).groupby(
            ["method", "task"], sort=False
        )
        cells = groups["done"].agg(lambda each: f"{each.sum()}/{len(each)}").unstack(fill_value="-")
        print(cells.rename_axis(index=None, columns=None).to_string())
    elif options.dry_run:
        for job in missing:
            print(shlex.join(["tespec", *arguments_of(plan, job, records, options)]))
    if options.status or options.dry_run:
        return 0
    absent = sorted(
        {job.data for job in missing if job.data != SAMPLE and not Path(job.data).exists()}
    )
    if absent:
        remedy = (
            "give --data DIR, --data sample, or --checkpoints METHOD=FILE instead of a pre-training"
        )
        raise UserError(", ".join(absent), f"the data of plan {plan.name} is missing", remedy)
    failed = run_jobs(plan, missing, results, options) if missing else {}
    for job_name, reason in failed.items():
        print(f"failed: {job_name}: {reason}")
    print_pretrainings(
        [job for job in missing if job.kind == PRETRAINING and job.name not in failed], results
    )
    if plan.show:
        show_table(plan.show, results)
    print(
        f"{sum(job.name not in failed for job in jobs)} of {len(jobs)} runs done; records: {results / 'runs'}"
    )
    return 1 if failed else 0


def changed(plan: Plan, options: Options) -> Plan:
    """Return the plan with the values of the command line."""
    given = {
        method: Path(path)
        for method, _, path in (each.partition("=") for each in options.checkpoints)
    }
    checkpoints = plan.checkpoints | given
    for method, path in checkpoints.items():
        if not path.is_file():
            what = "is not METHOD=FILE with an existing file"
            raise UserError(f"checkpoints {method}={path}", what, "check the path")
    changes: dict[str, Any] = {"set": (*plan.set, *options.changes), "checkpoints": checkpoints}
    changes |= {name: value for name in ("data", "accumulate") if (value := getattr(options, name))}
    return replace(
        plan, **changes, profile=read_config("profiles", options.profile or plan.profile)
    )


def check_methods(plan: Plan, jobs: Sequence[Job]) -> None:
    """Refuse cells with an unknown method, an architecture or backbone that does not fit it, or missing weights."""
    from tespec.pretraining.method import find_method

    for job in (job for job in jobs if job.kind == "evaluation"):
        method = find_method(job.method)
        method.require(job.method, job.arch)
        network_of(job.backbone or None, method)
        if method.row.pretraining_data != "-" and not (job.upstream or job.checkpoint):
            remedy = f"give --checkpoints {job.method}=FILE, or remove the method from the plan"
            raise UserError(f"plan {plan.name}, {job.method}", "has no pre-trained weights", remedy)


def read_current(results: Path) -> tuple[list[Record], list[str]]:
    """Read the records that are up to date, and describe unreadable files."""
    records, problems = read_records(results) if results.exists() else ([], [])
    return plans.up_to_date(records), problems


def arguments_of(plan: Plan, job: Job, records: Sequence[Record], options: Options) -> list[str]:
    """Arguments of `tespec` for a job, without its folders."""
    checkpoint: Path | str | None = None
    if job.upstream and job.upstream.label != SAMPLE:
        checkpoint = (
            plans.weights_of(job.upstream, records, options.runs)
            or f"WEIGHTS_OF_{job.upstream.name}"
        )
    words = plans.command(job, checkpoint) + (
        ["--accumulate", str(plan.accumulate)] if plan.accumulate > 1 else []
    )
    words += [word for file in options.plugins for word in ("--import", str(file))]
    return [*words, *shlex.split(options.run_args)]


def run_jobs(plan: Plan, jobs: Sequence[Job], results: Path, options: Options) -> dict[str, str]:
    """Run the jobs and return the reasons of failures by job name."""
    places = ["--results", str(results), "--runs", str(options.runs)]
    places += ["--threads", str(plan.threads)] if plan.threads else []

    def arguments(job: Job) -> list[str]:
        return [
            "-m",
            "tespec.cli",
            *arguments_of(plan, job, read_current(results)[0], options),
            *places,
        ]

    logs = options.runs / "logs" / plan.name
    executor = (
        make_executor(options.cluster, options.slurm, logs / "submitted")
        if options.cluster
        else None
    )
    at_once = options.processes or min(plan.at_once, os.cpu_count() or 1)
    tasks = [
        Pending(job.name, partial(arguments, job), job.upstream.name if job.upstream else "")
        for job in jobs
    ]
    began = time.monotonic()
    failed = run_all(tasks, logs, options.gpus or [""] * at_once, executor)
    say(f"{len(tasks)} runs in {(time.monotonic() - began) / 60:.1f} min")
    return failed


def print_pretrainings(jobs: Sequence[Job], results: Path) -> None:
    """Print the validation losses of pre-trainings and the paths of their pictures."""
    made = {job.choices for job in jobs}
    for record in read_current(results)[0] if jobs else ():
        if made.intersection(plans.choices_of(record)):
            losses = {
                name: value for name, value in record.metrics.items() if name.startswith("loss")
            }
            picture = results / "pictures" / f"{record.name}.png"
            print(
                f"{record.name}: {numbers_of(losses, 3)}"
                + (f"; picture: {picture}" if picture.is_file() else "")
            )


def show_table(name: str, results: Path) -> None:
    """Print one table of the measured results."""
    from tespec.comparison.export import print_table
    from tespec.comparison.frame import results as read_results
    from tespec.comparison.tables import make_tables

    try:
        for table in make_tables(read_results(results), only=(name,), measured=True):
            print_table(table)
    except UserError as error:  # the final summary must still be printed
        say(f"no table: {error}")

"""Run the missing cells of a plan in parallel, each after its pre-training."""

import os
import shlex
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from tespec.cli.main import examples, new_app, refuse
from tespec.cli.options import (
    PROFILES,
    Changes,
    Plugins,
    Profile,
    Words,
    format_metrics,
    read_config,
)
from tespec.comparison.cell import SAMPLE, Cell
from tespec.comparison.records import Key, Record
from tespec.core.config import finetuning_settings, names, split_changes
from tespec.core.errors import UserError, require
from tespec.core.paths import RESULTS, RUNS
from tespec.core.progress import log
from tespec.plan.execute import make_executor, run_all, sbatch_script
from tespec.plan.jobs import (
    Job,
    Plan,
    command,
    expand,
    finished_runs,
    missing_jobs,
    read_plan,
    require_weights,
    select,
    weights_path,
)
from tespec.registry import register_methods
from tespec.runs.setup import Advanced, NonNegativeInt, PositiveInt, Setup

app = new_app(
    "plan", help_epilogue=examples("plan demo", "plan tables --data /data --gpus 4 --only tespec")
)
LOSSES = {
    "loss_masked_carried": "masked loss with the state carried",
    "loss_masked_zeroed": "with the state zeroed",
    "loss_zero": "of predicting zero",
}
# Options of a run that neither replace a choice of the plan nor skip the run.
RUN_OPTIONS = (
    "--check-data",
    "--compile",
    "--deterministic",
    "--device",
    "--launcher",
    "--recompute",
    "--save-predictions",
    "--threads",
    "--track",
    "--workers",
)


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of running a plan."""

    only: Annotated[
        tuple[str, ...],
        Words,
        Parameter(help="run only these tasks, methods, ablations, kinds, or full or frozen"),
    ] = ()
    seeds: Annotated[
        tuple[NonNegativeInt, ...], Words, Parameter(help="seeds instead of the plan's")
    ] = ()
    data: Annotated[
        str | None, Parameter(help="folder of all data sets, or sample: the sample world")
    ] = None
    profile: Annotated[
        str | None, Profile(help=f"{PROFILES}, or FILE.yaml (default: the plan's)")
    ] = None
    checkpoints: Annotated[
        tuple[str, ...], Words, Parameter(help="METHOD=FILE ...: weights of methods")
    ] = ()
    changes: Changes = ()
    processes: Annotated[
        PositiveInt | None, Parameter(help="runs in parallel (default: --gpus, else the plan's)")
    ] = None
    gpus: Annotated[
        PositiveInt | None,
        Parameter(
            help="number of local GPUs, used by the runs in turn (default: as torch chooses)"
        ),
    ] = None
    results: Annotated[
        Path, Parameter(help="folder of records (default: results)", show_default=False)
    ] = RESULTS
    runs: Annotated[
        Path,
        Parameter(
            help="folder of checkpoints, weights and logs (default: runs)", show_default=False
        ),
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
        tuple[str, ...],
        Advanced(
            converter=lambda _, tokens: tuple(shlex.split(tokens[0].value)),
            n_tokens=1,
            allow_leading_hyphen=True,
            help="more options for each run, in quotes",
        ),
    ] = ()
    plugins: Plugins = ()

    def __post_init__(self) -> None:
        refuse(
            bool(self.cluster and self.gpus),
            "--gpus counts local GPUs; with --cluster, use --slurm gpus_per_node=1",
        )
        refuse(bool(self.slurm and not self.cluster), "--slurm requires --cluster slurm")
        for option in (word.partition("=")[0] for word in self.run_args):
            refuse(
                option.startswith("-") and option not in RUN_OPTIONS,
                f"--run-args {option} is not one of {', '.join(RUN_OPTIONS)}; choices are the "
                "plan's options and fields",
            )


@app.default
def plan(
    name: Annotated[str, Parameter(name="PLAN", help=f"{', '.join(names('plans'))}, or FILE.yaml")],
    /,
    *,
    options: Options = Options(),
) -> int:
    """Run the missing cells of a plan in parallel, each after its pre-training.

    A run is done if --results has a record of the same cell and seeds. Ctrl-C saves checkpoints and
    stops; the same command resumes. `plan demo` takes a few minutes. docs/running.md describes plan
    files.
    """
    named = read_plan(name)  # first, since importing the methods takes seconds
    register_methods(options.plugins)
    plan = with_options(named, options)
    jobs = select(expand(plan, options.seeds), options.only)
    require_weights(plan, jobs)
    finished, problems = finished_runs(jobs, options.results)
    for problem in problems:
        log(f"skipped: {problem}")
    missing = missing_jobs(jobs, finished, options.runs)
    print_progress(plan, jobs, missing)
    if options.status:
        print_status(jobs, missing)
        return 1 if problems else 0
    if options.dry_run:
        print_commands(missing, finished, options)
        print_hours(missing)
        return 0
    require_data(plan, missing)
    failed = run_jobs(plan, missing, finished, options) if missing else {}
    for job_name, reason in failed.items():
        print(f"failed: {job_name}: {reason}")
    finished, _ = finished_runs([*jobs, *missing], options.results)
    for job in missing:
        if job.cell.kind == "pretraining" and job.key in finished:
            print_pretraining(finished[job.key], options.results)
    if plan.show:
        show_table(plan.show, options.results)
    count = sum(job.key in finished for job in jobs)
    print(f"{count} of {len(jobs)} runs done; records: {options.results / 'runs'}")
    return 1 if failed or problems or count < len(jobs) else 0


def with_options(plan: Plan, options: Options) -> Plan:
    """Replace fields of a plan by the values of the command line, which extend `set`.

    Raises:
        UserError: weights of --checkpoints are missing.
    """
    pairs = (checkpoint.partition("=") for checkpoint in options.checkpoints)
    checkpoints = plan.checkpoints | {method: Path(path) for method, _, path in pairs}
    for method, path in checkpoints.items():
        require(
            path.is_file(),
            f"checkpoints {method}={path}",
            "is not METHOD=FILE with an existing file",
            "check the path",
        )
    return replace(
        plan,
        set=(*plan.set, *options.changes),
        checkpoints=checkpoints,
        data=options.data or plan.data,
        accumulate=options.accumulate or plan.accumulate,
        profile=options.profile or (plan.profile and read_config("profiles", plan.profile)),
    )


def print_progress(plan: Plan, jobs: Sequence[Job], missing: Sequence[Job]) -> None:
    """Print how many runs of a plan are done, and how many pre-trainings the others need first.

    Args:
        plan: the plan.
        jobs: all of its runs.
        missing: those that have to run, with the runs that they start from.
    """
    runs = {job.key for job in jobs}
    left = {job.key for job in missing}
    first = len(left - runs)
    words = "pre-training comes" if first == 1 else "pre-trainings come"
    before = f", {first} {words} first" if first else ""
    print(f"{plan.title}: {len(runs - left)} of {len(runs)} runs done{before}")


def print_status(jobs: Sequence[Job], missing: Sequence[Job]) -> None:
    """Print the numbers of finished and of all runs by method and task.

    Args:
        jobs: all runs.
        missing: those that have to run, with the runs that they start from.
    """
    import pandas as pd

    left = {job.key for job in missing}
    rows = [(job.cell.method, job.cell.task, job.key not in left) for job in jobs]
    frame = pd.DataFrame(rows, columns=["method", "task", "done"])
    cells = frame.groupby(["method", "task"], sort=False)["done"]
    counts = cells.agg(lambda done: f"{done.sum()}/{len(done)}").unstack(fill_value="-")
    print(counts.rename_axis(index=None, columns=None).to_string())


def print_commands(missing: Sequence[Job], finished: dict[Key, Record], options: Options) -> None:
    """Print the commands of missing runs, after the script that submits them with SLURM.

    Args:
        missing: runs of a plan, pre-trainings first.
        finished: records by key.
        options: of the plan.
    """
    if options.cluster == "slurm":
        print(sbatch_script(make_executor("slurm", options.slurm, options.runs / "logs")))
    for job in missing:
        print(shlex.join(["tespec", *arguments_of(job, finished, options)]))


def print_hours(jobs: Sequence[Job]) -> None:
    """Print the estimated hours of fine-tunings on real data, with evaluation, on one H100.

    Args:
        jobs: missing runs of a plan.
    """
    from tespec.runs.cost import estimate_training, evaluated_windows, input_size

    same_cost: dict[Cell, list[Job]] = defaultdict(list)
    for job in jobs:
        if job.cell.kind == "evaluation" and job.cell.data != SAMPLE:
            # Methods differ in their initial weights only.
            same_cost[replace(job.cell, method="any", method_version=1, start="")].append(job)
    total = 0.0
    for cell, same in same_cost.items():
        name = f"{cell.task}, {cell.arch}, {cell.backbone}{', frozen' if cell.frozen else ''}"
        changes, _ = split_changes(same[0].set)
        settings = finetuning_settings(
            cell.task, cell.arch, cell.profile, changes, network=cell.backbone, frozen=cell.frozen
        )
        try:
            estimate = estimate_training(settings, input_size(settings, cell.task))
            cost = estimate.cost(Setup())
        except UserError as error:
            print(f"{name}: hours unknown: {error}")
            continue
        windows = evaluated_windows(settings)
        hours = estimate.hours(cost, "H100 SXM", windows)
        total += len(same) * hours
        print(
            f"{name}: {len(same)} x {hours:.2f} h of an H100, with {windows:,} windows of "
            "evaluation"
        )
    if same_cost:
        print(f"fine-tunings: {total:.1f} h of an H100, without data loading and pre-trainings")


def require_data(plan: Plan, missing: Sequence[Job]) -> None:
    """Refuse a plan of which a missing run has no data.

    Args:
        plan: the plan, for the message.
        missing: its missing runs.

    Raises:
        UserError: a folder of data does not exist.
    """
    folders = {job.data for job in missing if job.data != SAMPLE}
    absent = [folder for folder in sorted(folders) if not Path(folder).exists()]
    require(
        not absent,
        ", ".join(absent),
        f"the data of plan {plan.name} is missing",
        "give --data DIR, --data sample, or --checkpoints METHOD=FILE to skip pre-training",
    )


def arguments_of(job: Job, finished: dict[Key, Record], options: Options) -> list[str]:
    """Arguments of `tespec` for a job, without its folders.

    Args:
        job: the run.
        finished: records by key; without that of the run that it starts from, its weights are a
            placeholder.
        options: of the plan.
    """
    start = job.upstream
    checkpoint: Path | str | None = None
    if start and (start.cell.data != SAMPLE or job.cell.kind == "control"):
        record = finished.get(start.key)
        placeholder = f"WEIGHTS_OF_{start.name}"
        checkpoint = weights_path(record, options.runs) if record else placeholder
    words = command(job, checkpoint)
    # A finished fine-tuning is missing only if a control needs its weights.
    words += ["--overwrite"] if job.cell.kind == "evaluation" and job.key in finished else []
    words += [word for file in options.plugins for word in ("--import", str(file))]
    return [*words, *options.run_args]


def run_jobs(
    plan: Plan, missing: Sequence[Job], finished: dict[Key, Record], options: Options
) -> dict[str, str]:
    """Run jobs in parallel.

    Args:
        plan: the plan.
        missing: its missing runs, pre-trainings first.
        finished: records by key, before the start.
        options: of the plan.

    Returns:
        Reasons of failures by the job's name.
    """
    folders = ["--results", str(options.results), "--runs", str(options.runs)]
    threads = ["--threads", str(plan.threads)] if plan.threads else []

    def arguments(job: Job) -> list[str]:
        new, _ = finished_runs([job.upstream] if job.upstream else [], options.results)
        words = arguments_of(job, finished | new, options)
        return ["-m", "tespec.cli", *words, *folders, *threads]

    logs = options.runs / "logs" / plan.name
    cluster = options.cluster
    executor = make_executor(cluster, options.slurm, logs / "submitted") if cluster else None
    slots = choose_slots(plan, options)
    start_time = time.monotonic()
    failed = run_all(missing, arguments, logs, slots, executor)
    log(f"{len(missing)} runs in {(time.monotonic() - start_time) / 60:.1f} min")
    return failed


def choose_slots(plan: Plan, options: Options) -> list[str]:
    """Choose how many runs are computed at once, and the GPU of each.

    Args:
        plan: the plan.
        options: of the plan.

    Returns:
        One entry per concurrent run: the index or name of its GPU, "" if torch chooses the device.

    Raises:
        UserError: the machine has fewer GPUs than `--gpus`.
    """
    if not options.gpus:
        return [""] * (options.processes or min(plan.at_once, os.cpu_count() or 1))
    import torch

    gpus = [str(i) for i in range(torch.cuda.device_count())]
    # Of several parts of a GPU (MIG) in CUDA_VISIBLE_DEVICES, torch counts one.
    if gpus and (visible := os.environ.get("CUDA_VISIBLE_DEVICES")):
        gpus = visible.split(",")
    require(
        len(gpus) >= options.gpus,
        f"--gpus {options.gpus}",
        f"torch can use {len(gpus)} GPUs of this machine",
        "give at most this number, or omit --gpus to run on the CPU",
    )
    return [gpus[i % options.gpus] for i in range(options.processes or options.gpus)]


def print_pretraining(record: Record, results: Path) -> None:
    """Print the validation losses of a pre-training and the path of its picture.

    Args:
        record: of the pre-training.
        results: folder of records.
    """
    losses = {
        LOSSES.get(name, name): value
        for name, value in record.metrics.items()
        if name.startswith("loss")
    }
    print(f"{record.name}: {format_metrics(losses, 3)}")
    picture = results / "pictures" / f"{record.name}.png"
    if picture.is_file():
        print(f"picture: {picture}")


def show_table(name: str, results: Path) -> None:
    """Print one table of the measured results, if any, with its evaluations side by side.

    Args:
        name: of the table.
        results: folder of records.
    """
    from tespec.comparison.export import print_table
    from tespec.comparison.frame import results as read_results
    from tespec.comparison.tables import make_tables

    try:
        frame = read_results(results)
        for table in make_tables(frame, only=(name,), measured=True, by="evaluation"):
            print_table(table)
    except UserError as error:  # the final summary must still be printed
        log(f"no table: {error}")

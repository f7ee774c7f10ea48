"""Run what is missing of a set of runs, several at once: cells of the tables, pre-trainings, ablations, references.

python benchmarks/plan.py demo                              # ten minutes: pre-train, fine-tune, print a table
python benchmarks/plan.py small --dry-run                   # what is missing, how long it takes, every command
python benchmarks/plan.py small --only dsec scratch tespec --seeds 0
python benchmarks/plan.py tables --data /data --seeds 0 1 2 --gpus 0 1 2 3
python benchmarks/plan.py mine.yaml --cluster slurm --slurm partition=gpu --slurm gpus_per_node=1 --processes 20
python benchmarks/plan.py small --publish pages             # from the records: tables, report, figures, archive

A run is done where there is a record of it: same settings, weights, data, code and seed. Ctrl-C stops; run the
same command to continue. docs/plan.md says what a plan's file holds.
"""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tespec.cli.command import Parser, by_installed_command
from tespec.cli.cost import add_cost_options
from tespec.cli.options import add_accept_code, add_configs, add_own, bring_in, positive, whole_number
from tespec.comparison.identity import TEST
from tespec.core.config import names
from tespec.core.errors import UserError
from tespec.core.paths import RESULTS, RUNS
from tespec.plan.files import Plan, World, read_plan

if TYPE_CHECKING:
    from tespec.comparison.records import Record
    from tespec.plan.jobs import Job, Workshop
    from tespec.plan.states import Ledger

CLUSTERS = ("slurm", "local")
SECONDS_BETWEEN_REPORTS = 10.0
CONTROLLED = "val"  # split on which controls are measured


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = Parser(verb="plan", description=__doc__)
    parser.add_argument("plan", metavar="PLAN", help=f"{', '.join(names('plans'))}, or FILE.yaml")
    what = parser.add_argument_group("what")
    what.add_argument("--only", nargs="+", default=[], metavar="NAME", help="these tasks, methods, ablations or kinds")
    what.add_argument("--seeds", nargs="+", type=whole_number, metavar="N", help="in place of the plan's")
    what.add_argument("--data", type=Path, metavar="DIR", help="holds a folder for each data set, as $TESPEC_DATA does")
    what.add_argument("--world", metavar="SIZE", help="the sample world of this size in place of the plan's data")
    what.add_argument("--checkpoints", nargs="+", default=[], metavar="METHOD=FILE",
                      help="weights that methods start from")  # fmt: skip
    what.add_argument("--profile", help=f"{', '.join(names('profiles'))} (default: the plan's, or what fits the data)")
    what.add_argument(
        "--split", choices=("test", "val"), help="recordings that are scored (default: the plan's, or test)"
    )
    what.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of run.py; repeatable")
    how = parser.add_argument_group("how and where")
    how.add_argument("--processes", type=whole_number, metavar="N", help="runs at once (default: as the plan says)")
    how.add_argument("--gpus", nargs="+", metavar="N", help="GPUs of this machine, one run on each; a number given "
                     "twice has two runs at once")  # fmt: skip
    how.add_argument("--cluster", choices=CLUSTERS, help="runs as jobs, --processes at once (needs submitit)")
    how.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help="of the jobs; repeatable")
    how.add_argument("--workers", type=whole_number, default=0, metavar="N", help="as of run.py")
    how.add_argument("--device", help="as of run.py, as are the following three")
    how.add_argument("--accumulate", type=positive, default=1, metavar="N", help="gradient accumulation steps: other "
                     "runs, of other names")  # fmt: skip
    how.add_argument("--recompute", action="store_true", help="activation checkpointing")
    how.add_argument("--count-on-device", action="store_true", help="count histograms on the device")
    how.add_argument("--results", type=Path, metavar="DIR", help="folder of records (default: the plan's, or results)")
    how.add_argument("--runs", type=Path, default=RUNS, metavar="DIR", help="folder of checkpoints, weights and logs")
    add_accept_code(how)
    add_own(how)
    how.add_argument("--status", action="store_true", help="print what is done; run nothing")
    how.add_argument("--dry-run", action="store_true", help="print what is missing, its cost and commands; run nothing")
    add_cost_options(how)
    how.add_argument(
        "--publish", type=Path, metavar="DIR", help="run nothing; write tables, report, figures and all records"
    )
    how.add_argument("--page", type=Path, metavar="FILE", help="with --publish: put the results between the marks of "
                     "this Markdown page as well")  # fmt: skip
    options = parser.parse_args(arguments)
    if options.cluster and options.gpus:
        parser.error("--gpus are this machine's; say --slurm gpus_per_node=1")
    if options.slurm and not options.cluster:
        parser.error("--slurm goes with --cluster slurm")
    if options.publish and (options.dry_run or options.status):
        parser.error("--publish writes; --dry-run and --status do not")
    if (options.gpu or options.share) and not options.dry_run:
        parser.error("--gpu and --share go with --dry-run; --gpus says which GPUs of this machine compute")
    if options.page and not options.publish:
        parser.error("--page goes with --publish DIR")
    if options.world and options.data:
        parser.error("--world and --data are two places for the same data")
    return options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run what is missing; 1 if a run failed."""
    options = parse(arguments)
    add_configs(options)
    plan = chosen(read_plan(options.plan), options)
    if plan.show:
        require_table(plan, plan.show)
    results = options.results or (RESULTS.parent / plan.results if plan.results else RESULTS)
    if options.publish:
        return publish(plan, results, options.publish, options.page)
    if options.cluster:
        from tespec.plan.cluster import require_submitit

        require_submitit(options.cluster)
    from tespec.core.progress import say
    from tespec.plan.jobs import Workshop, all_jobs, find_all_data, select
    from tespec.plan.states import (
        DONE,
        Ledger,
        in_order,
        of_other_code,
        of_worlds_not_made,
        records_of,
        states_of,
        table,
    )

    bring_in(options)
    shop = Workshop(plan, results, options.runs, tuple(options.accept_code), tuple(options.plugins),
                    tuple(options.configs), options.workers, options.accumulate, switches(options))  # fmt: skip
    jobs = select(all_jobs(shop), options.only)
    looking = options.dry_run or options.status
    shop = find_all_data(shop, jobs, options.data, needed=not options.dry_run)
    if not looking:
        make_missing(shop, jobs)
    records, problems = records_of(shop)
    for problem in problems:
        say(f"left out: {problem}")
    ledger = Ledger(shop, records)
    ledger.require_splits(jobs)
    states = states_of(jobs, ledger)
    at_once = len(options.gpus) if options.gpus else options.processes or min(plan.at_once, os.cpu_count() or 1)
    # A run that another start of the plan computes is waited for.
    missing = [job for job in jobs if states[job] != DONE]
    ordered = in_order([job for job in shop.with_pretrainings(missing) if states[job] != DONE], ledger)
    show(plan, states, jobs, ordered, ledger, at_once)
    print("\n".join(table(states)))
    for line in filter(None, [of_other_code(ledger, jobs), *of_worlds_not_made(ledger, jobs)]):
        print(line)
    if options.dry_run:
        show_cost(ordered, ledger, at_once, options)
        if options.cluster:
            from tespec.plan.cluster import parameters

            stated = parameters(options.cluster, options.slurm)
            print(f"jobs of {options.cluster}: " + ", ".join(f"{key}={value}" for key, value in stated.items()))
        print_commands(ordered, ledger)
    if looking:
        return 0
    began = time.monotonic()
    failed = run_jobs(ordered, ledger, at_once, options) if ordered else {}
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}")
    if plan.show:
        show_results(plan, shop, jobs)
    print(f"{sum(job.name not in failed for job in jobs)} of {len(jobs)} runs done, {time.monotonic() - began:.0f} s; "
          f"records: {results / 'runs'}")  # fmt: skip
    return 1 if failed else 0


def require_table(plan: Plan, name: str) -> None:
    """Refuse a table that there is not.

    Raises:
        UserError: `name` is none.
    """
    from tespec.cli.tables import ALL, Names

    if name not in Names(ALL):
        raise UserError(f"plan {plan.name}, show: {name}", "no such table", f"choose from {', '.join(ALL)}")


def chosen(plan: Plan, options: argparse.Namespace) -> Plan:
    """The plan with what the command line changes of it."""
    changes: dict[str, Any] = {"set": (*plan.set, *options.set)}
    changes["checkpoints"] = plan.checkpoints | named_files(options.checkpoints)
    if options.seeds:
        plan = plan.with_seeds(tuple(options.seeds))
    if options.profile:
        changes["profile"] = options.profile
    if options.split:
        changes["split"] = options.split
    if options.world:
        changes |= {"world": World(size=options.world), "data": None}
    if options.data:
        changes["world"] = None
    return plan.model_copy(update=changes)


def switches(options: argparse.Namespace) -> tuple[str, ...]:
    """Options of each run that decide no result."""
    device = ("--device", options.device) if options.device else ()
    recompute = ("--recompute",) if options.recompute else ()
    return (*device, *recompute, *(("--count-on-device",) if options.count_on_device else ()))


def named_files(given: Sequence[str]) -> dict[str, Path]:
    """METHOD=FILE pairs."""
    files = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or not Path(path).is_file():
            raise UserError(f"--checkpoints {each}", "is not METHOD=FILE of a file that exists", "check the path")
        files[name] = Path(path)
    return files


def make_missing(shop: Workshop, jobs: Sequence[Job]) -> None:
    """Make what is missing of the sample worlds that jobs, and what they start from, are of."""
    from tespec.core.progress import progress
    from tespec.sample import make_world

    wanted: dict[World, set[str]] = {}
    for job in shop.with_pretrainings(jobs):
        if (world := shop.world(job)) is not None:
            wanted.setdefault(world, set()).add(job.task)
    for world, datasets in wanted.items():
        with progress(f"making the sample world, size {world.size}, seed {world.seed}", "recordings") as advance:
            make_world(
                world.size,
                world.seed,
                progress=lambda done, total: advance(done, total, ""),
                datasets=sorted(datasets),
            )


def show(
    plan: Plan, states: dict[Job, str], jobs: Sequence[Job], ordered: Sequence[Job], ledger: Ledger, at_once: int
) -> None:
    """Print how much there is to do and what it takes."""
    from tespec.plan.states import forecast

    to_do = [job for job in ordered if job in set(jobs)]
    starts = sum(job.world is not None for job in ordered)
    elsewhere = f" and {starts} trainings that control cells start from" if starts else ""
    print(f"{plan.title}: {len(jobs) - len(to_do)} of {len(jobs)} runs are done; {len(to_do)} to do, after "
          f"{len(ordered) - len(to_do) - starts} pre-trainings{elsewhere}")  # fmt: skip
    print(forecast(ordered, ledger, at_once))


def show_cost(ordered: Sequence[Job], ledger: Ledger, at_once: int, options: argparse.Namespace) -> None:
    """Print what the trainings would take of a GPU."""
    from tespec.plan.cost import in_words, total_of
    from tespec.runs.cost import SHARE, USUAL, find_gpu

    gpu, reached = find_gpu(options.gpu or USUAL), options.share or SHARE
    print("\n".join(in_words(total_of(ordered, ledger, gpu, reached), gpu, reached, at_once)))


def print_commands(jobs: Sequence[Job], ledger: Ledger) -> None:
    """Print the command line of each job."""
    for job in jobs:
        verb, *arguments = command_of(job, ledger, dry=True)
        program = ["tespec", verb] if by_installed_command() else ["python", f"benchmarks/{verb}.py"]
        print(shlex.join([*program, *arguments]))


def checkpoint_of(job: Job, ledger: Ledger, dry: bool = False) -> Path | None:
    """The weights that a run has to be given; on the sample world it finds those that a pre-training made itself."""
    from tespec.plan.jobs import PRETRAINING

    before = ledger.shop.before(job)
    if before is None or (before.kind == PRETRAINING and ledger.shop.data[job.task].is_sample):
        return None
    made = ledger.weights(job)
    if made is None and not dry:
        raise UserError(before.name, "left no weights", "see its log")
    return made or Path(f"WEIGHTS_OF_{before.name}")


def command_of(job: Job, ledger: Ledger, dry: bool = False) -> list[str]:
    """What runs a job, behind `tespec`."""
    from tespec.plan.jobs import command

    # A record without the weights that others need would be taken as it is.
    again = ["--overwrite"] if ledger.lost_weights(job) else []
    return [*command(job, ledger.shop, checkpoint_of(job, ledger, dry)), *again]


def run_jobs(jobs: Sequence[Job], ledger: Ledger, at_once: int, options: argparse.Namespace) -> dict[str, str]:
    """Run the jobs; gives those that failed."""
    from tespec.plan.jobs import PROBE
    from tespec.plan.schedule import Pool, Queued, work
    from tespec.plan.states import Ledger as NewLedger
    from tespec.plan.states import forecast, log_folder, records_of

    shop, began, by_name = ledger.shop, time.monotonic(), {job.name: job for job in jobs}

    def now() -> Ledger:
        return NewLedger(shop, records_of(shop)[0])

    def tell(left: Sequence[str]) -> str:
        soon = forecast([by_name[name] for name in left], now(), at_once)
        return f" ({len(jobs) - len(left)} of {len(jobs)} after {(time.monotonic() - began) / 60:.0f} min; {soon})"

    def queued(job: Job) -> Queued:
        before = shop.before(job)
        needed = [before.name] if before is not None else []
        # The same training serves both splits: the second run only evaluates.
        needed += [replace(job, split=TEST).name] if job.split != TEST and job.kind != PROBE else []
        needs = tuple(name for name in needed if name in by_name)
        return Queued(job.name, lambda: ["-m", "tespec.cli", *command_of(job, now())], needs)

    cluster = None
    if options.cluster:
        from tespec.plan.cluster import executor_of

        cluster = executor_of(options.cluster, options.slurm, log_folder(shop) / "jobs")
    gpus = options.gpus or ()
    pool = Pool(log_folder(shop), at_once, gpus, cluster, tell, SECONDS_BETWEEN_REPORTS)
    return work([queued(job) for job in jobs], pool)


def show_results(plan: Plan, shop: Workshop, jobs: Sequence[Job]) -> None:
    """Print the table that the plan names and what its pre-trainings learned; draw what memory is worth to them."""
    from tespec.cli import tables
    from tespec.comparison.pretrained import memory_worth
    from tespec.pictures.memory import memory_figure
    from tespec.plan.states import Ledger, records_of

    tables.main(["--only", str(plan.show), "--results", str(shop.results)])
    ledger = Ledger(shop, records_of(shop)[0])
    found = map(ledger.record, dict.fromkeys(filter(None, map(shop.before, jobs))))
    learned = [record for record in found if record is not None and "loss_masked_carried" in record["metrics"]]
    for record in learned:
        print(f"\n{headline(record)}")
    remembering = [record for record in learned if memory_worth(record)]
    for record in remembering:
        print(f"By the time since its state was zeroed: {memory_worth(record)}.")
    if remembering:
        picture = shop.results / "memory.png"
        memory_figure(remembering, picture)
        print(f"Written: {picture}")


def headline(record: Record) -> str:
    """What a pre-training learned."""
    metrics = record["metrics"]
    return (
        "Held-out masked loss of the pre-trained model: "
        f"{metrics['loss_masked_carried']:.3f} with its state carried, "
        f"{metrics['loss_masked_zeroed']:.3f} with the state zeroed at each chunk, "
        f"{metrics['loss_zero']:.3f} when predicting zero."
    )


def publish(plan: Plan, results: Path, folder: Path, page: Path | None) -> int:
    """Print the tables, contrasts and controls of a plan's records; write them, report, figures and archive.

    Returns:
        1 where something was left out, else 0.

    Raises:
        UserError: there is nothing among the records to show, or the page has no marks.
    """
    from tespec.cli.tables import write_tables
    from tespec.comparison.collected import collect, pack
    from tespec.core.files import write_whole
    from tespec.report import closed_world

    collected = collect(results)
    chosen = [record for record in collected.records if plan.profile in (None, record["profile"])]
    shown = replace(collected, records=tuple(chosen))
    if not (chosen or shown.curves or shown.rates):
        raise UserError(results / "runs", "holds no record of this plan's profile", "run the plan first")
    text = closed_world.page_text(shown, Path(os.path.relpath(folder, page.parent)).as_posix() if page else "")
    whole = None
    if page is not None:
        try:
            whole = closed_world.put_in(page.read_text(encoding="utf-8"), text)
        except (OSError, ValueError) as error:
            marks = f"{closed_world.BEGIN} and {closed_world.END}"
            raise UserError(page, str(error), f"put the lines {marks} into it") from error
    # An archive that would be lost refuses, before anything else is written.
    print(f"Written: {pack(collected, folder)}")
    code = 1 if collected.problems else 0
    if any((record["kind"], record["split"]) == ("evaluation", TEST) for record in chosen):
        code |= publish_tables(plan, results, folder, chosen)
    if points := closed_world.points_table(shown):
        write_tables([(closed_world.POINTS, points)], folder / closed_world.TABLES)
    for name, draw in closed_world.figures(shown).items():
        draw(folder / name)
        print(f"Written: {folder / name}")
    print(f"Written: {write_whole(folder / closed_world.COMMANDS, closed_world.commands_text(collected))}")
    if page is not None and whole is not None:
        print(f"Written: {write_whole(page, whole)}")
    return code


def publish_tables(plan: Plan, results: Path, folder: Path, records: Sequence[Record]) -> int:
    """Write the measured tables, contrasts, controls and report of a plan's records; 1 where something was left out."""
    from tespec.cli import report, tables
    from tespec.report.closed_world import BASELINE

    evaluated = {record["method_name"] for record in records if record["kind"] == "evaluation"}
    narrowed = ["--results", str(results), *(["--profile", plan.profile] if plan.profile else [])]
    narrowed += ["--data", "sample"] if plan.world else []
    gains = ["--baseline", BASELINE] if BASELINE in evaluated else []
    out = ["--out", str(folder / "tables")]
    code = tables.main([*narrowed, *gains, "--columns", "measured", *out])
    code |= tables.main([*narrowed, "--contrasts", *out])
    if any((record["kind"], record["split"]) == ("evaluation", CONTROLLED) for record in records):
        code |= tables.main([*narrowed, "--controls", "--split", CONTROLLED, *out])
    return code | report.main([*narrowed, *gains, "--out", str(folder / "report.html")])

"""Run any part of the matrix of methods, tasks, architectures and seeds: what has no record yet, one process a cell.

python benchmarks/grid.py
python benchmarks/grid.py --methods scratch tespec --tasks ddd17 dsec --seeds 0 1 2 --processes 2
python benchmarks/grid.py --cluster slurm --slurm partition=gpu --slurm gpus_per_node=1 --processes 20
python benchmarks/grid.py --status
"""

from __future__ import annotations

import argparse
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if not __package__:
    import installed  # noqa: F401  # before the harness

from benchmarks.cluster import CLUSTERS, executor_of, parameters, require_submitit
from benchmarks.grid_jobs import Job, Places, work
from benchmarks.grid_matrix import before, dataset_of, is_pretrained, matrix, named_files, pretrainings
from benchmarks.grid_states import print_states, states_of
from tespec.cli.command import Parser, run
from tespec.core.paths import RESULTS, RUNS

if TYPE_CHECKING:
    from tespec.comparison.cells import GridCell

HERE = Path(__file__).parent


def parse() -> argparse.Namespace:
    """Read the command line."""
    from tespec.cli.options import add_accept_code, whole_number
    from tespec.core.config import names

    parser = Parser(description=__doc__)
    what = parser.add_argument_group("what")
    what.add_argument("--methods", nargs="+", metavar="NAME", help="default: all that can start here")
    what.add_argument("--tasks", nargs="+", metavar="NAME", help="default: all")
    what.add_argument("--arch", nargs="+", choices=("recurrent", "feedforward"), help="default: both")
    what.add_argument("--seeds", nargs="+", type=whole_number, default=[0], metavar="N", help="default: 0")
    what.add_argument(
        "--checkpoints", nargs="+", default=[], metavar="METHOD=FILE", help="weights that methods start from"
    )
    what.add_argument("--data", type=Path, metavar="DIR", help="holds a folder for each task, as $TESPEC_DATA does")
    what.add_argument("--profile", help=f"{', '.join(names('profiles'))} (default: what fits the data)")
    what.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of run.py; repeatable")
    how = parser.add_argument_group("how and where")
    how.add_argument("--processes", type=whole_number, default=1, help="cells at once on a CPU (default 1)")
    how.add_argument("--gpus", nargs="+", metavar="N", help="GPUs of this machine, one cell on each at a time")
    how.add_argument("--cluster", choices=CLUSTERS, help="cells as jobs, --processes at once (needs submitit)")
    how.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help="of the jobs; repeatable")
    how.add_argument("--workers", type=whole_number, default=0, help="as of run.py")
    how.add_argument("--results", type=Path, default=RESULTS, help="folder of records")
    how.add_argument("--runs", type=Path, default=RUNS, help="folder of checkpoints, weights and logs")
    add_accept_code(how)
    how.add_argument("--status", action="store_true", help="print the states and run nothing")
    how.add_argument("--dry-run", action="store_true", help="print the commands and run nothing")
    options = parser.parse_args()
    if options.cluster and options.gpus:
        parser.error("--gpus are this machine's; say --slurm gpus_per_node=1")
    if options.slurm and not options.cluster:
        parser.error("--slurm goes with --cluster slurm")
    if options.cluster:
        require_submitit(options.cluster)
    options.processes = len(options.gpus) if options.gpus else max(1, options.processes)
    return options


def main() -> int:
    """Run what the command line says; 1 if a cell failed."""
    options = parse()
    from tespec.comparison.cells import DONE
    from tespec.comparison.records import read_records

    checkpoints = named_files(options.checkpoints)
    cells = matrix(options, checkpoints)
    records, _ = read_records(options.results / "runs")
    states = states_of(cells, options, records)
    print_states(states, options, records)
    # One that another grid is running is waited for.
    missing = [cell for cell, state in states.items() if state != DONE]
    jobs = [*pretrainings(missing, checkpoints), *missing]
    if options.dry_run:
        if options.cluster:
            stated = parameters(options.cluster, options.slurm)
            print(f"jobs of {options.cluster}: " + ", ".join(f"{key}={value}" for key, value in stated.items()))
        for cell in jobs:
            print(shlex.join(["python", *command(cell, options, checkpoints)]))
    if options.dry_run or options.status or not jobs:
        return 0
    logs = options.runs / "grid"
    cluster = executor_of(options.cluster, options.slurm, logs / "jobs") if options.cluster else None
    places = Places(logs, options.processes, options.gpus or (), cluster)
    failed = work([job_of(cell, options, checkpoints) for cell in jobs], places)
    print(f"{sum(cell.name not in failed for cell in cells)} of {len(cells)} cells done")
    for name, reason in failed.items():
        print(f"failed: {name}: {reason}")
    return 1 if failed else 0


def command(cell: GridCell, options: argparse.Namespace, checkpoints: dict[str, Path]) -> list[str]:
    """What runs a cell, after the interpreter."""
    arguments = [str(HERE / ("run.py" if cell.task else "pretrain.py")), "--method", cell.method]
    data = options.data
    pretrained = is_pretrained(cell.method, checkpoints)
    changes = [change for change in options.set if change.startswith("pretraining.") == (not cell.task)]
    changes += [change for change in options.set if change.startswith("pretraining.") and cell.task and pretrained]
    if cell.task:
        arguments += ["--task", cell.task, "--arch", cell.arch]
        if cell.method in checkpoints:
            arguments += ["--checkpoint", str(checkpoints[cell.method])]
        if data and (data / cell.task).is_dir():
            arguments += ["--data", str(data / cell.task)]
    else:
        changes = [change.removeprefix("pretraining.") for change in changes]
        dataset = dataset_of(cell.method, options)
        if data and (data / dataset).is_dir():
            arguments += ["--data", str(data / dataset)]
    for change in changes:
        arguments += ["--set", change]
    if options.profile:
        arguments += ["--profile", options.profile]
    for code in options.accept_code:
        arguments += ["--accept-code", code]
    places = ["--results", str(options.results), "--runs", str(options.runs)]
    return [*arguments, "--seed", str(cell.seed), "--workers", str(options.workers), *places, "--resume"]


def job_of(cell: GridCell, options: argparse.Namespace, checkpoints: dict[str, Path]) -> Job:
    """A cell as a job; one of a task waits for its pre-training."""
    needs = (before(cell).name,) if cell.task and is_pretrained(cell.method, checkpoints) else ()
    return Job(cell.name, tuple(command(cell, options, checkpoints)), needs)


if __name__ == "__main__":
    sys.exit(run(main))

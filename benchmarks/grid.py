"""Run any part of the matrix of methods, tasks, architectures and seeds: what has no record yet, one process a cell.

python benchmarks/grid.py
python benchmarks/grid.py --methods scratch tespec --tasks ddd17 dsec --seeds 0 1 2 --processes 2
python benchmarks/grid.py --cluster slurm --slurm partition=gpu --slurm gpus_per_node=1 --processes 20
python benchmarks/grid.py --status
"""

from __future__ import annotations

import argparse
import ctypes
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from benchmarks.cli import Parser, run
from benchmarks.cluster import CLUSTERS, ClusterProcess, executor_of, parameters, require_submitit
from tespec.errors import UserError
from tespec.paths import RESULTS, RUNS

if TYPE_CHECKING:
    from submitit import AutoExecutor

    from tespec.comparison.cells import GridCell
    from tespec.comparison.records import Record
    from tespec.training.data import Data

HERE = Path(__file__).parent
POLL = 0.2  # s
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PATIENCE = 120.0  # s that a stopped cell has to write its checkpoint


class Job(NamedTuple):
    """A cell that runs: its process, its log, the device it was given, and when it began."""

    cell: GridCell
    process: subprocess.Popen[bytes] | ClusterProcess
    log: Path
    file: IO[bytes]
    device: str | None


def parse() -> argparse.Namespace:
    """Read the command line."""
    from benchmarks.options import whole_number

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
    what.add_argument("--profile", help="paper or sample (default: what fits the data)")
    what.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="as of run.py; repeatable")
    how = parser.add_argument_group("how and where")
    how.add_argument("--processes", type=whole_number, default=1, help="cells at once on a CPU (default 1)")
    how.add_argument("--gpus", nargs="+", metavar="N", help="GPUs of this machine, one cell on each at a time")
    how.add_argument("--cluster", choices=CLUSTERS, help="cells as jobs, --processes at once (needs submitit)")
    how.add_argument("--slurm", action="append", default=[], metavar="KEY=VALUE", help="of the jobs; repeatable")
    how.add_argument("--workers", type=whole_number, default=0, help="as of run.py")
    how.add_argument("--results", type=Path, default=RESULTS, help="folder of records")
    how.add_argument("--runs", type=Path, default=RUNS, help="folder of checkpoints, weights and logs")
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
    from tespec.comparison.cells import MISSING
    from tespec.comparison.records import read_records

    checkpoints = named_files(options.checkpoints)
    cells = matrix(options, checkpoints)
    records, _ = read_records(options.results / "runs")
    states = states_of(cells, options, records)
    print_states(states, options, records)
    missing = [cell for cell, state in states.items() if state == MISSING]
    jobs = [*pretrainings(missing, checkpoints), *missing]
    if options.dry_run:
        if options.cluster:
            stated = parameters(options.cluster, options.slurm)
            print(f"jobs of {options.cluster}: " + ", ".join(f"{key}={value}" for key, value in stated.items()))
        for cell in jobs:
            print(shlex.join(["python", *command(cell, options, checkpoints)]))
    if options.dry_run or options.status or not jobs:
        return 0
    failed = work(jobs, options, checkpoints)
    print(f"{len(cells) - sum(bool(cell.task) for cell in failed)} of {len(cells)} cells done")
    for cell, reason in failed.items():
        print(f"failed: {cell.name}: {reason}")
    return 1 if failed else 0


def named_files(given: list[str]) -> dict[str, Path]:
    """METHOD=FILE pairs."""
    files = {}
    for each in given:
        name, equals, path = each.partition("=")
        if not equals or not Path(path).is_file():
            raise UserError(f"--checkpoints {each}", "is not METHOD=FILE of a file that exists", "check the path")
        files[name] = Path(path)
    return files


def matrix(options: argparse.Namespace, checkpoints: dict[str, Path]) -> list[GridCell]:
    """The cells asked for that there are.

    Raises:
        UserError: an unknown method or task, or nothing left.
    """
    from tespec.comparison.cells import GridCell
    from tespec.config import names
    from tespec.plugins import find_method, register_methods
    from tespec.registry import METHODS

    register_methods()
    known = names("tasks")
    for task in options.tasks or ():
        if task not in known:
            raise UserError(f"--tasks {task}", "no such task", f"choose from {', '.join(known)}")
    methods = {name: find_method(name) for name in options.methods or sorted(METHODS.module_dict)}
    able = {
        name: method
        for name, method in methods.items()
        if method.recipe is not None or method.pretraining_data == "-" or name in checkpoints
    }
    for name in set(methods) - set(able) if options.methods else ():
        raise UserError(f"--methods {name}", "has no weights to start from", f"give --checkpoints {name}=FILE")
    cells = [
        GridCell(name, task, arch, seed)
        for name, method in able.items()
        for task in options.tasks or known
        for arch in options.arch or method.architectures
        if arch in method.architectures
        for seed in options.seeds
    ]
    if not cells:
        raise UserError("the grid", "is empty: no method has this architecture", "ask for others")
    return cells


def pretrainings(cells: list[GridCell], checkpoints: dict[str, Path]) -> list[GridCell]:
    """Pre-trainings that cells start from, each once."""
    from tespec.comparison.cells import GridCell

    return sorted(
        {GridCell(cell.method, "", "", cell.seed) for cell in cells if is_pretrained(cell.method, checkpoints)}
    )


def is_pretrained(method: str, checkpoints: dict[str, Path]) -> bool:
    """Whether the weights of a method are made here."""
    from tespec.plugins import find_method

    return find_method(method).recipe is not None and method not in checkpoints


def states_of(cells: list[GridCell], options: argparse.Namespace, records: list[Record]) -> dict[GridCell, str]:
    """Whether there is a record of each cell under the settings asked for."""
    from tespec.comparison.cells import DONE, MISSING, is_done
    from tespec.config import as_facts
    from tespec.plugins import find_method
    from tespec.training.data import settings_of

    states = {}
    changed = any(change.startswith("pretraining.") for change in options.set)
    given = named_files(options.checkpoints)
    for cell in cells:
        method, data = find_method(cell.method), data_of(cell.task, options)
        own = [change for change in options.set if not change.startswith("pretraining.")]
        settings = settings_of(data, cell.task, cell.arch, options.profile, own, method.network)
        config = as_facts(settings.after_pretraining_on(method.pretraining_data))
        # Records do not say which changes their weights were made with: such cells are run, and taken up if complete.
        told = not changed or method.recipe is None
        states[cell] = DONE if told and cell.method not in given and is_done(cell, config, records) else MISSING
    return states


def data_of(task: str, options: argparse.Namespace) -> Data:
    """The data of a task."""
    from tespec.training.data import find_data

    given = options.data / task if options.data and (options.data / task).is_dir() else None
    return find_data(task, given)


def print_states(states: dict[GridCell, str], options: argparse.Namespace, records: list[Record]) -> None:
    """Print the states of the cells, and how long the missing ones will take."""
    from tespec.comparison.cells import DONE, expected_seconds

    tasks = sorted({cell.task for cell in states})
    rows = sorted({(cell.method, cell.arch) for cell in states})
    print(f"{'method':14}{'':13}" + "".join(f"{task:>12}" for task in tasks))
    for method, arch in rows:
        counts = []
        for task in tasks:
            each = [
                state for cell, state in states.items() if (cell.method, cell.arch, cell.task) == (method, arch, task)
            ]
            counts.append(f"{sum(state == DONE for state in each)}/{len(each)} done" if each else "-")
        print(f"{method:14}{arch:13}" + "".join(f"{text:>12}" for text in counts))
    total = Counter(states.values())
    print(", ".join(f"{count} {state}" for state, count in sorted(total.items())))
    missing = [cell for cell, state in states.items() if state != DONE]
    if not missing:
        return
    profile = options.profile or data_of(missing[0].task, options).profile
    jobs = [*missing, *pretrainings(missing, named_files(options.checkpoints))]
    seconds = [expected_seconds(cell, profile, records) for cell in jobs]
    known = [each for each in seconds if each is not None]
    if not known:
        print("no forecast: there is no record yet to judge by (run.py --dry-run measures a cell)")
        return
    hours = sum(known) / len(known) * len(jobs) / options.processes / 3600
    print(f"forecast: {hours:.1f} h for {len(jobs)} runs, {options.processes} at once, by what records like them took")


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
    places = ["--results", str(options.results), "--runs", str(options.runs)]
    return [*arguments, "--seed", str(cell.seed), "--workers", str(options.workers), *places, "--resume"]


def dataset_of(method: str, options: argparse.Namespace) -> str:
    """What a method is pre-trained on here."""
    from tespec.config import pretraining_settings
    from tespec.plugins import find_method

    kind = find_method(method)
    assert kind.recipe is not None
    return pretraining_settings(kind.recipe, options.profile or "paper", (), kind.network).dataset


def work(jobs: list[GridCell], options: argparse.Namespace, checkpoints: dict[str, Path]) -> dict[GridCell, str]:
    """Run all jobs, cells only after their pre-training; gives the failed ones with the last line they wrote.

    Raises:
        KeyboardInterrupt: a signal to stop; running cells are told to write their checkpoints first.
    """
    waiting = list(jobs)
    running: list[Job] = []
    failed: dict[GridCell, str] = {}
    free: list[str | None] = list(options.gpus or [None] * options.processes)
    unfinished = {(cell.method, cell.seed) for cell in jobs if not cell.task}
    jobs_of = executor_of(options.cluster, options.slurm, options.runs / "grid" / "jobs") if options.cluster else None
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or running:
            for cell in list(waiting):
                if free and not (cell.task and (cell.method, cell.seed) in unfinished):
                    waiting.remove(cell)
                    running.append(start(cell, options, checkpoints, free.pop(), jobs_of))
            for job in [job for job in running if job.process.poll() is not None]:
                running.remove(job)
                free.append(job.device)
                job.file.close()
                if not job.cell.task:
                    unfinished.discard((job.cell.method, job.cell.seed))
                if job.process.returncode:
                    failed[job.cell] = last_line(job)
                    if not job.cell.task:
                        for cell in [each for each in waiting if starts_from(each, job.cell)]:
                            waiting.remove(cell)
                            failed[cell] = f"its pre-training failed ({job.log})"
                say(f"{'failed' if job.process.returncode else 'done'}: {job.cell.name}")
            time.sleep(POLL)
    except KeyboardInterrupt:
        for job in running:
            job.process.send_signal(signal.SIGINT)
        for job in running:
            job.process.wait(PATIENCE)
        raise KeyboardInterrupt("stopped; the same command goes on") from None
    return failed


def starts_from(cell: GridCell, pretraining: GridCell) -> bool:
    """Whether a cell starts from a pre-training."""
    return (cell.method, cell.seed) == (pretraining.method, pretraining.seed)


def start(
    cell: GridCell,
    options: argparse.Namespace,
    checkpoints: dict[str, Path],
    device: str | None,
    jobs_of: AutoExecutor | None = None,
) -> Job:
    """Start the process of a cell, or submit its job; what it prints goes to a log."""
    log = options.runs / "grid" / f"{cell.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    environment = dict(os.environ) | ({} if device is None else {"CUDA_VISIBLE_DEVICES": device})
    file = log.open("wb")
    called = [sys.executable, *command(cell, options, checkpoints)]
    if jobs_of is not None:
        submitted = ClusterProcess(jobs_of, called, log, file)
        say(f"submitted: {cell.name} (log: {log})")
        return Job(cell, submitted, log, file, device)
    # A group of its own: Ctrl-C in the terminal reaches the grid alone, which then stops its cells one by one.
    process = subprocess.Popen(
        called,
        stdout=file,
        stderr=subprocess.STDOUT,
        env=environment,
        start_new_session=True,
        preexec_fn=end_with_parent,
    )
    say(f"running: {cell.name} (log: {log})")
    return Job(cell, process, log, file, device)


def end_with_parent() -> None:
    """Ask Linux to stop this process when the grid is killed, so that no cell goes on unseen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def last_line(job: Job) -> str:
    """What a failed cell said last."""
    lines = [line for line in job.log.read_text(errors="replace").splitlines() if line.strip()]
    return f"{lines[-1].strip() if lines else 'it said nothing'} (exit code {job.process.returncode}, {job.log})"


def say(line: str) -> None:
    """A line for people, at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


if __name__ == "__main__":
    sys.exit(run(main))

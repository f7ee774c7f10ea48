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
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from benchmarks.cli import Parser, run
from benchmarks.cluster import CLUSTERS, ClusterProcess, executor_of, parameters, require_submitit
from benchmarks.grid_matrix import dataset_of, is_pretrained, matrix, named_files, pretrainings
from benchmarks.grid_states import folder_of, print_states, states_of
from tespec.paths import RESULTS, RUNS

if TYPE_CHECKING:
    from submitit import AutoExecutor

    from tespec.comparison.cells import GridCell

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
    from tespec.comparison.cells import FAILED, MISSING
    from tespec.comparison.records import read_records

    checkpoints = named_files(options.checkpoints)
    cells = matrix(options, checkpoints)
    records, _ = read_records(options.results / "runs")
    states = states_of(cells, options, records)
    print_states(states, options, records)
    missing = [cell for cell, state in states.items() if state in (MISSING, FAILED)]
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
                note_end(job)
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


def note_end(job: Job) -> None:
    """Keep how a cell ended."""
    from tespec.comparison.cells import DONE, FAILED
    from tespec.training.status import write_status

    failed = bool(job.process.returncode)
    write_status(job.log.parent, FAILED if failed else DONE, 0, last_line(job) if failed else "")


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
    from tespec.comparison.cells import RUNNING
    from tespec.training.status import write_status

    log = folder_of(cell, options) / "log.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    write_status(log.parent, RUNNING, 0)
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

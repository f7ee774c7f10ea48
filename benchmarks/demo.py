"""The main job on the sample world: pre-train, fine-tune four cells of the table two at a time, print the table.

python benchmarks/demo.py
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.cli import run
from tespec.errors import UserError
from tespec.paths import REPOSITORY, RESULTS, RUNS

SECONDS_BETWEEN_REPORTS = 10.0


@dataclass(frozen=True)
class Job:
    """One command line of the demo, started once the jobs it needs are done."""

    name: str
    command: tuple[str, ...]
    needs: tuple[str, ...] = ()


@dataclass
class Running:
    """A started job, its log and when it began."""

    job: Job
    process: subprocess.Popen[bytes]
    log: Path
    began: float

    @property
    def last_line(self) -> str:
        """What the job said last."""
        lines = self.log.read_text(errors="replace").splitlines()
        return lines[-1] if lines else ""


def jobs(results: Path, seed: int) -> list[Job]:
    """The demo's command lines, most urgent first."""
    common = ("--seed", str(seed), "--results", str(results))

    def cell(method: str, arch: str, *needs: str) -> Job:
        command = ("benchmarks/run.py", "--method", method, "--task", "ddd17", "--arch", arch, *common)
        return Job(f"{method}, {arch}", command, needs)

    pretrain = ("benchmarks/pretrain.py", "--method", "tespec", *common)
    return [
        Job("sample world", ("-m", "tespec.datasets.sample", "--size", "small")),
        Job("pre-training", pretrain, ("sample world",)),
        cell("tespec", "recurrent", "pre-training"),
        cell("scratch", "recurrent", "sample world"),
        cell("tespec", "feedforward", "pre-training"),
        cell("scratch", "feedforward", "sample world"),
    ]


def run_jobs(waiting: list[Job], logs: Path, at_once: int) -> None:
    """Run jobs, `at_once` at a time with one thread each, reporting what each of them says.

    Raises:
        UserError: a job failed; the others are stopped.
    """
    logs.mkdir(parents=True, exist_ok=True)
    done: set[str] = set()
    running: list[Running] = []
    reported = time.monotonic()
    try:
        while waiting or running:
            ready = [job for job in waiting if done.issuperset(job.needs)]
            for job in ready[: at_once - len(running)]:
                waiting.remove(job)
                running.append(start(job, logs))
            for item in [item for item in running if item.process.poll() is not None]:
                running.remove(item)
                finish(item)
                done.add(item.job.name)
            if running and time.monotonic() - reported > SECONDS_BETWEEN_REPORTS:
                reported = time.monotonic()
                print("   " + "\n   ".join(f"{item.job.name}: {item.last_line}" for item in running), flush=True)
            time.sleep(0.1)
    finally:
        for item in running:
            item.process.terminate()
            item.process.wait()


def start(job: Job, logs: Path) -> Running:
    """Start a job in a process of its own, its output going to a log."""
    print(f"-> {job.name}: python {' '.join(job.command)}", flush=True)
    log = logs / f"{job.name.replace(', ', '-').replace(' ', '-')}.log"
    threads = {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}
    # The world starts processes of its own, one for each core.
    environment = os.environ | ({} if job.name == "sample world" else threads)
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, *job.command], cwd=REPOSITORY, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
    return Running(job, process, log, time.monotonic())


def finish(item: Running) -> None:
    """Say how a job ended."""
    if item.process.returncode != 0:
        raise UserError(item.log, f"{item.job.name} failed: {item.last_line}", "read this log")
    print(f"ok {item.job.name}: {time.monotonic() - item.began:.0f} s", flush=True)


def headline(results: Path, seed: int) -> str:
    """What the pre-training learned, from its record."""
    found = sorted((results / "runs").glob(f"pretraining-tespec-*-s{seed}-*.json"), key=os.path.getmtime)
    metrics = json.loads(found[-1].read_text())["metrics"]
    return (
        "Held-out masked loss of the pre-trained model: "
        f"{metrics['loss_masked_carried']:.3f} with its state carried, "
        f"{metrics['loss_masked_zeroed']:.3f} with the state zeroed at each chunk, "
        f"{metrics['loss_zero']:.3f} when predicting zero."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the demo."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of records, tables and pictures")
    options = parser.parse_args(arguments)
    results = options.results.resolve()
    began = time.monotonic()
    run_jobs(jobs(results, options.seed), RUNS / "demo", at_once=min(2, os.cpu_count() or 1))
    tables = [sys.executable, "benchmarks/tables.py", "--only", "segmentation", "--results", str(results)]
    subprocess.run(tables, cwd=REPOSITORY, check=True)
    print(f"\n{headline(results, options.seed)}")
    print(f"The demo took {time.monotonic() - began:.0f} s. Records, tables and pictures are in {results}.")


if __name__ == "__main__":
    sys.exit(run(main))

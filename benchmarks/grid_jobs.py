"""Jobs in processes of their own, several at once, each after those it needs."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, NamedTuple

from benchmarks.cluster import ClusterProcess

if TYPE_CHECKING:
    from submitit import AutoExecutor

POLL = 0.2  # s
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PATIENCE = 120.0  # s that a stopped job has to write its checkpoint
THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Job:
    """A command line: its name, what stands after the interpreter, and the names of the jobs it has to wait for."""

    name: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Places:
    """Where jobs run.

    Attributes:
        logs: folder of a folder for each job, with its log and its state.
        at_once: how many run at the same time.
        gpus: of this machine, one job on each.
        cluster: hands jobs over to a cluster.
        tell: what is said behind the name of a job that ended, from the names of those that are not done yet.
        every: s between two reports of what the running jobs said last; infinite for none.
    """

    logs: Path
    at_once: int
    gpus: Sequence[str] = ()
    cluster: AutoExecutor | None = None
    tell: Callable[[Sequence[str]], str] = field(default=lambda left: "")
    every: float = math.inf


class Running(NamedTuple):
    """A started job: its process, its log, and the device it was given."""

    job: Job
    process: subprocess.Popen[bytes] | ClusterProcess
    log: Path
    file: IO[bytes]
    device: str | None


def work(jobs: Sequence[Job], places: Places) -> dict[str, str]:
    """Run all jobs, earlier ones first; gives the failed ones by name, with the last line they wrote.

    Raises:
        KeyboardInterrupt: a signal to stop; running jobs are told to write their checkpoints first.
    """
    waiting = list(jobs)
    running: list[Running] = []
    failed: dict[str, str] = {}
    free: list[str | None] = [*places.gpus] or [None] * places.at_once
    unfinished = {job.name for job in jobs}
    reported = time.monotonic()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or running:
            for job in list(waiting):
                if free and unfinished.isdisjoint(job.needs):
                    waiting.remove(job)
                    running.append(_start(job, places, free.pop()))
            for item in [item for item in running if item.process.poll() is not None]:
                running.remove(item)
                free.append(item.device)
                item.file.close()
                _note_end(item)
                name = item.job.name
                unfinished.discard(name)
                if item.process.returncode:
                    failed[name] = _reason(item)
                    for job in [each for each in waiting if name in each.needs]:
                        waiting.remove(job)
                        unfinished.discard(job.name)
                        failed[job.name] = f"{name}, which it needs, failed ({item.log})"
                left = [job.name for job in (*waiting, *(other.job for other in running))]
                say(f"{'failed' if item.process.returncode else 'done'}: {name}{places.tell(left)}")
            if time.monotonic() - reported > places.every:
                reported = time.monotonic()
                for item in running:
                    say(f"   {item.job.name}: {_last_line(item)}")
            time.sleep(POLL)
    except KeyboardInterrupt:
        for item in running:
            item.process.send_signal(signal.SIGINT)
        for item in running:
            item.process.wait(PATIENCE)
        raise KeyboardInterrupt("stopped; the same command goes on") from None
    return failed


def _start(job: Job, places: Places, device: str | None) -> Running:
    """Start the process of a job, or submit it; what it prints goes to a log."""
    from tespec.training.status import RUNNING, write_status

    log = places.logs / job.name / "log.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    write_status(log.parent, RUNNING, 0)
    log.write_bytes(b"")
    # Two that work on the same jobs at once write to the same logs.
    file = log.open("ab")
    called = [sys.executable, *job.arguments]
    if places.cluster is not None:
        submitted = ClusterProcess(places.cluster, called, log, file)
        say(f"submitted: {job.name} (log: {log})")
        return Running(job, submitted, log, file, device)
    # A group of its own: Ctrl-C in the terminal reaches the parent alone, which then stops its jobs one by one.
    process = subprocess.Popen(
        called,
        stdout=file,
        stderr=subprocess.STDOUT,
        env=_environment(places, device),
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    say(f"running: {job.name} (log: {log})")
    return Running(job, process, log, file, device)


def _environment(places: Places, device: str | None) -> dict[str, str]:
    """This process's, with the job's GPU; on a CPU each job has its share of the cores, or they hinder each other."""
    if device is not None:
        return dict(os.environ) | {"CUDA_VISIBLE_DEVICES": device}
    share = str(max(1, (os.cpu_count() or 1) // places.at_once))
    return dict.fromkeys(THREADS, share) | dict(os.environ)


def _end_with_parent() -> None:
    """Ask Linux to stop this process when its parent is killed, so that no job goes on unseen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _note_end(item: Running) -> None:
    """Keep how a job ended."""
    from tespec.training.status import DONE, FAILED, write_status

    failed = bool(item.process.returncode)
    write_status(item.log.parent, FAILED if failed else DONE, 0, _reason(item) if failed else "")


def _reason(item: Running) -> str:
    """Why a job failed, as far as it said so."""
    return f"{_last_line(item)} (exit code {item.process.returncode}, {item.log})"


def _last_line(item: Running) -> str:
    """What a job said last."""
    lines = [line for line in item.log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"


def say(line: str) -> None:
    """A line for people, at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()

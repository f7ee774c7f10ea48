"""Runs jobs in processes of their own, or on a cluster: several at once, each after those it needs."""

from __future__ import annotations

import ctypes
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING

from tespec.core.errors import UserError
from tespec.core.progress import say
from tespec.plan.cluster import ClusterProcess
from tespec.training.status import DONE, FAILED, RUNNING, write_status

if TYPE_CHECKING:
    from submitit import AutoExecutor

POLL = 0.2  # s
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PATIENCE = 120.0  # s that a stopped job has to write its checkpoint
THREADS = ("OMP_NUM_THREADS", "NUMBA_NUM_THREADS")


@dataclass(frozen=True)
class Queued:
    """A command: its name, what gives its arguments once it is begun, and the names of those it has to wait for."""

    name: str
    arguments: Callable[[], Sequence[str]]
    needs: tuple[str, ...] = ()


@dataclass(frozen=True)
class Pool:
    """Where jobs run.

    Attributes:
        logs: folder of a folder for each job, with its log and its state.
        at_once: how many run at the same time.
        gpus: of this machine, one job on each.
        cluster: hands jobs over to a cluster.
        tell: what is said behind the name of a job that ended, from the names of those that are not done yet.
        every: least s between two reports of what the running jobs said last; infinite for none.
    """

    logs: Path
    at_once: int
    gpus: Sequence[str] = ()
    cluster: AutoExecutor | None = None
    tell: Callable[[Sequence[str]], str] = field(default=lambda left: "")
    every: float = math.inf


@dataclass(frozen=True)
class Started:
    """A started job: its process, its log, and the device it was given."""

    queued: Queued
    process: subprocess.Popen[bytes] | ClusterProcess
    log: Path
    file: IO[bytes]
    device: str | None


def work(queue: Sequence[Queued], pool: Pool) -> dict[str, str]:
    """Run all jobs, earlier ones first; gives the failed ones by name, with the last line they wrote.

    Raises:
        KeyboardInterrupt: a signal to stop; running jobs are told to write their checkpoints first.
    """
    waiting, running = list(queue), list[Started]()
    failed: dict[str, str] = {}
    free: list[str | None] = [*pool.gpus] or [None] * pool.at_once
    unfinished = {queued.name for queued in queue}
    began = reported = time.monotonic()
    with _signals() as asked, _none_left_behind(running, asked):
        while (waiting or running) and not asked:
            for queued in list(waiting):
                if queued in waiting and free and unfinished.isdisjoint(queued.needs):
                    waiting.remove(queued)
                    try:
                        running.append(_start(queued, pool, free[-1]))
                        free.pop()
                    except UserError as error:
                        unfinished.discard(queued.name)
                        failed[queued.name] = str(error)
                        _pass_over(queued.name, str(error), waiting, unfinished, failed)
                        say(f"failed: {queued.name}: {error}")
            for item in [item for item in running if item.process.poll() is not None]:
                running.remove(item)
                free.append(item.device)
                item.file.close()
                _note_end(item)
                unfinished.discard(item.queued.name)
                if item.process.returncode:
                    failed[item.queued.name] = _reason(item)
                    _pass_over(item.queued.name, str(item.log), waiting, unfinished, failed)
                left = [each.name for each in (*waiting, *(other.queued for other in running))]
                say(f"{'failed' if item.process.returncode else 'done'}: {item.queued.name}{pool.tell(left)}")
            now = time.monotonic()
            # Fewer reports the longer it takes: a plan of days does not fill the screen.
            if now - reported > max(pool.every, 0.05 * (now - began)):
                reported = now
                for item in running:
                    say(f"   {item.queued.name}: {_last_line(item)}")
            time.sleep(POLL)
    if asked:
        raise KeyboardInterrupt("stopped; run the same command to continue")
    return failed


@contextmanager
def _signals() -> Iterator[list[int]]:
    """Keep the signals to stop, in place of an exception anywhere in between, which could leave a job behind."""
    asked: list[int] = []
    before = {
        number: signal.signal(number, lambda number, frame: asked.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _none_left_behind(running: Sequence[Started], asked: Sequence[int]) -> Iterator[None]:
    """At the end, however it comes, let the jobs that run write their checkpoints.

    Those that take too long are killed, and all of them where one is asked to stop again.
    """
    try:
        yield
    finally:
        for item in running:
            item.process.send_signal(signal.SIGINT)
        deadline = time.monotonic() + PATIENCE
        while any(item.process.poll() is None for item in running) and time.monotonic() < deadline and len(asked) < 2:
            time.sleep(POLL)
        for item in running:
            if item.process.poll() is None:
                item.process.kill()
            item.file.close()


def _pass_over(name: str, why: str, waiting: list[Queued], unfinished: set[str], failed: dict[str, str]) -> None:
    """Take those that need a failed job off the list."""
    for queued in [each for each in waiting if name in each.needs]:
        waiting.remove(queued)
        unfinished.discard(queued.name)
        failed[queued.name] = f"{name}, which it needs, failed ({why})"


def _start(queued: Queued, pool: Pool, device: str | None) -> Started:
    """Start the process of a job, or submit it; what it prints goes to a log."""
    called = [sys.executable, *queued.arguments()]
    log = pool.logs / queued.name / "log.txt"
    log.parent.mkdir(parents=True, exist_ok=True)
    write_status(log.parent, RUNNING, 0)
    log.write_bytes(b"")
    # Two that work on the same jobs at once write to the same logs.
    file = log.open("ab")
    if pool.cluster is not None:
        submitted = ClusterProcess(pool.cluster, called, log, file)
        say(f"submitted: {queued.name} (log: {log})")
        return Started(queued, submitted, log, file, device)
    # A group of its own: Ctrl-C in the terminal reaches the parent alone, which then stops its jobs one by one.
    process = subprocess.Popen(
        called,
        stdout=file,
        stderr=subprocess.STDOUT,
        env=_environment(pool, device),
        start_new_session=True,
        preexec_fn=_end_with_parent,
    )
    say(f"running: {queued.name} (log: {log})")
    return Started(queued, process, log, file, device)


def _environment(pool: Pool, device: str | None) -> dict[str, str]:
    """This process's, with the job's GPU; on a CPU each job has its share of the cores, or they hinder each other."""
    if device is not None:
        return dict(os.environ) | {"CUDA_VISIBLE_DEVICES": device}
    share = str(max(1, (os.cpu_count() or 1) // pool.at_once))
    return dict.fromkeys(THREADS, share) | dict(os.environ)


def _end_with_parent() -> None:
    """Ask Linux to stop this process when its parent is killed, so that no job goes on unseen."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _note_end(item: Started) -> None:
    """Keep how a job ended."""
    failed = bool(item.process.returncode)
    write_status(item.log.parent, FAILED if failed else DONE, 0, _reason(item) if failed else "")


def _reason(item: Started) -> str:
    """Why a job failed, as far as it said so."""
    return f"{_last_line(item)} (exit code {item.process.returncode}, {item.log})"


def _last_line(item: Started) -> str:
    """What a job said last."""
    lines = [line for line in item.log.read_text(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no output"

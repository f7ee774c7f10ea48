"""Run tasks in parallel, in local processes or as cluster jobs, each after the task that it depends on."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tespec.core.errors import UserError
from tespec.core.files import parse_yaml
from tespec.core.progress import say

if TYPE_CHECKING:
    from submitit import AutoExecutor

POLL = 0.2  # s
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PATIENCE = 120.0  # s for a stopped process to write its checkpoint
A_WEEK = 7 * 24 * 60  # min; submitit's default time limit is five minutes


class Pending(NamedTuple):
    """A task: its name, a function that returns the arguments of `python` at its start, and the task that it needs."""

    name: str
    arguments: Callable[[], Sequence[str]]
    needs: str = ""


class Running(NamedTuple):
    """A started task; `slot` is its GPU's index, "" for none."""

    task: Pending
    process: Any
    log: Path
    slot: str
    began: float


def run_all(
    tasks: Sequence[Pending], logs: Path, slots: Sequence[str], executor: AutoExecutor | None = None
) -> dict[str, str]:
    """Run all tasks, earlier ones first, and return the reasons of failures by task name.

    Tasks that need a failed one are not run, and fail too. `slots` has one entry per concurrent
    task: the index of its GPU, "" for none. The executor submits cluster jobs; without one, tasks
    are local processes. On SIGINT or SIGTERM, it raises `KeyboardInterrupt` once the running tasks
    have written their checkpoints.
    """
    waiting, running, free = list(tasks), list[Running](), list(slots)
    failed: dict[str, str] = {}
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or running:
            unfinished = {task.name for task in (*waiting, *(each.task for each in running))}
            for task in [each for each in waiting if each.needs not in unfinished]:
                if task.needs in failed:
                    waiting.remove(task)
                    failed[task.name] = f"needs {task.needs}, which failed"
                elif free:
                    waiting.remove(task)
                    try:
                        running.append(
                            _start(task, logs / f"{task.name}.txt", free[0], len(slots), executor)
                        )
                        del free[0]
                    except UserError as error:
                        failed[task.name] = str(error)
            for each in [each for each in running if each.process.poll() is not None]:
                running.remove(each)
                free.append(each.slot)
                ended = f"done: {each.task.name}, {(time.monotonic() - each.began) / 60:.1f} min"
                if each.process.returncode:
                    last = (
                        each.log.read_text(errors="replace").strip() or "no output"
                    ).splitlines()[-1]
                    failed[each.task.name] = f"{last.strip()} ({each.log})"
                    ended = f"failed: {each.task.name}: {failed[each.task.name]}"
                say(f"[{len(tasks) - len(waiting) - len(running)}/{len(tasks)}] {ended}")
            time.sleep(POLL)
    except KeyboardInterrupt:
        _stop(running)
        raise KeyboardInterrupt("stopped; run the same command to continue") from None
    finally:
        signal.signal(signal.SIGTERM, before)
    return failed


def _stop(running: Sequence[Running]) -> None:
    """Ask tasks to save and stop; kill those that take longer than `PATIENCE`, or all at a second signal."""
    for each in running:
        each.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    try:
        while any(each.process.poll() is None for each in running) and time.monotonic() < deadline:
            time.sleep(POLL)
    finally:
        for each in running:
            if each.process.poll() is None:
                each.process.kill()


def _start(
    task: Pending, log: Path, slot: str, at_once: int, executor: AutoExecutor | None
) -> Running:
    # Unbuffered, so that stdout and stderr keep their order and an error is the last line of the
    # log.
    called = [sys.executable, "-u", *task.arguments()]
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(b"")
    say(f"started: {task.name} (log: {log})")
    if executor is not None:
        return Running(task, ClusterProcess(executor, called, log), log, slot, time.monotonic())
    # Divide the CPU cores among the tasks, which would slow each other down otherwise.
    share = str(max(1, (os.cpu_count() or 1) // at_once))
    environment = {"OMP_NUM_THREADS": share, "NUMBA_NUM_THREADS": share, **os.environ}
    environment |= {"CUDA_VISIBLE_DEVICES": slot} if slot else {}
    with log.open("ab") as file:
        # In a new session, Ctrl-C reaches only the parent, which then stops its tasks.
        process = subprocess.Popen(
            called, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            preexec_fn=_end_with_parent,
        )  # fmt: skip
    return Running(task, process, log, slot, time.monotonic())


def _end_with_parent() -> None:
    """Make Linux send SIGTERM to this process when its parent dies, for example because a terminal is closed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


class Command:
    """Command of a cluster job, with its output in a log; a requeued job runs it again."""

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.arguments, self.log = arguments, log
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run the command and return its exit code."""
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(self.arguments, stdout=file, stderr=subprocess.STDOUT)
            return self._process.wait()

    def checkpoint(self, *_: object) -> Any:
        """Stop the command, which saves its state, and requeue the job; called by submitit on preemption or timeout."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.terminate()
            self._process.wait(PATIENCE)
        return DelayedSubmission(Command(self.arguments, self.log))


class ClusterProcess:
    """A submitted job with the subset of `subprocess.Popen`'s interface that `run_all` uses."""

    def __init__(self, executor: AutoExecutor, arguments: list[str], log: Path) -> None:
        self._job = executor.submit(Command(arguments, log.absolute()))
        self._log = log
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the command's exit code, 1 if the job ended without one, None if it is running or queued."""
        if self.returncode is None and self._job.done():
            failure = self._job.exception()
            self.returncode = self._job.result() if failure is None else 1
            if failure is not None:
                with self._log.open("a") as file:
                    file.write(f"job {self._job.job_id}: {failure}\n")
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Cancel the job, for any signal."""
        self._job.cancel()
        self.returncode = 1


def make_executor(cluster: str, given: Sequence[str], folder: Path) -> AutoExecutor:
    """Create submitit's executor for "slurm" or "local" jobs, with `KEY=VALUE` parameters of submitit or sbatch."""
    try:
        from submitit import AutoExecutor

        executor = AutoExecutor(folder=folder.absolute(), cluster=cluster)
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"--cluster {cluster}", str(error), "install submitit on a machine with sbatch"
        ) from error
    parameters: dict[str, Any] = {"timeout_min": A_WEEK}
    try:
        for each in given:
            key, equals, text = each.partition("=")
            if not equals or not key:
                raise ValueError(f"{each} is not KEY=VALUE")
            parameters[key if key in AutoExecutor._typed_parameters() else f"{cluster}_{key}"] = (
                parse_yaml(text)
            )
        executor.update_parameters(name="tespec", **parameters)
    except (NameError, TypeError, ValueError) as error:
        raise UserError(
            f"--slurm {' '.join(given)}", str(error), "write KEY=VALUE, e.g. partition=gpu"
        ) from error
    return executor

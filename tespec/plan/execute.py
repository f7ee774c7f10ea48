"""Run the jobs of a plan in parallel, in local processes or on a cluster, after their upstream."""

from __future__ import annotations

import ctypes
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tespec.comparison.records import Key
from tespec.core.errors import UserError
from tespec.core.files import parse_yaml
from tespec.core.progress import log
from tespec.plan.jobs import Job

if TYPE_CHECKING:
    from submitit import AutoExecutor

POLL = 0.2  # s
PR_SET_PDEATHSIG = 1  # linux/prctl.h
PATIENCE = 120.0  # s for a stopped process to write its checkpoint
# Time limit in min unless the user gives one. Submitit requeues a job that ends before its limit as
# often as needed, at its limit three times.
A_WEEK = 7 * 24 * 60


class Running(NamedTuple):
    """A started job."""

    job: Job
    process: Any
    log_file: Path
    slot: str  # index of its GPU, "" for none
    started: float  # s, of `time.monotonic`


def run_all(
    jobs: Sequence[Job],
    arguments: Callable[[Job], Sequence[str]],
    logs: Path,
    slots: Sequence[str],
    executor: AutoExecutor | None = None,
) -> dict[str, str]:
    """Run all jobs, earlier ones first.

    Args:
        jobs: each runs after its upstream if that is among them, and fails if that fails.
        arguments: returns the arguments of `python` for a job that starts.
        logs: folder of the output, `<name of the job>.txt`.
        slots: one entry per concurrent job: the index of its GPU, "" for none.
        executor: submits cluster jobs; without one, jobs are local processes.

    Returns:
        Reasons of failures by the job's name.

    Raises:
        KeyboardInterrupt: on SIGINT or SIGTERM, once the running jobs have written their
            checkpoints.
    """
    waiting = list(jobs)
    running: list[Running] = []
    free = list(slots)
    failed: dict[Key, str] = {}
    # The CPU cores are divided among the jobs, which would slow each other down otherwise.
    threads = max(1, (os.cpu_count() or 1) // len(slots))
    previous = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        while waiting or running:
            # by key, since a plan may spell the settings of an upstream in several ways
            unfinished = {job.key for job in (*waiting, *(run.job for run in running))}
            for job in list(waiting):
                start = job.upstream
                if start and start.key in failed:
                    waiting.remove(job)
                    failed[job.key] = f"needs {start.name}, which failed"
                elif free and not (start and start.key in unfinished):
                    waiting.remove(job)
                    try:
                        log_file = logs / f"{job.name}.txt"
                        command = arguments(job)
                        running.append(_start(job, command, log_file, free[0], threads, executor))
                        del free[0]
                    except UserError as error:
                        failed[job.key] = str(error)
            for run in [run for run in running if run.process.poll() is not None]:
                running.remove(run)
                free.append(run.slot)
                message = f"done: {run.job.name}, {(time.monotonic() - run.started) / 60:.1f} min"
                if run.process.returncode:
                    output = run.log_file.read_text(errors="replace").strip() or "no output"
                    reason = f"{output.splitlines()[-1].strip()} ({run.log_file})"
                    failed[run.job.key] = reason
                    message = f"failed: {run.job.name}: {reason}"
                log(f"[{len(jobs) - len(waiting) - len(running)}/{len(jobs)}] {message}")
            time.sleep(POLL)
    except KeyboardInterrupt:
        _stop(running)
        raise KeyboardInterrupt("stopped; run the same command to continue") from None
    finally:
        signal.signal(signal.SIGTERM, previous)
    return {job.name: failed[job.key] for job in jobs if job.key in failed}


def _stop(running: Sequence[Running]) -> None:
    """Ask jobs to save and stop; kill them after `PATIENCE`, or at a second signal."""
    for run in running:
        run.process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + PATIENCE
    try:
        while any(run.process.poll() is None for run in running) and time.monotonic() < deadline:
            time.sleep(POLL)
    finally:
        for run in running:
            run.process.send_signal(signal.SIGKILL)  # does nothing to a process that has ended


def _start(
    job: Job,
    arguments: Sequence[str],
    log_file: Path,
    slot: str,
    threads: int,
    executor: AutoExecutor | None,
) -> Running:
    # Without a buffer, stdout and stderr keep their order, and an error is the last line of the
    # log.
    command = [sys.executable, "-u", *arguments]
    log_file.parent.mkdir(parents=True, exist_ok=True)
    log_file.write_bytes(b"")
    log(f"started: {job.name} (log: {log_file})")
    if executor is not None:
        return Running(
            job, ClusterProcess(executor, command, log_file), log_file, slot, time.monotonic()
        )
    environment = {"OMP_NUM_THREADS": str(threads), "NUMBA_NUM_THREADS": str(threads), **os.environ}
    environment |= {"CUDA_VISIBLE_DEVICES": slot} if slot else {}
    with log_file.open("ab") as file:
        # In a new session, Ctrl-C reaches only the parent, which then stops its jobs.
        process = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, env=environment, start_new_session=True,
            preexec_fn=stop_with_parent,
        )  # fmt: skip
    return Running(job, process, log_file, slot, time.monotonic())


def stop_with_parent() -> None:
    """Prepare a started process: SIGINT stops it, and on Linux the death of its parent does."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # shells let programs in the background ignore it
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


@dataclass
class Command:
    """Command of a cluster job, with its output in a log; a requeued job runs it again."""

    arguments: list[str]
    log_file: Path
    process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run the command and return its exit code."""
        with self.log_file.open("ab") as file:
            self.process = subprocess.Popen(self.arguments, stdout=file, stderr=subprocess.STDOUT)
            return self.process.wait()

    def checkpoint(self) -> Any:
        """Stop the command, which saves its state, and requeue the job.

        Submitit calls it on preemption or timeout.
        """
        from submitit.helpers import DelayedSubmission

        if self.process is not None:
            self.process.terminate()
            self.process.wait(PATIENCE)
        return DelayedSubmission(Command(self.arguments, self.log_file))


class ClusterProcess:
    """A submitted job with the subset of `subprocess.Popen`'s interface that `run_all` uses."""

    returncode: int | None = None

    def __init__(self, executor: AutoExecutor, arguments: list[str], log_file: Path) -> None:
        try:
            self._job = executor.submit(Command(arguments, log_file.absolute()))
        except RuntimeError as error:
            raise UserError("sbatch", str(error), "correct --slurm") from error
        self._log = log_file

    def poll(self) -> int | None:
        """Return the command's exit code, 1 if the job ended without one, None before its end."""
        if self.returncode is None and self._job.done():
            if failure := self._job.exception():
                self.returncode = 1
                with self._log.open("a") as file:
                    file.write(f"job {self._job.job_id}: {failure}\n")
            else:
                self.returncode = self._job.result()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Cancel the job, for any signal."""
        self._job.cancel()
        self.returncode = 1


def make_executor(cluster: str, given: Sequence[str], folder: Path) -> AutoExecutor:
    """Create submitit's executor of cluster jobs.

    Args:
        cluster: "slurm" or "local".
        given: parameters of submitit or sbatch, as `KEY=VALUE`.
        folder: of submitit's files.

    Raises:
        UserError: submitit or the cluster is missing, or a parameter is malformed.
    """
    try:
        from submitit import AutoExecutor

        executor = AutoExecutor(folder=folder.absolute(), cluster=cluster)
    except (ImportError, RuntimeError) as error:
        raise UserError(
            f"--cluster {cluster}", str(error), "install submitit on a machine with sbatch"
        ) from error
    parameters: dict[str, Any] = {"timeout_min": A_WEEK}
    try:
        for parameter in given:
            key, equals, text = parameter.partition("=")
            if not equals or not key:
                raise ValueError(f"{parameter} is not KEY=VALUE")
            if key == "time":
                parameters["timeout_min"] = _minutes(text)  # submitit has to know the limit
                continue
            value = parse_yaml(text)
            # account=0123 is not the account 123
            is_text = type(value) in (int, float) and str(value) != text
            prefix = "" if key in AutoExecutor._typed_parameters() else f"{cluster}_"
            parameters[prefix + key] = text if is_text else value
        executor.update_parameters(name="tespec", **parameters)
    except (NameError, TypeError, ValueError, AssertionError) as error:
        raise UserError(
            f"--slurm {' '.join(given)}", str(error), "write KEY=VALUE, e.g. partition=gpu"
        ) from error
    return executor


def _minutes(text: str) -> int:
    """Convert a time limit in a format of sbatch, `[D-]H[:M[:S]]` or `M[:S]`, to minutes."""
    if not re.fullmatch(r"(\d+-)?\d+(:\d+){0,2}", text):
        raise ValueError(f"time={text} is no time limit such as 90, 12:00:00 or 1-12")
    days, _, clock = text.rpartition("-")
    parts = [int(part) for part in clock.split(":")]
    if not days and len(parts) < 3:
        parts.insert(0, 0)  # hours
    hours, minutes, seconds = [*parts, 0, 0][:3]
    return 1440 * int(days or 0) + 60 * hours + minutes + (seconds + 59) // 60


def sbatch_script(executor: AutoExecutor) -> str:
    """Return the script by which a Slurm executor of `make_executor` submits each run."""
    slurm: Any = executor._executor
    script: str = slurm._make_submission_file_text(slurm._submitit_command_str, "")
    return script

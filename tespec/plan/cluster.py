"""Jobs on a cluster, through submitit; each looks to the scheduler like a process of this machine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tespec.core.errors import UserError
from tespec.core.files import UNREADABLE, parse_yaml

if TYPE_CHECKING:
    from submitit import AutoExecutor

# submitit gives up after five minutes otherwise.
A_WEEK = 7 * 24 * 60
SAVING = 300.0  # s that a job which is about to be requeued has to write its checkpoint
FAILED = 1


class Command:
    """What a job runs: a command whose output goes to a log; when the job is requeued, it is run again.

    A plan's commands carry `--resume`, so that a requeued one goes on where it stopped.
    """

    def __init__(self, arguments: list[str], log: Path) -> None:
        self.arguments, self.log = arguments, log
        self._process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> int:
        """Run it and return its exit code."""
        with self.log.open("ab") as file:
            self._process = subprocess.Popen(self.arguments, stdout=file, stderr=subprocess.STDOUT)
            return self._process.wait()

    def checkpoint(self, *_: object) -> Any:
        """Let the command save, and ask for the same job again; submitit calls it before a job is taken away."""
        from submitit.helpers import DelayedSubmission

        if self._process is not None:
            self._process.terminate()
            self._process.wait(SAVING)
        return DelayedSubmission(Command(self.arguments, self.log))


class ClusterProcess:
    """A submitted job with the methods of `subprocess.Popen` that the scheduler uses."""

    def __init__(self, executor: AutoExecutor, arguments: list[str], log: Path, file: IO[bytes]) -> None:
        self._job = executor.submit(Command(arguments, log.absolute()))
        self._file = file
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Exit code of the command, 1 where the job ended without one, None while it runs or waits."""
        if self.returncode is None and self._job.done():
            failure = self._job.exception()
            self.returncode = self._job.result() if failure is None else FAILED
            if failure is not None:
                last = str(failure).strip().splitlines() or ["no reason given"]
                self._file.write(f"job {self._job.job_id}: {last[-1]}\n".encode())
                self._file.flush()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Cancel the job, whatever the signal; what becomes of it is left to the cluster."""
        self._job.cancel()
        self.returncode = FAILED

    def kill(self) -> None:
        """Cancel it again."""
        self._job.cancel()


def parameters(cluster: str, given: list[str]) -> dict[str, Any]:
    """Parameters of jobs from KEY=VALUE pairs: submitit's common ones, or those of sbatch.

    Raises:
        UserError: no KEY=VALUE, or a value that is no YAML.
    """
    from submitit import AutoExecutor

    common = AutoExecutor._typed_parameters()
    found: dict[str, Any] = {"timeout_min": A_WEEK}
    for each in given:
        key, equals, text = each.partition("=")
        if not equals or not key:
            raise UserError(f"--slurm {each}", "is not KEY=VALUE", "write --slurm partition=gpu")
        try:
            found[key if key in common else f"{cluster}_{key}"] = parse_yaml(text)
        except UNREADABLE as error:
            raise UserError(f"--slurm {each}", "the value is not YAML", "quote it") from error
    return found


def executor_of(cluster: str, given: list[str], folder: Path) -> AutoExecutor:
    """What submits jobs; their own files go to `folder`.

    Raises:
        UserError: submitit or the cluster is not there, or it has no such parameter.
    """
    require_submitit(cluster)
    from submitit import AutoExecutor

    try:
        executor = AutoExecutor(folder=folder.absolute(), cluster=cluster)
        executor.update_parameters(name="tespec", **parameters(cluster, given))
    except RuntimeError as error:
        raise UserError(f"--cluster {cluster}", _first_line(error), "start it where sbatch is") from error
    except (NameError, TypeError, ValueError) as error:
        raise UserError(f"--slurm {' '.join(given)}", _first_line(error), "see sbatch --help") from error
    return executor


def require_submitit(cluster: str) -> None:
    """Refuse a cluster without submitit.

    Raises:
        UserError: it is not installed.
    """
    try:
        import submitit  # noqa: F401
    except ImportError as error:
        install = f"{Path(sys.executable).name} -m pip install submitit"
        raise UserError(f"--cluster {cluster}", "the package submitit is not installed", install) from error


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

"""Jobs as processes and on a cluster wait for others, and none keeps running after a stop."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import NamedTuple
from unittest.mock import Mock

import pytest

from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.plan.execute import Command, make_executor, run_all, sbatch_script


class Task(NamedTuple):
    """The facts of a job that are used, and the Python code that it runs in a folder."""

    name: str
    code: str
    upstream: "Task | None" = None

    @property
    def key(self):
        return self.name.split()[0]


def run_in(folder, tasks, slots, executor=None):
    """Run the code of tasks with their folder as `folder`."""

    def arguments(task):
        imports = "from pathlib import Path; import os, time"
        return ["-c", f"{imports}; folder = Path({str(folder)!r}); {task.code}"]

    return run_all(tasks, arguments, folder / "logs", slots, executor)


def test_jobs_wait_for_the_one_they_start_from(tmp_path, capsys):
    first = Task("first", "time.sleep(1); (folder / 'a').touch()")
    # equal keys, although a plan spells the settings in two ways
    upstream = first._replace(name="first again")
    second = Task("second", "assert (folder / 'a').exists(); (folder / 'b').touch()", upstream)
    assert run_in(tmp_path, [second, first], ["", ""]) == {}
    assert (tmp_path / "b").exists()
    lines = [line.split(",")[0].split(" (")[0] for line in capsys.readouterr().err.splitlines()]
    assert lines == ["started: first", "[1/2] done: first", "started: second", "[2/2] done: second"]


@pytest.mark.parametrize("cluster", ["", "local"])
def test_a_failed_job_takes_only_those_with_it_that_need_it(tmp_path, cluster):
    executor = None
    if cluster:
        pytest.importorskip("submitit")
        executor = make_executor(cluster, ["timeout_min=5"], tmp_path / "logs" / "submitted")

    failing = Task("failing", "print('at it'); raise SystemExit('error: the disk is full')")
    other = Task("other", "(folder / 'b').touch()")
    tasks = [
        failing,
        Task("waiting", "(folder / 'never').touch()", failing),
        other,
        Task("after", "(folder / 'b').rename(folder / 'c')", other),
    ]
    assert run_in(tmp_path, tasks, [""], executor) == {
        "failing": f"error: the disk is full ({tmp_path / 'logs' / 'failing.txt'})",
        "waiting": "needs failing, which failed",
    }
    assert {path.name for path in tmp_path.iterdir()} == {"c", "logs"}


def test_each_gpu_has_one_job_at_a_time(tmp_path):
    code = "(folder / os.environ['CUDA_VISIBLE_DEVICES']).touch(exist_ok=False); time.sleep(1)"
    assert run_in(tmp_path, [Task(name, code) for name in "ab"], ["2", "5"]) == {}
    assert {"2", "5"} <= {path.name for path in tmp_path.iterdir()}


PARENT = """
import signal, sys
from pathlib import Path
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # nohup has it ignored
ignored = sys.argv[2] == "ignored"  # as in the background of a script
signal.signal(signal.SIGINT, signal.SIG_IGN if ignored else signal.default_int_handler)
from types import SimpleNamespace
from tespec.plan.execute import run_all
code = '''
import os, signal, sys, time
from pathlib import Path
folder = Path(sys.argv[1])
if (folder / "saved").exists():
    sys.exit(0)
try:
    (folder / "pid").write_text(str(os.getpid()))
    time.sleep(300)
except KeyboardInterrupt:
    (folder / "saved").touch()
    sys.exit(130)
'''
jobs = [SimpleNamespace(name="long", key="long", upstream=None)]
logs = Path(sys.argv[1]) / "logs"
sys.exit(bool(run_all(jobs, lambda job: ["-c", code, sys.argv[1]], logs, [""])))
"""


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state[0] != "Z"  # a zombie still has an entry but does not run


@pytest.mark.parametrize(
    ("number", "sigint"),
    [
        (signal.SIGINT, "handled"),
        (signal.SIGTERM, "handled"),
        (signal.SIGTERM, "ignored"),
        (signal.SIGHUP, "handled"),
        (signal.SIGKILL, "handled"),
    ],
)
def test_a_stopped_plan_leaves_no_job_behind_and_goes_on(tmp_path, number, sigint):
    called = [sys.executable, "-c", PARENT, str(tmp_path), sigint]
    with subprocess.Popen(called, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as parent:
        pid = tmp_path / "pid"
        while not (pid.is_file() and pid.read_text()):
            time.sleep(0.05)
        parent.send_signal(number)
        _, printed = parent.communicate(timeout=60)
    deadline = time.monotonic() + 30
    while is_alive(pid.read_text()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    if number in (signal.SIGINT, signal.SIGTERM):
        assert "stopped; run the same command to continue" in printed
        assert (tmp_path / "saved").exists()
        assert subprocess.run(called, cwd=REPOSITORY, capture_output=True).returncode == 0


JOB = """
import signal, sys, time, pathlib
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path(sys.argv[1]).touch(), sys.exit(75)))
print("ready", flush=True)
time.sleep(60)
"""


def test_a_requeued_job_saves_first_and_is_asked_for_again(tmp_path):
    pytest.importorskip("submitit")
    saved, log, codes = tmp_path / "saved", tmp_path / "log", []
    job = Command([sys.executable, "-c", JOB, str(saved)], log)
    running = threading.Thread(target=lambda: codes.append(job()))
    running.start()
    while not log.exists() or b"ready" not in log.read_bytes():
        time.sleep(0.02)
    again = job.checkpoint()
    running.join(30)
    assert (saved.exists(), codes) == (True, [75])
    assert again.function.arguments == job.arguments


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            "partition",
            "--slurm partition: partition is not KEY=VALUE; write KEY=VALUE, e.g. partition=gpu",
        ),
        ("=gpu", "--slurm =gpu: =gpu is not KEY=VALUE"),
        ("partition=[", "--slurm partition=[: line 1: "),
        ("gpus_per_node=two", 'Parameter "gpus_per_node" expected type'),
        ("gpus_per_nod=1", "--slurm gpus_per_nod=1"),
        ("time=12h", "--slurm time=12h: time=12h is no time limit such as 90, 12:00:00 or 1-12;"),
    ],
)
def test_wrong_parameters_of_jobs_are_refused(tmp_path, given, message):
    pytest.importorskip("submitit")
    with pytest.raises(UserError) as error:
        make_executor("local", [given], tmp_path)
    assert message in str(error.value)


def test_a_script_for_slurm_has_the_parameters_as_they_are_written(tmp_path, monkeypatch):
    pytest.importorskip("submitit")
    (tmp_path / "srun").touch(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    given = ["time=1-12:00:30", "account=0123", "exclusive=true", "cpus_per_task=4"]
    lines = sbatch_script(make_executor("slurm", given, tmp_path / "jobs")).splitlines()
    expected = ["time=2161", "account=0123", "exclusive", "cpus-per-task=4"]
    assert {f"#SBATCH --{words}" for words in expected} <= set(lines)
    assert not (tmp_path / "jobs").exists()


@pytest.mark.parametrize(
    ("given", "minutes"),
    [
        *(("90", 90), ("90:30", 91), ("12:00:00", 720), ("1:30:01", 91)),
        *(("1-12", 2160), ("1-12:30", 2190), ("1-12:00:30", 2161)),
    ],
)
def test_the_limit_after_which_a_job_is_not_requeued_is_that_of_sbatch(tmp_path, given, minutes):
    pytest.importorskip("submitit")
    executor = make_executor("local", [f"time={given}"], tmp_path)
    assert executor._executor.parameters["timeout_min"] == minutes


def test_a_job_that_sbatch_refuses_fails_alone(tmp_path):
    executor = Mock()
    executor.submit.side_effect = RuntimeError("sbatch: error:\nInvalid --time")
    refused = Task("refused", "")
    assert run_in(tmp_path, [refused, Task("after", "", refused)], [""], executor) == {
        "refused": "sbatch: sbatch: error: Invalid --time; correct --slurm",
        "after": "needs refused, which failed",
    }


def test_a_cluster_needs_submitit(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"--cluster slurm: .*submitit.*; install submitit"):
        make_executor("slurm", [], tmp_path)

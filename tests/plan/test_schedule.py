"""Jobs in processes and on a cluster: each after those it needs, and none left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time

import pytest

from tespec.core.errors import UserError
from tespec.core.paths import REPOSITORY
from tespec.plan.cluster import Command, executor_of, parameters, require_submitit
from tespec.plan.schedule import Pool, Queued, work
from tespec.training.status import read_status


def queued(folder, name, code, *needs):
    arguments = ["-c", f"from pathlib import Path; folder = Path({str(folder)!r}); {code}"]
    return Queued(name, lambda: arguments, needs)


def test_jobs_wait_for_what_they_need_and_are_heard(tmp_path, capsys):
    first = queued(tmp_path, "first", "import time; print('at it', flush=True); time.sleep(1); (folder / 'a').touch()")
    second = queued(tmp_path, "second", "assert (folder / 'a').exists(); (folder / 'b').touch()", "first")
    assert work([second, first], Pool(tmp_path / "logs", at_once=2, every=0.1)) == {}
    assert (tmp_path / "b").exists()
    said = capsys.readouterr().err
    assert said.index("done: first") < said.index("running: second")
    assert "   first: at it" in said


def test_a_failing_job_takes_those_with_it_that_need_it_and_no_others(tmp_path):
    failing = queued(tmp_path, "failing", "raise SystemExit('error: the disk is full')")
    waiting = queued(tmp_path, "waiting", "(folder / 'never').touch()", "failing")
    other = queued(tmp_path, "other", "(folder / 'b').touch()")
    failed = work([failing, waiting, other], Pool(tmp_path / "logs", at_once=1))
    log = tmp_path / "logs" / "failing" / "log.txt"
    assert failed == {
        "failing": f"error: the disk is full (exit code 1, {log})",
        "waiting": f"failing, which it needs, failed ({log})",
    }
    assert (tmp_path / "b").exists()
    assert not (tmp_path / "never").exists()
    assert read_status(log.parent)["state"] == "failed"


def test_a_job_that_cannot_be_started_takes_no_others_with_it(tmp_path):
    def refused():
        raise UserError("pretraining-tespec-s0", "left no weights", "see its log")

    cannot, other = Queued("cannot", refused), queued(tmp_path, "other", "(folder / 'b').touch()")
    waiting = queued(tmp_path, "waiting", "(folder / 'never').touch()", "cannot")
    running = queued(tmp_path, "running", "import time; time.sleep(0.5); (folder / 'a').touch()")
    failed = work([running, cannot, waiting, other], Pool(tmp_path / "logs", at_once=2))
    said = "pretraining-tespec-s0: left no weights; see its log"
    assert failed == {"cannot": said, "waiting": f"cannot, which it needs, failed ({said})"}
    assert {"a", "b", "logs"} == {path.name for path in tmp_path.iterdir()}


def test_each_gpu_has_one_job_at_a_time(tmp_path):
    code = "import os; (folder / os.environ['CUDA_VISIBLE_DEVICES']).touch(exist_ok=False); import time; time.sleep(1)"
    jobs = [queued(tmp_path, name, code) for name in ("a", "b")]
    assert work(jobs, Pool(tmp_path / "logs", at_once=2, gpus=["2", "5"])) == {}
    assert {"2", "5"} <= {path.name for path in tmp_path.iterdir()}


def test_jobs_share_the_cores_unless_the_environment_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setenv("NUMBA_NUM_THREADS", "3")
    code = "import os; (folder / 'n').write_text(os.environ['OMP_NUM_THREADS'] + ' ' + os.environ['NUMBA_NUM_THREADS'])"
    assert work([queued(tmp_path, "a", code)], Pool(tmp_path / "logs", at_once=1)) == {}
    assert (tmp_path / "n").read_text() == f"{os.cpu_count()} 3"


SCHEDULER = """
import sys
from pathlib import Path
from tespec.plan.schedule import Pool, Queued, work
code = '''
import os, signal, sys, time
from pathlib import Path
def save(*_):
    Path(sys.argv[1], "saved").touch()
    sys.exit(130)
signal.signal(signal.SIGINT, save)
Path(sys.argv[1], "pid").write_text(str(os.getpid()))
time.sleep(300)
'''
work([Queued("long", lambda: ["-c", code, sys.argv[1]])], Pool(Path(sys.argv[1]) / "logs", at_once=1))
"""


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_scheduler_leaves_no_job_behind(tmp_path, number):
    called = [sys.executable, "-c", SCHEDULER, str(tmp_path)]
    with subprocess.Popen(called, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as scheduler:
        pid = tmp_path / "pid"
        while not (pid.is_file() and pid.read_text()):
            time.sleep(0.05)
        scheduler.send_signal(number)
        scheduler.wait(60)
        said = scheduler.stderr.read()
    job = int(pid.read_text())
    deadline = time.monotonic() + 30
    while is_alive(job) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_alive(job)
    if number != signal.SIGKILL:
        assert (tmp_path / "saved").exists()
        assert "stopped; run the same command to continue" in said


def test_a_cluster_s_jobs_end_as_processes_do(tmp_path):
    pytest.importorskip("submitit")
    cluster = executor_of("local", [], tmp_path / "jobs")
    fine = queued(tmp_path, "fine", "(folder / 'a').touch()")
    failing = queued(tmp_path, "failing", "raise SystemExit('error: the disk is full')")
    failed = work([fine, failing], Pool(tmp_path / "logs", at_once=2, cluster=cluster))
    assert (tmp_path / "a").exists()
    assert failed == {"failing": f"error: the disk is full (exit code 1, {tmp_path / 'logs' / 'failing' / 'log.txt'})"}


def test_a_job_that_is_taken_away_saves_and_is_asked_for_again(tmp_path):
    pytest.importorskip("submitit")
    saved, log = tmp_path / "saved", tmp_path / "log"
    script = (
        "import signal, sys, time, pathlib\n"
        f"signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path({str(saved)!r}).touch(), sys.exit(75)))\n"
        "print('ready', flush=True)\n"
        "time.sleep(60)"
    )
    command = Command([sys.executable, "-c", script], log)
    codes = []
    running = threading.Thread(target=lambda: codes.append(command()))
    running.start()
    while not log.exists() or b"ready" not in log.read_bytes():
        time.sleep(0.02)
    again = command.checkpoint()
    running.join(30)
    assert saved.exists()
    assert codes == [75]
    assert again.function.arguments == command.arguments


def test_a_cluster_without_submitit_is_refused(monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(UserError, match=r"--cluster slurm: the package submitit is not installed; .* -m pip install"):
        require_submitit("slurm")


@pytest.mark.parametrize(
    ("given", "what"),
    [
        ("partition", "is not KEY=VALUE"),
        ("=gpu", "is not KEY=VALUE"),
        ("partition=[", "the value is not YAML; quote it"),
    ],
)
def test_job_parameters_are_pairs(given, what):
    pytest.importorskip("submitit")
    with pytest.raises(UserError, match=what):
        parameters("slurm", [given])


def test_job_parameters_are_submitits_or_sbatchs():
    pytest.importorskip("submitit")
    found_parameters = parameters("slurm", ["partition=gpu", "gpus_per_node=1", "timeout_min=90"])
    assert found_parameters == {"timeout_min": 90, "slurm_partition": "gpu", "gpus_per_node": 1}

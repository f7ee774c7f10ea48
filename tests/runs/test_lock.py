import errno
import os
import subprocess
import sys
import threading

import pytest

from tespec.runs.run import locked

HOLD = """
import os, sys, time
from pathlib import Path
from tespec.runs.run import locked
with locked(Path(sys.argv[1]), "run"):
    if "fork" in sys.argv and os.fork():
        time.sleep(60)
    print("held", flush=True)
    os.close(1)
    time.sleep(20)
"""


def holding(folder, *how):
    holder = subprocess.Popen([sys.executable, "-c", HOLD, str(folder), *how], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_process_waits_until_the_first_ends_even_by_a_kill(tmp_path, capsys):
    with holding(tmp_path) as holder:
        with locked(tmp_path, "another run") as nobody, locked(tmp_path, "another run") as held_already:
            assert nobody == held_already == ""
        killing = threading.Timer(1.5, holder.kill)
        killing.start()
        named = f"process {holder.pid} on {os.uname().nodename}"
        with locked(tmp_path, "run") as who:
            assert who == named
        killing.join()
    assert capsys.readouterr().err == f"run: waiting for {named}, which is computing it\n"


def test_children_of_a_killed_holder_do_not_keep_it(tmp_path):
    with holding(tmp_path, "fork") as holder:
        holder.kill()
        holder.wait()
        with locked(tmp_path, "run") as nobody:
            assert nobody == ""


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOTSUP])
def test_a_file_system_without_locks_goes_on_with_one_line(tmp_path, monkeypatch, capsys, code):
    def refuse(*arguments):
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("fcntl.flock", refuse)
    with locked(tmp_path, "run") as nobody:
        assert nobody == ""
    said = f"{tmp_path / '.locks'}: this file system has no locks; start each run only once at a time\n"
    assert capsys.readouterr().err == said

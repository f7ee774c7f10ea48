import errno
import os
import subprocess
import sys
import threading

import pytest

from tespec.runs.lock import locked, locked_if_free

HOLD = """
import sys, time
from pathlib import Path
from tespec.runs.lock import locked
with locked(Path(sys.argv[1]), "run"):
    print("held", flush=True)
    time.sleep(60)
"""


def holding(folder, script=HOLD):
    holder = subprocess.Popen([sys.executable, "-c", script, str(folder)], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def test_a_second_process_waits_until_the_first_ends_even_by_a_kill(tmp_path, capsys):
    with holding(tmp_path) as holder:
        with locked_if_free(tmp_path, "run") as free:
            assert not free
        with locked(tmp_path, "another run") as nobody:
            assert nobody == ""
        killing = threading.Timer(1.5, holder.kill)
        killing.start()
        named = f"process {holder.pid} on {os.uname().nodename}"
        with locked(tmp_path, "run") as who:
            assert who == named
        killing.join()
    assert capsys.readouterr().err == f"run: waiting for {named}, which is computing it\n"


def test_its_holder_may_take_it_again(tmp_path):
    with locked(tmp_path, "run"), locked_if_free(tmp_path, "run") as held:
        assert held


def test_children_of_a_killed_holder_do_not_keep_it(tmp_path):
    script = "import os\n" + HOLD.replace(
        'print("held", flush=True)', 'os.fork() or (print("held", flush=True), os.close(1), time.sleep(20))'
    )
    with holding(tmp_path, script) as holder:
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
